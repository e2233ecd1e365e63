"""Cache reports, and whether it is the template's text that differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from duologue.api.cache_report import CacheMiss, cache_report, parts_in_template
from duologue.dialogue.encoded_dialogue import EncodedDialogue
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.models.random_model import CHAT_TEMPLATE

_SYSTEM = {"role": "system", "content": "You are a patient teacher."}
_ASK = {"role": "user", "content": "What is a tide?"}
_REPLY = {"role": "assistant", "content": "The sea, breathing."}


@pytest.fixture(scope="module")
def tokenizer(tiny_model_dir: Path) -> Tokenizer:
    return Tokenizer.from_hf_folder(tiny_model_dir)


def encode(
    tokenizer: Tokenizer, messages: list[dict[str, str]], source: str = CHAT_TEMPLATE
) -> EncodedDialogue:
    return encode_dialogue(ChatTemplate.for_tokenizer(source, tokenizer), PieceEncoder(tokenizer), messages)


def part(prompt: EncodedDialogue, stored: EncodedDialogue) -> tuple[int, list[int]]:
    """Where the prompt leaves what is stored, and what is stored from there on."""
    pairs = enumerate(zip(prompt.ids, stored.ids, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(prompt.ids), len(stored.ids)))
    return at, stored.ids[at:].tolist()


@pytest.mark.parametrize(
    ("stored", "prompt"),
    [
        ([_SYSTEM, _ASK], [{**_SYSTEM, "content": "You are a strict teacher."}, _ASK]),
        ([_SYSTEM, _ASK], [{**_SYSTEM, "content": "You are a patient"}, _ASK]),  # shorter
        ([_SYSTEM, _ASK], [{**_SYSTEM, "content": "You are a patient teacher. Always."}, _ASK]),  # longer
        ([_SYSTEM, _ASK, _REPLY], [_SYSTEM, _ASK, _ASK]),  # a message left out: another role follows
        ([_SYSTEM, _ASK], [_ASK]),  # no system message
    ],
)
def test_what_the_client_changed_is_not_the_template_s_doing(
    tokenizer: Tokenizer, stored: list[dict[str, str]], prompt: list[dict[str, str]]
) -> None:
    ours = encode(tokenizer, prompt)
    at, rest = part(ours, encode(tokenizer, stored))
    assert not parts_in_template(ours, tokenizer, at, rest)


def test_a_date_or_a_count_in_the_template_is_its_doing(tokenizer: Tokenizer) -> None:
    counting = "There are {{ messages | length }} messages.\n" + CHAT_TEMPLATE
    ours = encode(tokenizer, [_SYSTEM, _ASK, _REPLY, _ASK], counting)
    at, rest = part(ours, encode(tokenizer, [_SYSTEM, _ASK], counting))
    assert parts_in_template(ours, tokenizer, at, rest)
    assert not parts_in_template(ours, tokenizer, at, [])


def test_a_report_shows_both_sides(tokenizer: Tokenizer) -> None:
    ours = encode(tokenizer, [{**_SYSTEM, "content": "You are a strict teacher." + " Very." * 100}, _ASK])
    at, rest = part(ours, encode(tokenizer, [_SYSTEM, _ASK]))
    report = cache_report(ours, tokenizer, CacheMiss(at - 1, "edited", at, rest))
    assert (
        report["recomputed_tokens"]
        == report["prompt_tokens"] - report["matched_tokens"]
        == len(ours.ids) - at + 1
    )
    divergence = report["divergence"]
    assert (divergence["token"], divergence["message"]) == (at, 0)
    assert divergence["where"] == f"messages[0].content, character {divergence['character']}"
    assert divergence["prompt_text"].startswith(_text_from(ours, divergence["character"])[:10])
    assert len(divergence["prompt_text"]) <= 160
    assert "teacher" in divergence["stored_text"]


def _text_from(prompt: EncodedDialogue, character: int) -> str:
    return ("You are a strict teacher." + " Very." * 100)[character:]


def test_a_full_hit_has_no_divergence(tokenizer: Tokenizer) -> None:
    ours = encode(tokenizer, [_ASK])
    assert cache_report(ours, tokenizer, CacheMiss(len(ours.ids) - 1, "none")) == {
        "prompt_tokens": len(ours.ids),
        "matched_tokens": len(ours.ids) - 1,
        "recomputed_tokens": 1,
        "cause": "none",
        "divergence": None,
    }
