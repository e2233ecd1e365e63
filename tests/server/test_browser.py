"""The page in a real browser, on a real server around the tiny engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from duologue import Engine
from duologue.api.keys import KeyEntry, append_key, key_digest, new_key
from duologue.api.tenants import KeyFileTenants
from tests.server.chromium import EXECUTABLE, Browser, Page
from tests.server.conftest import RunningServer, running_server, unique, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium is installed")]

_IDLE = "document.getElementById('stop').hidden"
_LAST_REPLY = "[...document.querySelectorAll('.assistant')].at(-1)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("browser") / "profile")
    yield browser
    browser.close()


def opened(page: Page, served: RunningServer, *, reply_tokens: int | None = 8) -> Page:
    """Opens the page; dialogues get short replies."""
    page.open(served.url)
    page.wait_for(f"document.getElementById('model')?.textContent === '{served.engine.model_name}'")
    if reply_tokens is not None:
        set_defaults(page, {"temperature": 0.7, "max_tokens": reply_tokens})
        page.open(served.url)
        page.wait_for(f"document.getElementById('model')?.textContent === '{served.engine.model_name}'")
    return page


def set_defaults(page: Page, settings: dict[str, Any]) -> None:
    body = f"await (await openStore()).setValue('settings', {json.dumps(settings)});"
    page.module({"openStore": "store.js"}, body)


@pytest.fixture
def page(browser: Browser, served: RunningServer) -> Iterator[Page]:
    page = opened(browser.page(), served)
    yield page
    assert page.problems == []
    page.close()


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"
    )
    return found


def wait_reply(page: Page) -> None:
    """Until the reply is there; a random model may end one at once, which is asked for again."""
    page.wait_for(f"document.querySelector('.message') && {_IDLE}")
    while page.run("document.querySelector('.failure')?.textContent.includes('was empty') ?? false"):
        page.click(".failure button")
        page.wait_for(_IDLE)
    assert texts(page, ".failure") == []


def ask(page: Page, text: str) -> None:
    page.run("document.getElementById('text').focus()")
    page.type(text)
    page.press("Enter")
    page.wait_for(f"[...document.querySelectorAll('.user .body')].at(-1)?.textContent === {json.dumps(text)}")
    wait_reply(page)


def reload(page: Page, served: RunningServer) -> None:
    """Loads the page anew once what it has begun to write is written; leaving at once would cut that off."""
    page.module({"openStore": "store.js"}, "await (await openStore()).everything();")
    page.open(served.url + page.run("location.hash"))


def press_on(page: Page, selector: str, keys: str) -> None:
    page.run(f"document.querySelector({json.dumps(selector)}).focus()")
    page.press(keys)


def open_panel(page: Page, panel: str, button: str) -> None:
    page.click(button)
    page.wait_for(f"document.getElementById('{panel}').open")


def close_panel(page: Page) -> None:
    page.press("Escape")
    page.wait_for("document.querySelector('dialog[open]') === null")


def counts(page: Page) -> list[str]:
    return texts(page, ".swipes .count")


# ---- a dialogue


@pytest.mark.parametrize("width", [1100, 390], ids=["desktop", "phone"])
def test_a_dialogue(browser: Browser, served: RunningServer, width: int) -> None:
    page = opened(browser.page(width=width), served, reply_tokens=None)
    page.type("Hello\nthere")
    page.press("Enter")
    page.wait_for(f"!{_IDLE}")
    assert texts(page, ".user .body") == ["Hello\nthere"]
    # A random model may end its reply with the first token, which has no speed.
    page.wait_for(
        f"document.querySelector('.assistant .figures')?.textContent.includes('tokens/s') || {_IDLE}"
    )
    page.press("Escape")
    page.wait_for(_IDLE)
    served.wait_idle()
    wait_reply(page)
    assert "first token" in texts(page, ".assistant .figures")[0]
    page.type("And again")
    page.press("shift+Enter")
    assert page.run("document.getElementById('text').value") == "And again\n"
    page.press("Enter")
    page.wait_for("document.querySelectorAll('.user').length === 2")
    page.wait_for(f"document.querySelectorAll('.assistant .figures').length === 2 || {_IDLE}")
    page.press("ctrl+shift+o")
    page.wait_for("document.querySelectorAll('.message').length === 0")
    assert page.run("!document.getElementById('welcome').hidden")
    assert page.run("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    # The reply goes on while another dialogue is open; Esc there does not stop it.
    page.run("history.back()")
    page.wait_for("document.querySelectorAll('.user').length === 2")
    page.press("Escape")
    page.wait_for(_IDLE)
    served.wait_idle()
    assert page.problems == []
    page.close()


def bars(page: Page) -> list[dict[str, Any]]:
    """The numbers in words, and the widths of memory and computed, of each reply's bar."""
    return list(
        page.run(
            "[...document.querySelectorAll('.prompt')].map(box => ({ words: box.querySelector('.legend').innerText,"
            " title: box.querySelector('.bar').title, widths: Object.fromEntries([...box.querySelectorAll('.bar span')]"
            ".map(part => [part.className, part.getBoundingClientRect().width])) }))"
        )
    )


