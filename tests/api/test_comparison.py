"""Two dialogues compared: where they part, whose fault it is, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duologue.api.comparison import Comparison, DialogueFileError, compare_dialogues, read_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.models.random_model import CHAT_TEMPLATE

_A = [
    {"role": "system", "content": "You are a patient teacher."},
    {"role": "user", "content": "What is a tide?"},
]
_REPLY = {"role": "assistant", "content": "The sea, breathing."}
_MORE = {"role": "user", "content": "Why?"}


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_hf_folder(tiny_model_dir)


def compare(tokenizer: Tokenizer, a: Any, b: Any, source: str = CHAT_TEMPLATE) -> Comparison:
    return compare_dialogues(ChatTemplate.for_tokenizer(source, tokenizer), tokenizer, a, b)


def test_the_next_turn_goes_on_where_the_last_one_ended(tokenizer: Tokenizer) -> None:
    found = compare(tokenizer, _A, [*_A, _REPLY, _MORE])
    assert (found.cause, found.shared_tokens, found.before) == ("none", found.tokens_a, None)
    assert found.recomputed_tokens == found.tokens_b - found.tokens_a > 0
    assert "B goes on where A ends." in found.lines()
    same = compare(tokenizer, _A, _A)
    assert (same.cause, same.shared_tokens, same.recomputed_tokens) == ("none", same.tokens_b, 1)
    assert "After A, B costs 1 token." in same.lines()


def test_an_edit_is_named_to_the_character(tokenizer: Tokenizer) -> None:
    edited = [{**_A[0], "content": "You are a strict teacher."}, _A[1]]
    found = compare(tokenizer, _A, edited)
    assert found.cause == "content"
    assert found.before is not None
    assert found.after is not None
    assert (found.before.message, found.after.message) == (0, 0)
    assert found.after.character is not None
    assert found.after.character <= len("You are a ")
    assert "strict teacher" in found.after.text
    text = "\n".join(found.lines())
    assert "the messages differ there" in text
    assert "patient" in text
    assert f"costs {found.recomputed_tokens} tokens" in text


def test_a_message_left_out_is_a_difference_of_content(tokenizer: Tokenizer) -> None:
    found = compare(tokenizer, [*_A, _REPLY, _MORE], [*_A, _MORE])
    assert found.cause == "content"
    assert found.shared_tokens > 20


@pytest.mark.parametrize("extra", [[_REPLY, _MORE], [_REPLY, _MORE, _REPLY, _MORE]])
def test_a_template_that_rewrites_history_is_named(tokenizer: Tokenizer, extra: list[dict[str, str]]) -> None:
    counting = "There are {{ messages | length }} messages.\n" + CHAT_TEMPLATE
    found = compare(tokenizer, _A, [*_A, *extra], counting)
    assert found.cause == "template"
    assert found.after is not None
    assert found.after.name == "template"
    assert "it is the chat template" in "\n".join(found.lines())


def test_dialogues_without_anything_in_common(tokenizer: Tokenizer) -> None:
    found = compare(tokenizer, [_A[1]], [{"role": "user", "content": "Xylophones"}])
    assert found.cause == "content"
    assert found.shared_tokens < found.tokens_a


@pytest.mark.parametrize("content", [_A, {"messages": _A}])
def test_a_file_may_begin_with_a_byte_order_mark(content: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(content), encoding="utf-8-sig")
    assert read_dialogue(file) == _A


def test_files_hold_a_list_or_a_request(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text(json.dumps(_A))
    (tmp_path / "body.json").write_text(json.dumps({"model": "m", "messages": _A, "seed": 5}))
    assert read_dialogue(tmp_path / "list.json") == read_dialogue(tmp_path / "body.json") == _A


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not valid JSON"),
        ("[", "not valid JSON"),
        ("[]", "'messages'"),
        ("{}", "'messages'"),
        ('[{"role": "king", "content": "x"}]', "messages[0].role"),
        ('{"messages": [], "messages": []}', "twice"),
    ],
)
def test_files_that_hold_no_dialogue_are_named(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(DialogueFileError) as caught:
        read_dialogue(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    with pytest.raises(DialogueFileError, match="no such file"):
        read_dialogue(tmp_path / "none.json")
