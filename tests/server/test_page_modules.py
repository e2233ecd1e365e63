"""The page's modules that need no server, in a real browser: trees of messages, stored records, file formats, settings, text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.chromium import EXECUTABLE, Browser, Page
from tests.server.conftest import RunningServer

pytestmark = [pytest.mark.browser, pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed")]


@pytest.fixture(scope="module")
def page(served: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    page = browser.page()
    page.open(served.url)
    yield page
    assert page.problems == []
    browser.close()


_TREE = """
const message = (id, parent, role, createdMs) => ({ id, parent, role, content: id, createdMs });
const tree = new Tree();
tree.add(message("q", "", "user", 1));
tree.add(message("a1", "q", "assistant", 2));
tree.add(message("a2", "q", "assistant", 3));
tree.add(message("q2", "a2", "user", 4));
tree.add(message("other", "", "user", 5));
const shown = () => tree.path().map(({ id }) => id).join(" ");
"""


def test_a_tree_shows_one_path_and_keeps_the_others(page: Page) -> None:
    steps = page.module(
        {"Tree": "tree.js"},
        _TREE
        + """
        const steps = [shown()];
        tree.choose(tree.get("a1")); steps.push(shown());
        tree.choose(tree.get("q2")); steps.push(shown());
        tree.choose(tree.get("a1")); tree.choose(tree.get("other")); tree.choose(tree.get("q")); steps.push(shown());
        const again = new Tree(tree.all(), tree.chosen); steps.push(again.path().map(({ id }) => id).join(" "));
        steps.push(tree.alternatives(tree.get("a1")).map(({ id }) => id).join(" "));
        steps.push(tree.remove(tree.get("a2")).map(({ id }) => id).join(" ")); steps.push(shown(), String(tree.size));
        return steps;
        """,
    )
    assert steps == ["other", "q a1", "q a2 q2", "q a1", "q a1", "a1 a2", "a2 q2", "q a1", "3"]


def test_what_another_tab_adds_does_not_replace_what_is_shown(page: Page) -> None:
    shown = page.module(
        {"Tree": "tree.js"},
        _TREE
        + """
        tree.choose(tree.get("q2")); tree.pin();
        const theirs = [...tree.all(), message("newer", "a2", "user", 9)];
        return new Tree(theirs, tree.chosen).path().map(({ id }) => id);
        """,
    )
    assert shown == ["q", "a2", "q2"]


def test_what_is_being_answered_survives_that_another_tab_removes_the_question(page: Page) -> None:
    shown, stored = page.module(
        {"Chat": "chat.js", "newRecord": "chat.js", "openStore": "store.js"},
        """
        const store = await openStore();
        const record = newRecord({ title: "Shared" });
        const message = (id, parent, role, at) =>
          ({ id, parent, role, dialogue: record.id, content: id, createdMs: at });
        const chat = new Chat(store, record, []);
        await chat.restoreMessages([message("q", "", "user", 1), message("a", "q", "assistant", 2), message("q2", "a", "user", 3)]);
        const own = message("a2", "q2", "assistant", 4);
        chat.tree.add(own);
        chat.reply = { message: own };
        await store.removeMessages(record.id, ["a", "q2"]);
        chat.refresh(await store.load(record.id));
        await chat.save({}, [own]);
        const ids = (messages) => messages.map(({ id }) => id).join(" ");
        const { messages } = await store.load(record.id);
        await store.remove(record.id);
        return [ids(chat.path), ids(messages.sort((x, y) => x.createdMs - y.createdMs))];
        """,
    )
    assert (shown, stored) == ("q a q2 a2", "q a q2 a2")


_DIALOGUE: dict[str, Any] = {
    "title": "Tea \u2615",
    "system": "You are brief.\nAlways.",
    "persona": "Keeper",
    "createdMs": 1_700_000_000_000,
    "turns": [
        {
            "role": "user",
            "alternatives": ["Hi \u201cthere\u201d\n\u2028"],
            "chosen": 0,
            "createdMs": 1_700_000_000_001,
        },
        {
            "role": "assistant",
            "alternatives": ["One", "Two </script>"],
            "chosen": 1,
            "createdMs": 1_700_000_000_002,
        },
        {"role": "system", "alternatives": ["Later."], "chosen": 0, "createdMs": 1_700_000_000_003},
        {"role": "user", "alternatives": [""], "chosen": 0, "createdMs": 1_700_000_000_004},
    ],
}


def write(page: Page, name: str) -> str:
    """`_DIALOGUE` in a format."""
    found = f"EXPORTS.find(({{ name }}) => name === {json.dumps(name)})"
    return str(page.module({"EXPORTS": "formats.js"}, f"return {found}.write({json.dumps(_DIALOGUE)})"))


def backup(**changes: Any) -> str:
    """A file with one dialogue of one message, with fields changed in whichever of both has them."""
    dialogue = {"id": "d", "title": "t", "createdMs": 1, "changedMs": 1, "settings": {}, "chosen": {}}
    message = {"id": "m", "dialogue": "d", "parent": "", "role": "user", "content": "c", "createdMs": 1}
    for name, value in changes.items():
        (dialogue if name in dialogue else message)[name] = value
    return json.dumps({"duologue_backup": 1, "dialogues": [dialogue], "messages": [message], "personas": []})


def read(page: Page, text: str) -> Any:
    """What a text is read as; the message where it cannot be."""
    body = f"try {{ return readText({json.dumps(text)}); }} catch (error) {{ return error.message; }}"
    return page.module({"readText": "formats.js"}, body)


@pytest.mark.parametrize("name", ["openai", "sharegpt", "sillytavern"])
def test_a_dialogue_survives_its_way_through_a_file(page: Page, name: str) -> None:
    text = write(page, name)
    result = read(page, text)
    [back] = result["dialogues"]
    assert result["notes"] == []
    assert back["system"] == _DIALOGUE["system"]
    texts = [turn["alternatives"][turn["chosen"]] for turn in _DIALOGUE["turns"]]
    assert [turn["alternatives"][turn["chosen"]] for turn in back["turns"]] == texts
    assert [turn["role"] for turn in back["turns"]] == [turn["role"] for turn in _DIALOGUE["turns"]]
    if name == "sillytavern":
        assert back["persona"] == "Keeper"
        assert [turn["alternatives"] for turn in back["turns"]] == [
            turn["alternatives"] for turn in _DIALOGUE["turns"]
        ]
        assert [turn["createdMs"] for turn in back["turns"]] == [
            turn["createdMs"] for turn in _DIALOGUE["turns"]
        ]
    if name == "sharegpt":
        assert back["title"] == _DIALOGUE["title"]


def test_the_formats_have_the_fields_that_others_read(page: Page) -> None:
    openai = json.loads(write(page, "openai"))
    assert openai["messages"][0] == {"role": "system", "content": _DIALOGUE["system"]}
    assert openai["messages"][2] == {"role": "assistant", "content": "Two </script>"}
    [sharegpt] = json.loads(write(page, "sharegpt"))
    assert sharegpt["conversations"][0] == {"from": "system", "value": _DIALOGUE["system"]}
    assert [turn["from"] for turn in sharegpt["conversations"][1:3]] == ["human", "gpt"]
    header, *messages = [json.loads(line) for line in write(page, "sillytavern").strip().split("\n")]
    assert header["user_name"] == "User"
    assert header["character_name"] == "Keeper"
    assert header["chat_metadata"] == {"system_prompt": _DIALOGUE["system"]}
    reply = messages[1]
    assert (reply["name"], reply["is_user"], reply["is_system"]) == ("Keeper", False, False)
    assert (reply["mes"], reply["swipe_id"], reply["swipes"]) == (
        "Two </script>",
        1,
        ["One", "Two </script>"],
    )
    assert len(reply["swipe_info"]) == 2
    assert reply["send_date"] == "2023-11-14T22:13:20.002Z"
    assert messages[2]["extra"] == {"type": "narrator"}


def test_files_of_other_programs_are_read(page: Page) -> None:
    lines = "\n".join(json.dumps({"messages": [{"role": "user", "content": f"Hi {n}"}]}) for n in (1, 2))
    assert [each["title"] for each in read(page, lines)["dialogues"]] == ["Imported 1", "Imported 2"]
    parts = json.dumps(
        [{"role": "developer", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    )
    [one] = read(page, parts)["dialogues"]
    assert (one["system"], one["turns"][0]["alternatives"]) == ("S", ["Hi"])
    chat = [
        {"user_name": "Ann", "character_name": "Bo", "create_date": "2023-6-19 @04h 13m 22s 123ms"},
        {
            "name": "Bo",
            "is_user": False,
            "is_system": False,
            "send_date": "June 19, 2023 4:13pm",
            "mes": "Hello",
        },
        {"name": "Note", "is_user": False, "is_system": True, "send_date": 0, "mes": "hidden", "extra": {}},
        {"name": "Ann", "is_user": True, "send_date": "2023-6-19 @04h 13m 22s 123ms", "mes": "Hi"},
    ]
    result = read(page, "\r\n".join(map(json.dumps, chat)))
    assert result["notes"] == ["1 hidden message was left out."]
    [tavern] = result["dialogues"]
    assert [(turn["role"], turn["alternatives"]) for turn in tavern["turns"]] == [
        ("assistant", ["Hello"]),
        ("user", ["Hi"]),
    ]
    assert all(isinstance(turn["createdMs"], (int, float)) for turn in tavern["turns"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "The file is empty."),
        ('{"messages": [\n  {"role": "user", content: 1}]}', "Line 2, column 20: this is not valid JSON (unexpected \"c\")."),
        ('{"messages": [1, 2', "Line 1, column 19: this is not valid JSON (it ends too early)."),
        ('[1, 2,]', "column 7: this is not valid JSON"),
        ('{"a": "x\ny"}', "Line 1, column 7"),
        ('{"hello": 1}', "this is none of the formats that can be read"),
        ("[]", "empty list"),
        ('{"messages": []}', "messages holds no message"),
        ('{"messages": [{"role": "system", "content": "x"}]}', "messages holds no message"),
        ('{"messages": [{"role": "user"}]}', "messages[0].content is missing."),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}', 'messages[1].role is "tool"'),
        ('[{"role": "user", "content": [{"type": "image_url"}]}]', 'messages[0].content[0].type is "image_url"'),
        ('{"messages": [{"role": "user", "content": 7}]}', "messages[0].content must be a text."),
        ('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": 3}', "Line 2: this is none of the formats"),
        ('{"messages": [{"role": "user", "content": "a"}]}\n{"messages": [}', "Line 2, column 15"),
        ('[{"conversations": [{"from": "human", "value": "a"}]}, {"conversations": [{"from": "bot"}]}]',
         'Dialogue 2: conversations[0].from is "bot"'),
        ('{"conversations": [{"from": "gpt"}]}', "conversations[0].value is missing."),
        ('{"user_name": "u", "character_name": "c"}\n{"name": "u", "is_user": true}', "Line 2: mes is missing."),
        ('{"user_name": "u", "character_name": "c"}\n{"mes": "a", "is_user": "yes"}', "Line 2: is_user must be true or false."),
        ('{"user_name": "u", "character_name": "c"}\n{"mes": "a", "swipes": ["a"], "swipe_id": 4}',
         "Line 2: swipe_id is 4, and there are 1 swipes."),
        ('{"user_name": "u", "character_name": "c"}\n{"mes": "a", "swipes": ["a", 2]}', "Line 2: swipes[1] must be a text."),
        ('{"user_name": "u", "character_name": "c", "chat_metadata": {}}', "The chat has no messages."),
        ('{"duologue_backup": 9}', "duologue_backup is 9; this page reads version 1."),
        (backup(figures={"tokensPerS": "3"}), "messages[0].figures.tokensPerS must be of the kind"),
        (backup(figures={"cachedTokens": None}), "messages[0].figures.cachedTokens must be of the kind"),
        (backup(reason=3), "messages[0].reason"),
        (backup(settings={"stop": [5]}), "dialogues[0].settings.stop must be a number, a text or a list"),
        (backup(chosen={"": 1}), "dialogues[0].chosen. must be an id."),
        ('{"duologue_backup": 1, "dialogues": [], "messages": [{"dialogue": "x"}], "personas": []}',
         "messages[0].dialogue is none of the file's dialogues."),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_with_its_place(page: Page, text: str, told: str) -> None:
    result = read(page, text)
    assert isinstance(result, str), result
    assert told in result


def test_places_in_json_are_found_wherever_it_breaks(page: Page) -> None:
    good = '{"a": [1, -2.5e3, true, null, "x\\u00e9\\n"], "b": {}, "c": []}'
    # Every proper beginning ends too early; every foreign character is where it was put.
    results = page.module(
        {"parseJson": "json_place.js"},
        f"""
        const good = {json.dumps(good)};
        const told = (text) => {{ try {{ parseJson(text); return null; }} catch (error) {{ return error.message; }} }};
        const cut = [...good].map((_, n) => n && told(good.slice(0, n))).slice(1);
        const marked = [...good].map((_, n) => [n, told(good.slice(0, n) + "\u0001" + good.slice(n))]);
        return {{ whole: told(good), cut, marked }};
        """,
    )
    assert results["whole"] is None
    assert all(message is not None for message in results["cut"])
    for n, message in results["marked"]:
        column = int(message.split("column ")[1].split(":")[0])
        assert column <= n + 1  # a word or a text is broken from its beginning on
        assert n + 1 - column <= len('"x\\u00e9\\n"')


def test_sampling_values_are_checked_and_only_set_ones_are_sent(page: Page) -> None:
    body = """
    const told = (name, text) => {
      try { return parseField(FIELDS.find((field) => field.name === name), text); } catch (error) { return error.message; }
    };
    const dialogue = { id: "d", system: " ", settings: { top_p: 0.5, seed: 0, stop: ["x"], bogus: 1, top_k: "7" } };
    return {
      told: [told("temperature", " 0,5 "), told("temperature", ""), told("temperature", "3"), told("top_k", "1.5"), 
             told("seed", "x"), told("max_tokens", "0")],
      stops: parseStops("a\\n\\n\\\\n b\\\\\\\\n"), shown: showStops(["\\n b\\\\n", "a"]),
      body: requestBody({ model: "m", dialogue, messages: [{ role: "user", content: "q", figures: 1 }] }),
    };
    """
    names = dict.fromkeys(("FIELDS", "parseField", "parseStops", "showStops"), "sampling.js")
    result = page.module(names | {"requestBody": "request.js"}, body)
    assert result["told"] == [
        0.5,
        None,
        "Temperature must be at most 2.",
        "Top-k must be a whole number.",
        "Seed must be a number.",
        "Reply length must be at least 1.",
    ]
    assert result["stops"] == ["a", "\n b\\n"]
    assert result["shown"] == "\\n b\\\\n\na"
    assert result["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "top_p": 0.5,
        "seed": 0,
        "stop": ["x"],
        "prompt_cache_key": "d",
        "truncation": "auto",
    }


@pytest.mark.parametrize("kind", ["await openDatabase()", "new MemoryDatabase()"])
def test_both_databases_keep_the_same_promises(page: Page, kind: str) -> None:
    result = page.module(
        {"openDatabase": "database.js", "MemoryDatabase": "database.js", "Store": "store.js"},
        f"""
        const database = {kind};
        const store = new Store(database);
        const record = (id) => ({{ id, title: id, chosen: {{}}, changedMs: 1 }});
        const message = (dialogue, id) => ({{ dialogue, id, parent: "", role: "user", content: id, createdMs: 1 }});
        await store.save(record("one"), {{}}, [message("one", "a")]);
        await store.save(record("one-more"), {{}}, [message("one-more", "b")]);
        await store.save({{ ...record("one"), title: "stale" }}, {{ system: "s" }}, [message("one", "c")]);
        const failed = await database.run("readwrite", async (at) => {{
          await at.put("dialogues", record("never"));
          throw new Error("no");
        }}).catch((error) => error.message);
        const loaded = await store.load("one");
        const ids = async () => (await store.dialogues()).map(({{ id }}) => id).sort();
        const before = await ids();
        const gone = await store.remove("one");
        const without = await ids();
        await store.add({{ dialogues: [gone.record, {{ ...record("one-more"), title: "not taken" }}], messages: gone.messages }});
        const back = await store.load("one");
        const kept = (await store.load("one-more")).record.title;
        for (const id of await ids()) await store.remove(id);
        return {{ loaded, failed, before, without, back, kept, none: await store.load("one") }};
        """,
    )
    assert result["failed"] == "no"
    assert result["before"] == ["one", "one-more"]
    assert result["without"] == ["one-more"]
    assert result["loaded"]["record"] == {
        "id": "one",
        "title": "one",
        "chosen": {},
        "changedMs": 1,
        "system": "s",
    }
    assert [message["id"] for message in result["loaded"]["messages"]] == ["a", "c"]
    assert result["back"] == result["loaded"]
    assert result["kept"] == "one-more"
    assert result["none"] is None


def test_a_dialogue_uses_its_model_where_the_server_has_it(page: Page) -> None:
    ids = page.module(
        {"Models": "models.js"},
        """
        const models = new Models(); models.entries = [{ id: "first" }, { id: "second" }];
        return [null, "second", "gone"].map((model) => models.idFor({ model }));
        """,
    )
    assert ids == ["first", "second", "first"]


def test_model_text_stays_text(page: Page) -> None:
    source = (
        "Hi <img src=x onerror=alert(1)> **bold** `a < b` *waves* 2*3*4 snake_case_name\n\n"
        "```js\nlet x = '</code>';\n```\n- one\n\n- two\n> said\n# Head\n3. three"
    )
    html = page.module(
        {"render": "render.js"},
        "const box = document.createElement('div');"
        f" render(box, {json.dumps(source)}); return box.innerHTML;",
    )
    assert html == (
        "<p>Hi &lt;img src=x onerror=alert(1)&gt; <strong>bold</strong> <code>a &lt; b</code> <em>waves</em>"
        " 2*3*4 snake_case_name</p>"
        "<pre tabindex=\"0\"><code>let x = '&lt;/code&gt;';</code></pre><ul><li>one</li><li>two</li></ul>"
        '<blockquote><p>said</p></blockquote><h4>Head</h4><ol start="3"><li>three</li></ol>'
    )


def test_a_growing_text_is_shown_as_the_whole_one_and_touches_its_end_only(page: Page) -> None:
    source = "One **two**\n\n- a\n- b\n\n```\ncode\n```\nEnd of it"
    result = page.module(
        {"render": "render.js"},
        f"""
        const source = {json.dumps(source)};
        const [grown, whole] = [document.createElement("div"), document.createElement("div")];
        for (let n = 0; n <= 14; n++) render(grown, source.slice(0, n));
        const first = grown.firstChild;
        for (let n = 15; n <= source.length; n++) render(grown, source.slice(0, n));
        render(whole, source);
        const same = grown.innerHTML === whole.innerHTML;
        const kept = grown.firstChild === first;
        render(grown, "Other"); // a text that does not continue the one before
        return {{ same, kept, shorter: grown.textContent }};
        """,
    )
    assert result == {"same": True, "kept": True, "shorter": "Other"}


def test_nothing_can_turn_text_into_markup(page: Page) -> None:
    told = page.run(
        "(() => { try { document.createElement('div').innerHTML = '<b>x</b>'; return ''; } catch (e) { return e.name; } })()"
    )
    assert told == "TypeError"
    page.problems.clear()  # the browser reports the attempt as well