def test_each_prompt_is_a_bar_of_what_was_stored_and_what_was_computed(page: Page) -> None:
    for _ in range(2):
        ask(page, f"{unique()} and then some more words to make a prompt")
    first, second = bars(page)
    assert re.search(r"Prompt \d+ tokens:\s*\d+ from memory\s*\d+ computed", first["words"])
    memory, computed = map(
        int, re.findall(r"(\d+) (?:from memory|computed)", second["words"].replace(",", ""))
    )
    assert memory > 0
    assert computed > 0
    widths = second["widths"]
    assert widths["memory"] / widths["computed"] == pytest.approx(memory / computed, rel=0.1)
    assert "came from memory" in second["title"]


def test_prompts_only_grow_and_name_their_dialogue(page: Page) -> None:
    for text in ("First", "Second", "Third"):
        ask(page, text)
    asked = [body for body in page.requests if body["messages"][-1]["content"] == "Third"][-1]
    before = [body for body in page.requests if body["messages"][-1]["content"] == "Second"][-1]
    assert asked["messages"][: len(before["messages"])] == before["messages"]
    assert asked["messages"][len(before["messages"])]["role"] == "assistant"
    assert {body["prompt_cache_key"] for body in page.requests} == {page.run("location.hash.slice(1)")}
    cached = [int(re.findall(r"(\d+) from memory", bar["words"])[0]) for bar in bars(page)]
    prompts = [int(re.findall(r"Prompt (\d+)", bar["words"])[0]) for bar in bars(page)]
    # All of the earlier prompt but the page that was not full.
    assert cached[2] > prompts[1] - 64


def test_a_key_is_asked_for_and_kept_for_the_tab(
    browser: Browser, tiny_engine: Engine, tmp_path: Path
) -> None:
    good = new_key()
    append_key(tmp_path / "keys", KeyEntry(key_digest(good), "acme"))
    page = browser.page()
    ready = f"document.getElementById('model')?.textContent === '{tiny_engine.model_name}'"
    with running_server(tiny_engine, tenants=KeyFileTenants(tmp_path / "keys")) as server:
        page.open(server.url)
        page.wait_for("document.getElementById('access') && !document.getElementById('access').hidden")
        page.wait_for("document.activeElement.id === 'key'")
        page.type("wrong")
        page.press("Enter")
        page.wait_for("document.getElementById('access-fault').textContent.includes('does not know')")
        page.type(good)
        page.press("Enter")
        page.wait_for(ready)
        assert page.run("document.getElementById('access').hidden")
        ask(page, "Hello")
        page.open(server.url)
        page.wait_for(ready)
        assert page.run("document.getElementById('access').hidden")
        page.close()


# ---- errors


def test_an_error_is_shown_and_the_message_can_be_changed(page: Page, served: RunningServer) -> None:
    page.type("word " * served.engine.context_tokens)
    page.press("Enter")
    page.wait_for("document.querySelector('.failure') !== null")
    assert "context" in texts(page, ".failure")[0]
    press_on(page, ".user", "e")
    page.wait_for("document.activeElement.tagName === 'TEXTAREA'")
    page.run("document.activeElement.select()")
    page.type("Short")
    page.press("Enter")
    page.wait_for("document.querySelector('.user .body')?.textContent === 'Short'")
    wait_reply(page)
    assert counts(page)[0] == "2/2"
    [problem] = page.problems  # the browser reports the answer as well
    assert "400" in problem
    page.problems.clear()


def test_a_lost_connection_is_told_and_tried_again(page: Page) -> None:
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", offline=True, **offline)
    page.type("Hello")
    page.press("Enter")
    page.wait_for("document.querySelector('.failure') !== null")
    assert "cannot be reached" in texts(page, ".failure")[0]
    page.call("Network.emulateNetworkConditions", offline=False, **offline)
    page.click(".failure button")
    page.wait_for("document.querySelectorAll('.assistant').length === 1")
    wait_reply(page)
    assert all("ERR_INTERNET_DISCONNECTED" in problem for problem in page.problems)
    page.problems.clear()
    assert texts(page, ".user .body") == ["Hello"]


# ---- the list of dialogues


def names(page: Page, count: int | None = None) -> list[str]:
    """The titles in the list, once there are `count`."""
    if count is not None:
        page.wait_for(f"document.querySelectorAll('#dialogues .name').length === {count}")
    return texts(page, "#dialogues .name")


