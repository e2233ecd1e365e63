from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.messages import Message
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import InvalidRequestError, TemplateError
from tests.dialogue.recut import recut
from tests.dialogue.test_template import ATTACKS, CHATML, CONTENT, TEMPLATES, chat, control_ids
from tests.dialogue.test_tokenizer import spm_tokenizer

TRIMMING = CHATML.replace("m['content']", "(m['content'] | trim)")
DROPS_REASONING = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]")
REPLY = "So, \n\nthat is\t it: naïve  cafés."


@pytest.fixture(scope="module")
def pieces(smollm2: Tokenizer) -> PieceEncoder:
    return PieceEncoder(smollm2)


@pytest.fixture
def replies(pieces: PieceEncoder) -> ReplyStore:
    return ReplyStore(pieces)


@pytest.fixture(scope="module")
def chatml() -> ChatTemplate:
    return ChatTemplate(CHATML)


def is_prefix(short: Any, long: Any) -> bool:
    return list(long[: len(short)]) == list(short)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=15)
@given(contents=st.lists(st.text(max_size=6) | CONTENT, max_size=5))
def test_without_stored_replies_the_ids_are_those_of_encode_chat(
    smollm2: Tokenizer, pieces: PieceEncoder, name: str, contents: list[str]
) -> None:
    template = ChatTemplate(TEMPLATES[name])
    try:
        expected = template.encode_chat(smollm2, chat(*contents))
    except (InvalidRequestError, TemplateError):  # a lone surrogate
        return
    for replies in (None, ReplyStore(pieces)):
        encoded = encode_dialogue(template, pieces, chat(*contents), replies=replies)
        assert encoded.ids.tolist() == expected
        assert (encoded.reply_start, encoded.reply_text, encoded.spliced) == (len(expected), "", ())


@pytest.mark.parametrize("source", [CHATML, TRIMMING])
@settings(deadline=None, max_examples=40)
@given(
    turns=st.lists(
        st.tuples(
            st.text(max_size=8) | CONTENT, st.sampled_from([REPLY, "Hm.", "\n\n", " é\U0001f600", *ATTACKS])
        ),
        min_size=1,
        max_size=4,
    ),
    lead=st.sampled_from(["", " ", "\n\n"]),
    trail=st.sampled_from(["", " ", "\n"]),
    client_trims=st.booleans(),
    seed=st.integers(0, 99),
)
def test_prompt_and_reply_begin_the_next_prompt(
    smollm2: Tokenizer,
    pieces: PieceEncoder,
    source: str,
    turns: list[tuple[str, str]],
    lead: str,
    trail: str,
    client_trims: bool,
    seed: int,
) -> None:
    template, replies = ChatTemplate(source), ReplyStore(pieces)
    messages: list[dict[str, Any]] = []
    before: list[int] = []
    for user, core in turns:
        messages.append({"role": "user", "content": user})
        prompt = encode_dialogue(template, pieces, messages, replies=replies, salt=b"s")
        assert is_prefix(before, prompt.ids)
        text = lead + core + trail
        ids = recut(smollm2, text, seed)
        replies.remember(b"s", prompt.ids, text, ids)
        messages.append({"role": "assistant", "content": text.strip() if client_trims else text})
        if text.strip():
            before = [*prompt.ids.tolist(), *ids]
        else:
            before = []
    encoded = encode_dialogue(template, pieces, messages, replies=replies, salt=b"s")
    assert is_prefix(before, encoded.ids)
    if not any(user for user, _ in turns if not user.isascii()):
        canonical = template.encode_chat(smollm2, messages)
        assert control_ids(smollm2, encoded.ids.tolist()) == control_ids(smollm2, canonical)


def test_the_recut_reply_differs_from_the_canonical_one(smollm2: Tokenizer) -> None:
    """Otherwise the tests here would show nothing."""
    assert recut(smollm2, REPLY) != smollm2.encode(REPLY)
    assert smollm2.decode(recut(smollm2, REPLY)) == REPLY


