"""docs/api.md names what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from duologue.api.chat import ChatCompletionRequest
from duologue.api.messages import MAX_MESSAGES
from duologue.api.sampling_fields import MAX_CHOICES, MAX_STOP_CHARS, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from duologue.api.text import TextCompletionRequest
from duologue.api.tokenization import DetokenizeRequest, TokenizeRequest
from duologue.api.tools import MAX_TOOLS
from duologue.api.unsupported import CHAT_FIELDS, HARMLESS, TEXT_FIELDS
from duologue.server.limits import Limits

_TEXT = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
_NAMED = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", _TEXT))))


@pytest.mark.parametrize(
    "kind", [ChatCompletionRequest, TextCompletionRequest, TokenizeRequest, DetokenizeRequest]
)
def test_every_field_is_documented(kind: type) -> None:
    assert set(kind.model_fields) - _NAMED == set()  # type: ignore[attr-defined]


def test_every_field_without_effect_and_every_refused_one_is_documented() -> None:
    assert (HARMLESS | set(CHAT_FIELDS) | set(TEXT_FIELDS)) - _NAMED == set()


def test_the_limits_are_the_code_s() -> None:
    limits = Limits()
    for said in (
        f"1 to {MAX_CHOICES}",
        f"up to {MAX_STOP_STRINGS}, each up to {MAX_STOP_CHARS:,} characters",
        f"0 to {MAX_TOP_LOGPROBS}",
        f"up to {MAX_TOOLS} functions",
        f"| messages | {MAX_MESSAGES:,} |",
        f"`--max-waiting` {limits.max_waiting} ",
        f"`--max-wait` {limits.max_wait_s:g} s",
        f"`--max-body` {limits.max_body_bytes >> 20} MiB",
    ):
        assert said in _TEXT, said