def test_dialogues_are_stored_listed_and_opened_again(page: Page, served: RunningServer) -> None:
    ask(page, "About tea")
    reply = page.run(f"{_LAST_REPLY}.querySelector('.body').textContent")
    page.press("ctrl+shift+o")
    ask(page, "About coffee")
    assert names(page, 2) == ["About coffee", "About tea"]
    reload(page, served)
    page.wait_for("document.querySelectorAll('#dialogues .name').length === 2")
    page.run("[...document.querySelectorAll('#dialogues a')][1].click()")
    page.wait_for("document.querySelector('.user .body')?.textContent === 'About tea'")
    assert page.run(f"{_LAST_REPLY}.querySelector('.body').textContent") == reply
    assert page.run("document.title") == "About tea · duologue"
    assert page.run("document.querySelector('#dialogues [aria-current]').textContent") == "About tea"


def test_search_finds_titles_and_messages(page: Page) -> None:
    for text in ("Tell me about Lisbon and its trams", "Porto"):
        ask(page, text)
        page.press("ctrl+shift+o")
    ask(page, "Unrelated")
    page.press("ctrl+k")
    page.type("LISBON trams")
    page.wait_for("document.querySelectorAll('#dialogues .name').length === 1")
    assert names(page) == ["Tell me about Lisbon and its trams"]
    assert texts(page, "#search-status") == ["1 found"]
    page.press("Escape")
    page.wait_for("document.querySelectorAll('#dialogues .name').length === 3")
    page.run("document.querySelector('.user').focus()")
    press_on(page, "#text", "ctrl+k")
    page.type("no such words")
    page.wait_for("document.getElementById('no-dialogues').textContent === 'Nothing found.'")
    page.run("document.activeElement.select()")
    page.type("porto")
    page.wait_for("document.querySelectorAll('#dialogues .name').length === 1")
    page.press("Enter")
    page.wait_for("document.querySelector('.user .body').textContent === 'Porto'")


def test_a_match_in_a_message_shows_its_place(page: Page) -> None:
    ask(page, "Short question")
    press_on(page, "#dialogues a", "F2")
    page.type("Renamed")
    page.press("Enter")
    page.wait_for("document.getElementById('title').textContent === 'Renamed'")
    page.press("ctrl+k")
    page.type("question")
    page.wait_for("document.querySelector('#dialogues mark') !== null")
    assert texts(page, "#dialogues mark") == ["question"]
    assert texts(page, "#dialogues .place") == ["Short question"]


def test_a_name_that_is_being_written_is_left_alone(page: Page) -> None:
    ask(page, "Old name")
    page.wait_for("document.querySelector('#dialogues a') !== null")
    for opening in ("#title", "#dialogues a"):
        page.click("#title") if opening == "#title" else press_on(page, opening, "F2")
        page.type("Half a na")
        # Something else changes meanwhile: a reply is asked for, and ends.
        page.run("document.querySelector('[data-act=again]').click()")
        page.wait_for(f"!{_IDLE} || document.querySelector('.count').textContent !== '1/1'")
        wait_reply(page)
        assert page.run("document.activeElement.value") == "Half a na"
        page.press("Escape")
        assert names(page, 1) == texts(page, "#title") == ["Old name"]


def test_renaming_holds_and_can_be_left(page: Page, served: RunningServer) -> None:
    ask(page, "Old name")
    page.click("#title")
    page.type("New name")
    page.press("Enter")
    page.wait_for("document.querySelector('#dialogues .name')?.textContent === 'New name'")
    press_on(page, "#dialogues a", "F2")
    page.type("Not this")
    page.press("Escape")
    reload(page, served)
    page.wait_for("document.querySelector('#dialogues .name')?.textContent === 'New name'")
    assert names(page) == ["New name"]


@pytest.mark.parametrize("way", ["button", "key"])
def test_a_deleted_dialogue_is_gone_on_the_server_and_can_be_taken_back(
    page: Page, served: RunningServer, way: str
) -> None:
    text = f"Delete me {unique()}"
    ask(page, text)
    body = {"model": served.engine.model_name, "messages": [{"role": "user", "content": text}]}
    matched = f"fetch('/v1/cache/lookup', {{method: 'POST', body: {json.dumps(json.dumps(body))}}})"
    matched += ".then(r => r.json()).then(r => r.matched_tokens)"
    stored_tokens = page.run(matched)
    press_on(page, "#dialogues a", "Delete")
    page.wait_for("document.querySelectorAll('#dialogues a').length === 0")
    assert page.run("!document.getElementById('welcome').hidden")
    wait_until(lambda: page.run(matched) < stored_tokens)
    if way == "button":
        page.click("#toasts .link")
    else:
        page.run("document.activeElement.blur()")
        page.press("ctrl+z")
    page.wait_for(f"document.querySelector('.user .body')?.textContent === {json.dumps(text)}")
    assert names(page) == [text]


def test_a_dialogue_deleted_while_it_is_answered_stays_deleted(
    browser: Browser, served: RunningServer
) -> None:
    page = opened(browser.page(), served, reply_tokens=400)
    page.type(f"Tell me a long story {unique()}")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('#dialogues a').length === 1")
    press_on(page, "#dialogues a", "Delete")
    page.wait_for("document.querySelectorAll('#dialogues a').length === 0")
    served.wait_idle()
    reload(page, served)
    kept = page.module({"openStore": "store.js"}, "return await (await openStore()).everything();")
    assert (kept["dialogues"], kept["messages"]) == ([], [])
    page.close()


