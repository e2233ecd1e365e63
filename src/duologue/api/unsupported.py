"""OpenAI's request fields that this server has no use for: which are harmless, and which must be refused.

A field is harmless if the text that a client gets is the same without it. Every other field that is not
implemented is refused by name unless its value asks for nothing, because a reply that silently ignores, say,
`audio` or `suffix` is a wrong reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duologue.errors import InvalidRequestError

HARMLESS = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


NeutralValues = Mapping[str, tuple[Any, ...]]
"""Of each field the values that ask for nothing; a null always does."""

_EMPTY: tuple[Any, ...] = (False, [], {})

_VLLM: NeutralValues = {
    "early_stopping": _EMPTY,
    "include_stop_str_in_output": _EMPTY,
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # none are shown
    "use_beam_search": _EMPTY,
}
"""Fields that clients of vLLM send with the values that are its defaults."""

CHAT_FIELDS: NeutralValues = {
    **_VLLM,
    "audio": _EMPTY,
    "function_call": ("none", "auto"),
    "functions": _EMPTY,
    "modalities": (["text"],),
    "reasoning_effort": ("none", "medium"),  # the latter is OpenAI's default
    "verbosity": ("medium",),  # OpenAI's default
    "web_search_options": (),
}
"""Of chats: OpenAI's fields that are not implemented."""

TEXT_FIELDS: NeutralValues = {**_VLLM, "suffix": ("",)}
"""Of text completions."""


def _asks_nothing(value: Any, neutral: tuple[Any, ...]) -> bool:
    # In Python False equals 0 and True equals 1.
    return any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in neutral)


def implemented_fields(fields: Mapping[str, Any], refused: NeutralValues) -> dict[str, Any]:
    """`fields` without the harmless and the neutral ones; a null counts as an absent field.

    Raises `InvalidRequestError` with code `unsupported_parameter` on a field that would change the reply.
    """
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if name in HARMLESS or value is None:
            continue
        neutral = refused.get(name)
        if neutral is None:
            kept[name] = value
        elif not _asks_nothing(value, neutral):
            raise InvalidRequestError(
                f"Unsupported parameter: '{name}' with this value is not supported; leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    return kept