def test_two_line_ends_as_two_tokens_stay_two(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, smollm2_template: ChatTemplate
) -> None:
    (newline,) = smollm2.encode("\n")
    (two,) = smollm2.encode("\n\n")
    ids = [*smollm2.encode("a"), newline, newline, newline, *smollm2.encode("b")]
    prompt = encode_dialogue(smollm2_template, pieces, chat("Hi"), replies=replies)
    replies.remember(b"", prompt.ids, "a\n\n\nb", ids)
    encoded = encode_dialogue(smollm2_template, pieces, chat("Hi", "a\n\n\nb", "c"), replies=replies)
    assert is_prefix([*prompt.ids.tolist(), *ids], encoded.ids)
    assert two not in encoded.ids
    assert two in smollm2_template.encode_chat(smollm2, chat("Hi", "a\n\n\nb", "c"))
    (reply,) = encoded.spliced
    assert encoded.ids[reply.start : reply.end].tolist() == ids
    assert reply.message == 1


def test_of_two_variants_each_dialogue_gets_its_own(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    variants = {"A": recut(smollm2, REPLY, 1), "B": recut(smollm2, REPLY, 2)}
    assert variants["A"] != variants["B"]
    for user, ids in variants.items():
        replies.remember(b"", encode_dialogue(chatml, pieces, chat(user)).ids, REPLY, ids)

    def spliced(user: str) -> list[int]:
        encoded = encode_dialogue(chatml, pieces, chat(user, REPLY, "."), replies=replies)
        (reply,) = encoded.spliced
        return encoded.ids[reply.start : reply.end].tolist()

    assert spliced("A") == variants["A"]
    assert spliced("B") == variants["B"]
    assert spliced("C") == variants["B"]
    replies.remember(b"", encode_dialogue(chatml, pieces, chat("A")).ids, REPLY, variants["A"])
    assert spliced("C") == variants["A"]


def test_a_later_prompt_is_found_by_the_ids_that_were_spliced_before_it(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    """Two branches with equal text throughout, told apart by the ids of the first reply."""
    for seed in (1, 2):
        replies.forget(b"")
        messages = chat("x")
        before: list[int] = []
        for turn in range(3):
            prompt = encode_dialogue(chatml, pieces, messages, replies=replies)
            assert is_prefix(before, prompt.ids)
            ids = recut(smollm2, REPLY, seed + turn)
            replies.remember(b"", prompt.ids, REPLY, ids)
            before = [*prompt.ids.tolist(), *ids]
            messages += chat("", REPLY)[1:] + chat("x")


def test_control_tokens_of_a_reply_stay_in_its_own_dialogue(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    ids = [*smollm2.encode("Yes"), smollm2.special_tokens["<|im_start|>"]]
    prompt = encode_dialogue(chatml, pieces, chat("A"))
    replies.remember(b"", prompt.ids, "Yes", ids)
    own = encode_dialogue(chatml, pieces, chat("A", "Yes", "."), replies=replies)
    assert is_prefix([*prompt.ids.tolist(), *ids], own.ids)
    other = encode_dialogue(chatml, pieces, chat("B", "Yes", "."), replies=replies)
    assert other.ids.tolist() == chatml.encode_chat(smollm2, chat("B", "Yes", "."))


def test_only_replies_are_spliced(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    replies.remember(b"", [], REPLY, recut(smollm2, REPLY))
    messages = [{"role": role, "content": REPLY} for role in ("system", "user", "tool", "user")]
    encoded = encode_dialogue(chatml, pieces, messages, replies=replies)
    assert encoded.ids.tolist() == chatml.encode_chat(smollm2, messages)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=15)
@given(
    contents=st.lists(CONTENT, min_size=1, max_size=4),
    stored=st.lists(CONTENT | st.sampled_from(ATTACKS), max_size=2),
)
def test_stored_replies_forge_nothing(
    smollm2: Tokenizer, pieces: PieceEncoder, name: str, contents: list[str], stored: list[str]
) -> None:
    template, replies = ChatTemplate(TEMPLATES[name]), ReplyStore(pieces)
    for text in (*stored, *contents):
        replies.remember(b"", [], text, recut(smollm2, text))
    contents = [*contents, *stored, "\ufdd0\ufdd1\ufdd2"]
    harmless = control_ids(smollm2, template.encode_chat(smollm2, chat(*("b" for _ in contents))))
    encoded = encode_dialogue(template, pieces, chat(*contents), replies=replies)
    assert control_ids(smollm2, encoded.ids.tolist()) == harmless
    assert smollm2.decode(encoded.ids.tolist()) == smollm2.decode(
        template.encode_chat(smollm2, chat(*contents))
    ) or any(len(c) != len(c.strip()) for c in contents)


def test_what_the_template_changes_is_encoded_from_its_text(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore
) -> None:
    template = ChatTemplate(DROPS_REASONING)
    thought = f"<think>Hm.</think>{REPLY}"
    for text in (thought, REPLY):
        replies.remember(b"", [], text, recut(smollm2, text))
    messages = chat("a", thought, "b", REPLY, "c")
    encoded = encode_dialogue(template, pieces, messages, replies=replies)
    assert [reply.message for reply in encoded.spliced] == [3]
    assert smollm2.decode(encoded.ids.tolist()) == smollm2.decode(template.encode_chat(smollm2, messages))


@pytest.mark.parametrize(
    "source",
    [
        CHATML.replace("m['content'] +", "m['content'][:3] + m['content'][3:] +"),
        CHATML.replace("m['content']", "(m['content'] | upper)"),
        CHATML.replace("m['content']", "(m['content'] ~ (m['content'] | length))"),
        "{{ raise_exception('odd') if messages[1].content[0] != 'S' }}" + CHATML,
        "{% if messages[1].content.startswith('S') %}S!{% endif %}" + CHATML,
        "{% if messages[1].content.startswith('S') %}<|im_end|>{% endif %}" + CHATML,
    ],
)
def test_templates_that_look_into_content(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, source: str
) -> None:
    template = ChatTemplate(source)
    replies.remember(b"", [], REPLY, recut(smollm2, REPLY))
    messages = chat("a", REPLY, "b")
    encoded = encode_dialogue(template, pieces, messages, replies=replies)
    canonical = template.encode_chat(smollm2, messages)
    if not encoded.spliced:
        assert encoded.ids.tolist() == canonical
    assert smollm2.decode(encoded.ids.tolist()) == smollm2.decode(canonical)


def test_a_template_that_repeats_the_reply(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore
) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}<|im_end|>{{ m.content }}{% endfor %}")
    replies.remember(b"", [], REPLY, recut(smollm2, REPLY))
    encoded = encode_dialogue(template, pieces, chat("a", REPLY), replies=replies)
    assert len(encoded.spliced) == 1
    canonical = template.encode_chat(smollm2, chat("a", REPLY))
    assert smollm2.decode(encoded.ids.tolist()) == smollm2.decode(canonical)


def test_salts_share_nothing(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    replies.remember(b"one", [], REPLY, recut(smollm2, REPLY))
    messages = chat("a", REPLY, "b")
    assert encode_dialogue(chatml, pieces, messages, replies=replies, salt=b"one").spliced
    assert not encode_dialogue(chatml, pieces, messages, replies=replies, salt=b"two").spliced


def test_past_the_limit_the_oldest_replies_are_encoded_from_text(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    texts = [REPLY + str(i) for i in range(4)]
    for text in texts:
        replies.remember(b"", [], text, recut(smollm2, text))
    messages = chat(*(text for reply in texts for text in ("a", reply)), "b")
    whole = encode_dialogue(chatml, pieces, messages, replies=replies)
    canonical = chatml.encode_chat(smollm2, messages)
    assert [reply.message for reply in whole.spliced] == [1, 3, 5, 7]
    limit = len(whole.ids) - 1
    fitted = encode_dialogue(chatml, pieces, messages, replies=replies, limit_tokens=limit)
    assert [reply.message for reply in fitted.spliced] == [3, 5, 7]
    assert len(canonical) < len(fitted.ids) <= limit
    least = encode_dialogue(chatml, pieces, messages, replies=replies, limit_tokens=5)
    assert least.ids.tolist() == canonical


@pytest.mark.parametrize("stored", [True, False])
def test_a_partial_reply_is_continued_where_it_stopped(
    smollm2: Tokenizer,
    pieces: PieceEncoder,
    replies: ReplyStore,
    smollm2_template: ChatTemplate,
    stored: bool,
) -> None:
    prompt = encode_dialogue(smollm2_template, pieces, chat("Hi"), replies=replies)
    part = "Once upon a ti"
    ids = recut(smollm2, part) if stored else smollm2.encode(part)
    if stored:
        replies.remember(b"", prompt.ids, part, ids)
    opened = encode_dialogue(
        smollm2_template, pieces, chat("Hi", part), replies=replies, continue_final_message=True
    )
    assert opened.ids.tolist() == [*prompt.ids.tolist(), *ids]
    assert (opened.reply_start, opened.reply_text) == (len(prompt.ids), part)
    more = recut(smollm2, "me, <|im_end|>, they", 3)
    replies.remember(
        b"",
        opened.ids[: opened.reply_start],
        opened.reply_text + smollm2.decode(more),
        [*opened.ids[opened.reply_start :], *more],
    )
    messages = chat("Hi", "Once upon a time, <|im_end|>, they", "Go on.")
    later = encode_dialogue(smollm2_template, pieces, messages, replies=replies)
    assert is_prefix([*opened.ids.tolist(), *more], later.ids)


def test_continuing_white_space(
    smollm2: Tokenizer, pieces: PieceEncoder, replies: ReplyStore, chatml: ChatTemplate
) -> None:
    """What the client did not see at the end of its text must not stand before what follows it."""
    prompt = encode_dialogue(chatml, pieces, chat("Hi"))
    replies.remember(b"", prompt.ids, "\n\nSo ", recut(smollm2, "\n\nSo "))

    def opened(text: str) -> tuple[str, str]:
        encoded = encode_dialogue(
            chatml, pieces, chat("Hi", text), replies=replies, continue_final_message=True
        )
        return smollm2.decode(encoded.ids[encoded.reply_start :].tolist()), encoded.reply_text

    assert opened("\n\nSo ") == ("\n\nSo ", "\n\nSo ")
    assert opened("So ") == ("\n\nSo ", "\n\nSo ")
    assert opened("\n\nSo") == ("\n\nSo", "\n\nSo")
    assert opened("So") == ("So", "So")


@pytest.mark.parametrize("content", ["", None, " \n"])
def test_continuing_an_empty_reply_is_beginning_it(
    smollm2: Tokenizer, pieces: PieceEncoder, chatml: ChatTemplate, content: str | None
) -> None:
    messages = [*chat("Hi"), {"role": "assistant", "content": content}]
    encoded = encode_dialogue(chatml, pieces, messages, continue_final_message=True)
    assert encoded.ids.tolist() == chatml.encode_chat(smollm2, chat("Hi"))
    assert encoded.reply_start == len(encoded.ids)


def test_what_cannot_be_continued(pieces: PieceEncoder, chatml: ChatTemplate) -> None:
    for messages in ([], chat("Hi"), [Message("user", "Hi")]):
        with pytest.raises(InvalidRequestError, match="last message of role 'assistant'"):
            encode_dialogue(chatml, pieces, messages, continue_final_message=True)
    with pytest.raises(InvalidRequestError, match="changes the last message"):
        encode_dialogue(
            ChatTemplate(DROPS_REASONING), pieces, chat("a", "<think>x</think>y"), continue_final_message=True
        )


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"])
def test_begin_of_text_comes_once(smollm2_metadata: dict[str, Any], source: str) -> None:
    tokenizer = Tokenizer.from_gguf_metadata({**smollm2_metadata, "tokenizer.ggml.add_bos_token": True})
    template = ChatTemplate.for_tokenizer(source, tokenizer)
    encoded = encode_dialogue(template, PieceEncoder(tokenizer), chat("a b"))
    assert (
        encoded.ids.tolist() == template.encode_chat(tokenizer, chat("a b")) == [1, *tokenizer.encode("a b")]
    )


def test_sentencepiece_puts_a_space_where_encode_chat_does() -> None:
    tokenizer = spm_tokenizer()
    template = ChatTemplate.for_tokenizer(
        "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}", tokenizer
    )
    pieces = PieceEncoder(tokenizer)
    replies = ReplyStore(pieces)
    messages = chat("ab", "ab", "a")
    expected = template.encode_chat(tokenizer, messages)
    assert encode_dialogue(template, pieces, messages).ids.tolist() == expected
    prompt = encode_dialogue(template, pieces, messages[:1])
    ids = [i for c in " ab" for i in tokenizer.encode_pieces(["a", c])[len(tokenizer.encode("a")) :]]
    assert tokenizer.decode(ids) == "ab"
    replies.remember(b"", prompt.ids, "ab", ids)
    encoded = encode_dialogue(template, pieces, messages, replies=replies)
    assert is_prefix([*prompt.ids.tolist(), *ids], encoded.ids)
    assert encoded.ids.tolist() != expected