def test_deleted_messages_come_back_into_the_dialogue_that_is_open(page: Page) -> None:
    ask(page, "First")
    address = page.run("location.hash")
    press_on(page, ".user", "Delete")
    page.wait_for("document.querySelectorAll('.message').length === 0")
    page.run("document.getElementById('new').click()")
    page.wait_for("location.hash === ''")
    page.run(f"location.hash = {json.dumps(address)}")
    page.wait_for(f"location.hash === {json.dumps(address)}")
    page.click("#toasts .link")
    page.wait_for("document.querySelectorAll('.message').length === 2")


# ---- alternatives


def test_an_edited_question_is_an_alternative_with_an_answer_of_its_own(page: Page) -> None:
    ask(page, "One")
    ask(page, "Two")
    press_on(page, ".user", "e")
    page.wait_for("document.activeElement.className === 'edit'")
    page.run("document.activeElement.select()")
    page.type("Uno")
    page.press("Enter")
    page.wait_for("document.querySelector('.user .body')?.textContent === 'Uno'")
    wait_reply(page)
    assert texts(page, ".user .body") == ["Uno"]
    assert page.requests[-1]["messages"] == [{"role": "user", "content": "Uno"}]
    assert counts(page)[0] == "2/2"
    press_on(page, ".user", "ArrowLeft")
    page.wait_for("document.querySelectorAll('.user .body').length === 2")
    assert texts(page, ".user .body") == ["One", "Two"]
    press_on(page, ".user", "e")
    page.press("Escape")
    assert texts(page, ".user .body") == ["One", "Two"]


def test_an_edited_reply_is_what_the_dialogue_goes_on_from(page: Page, served: RunningServer) -> None:
    ask(page, "One")
    press_on(page, ".assistant", "e")
    page.wait_for("document.activeElement.className === 'edit'")
    page.run("document.activeElement.select()")
    page.type("I **never** said so.")
    page.press("Enter")
    page.wait_for(f"{_LAST_REPLY}.querySelector('strong') !== null")
    ask(page, "Why?")
    assert page.requests[-1]["messages"][1] == {"role": "assistant", "content": "I **never** said so."}
    reload(page, served)
    page.wait_for("document.querySelector('.assistant strong') !== null")
    assert counts(page)[0] == "2/2"


def test_replies_are_written_again_and_swiped(page: Page) -> None:
    ask(page, "Say something")
    assert counts(page) == ["1/1"]
    press_on(page, ".assistant", "r")
    page.wait_for("document.querySelector('.count').textContent === '2/2'")
    wait_reply(page)
    assert page.requests[-1]["messages"] == page.requests[0]["messages"]
    press_on(page, "#text", "ArrowLeft")
    page.wait_for("document.querySelector('.count').textContent === '1/2'")
    press_on(page, "#text", "ArrowRight")
    page.wait_for("document.querySelector('.count').textContent === '2/2'")
    page.press("ArrowRight")  # after the last one a new one is written
    page.wait_for("document.querySelector('.count').textContent === '3/3'")
    wait_reply(page)
    page.click(".swipes .icon-button")
    page.wait_for("document.querySelector('.count').textContent === '2/3'")
    ask(page, "And on")
    assert counts(page)[0] == "2/3"
    press_on(
        page, ".assistant", "ArrowRight"
    )  # in the middle of a dialogue the arrow only shows what is there
    page.wait_for("document.querySelectorAll('.message').length === 2")
    press_on(page, ".assistant", "ArrowLeft")
    page.wait_for("document.querySelectorAll('.message').length === 4")


def test_a_branch_is_a_dialogue_of_its_own(page: Page) -> None:
    ask(page, "Begin")
    first = page.run("location.hash")
    ask(page, "Go on")
    press_on(page, ".assistant", "b")
    page.wait_for(f"location.hash !== '{first}' && document.querySelectorAll('.message').length === 2")
    assert texts(page, ".user .body") == ["Begin"]
    ask(page, "Elsewhere")
    assert page.requests[-1]["prompt_cache_key"] != first[1:]
    page.wait_for("document.querySelectorAll('#dialogues .name').length === 2")
    assert names(page) == ["Begin (branch)", "Begin"]
    page.run(f"location.hash = '{first}'")
    page.wait_for("[...document.querySelectorAll('.user .body')].at(-1)?.textContent === 'Go on'")


def test_a_message_is_deleted_with_what_follows_and_taken_back(page: Page) -> None:
    ask(page, "One")
    ask(page, "Two")
    press_on(page, ".assistant", "Delete")
    page.wait_for("document.querySelectorAll('.message').length === 1")
    assert texts(page, ".tail") == ["Get a reply"]
    page.click("#toasts .link")
    page.wait_for("document.querySelectorAll('.message').length === 4")
    press_on(page, ".assistant", "Delete")
    page.wait_for("document.querySelectorAll('.message').length === 1")
    page.click(".tail button")
    page.wait_for("document.querySelectorAll('.assistant').length === 1")
    wait_reply(page)


