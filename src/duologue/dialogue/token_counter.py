"""How many tokens each message of a dialogue takes, without rendering the dialogue.

A message costs the tokens of its content and of what the template writes around it. The latter is measured
once per role, on small dialogues, and rounded up, so that the sum is rather above than below what the prompt
will have. The same message always counts the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from duologue.dialogue.byte_lru import ENTRY_BYTES, ByteLru
from duologue.dialogue.messages import MessageLike, template_messages
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.tokenizer import Tokenizer
from duologue.errors import TemplateError

_PROBE = "x"
_UNKNOWN_OVERHEAD = 16  # tokens around a message that the template does not take in a small dialogue
_BORDER = 1  # where content meets the template's text, both together may take a token more


@dataclass(frozen=True)
class TokenCounts:
    """`messages[i]` tokens for each message and `fixed` for the rest of the prompt."""

    fixed: int
    messages: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.fixed + sum(self.messages)


class TokenCounter:
    """Counts of one template's messages; texts counted lately are remembered, in `budget_bytes`. Safe to use
    from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, budget_bytes: int = 16 << 20) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._known: ByteLru[bytes, int] = ByteLru(budget_bytes)
        user, assistant = _message("user"), _message("assistant")
        system = _message("system")
        probe = self._text_tokens(_PROBE)
        one = self._probe([user], None)
        self._user = self._added(one, [user, assistant, user], [user, assistant])
        self._assistant = self._added(one, [user, assistant], [user])
        self._other = max(
            self._user, self._assistant, self._added(one, [user, assistant, system], [user, assistant])
        )
        self._fixed = max((one if one is not None else _UNKNOWN_OVERHEAD) - probe, 0)
        with_system = self._probe([system, user], None)
        self._fixed_with_system = self._fixed if with_system is None else max(with_system - 2 * probe, 0)

    def count(
        self,
        messages: Sequence[MessageLike],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        salt: bytes = b"",
    ) -> TokenCounts:
        """`salt` (up to 64 bytes) keeps what is remembered apart: how long a count takes must not tell whether others have
        sent a text. Raises `InvalidRequestError` for a malformed message."""
        plain = template_messages(messages)
        with_system = bool(plain) and plain[0]["role"] == "system"
        fixed = self._fixed_with_system if with_system else self._fixed
        if tools:
            fixed += self._tools_tokens(tools, salt)
        return TokenCounts(fixed, tuple(self._message_tokens(message, salt) for message in plain))

    @property
    def used_bytes(self) -> int:
        """Memory of what is remembered, about; at most the budget."""
        return self._known.used_bytes

    def _message_tokens(self, message: Mapping[str, Any], salt: bytes) -> int:
        role = message["role"]
        around = {"user": self._user, "assistant": self._assistant}.get(role, self._other)
        tokens = around + self._text_tokens(message["content"], salt) + _BORDER
        rest = {name: value for name, value in message.items() if name not in ("role", "content")}
        if rest:
            text = json.dumps(rest, ensure_ascii=False, default=str)
            tokens += self._text_tokens(text, salt) + _UNKNOWN_OVERHEAD
        return tokens

    def _tools_tokens(self, tools: Sequence[Mapping[str, Any]], salt: bytes) -> int:
        with_tools = self._probe([_message("user")], tools)
        without = self._probe([_message("user")], None)
        if with_tools is None or without is None:
            return self._text_tokens(json.dumps(tools, ensure_ascii=False, default=str), salt)
        return max(with_tools - without, 0)

    def _text_tokens(self, text: str, salt: bytes = b"") -> int:
        key = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=salt).digest()
        known = self._known.get(key)
        if known is None:
            known = len(self._tokenizer.encode(text))
            self._known.put(key, known, ENTRY_BYTES)
        return known

    def _added(self, one: int | None, longer: list[MessageLike], shorter: list[MessageLike]) -> int:
        """Tokens that the last of `longer` takes, without its content."""
        if one is None:
            return _UNKNOWN_OVERHEAD
        both = self._probe(longer, None), self._probe(shorter, None)
        if both[0] is None or both[1] is None:
            return _UNKNOWN_OVERHEAD
        return max(both[0] - both[1] - self._text_tokens(_PROBE), 0)

    def _probe(self, messages: list[MessageLike], tools: Sequence[Mapping[str, Any]] | None) -> int | None:
        try:
            return len(self._template.encode_chat(self._tokenizer, messages, tools=tools))
        except TemplateError:
            return None


def _message(role: str) -> dict[str, Any]:
    return {"role": role, "content": _PROBE}
