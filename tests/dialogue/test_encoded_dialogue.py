from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from tests.dialogue.recut import recut
from tests.dialogue.test_template import CHATML, TEMPLATES, chat

WORDS = ["one two three", "Was it <b>you</b>?", "naïve café, \U0001f600!", "a\n\nb", "  spaced  "]


@pytest.fixture(scope="module")
def pieces(smollm2: Tokenizer) -> PieceEncoder:
    return PieceEncoder(smollm2)


@pytest.mark.parametrize("spliced", [False, True])
@settings(deadline=None, max_examples=40)
@given(contents=st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
def test_each_token_names_its_message_and_character(
    smollm2: Tokenizer,
    pieces: PieceEncoder,
    smollm2_template: ChatTemplate,
    spliced: bool,
    contents: list[str],
) -> None:
    replies = ReplyStore(pieces)
    messages = chat(*contents)
    for message in messages[1::2] if spliced else ():
        replies.remember(b"", [], message["content"], recut(smollm2, message["content"]))
    encoded = encode_dialogue(smollm2_template, pieces, messages, replies=replies)
    assert bool(encoded.spliced) == (spliced and len(messages) > 1)
    shown: dict[int, int] = {}
    for token, token_id in enumerate(encoded.ids.tolist()):
        location = encoded.locate(token)
        if smollm2.is_control(token_id):
            assert location.name == "template"
        elif location.message is not None:
            content = messages[location.message]["content"]
            assert location.character is not None
            character = content[location.character]
            assert location.text.startswith(content[location.character :])
            assert location.name == f"messages[{location.message}].content, character {location.character}"
            if character.isascii():
                assert smollm2.token_bytes(token_id).decode(errors="ignore")[:1] == character
            assert location.character >= shown.get(location.message, 0)
            shown[location.message] = location.character
        else:
            assert location.text.startswith(smollm2.decode([token_id]))
    assert list(shown) == list(range(len(messages)))


def test_origins_are_the_places_in_the_request(pieces: PieceEncoder) -> None:
    template = ChatTemplate(CHATML)
    encoded = encode_dialogue(template, pieces, chat("a", "b", "c"), origins=[7, None, 8])
    assert {encoded.locate(t).message for t in range(len(encoded.ids))} == {None, 7, 8}


def test_outside_the_prompt(pieces: PieceEncoder) -> None:
    encoded = encode_dialogue(ChatTemplate(CHATML), pieces, chat("a"))
    for token in (-1, len(encoded.ids)):
        with pytest.raises(IndexError):
            encoded.locate(token)


def test_bytes_without_a_token_are_passed_over(
    smollm2: Tokenizer, smollm2_bytes: dict[bytes, int], pieces: PieceEncoder
) -> None:
    lost = next(bytes((b,)).decode() for b in range(128) if bytes((b,)) not in smollm2_bytes)
    content = f"{lost}ab{lost}{lost} cd"
    encoded = encode_dialogue(ChatTemplate(CHATML), pieces, chat(content))
    located = {encoded.locate(t).character: int(encoded.ids[t]) for t in range(len(encoded.ids))}
    assert {smollm2.decode([located[content.index(" cd")]])} == {" cd"}


def test_a_begin_token_that_no_template_wrote(smollm2_metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_gguf_metadata({**smollm2_metadata, "tokenizer.ggml.add_bos_token": True})
    encoded = encode_dialogue(ChatTemplate("{{ messages[0].content }}"), PieceEncoder(tokenizer), chat("ab"))
    assert [encoded.locate(t).name for t in range(2)] == ["template", "messages[0].content, character 0"]
    assert encoded.turn_boundaries == (1, 2)


@settings(deadline=None, max_examples=60)
@given(
    contents=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5),
    other=st.sampled_from([*WORDS, "", "x"]),
    spliced=st.booleans(),
)
def test_turn_boundaries_hold_for_another_last_message(
    smollm2: Tokenizer,
    pieces: PieceEncoder,
    smollm2_template: ChatTemplate,
    contents: list[str],
    other: str,
    spliced: bool,
) -> None:
    replies = ReplyStore(pieces)
    messages = chat(*contents)
    for message in messages[1::2] if spliced else ():
        replies.remember(b"", [], message["content"], recut(smollm2, message["content"]))
    last = (len(contents) - 1) // 2 * 2
    encoded = encode_dialogue(smollm2_template, pieces, messages, replies=replies)
    assert encoded.turn_boundaries is not None
    before, after = encoded.turn_boundaries
    rewritten = encode_dialogue(
        smollm2_template, pieces, [*messages[:last], {"role": "user", "content": other}], replies=replies
    )
    assert encoded.ids[:before].tolist() == rewritten.ids[:before].tolist()
    assert smollm2.decode(encoded.ids[before:after].tolist()) == "user\n" + contents[last]


def test_without_a_user_message_there_are_no_boundaries(pieces: PieceEncoder) -> None:
    system = [{"role": "system", "content": "x"}]
    encoded = encode_dialogue(ChatTemplate(CHATML), pieces, system)
    assert encoded.turn_boundaries is None
    assert encoded.history_begin is None
    deleting = ChatTemplate(TEMPLATES["deleting"])
    assert encode_dialogue(deleting, pieces, chat("aXb")).turn_boundaries is None
    assert encode_dialogue(deleting, pieces, chat("ab")).turn_boundaries is not None


def test_content_tokens(smollm2: Tokenizer, pieces: PieceEncoder) -> None:
    messages = [{"role": "system", "content": "x"}, *chat("One two.", "Three!", "Four"), *chat("")]
    encoded = encode_dialogue(ChatTemplate(CHATML), pieces, messages)
    for i, message in enumerate(messages[:-1]):
        tokens = encoded.content_tokens(i)
        assert tokens is not None
        assert smollm2.decode(encoded.ids[slice(*tokens)].tolist()) == message["content"]
    assert encoded.history_begin == (encoded.content_tokens(1) or (0, 0))[1]
    assert encoded.content_tokens(4) is None