def stop_reply(page: Page) -> None:
    """Stops the reply that was asked for once its text begins, if it has not ended by then."""
    page.wait_for(
        f"document.querySelector('.streaming') || ({_IDLE} && document.querySelector('.failure, .figures:not(:empty)'))"
    )
    page.press("Escape")
    page.wait_for(_IDLE)


def test_a_stopped_reply_goes_on(browser: Browser, served: RunningServer) -> None:
    page = opened(browser.page(), served, reply_tokens=400)
    page.type("Tell me a long story")
    page.press("Enter")
    stop_reply(page)
    while not any("stopped" in text for text in texts(page, ".assistant .figures")):
        page.click("[data-act=again], .failure button")  # it ended before it could be stopped
        stop_reply(page)
    before = page.run(f"{_LAST_REPLY}.querySelector('.body').textContent")
    set_reply = "document.getElementById('set-max_tokens')"
    page.press("ctrl+,")
    page.wait_for("document.getElementById('settings').open")
    page.run(f"{set_reply}.value = '4'; {set_reply}.dispatchEvent(new Event('change'))")
    close_panel(page)
    page.click(".tool")
    wait_until(lambda: page.run("1") == 1 and "continue_final_message" in page.requests[-1])
    page.wait_for(_IDLE)
    assert page.requests[-1]["continue_final_message"] is True
    assert page.requests[-1]["messages"][-1]["role"] == "assistant"
    assert page.requests[-1]["max_tokens"] == 4
    [after] = texts(page, ".assistant .body")
    assert len(after) >= len(before)
    served.wait_idle()
    page.close()


# ---- settings and personas


def test_personas_are_saved_and_chosen_for_a_dialogue(page: Page) -> None:
    open_panel(page, "settings", "#settings-button")
    page.run("document.getElementById('system').focus()")
    page.type("You keep the lighthouse.")
    page.run("document.getElementById('persona-name').focus()")
    page.type("Keeper")
    page.press("Enter")
    page.wait_for("document.getElementById('persona-status').textContent === 'Saved Keeper.'")
    close_panel(page)
    ask(page, "Who are you?")
    system = {"role": "system", "content": "You keep the lighthouse."}
    assert page.requests[-1]["messages"] == [system, {"role": "user", "content": "Who are you?"}]
    assert texts(page, ".assistant .who") == ["Keeper"]
    page.press("ctrl+shift+o")
    ask(page, "Plain")
    assert page.requests[-1]["messages"] == [{"role": "user", "content": "Plain"}]
    page.press("ctrl+shift+o")
    page.click(".chip")
    page.wait_for("document.querySelector('.chip').getAttribute('aria-pressed') === 'true'")
    ask(page, "Again you?")
    assert page.requests[-1]["messages"][0] == system
    open_panel(page, "settings", "#persona-badge")
    page.click("#persona-delete")
    page.wait_for("document.getElementById('persona').options.length === 1")
    close_panel(page)
    ask(page, "Still there?")  # a dialogue keeps what it began with
    assert page.requests[-1]["messages"][0] == system


def test_sampling_settings_are_sent_when_they_are_set(page: Page, served: RunningServer) -> None:
    def fill(name: str, text: str) -> None:
        field = f"document.getElementById({json.dumps(name)})"
        page.run(f"{field}.focus(); {field}.select()")
        page.type(text) if text else page.run(f"{field}.value = ''")
        page.run(f"{field}.dispatchEvent(new Event('change'))")

    page.press("ctrl+,")
    page.wait_for("document.getElementById('settings').open")
    fill("set-temperature", "")
    fill("set-top_k", "20")
    fill("set-seed", "7")
    fill("set-top_p", "1.5")
    assert texts(page, "#set-top_p-fault") == ["Top-p must be at most 1."]
    assert page.run("document.getElementById('set-top_p').getAttribute('aria-invalid')") == "true"
    fill("set-top_p", "")
    fill("stops", "END\n\\n\\n")
    page.click("#as-default")
    page.wait_for("document.getElementById('default-status').textContent !== ''")
    close_panel(page)
    ask(page, "Hello")
    sampling = {"top_k": 20, "seed": 7, "max_tokens": 8, "stop": ["END", "\n\n"]}
    fixed = {"model", "messages", "prompt_cache_key", "truncation", "stream", "stream_options"}
    assert {name: value for name, value in page.requests[-1].items() if name not in fixed} == sampling
    page.open(served.url)
    page.wait_for(f"document.getElementById('model')?.textContent === '{served.engine.model_name}'")
    page.press("ctrl+,")
    page.wait_for("document.getElementById('set-seed').value === '7'")
    assert page.run("document.getElementById('stops').value") == "END\n\\n\\n"
    assert page.run("document.getElementById('model-choice').value") == served.engine.model_name
    page.click("#reset")
    page.wait_for("document.getElementById('set-seed').value === ''")


