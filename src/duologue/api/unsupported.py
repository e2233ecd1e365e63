"""OpenAI's request fields that this server has no use for: which are harmless, and which must be refused.

A field is harmless if the text that a client gets is the same without it. Every other field that is not
implemented is refused by name unless its value asks for nothing, because a reply that silently ignores, say,
`audio` or `suffix` is a wrong reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def _empty(value: Any) -> bool:
    return value is None or value is False or value == [] or value == {}


def _one_of(*neutral: Any) -> Callable[[Any], bool]:
    return lambda value: value is None or any(type(value) is type(n) and value == n for n in neutral)


_Neutral = Mapping[str, Callable[[Any], bool]]  # name -> does this value ask for nothing?

_VLLM: _Neutral = {
    "early_stopping": _empty,
    "include_stop_str_in_output": _empty,
    "length_penalty": _one_of(1, 1.0),
    "skip_special_tokens": _one_of(True),
    "spaces_between_special_tokens": lambda value: isinstance(value, bool),  # none are shown
    "use_beam_search": _empty,
}
"""Fields that clients of vLLM send with the values that are its defaults."""

CHAT_FIELDS: _Neutral = {
    **_VLLM,
    "audio": _empty,
    "function_call": _one_of("none", "auto"),
    "functions": _empty,
    "modalities": _one_of(["text"]),
    "reasoning_effort": _one_of("none"),
    "verbosity": _empty,
    "web_search_options": lambda value: value is None,
}
"""Of chats: OpenAI's fields that are not implemented."""

TEXT_FIELDS: _Neutral = {**_VLLM, "suffix": _one_of("")}
"""Of text completions."""


def implemented_fields(fields: Mapping[str, Any], refused: _Neutral) -> dict[str, Any]:
    """`fields` without the harmless and the neutral ones; a null counts as an absent field.

    Raises `InvalidRequestError` with code `unsupported_parameter` on a field that would change the reply.
    """
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if name in HARMLESS or value is None:
            continue
        asks_nothing = refused.get(name)
        if asks_nothing is None:
            kept[name] = value
        elif not asks_nothing(value):
            raise InvalidRequestError(
                f"Unsupported parameter: '{name}' with this value is not supported; leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    return kept