def test_every_sampling_field_is_one_that_the_server_takes(page: Page, served: RunningServer) -> None:
    set_defaults(
        page,
        {
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.01,
            "max_tokens": 8,
            "seed": 3,
            "frequency_penalty": 0.1,
            "presence_penalty": 0.1,
            "repetition_penalty": 1.1,
            "stop": ["END"],
        },
    )
    names_ = page.module({"FIELDS": "sampling.js"}, "return FIELDS.map(({ name }) => name);")
    reload(page, served)
    page.wait_for("document.getElementById('model').title.includes('context')")
    ask(page, "Hello")
    assert set(names_) | {"stop"} <= set(page.requests[-1])


def test_a_dialogue_keeps_the_model_that_was_chosen(browser: Browser, tiny_engine: Engine) -> None:
    with running_server({"first": tiny_engine, "second": tiny_engine}) as server:
        page = browser.page()
        page.open(server.url)
        page.wait_for("document.getElementById('model')?.textContent === 'first'")
        set_defaults(page, {"max_tokens": 8})
        page.open(server.url)
        page.wait_for("document.getElementById('model')?.textContent === 'first'")
        open_panel(page, "settings", "#settings-button")
        choice = "document.getElementById('model-choice')"
        page.run(f"{choice}.value = 'second'; {choice}.dispatchEvent(new Event('change'))")
        close_panel(page)
        ask(page, "Hello")
        assert page.requests[-1]["model"] == "second"
        assert texts(page, ".assistant .figures")[0].startswith("second")
        page.press("ctrl+shift+o")
        page.wait_for("document.getElementById('model').textContent === 'first'")
        page.close()


# ---- files


def test_files_go_out_and_come_back(page: Page, tmp_path: Path) -> None:
    page.download_to(tmp_path)
    ask(page, "Export me")
    press_on(page, ".assistant", "r")
    page.wait_for("document.querySelector('.count').textContent === '2/2'")
    wait_reply(page)
    shown = texts(page, ".message .body")
    for form, suffix in (("openai", "json"), ("sillytavern", "jsonl"), ("sharegpt", "json")):
        open_panel(page, "transfer", "#transfer-button")
        page.click(f"[data-format={form}]")
        file = tmp_path / f"Export-me.{suffix}"
        wait_until(lambda file=file: file.exists() and file.stat().st_size > 0)  # type: ignore[misc]
        exported = page.run("location.hash")
        page.choose_files("#file", file)
        page.wait_for(
            f"location.hash !== '{exported}'"
            " && document.querySelector('li:has(> [aria-current])')?.dataset.id === location.hash.slice(1)"
        )
        page.wait_for("document.querySelector('#toasts').textContent.includes('One dialogue imported')")
        assert texts(page, ".message .body") == shown
        assert counts(page) == (["2/2"] if form == "sillytavern" else ["1/1"])
        page.run("document.querySelector('#toasts').replaceChildren()")
        file.rename(tmp_path / f"{form}.done")
        page.run("[...document.querySelectorAll('#dialogues a')].at(-1).click()")
        page.wait_for("document.querySelector('.count')?.textContent === '2/2'")
    assert len(names(page)) == 4


def test_a_backup_brings_everything_back(
    browser: Browser, served: RunningServer, page: Page, tmp_path: Path
) -> None:
    page.download_to(tmp_path)
    ask(page, "Kept")
    press_on(page, ".assistant", "r")
    page.wait_for("document.querySelector('.count').textContent === '2/2'")
    wait_reply(page)
    open_panel(page, "transfer", "#transfer-button")
    page.click("#export-all")
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob("duologue-*.json")))
    [file] = tmp_path.glob("duologue-*.json")
    other = opened(browser.page(), served)
    assert names(other) == []
    other.choose_files("#file", file)
    other.wait_for("document.querySelectorAll('.message').length === 2")
    assert counts(other) == ["2/2"]
    assert texts(other, ".message .body") == texts(page, ".message .body")
    assert other.problems == []
    other.close()


def test_a_bad_file_is_told_and_changes_nothing(page: Page, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"user_name": "u", "character_name": "c"}\n{"mes": 3}\n')
    page.choose_files("#file", bad)
    page.wait_for("document.querySelector('.toast.error') !== null")
    assert texts(page, ".toast.error span") == ["bad.jsonl: Line 2: mes must be a text."]
    assert names(page) == []


# ---- storage


def test_two_tabs_go_on_with_one_dialogue_and_lose_nothing(
    browser: Browser, served: RunningServer, page: Page
) -> None:
    ask(page, "Shared")
    other = browser.page(context=page.context)
    other.open(served.url + page.run("location.hash"))
    other.wait_for(
        "document.querySelectorAll('.message').length === 2 && document.getElementById('model').textContent !== 'connecting…'"
    )
    # What one tab adds the other shows, and goes on from.
    ask(page, "From the first tab")
    other.wait_for("document.querySelectorAll('.assistant').length === 2")
    ask(other, "From the second tab")
    page.wait_for("document.querySelectorAll('.assistant').length === 3")
    assert texts(page, ".user .body") == ["Shared", "From the first tab", "From the second tab"]
    for tab, text in ((page, "At once, first"), (other, "At once, second")):
        tab.run("document.getElementById('text').focus()")
        tab.type(text)
    for tab in (page, other):
        tab.press("Enter")
    for tab in (page, other):
        tab.wait_for("document.querySelectorAll('.assistant').length === 4")
        wait_reply(tab)
    other.click("#title")
    other.type("Renamed there")
    other.press("Enter")
    page.wait_for("document.getElementById('title').textContent === 'Renamed there'")
    ask(page, "More from the first")
    reload(page, served)
    page.wait_for("document.querySelectorAll('.message').length > 0")
    stored = page.module(
        {"openStore": "store.js"},
        "return (await (await openStore()).load(location.hash.slice(1))).messages.map(({ content }) => content);",
    )
    for text in ("Shared", "From the first tab", "At once, first", "At once, second", "More from the first"):
        assert text in stored
    assert texts(page, "#title") == ["Renamed there"]
    other.press("Escape")
    press_on(other, "#dialogues a", "Delete")
    page.wait_for(
        "[...document.querySelectorAll('#toasts')].some(e => e.textContent.includes('Another tab has deleted'))"
    )
    ask(page, "Not lost")
    reload(page, served)
    page.wait_for("[...document.querySelectorAll('.user .body')].at(-1)?.textContent === 'Not lost'")
    assert texts(page, ".user .body")[0] == "Shared"
    assert other.problems == []
    other.close()


def test_a_full_storage_is_told_and_nothing_shown_is_lost(browser: Browser, served: RunningServer) -> None:
    page = browser.page()
    page.open("about:blank")
    # Before the first write: the browser remembers for a while that there was room.
    page.call("Storage.overrideQuotaForOrigin", origin=served.url.rstrip("/"), quotaSize=1)
    opened(page, served, reply_tokens=None)
    page.type("More than there is room for")
    page.press("Enter")
    page.wait_for("!document.getElementById('storage').hidden")
    assert "space for this page is full" in texts(page, "#storage-text")[0]
    stop_reply(page)
    wait_reply(page)
    assert len(texts(page, ".message")) == 2
    page.call("Storage.overrideQuotaForOrigin", origin=served.url.rstrip("/"))
    hidden = "document.getElementById('storage').hidden"

    def stored() -> bool:  # the browser may remember for a while that there was no room
        return bool(page.run(f"{hidden} || (document.getElementById('storage-retry').click(), false)"))

    wait_until(stored, timeout_s=60)
    reload(page, served)
    page.wait_for("document.querySelectorAll('.message').length === 2")
    assert page.problems == []
    page.close()


def test_without_storage_the_page_works_and_says_so(served: RunningServer, tmp_path: Path) -> None:
    blocked = {"profile": {"default_content_setting_values": {"cookies": 2}}}
    browser = Browser(tmp_path / "profile", blocked)
    page = browser.default_page()
    page.open(served.url)
    page.wait_for(f"document.getElementById('model')?.textContent === '{served.engine.model_name}'")
    assert "end with this tab" in texts(page, "#storage-text")[0]
    assert page.run("document.getElementById('storage').checkVisibility()")
    page.press("ctrl+,")
    page.wait_for("document.getElementById('settings').open")
    page.run(
        "const f = document.getElementById('set-max_tokens'); f.value = '5'; f.dispatchEvent(new Event('change'))"
    )
    close_panel(page)
    ask(page, "Hello")
    assert names(page, 1) == ["Hello"]
    page.click("label[title=Dark]")
    assert page.run("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.problems == []
    browser.close()


# ---- how it looks and how it is used


def test_light_and_dark_follow_the_system_until_one_is_chosen(
    browser: Browser, served: RunningServer
) -> None:
    page = opened(browser.page(dark=True), served)
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.run(ground)
    page.click("label[title=Light]")
    light = page.run(ground)
    assert dark != light
    page.open(served.url)
    assert page.run(ground) == light
    page.click("label[title='As the system']")
    assert page.run(ground) == dark
    page.close()


def test_a_narrow_window_has_a_drawer_and_never_scrolls_sideways(
    browser: Browser, served: RunningServer
) -> None:
    page = opened(browser.page(width=360, height=640), served)
    ask(page, "w" * 300)
    press_on(page, ".assistant", "e")
    page.run("document.activeElement.select()")
    page.type("```\n" + "code " * 100 + "\n```\n\n" + "long" * 100)
    page.press("Enter")
    page.wait_for("document.querySelector('.assistant pre') !== null")
    fits = (
        "document.documentElement.scrollWidth <= 360 && document.getElementById('scroll').scrollWidth <= 360"
    )
    assert page.run(fits)
    assert page.run("document.getElementById('sidebar').inert")
    page.click("#open-sidebar")
    page.wait_for("document.getElementById('sidebar').getBoundingClientRect().x === 0")
    assert page.run("document.getElementById('main').inert")
    page.press("Escape")
    page.wait_for("document.getElementById('sidebar').inert")
    page.click("#open-sidebar")
    page.wait_for("document.getElementById('sidebar').getBoundingClientRect().x === 0")
    page.click("#dialogues a")
    page.wait_for("document.getElementById('sidebar').inert")
    for button, panel in (("#settings-button", "settings"), ("#transfer-button", "transfer")):
        open_panel(page, panel, button)
        assert page.run(
            f"document.getElementById('{panel}').scrollWidth <= document.getElementById('{panel}').clientWidth"
        )
        assert page.run(fits)
        close_panel(page)
    assert page.problems == []
    page.close()


def test_a_long_dialogue_is_touched_only_at_its_end(
    browser: Browser, served: RunningServer, tmp_path: Path
) -> None:
    page = opened(browser.page(), served, reply_tokens=200)
    turns = [
        {"role": ("user", "assistant")[n % 2], "content": f"Message {n}. " + "Words " * 20}
        for n in range(180)
    ]
    file = tmp_path / "long.json"
    file.write_text(json.dumps({"messages": turns}))
    page.choose_files("#file", file)
    page.wait_for("document.querySelectorAll('.message').length === 180")
    kept = "document.querySelectorAll('.message')[5].querySelector('.body').firstChild"
    page.run(f"window.kept = {kept}")
    page.run("document.getElementById('text').focus()")
    page.type("One more")
    page.press("Enter")
    page.wait_for(
        f"document.querySelectorAll('.message').length > 180 && (document.querySelector('.streaming') || {_IDLE})"
    )
    page.run(
        "window.touched = new Set(); new MutationObserver(records => records.forEach(({ target }) => touched.add("
        " (target.closest ? target : target.parentElement).closest('.streaming') ? 'reply' : 'other')))"
        ".observe(document.getElementById('dialogue'), { childList: true, subtree: true, characterData: true })"
    )
    page.wait_for(f"window.touched.has('reply') || {_IDLE}")
    touched = page.run(f"{_IDLE} ? null : [...touched]")
    if touched is not None:  # the end of a reply brings the buttons of all messages back
        assert touched == ["reply"]
    wait_reply(page)
    assert len(texts(page, ".message")) == 182
    assert page.run(f"{kept} === window.kept")
    assert page.run("document.getElementById('scroll').scrollTop > 1000"), "the newest message is in view"
    page.close()


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    ask(page, "Hello")
    for panel, button in (
        ("", ""),
        ("settings", "#settings-button"),
        ("transfer", "#transfer-button"),
        ("keys", "#keys-button"),
    ):
        if panel:
            open_panel(page, panel, button)
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {
            "button",
            "textbox",
            "searchbox",
            "link",
            "combobox",
            "radio",
            "navigation",
            "dialog",
            "list",
        }
        used = [
            node for node in nodes if not node.get("ignored") and node.get("role", {}).get("value") in roles
        ]
        nameless = [
            node for node in used if not node.get("name", {}).get("value") and node["role"]["value"] != "list"
        ]
        assert nameless == []
        assert len(used) > (1 if panel == "keys" else 5)
        if panel:
            close_panel(page)
    # A dialogue is one stop for the Tab key, with the buttons of one message.
    stops = "[...document.querySelectorAll('#dialogue li')].filter(item => item.tabIndex === 0).length"
    ask(page, "And on")
    assert page.run(stops) == 1
    press_on(page, "#text", "ArrowUp")
    assert page.run(f"document.activeElement === {_LAST_REPLY}")
    for _ in range(3):
        page.press("ArrowUp")
    assert page.run("document.activeElement === document.querySelector('.user')")
    assert page.run(stops) == 1
    page.press("End")
    page.press("ArrowDown")
    assert page.run("document.activeElement.id") == "text"
    page.wait_for(
        f"document.getElementById('announcer').textContent.trim() === {_LAST_REPLY}.querySelector('.body').textContent.trim()"
    )
    assert page.run("document.getElementById('announcer').getAttribute('aria-live')") == "polite"


def test_letters_act_on_a_message_only(page: Page) -> None:
    ask(page, "Hello")
    page.run("document.activeElement.blur()")
    page.wait_for("document.querySelectorAll('#dialogues .name').length === 1")
    for key in "erbc":
        page.press(key)
    assert counts(page) == ["1/1"]
    assert len(names(page)) == 1
    assert page.run("document.querySelector('.edit') === null")
    page.press("ctrl+/")
    page.wait_for("document.getElementById('keys').open")
