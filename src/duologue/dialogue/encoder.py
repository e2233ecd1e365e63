"""All that happens between the messages of a request and its token ids, with what is remembered for it.

In order: inserts are placed (`volatile`), turns are cut if the request allows it (`truncation`), and what is
left is encoded with earlier replies spliced in (`splice`). Of a finished reply `remember` keeps text and ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from duologue.dialogue.encoded_dialogue import EncodedDialogue
from duologue.dialogue.messages import MessageLike, template_messages
from duologue.dialogue.piece_encoder import PieceEncoder
from duologue.dialogue.reply_store import ReplyStore
from duologue.dialogue.splice import encode_dialogue
from duologue.dialogue.template import ChatTemplate
from duologue.dialogue.token_counter import TokenCounter
from duologue.dialogue.tokenizer import Tokenizer
from duologue.dialogue.truncation import PINNED_ROLES, Truncation, TruncationMode, find_cut
from duologue.dialogue.volatile import PlacedMessages, VolatileInsert, VolatileStore

DEFAULT_MEMORY_BYTES = 64 << 20


class DialogueEncoder:
    """Encodes the dialogues of one model. Safe to use from several threads."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        truncation: Truncation,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        """`memory_bytes` bounds all that is remembered: half of it for replies."""
        self.truncation = truncation
        self._template = template
        self._pieces = PieceEncoder(tokenizer, memory_bytes * 3 // 8)
        self._replies = ReplyStore(self._pieces, memory_bytes // 2)
        self._counter = TokenCounter(template, tokenizer, memory_bytes // 16)
        self._volatile = VolatileStore(memory_bytes // 16)

    def encode(
        self,
        messages: Sequence[MessageLike],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        salt: bytes = b"",
        key: str | None = None,
        truncation: TruncationMode | Truncation = "disabled",
        volatile: Sequence[VolatileInsert] | None = None,
        continue_final_message: bool = False,
        remember: bool = True,
    ) -> EncodedDialogue:
        """The prompt for the next reply. `salt` says whose replies and inserts may be used, `key` is the
        `prompt_cache_key`; without `remember` no inserts are kept (for requests that only look up).

        With `truncation` "disabled" the prompt can be too long for the context. With "auto", or with sizes of its
        own, it is not, and at least half of the reserve is left for the reply; what cannot be cut so far raises
        `InvalidRequestError` with code `context_length_exceeded`. Raises as `encode_dialogue` and `VolatileStore.place`, too.
        """
        sizes = self.truncation if isinstance(truncation, str) else truncation
        placed = self._volatile.place(messages, volatile, salt=salt, key=key, remember=remember)

        def encode(kept: Sequence[int], limit_tokens: int) -> EncodedDialogue:
            return encode_dialogue(
                self._template,
                self._pieces.scoped(salt),
                [placed.messages[i] for i in kept],
                tools=tools,
                replies=self._replies,
                salt=salt,
                continue_final_message=continue_final_message,
                limit_tokens=limit_tokens,
                step_tokens=sizes.reserve_tokens,
                origins=[placed.origins[i] for i in kept],
                passed=placed.passed,
            )

        whole = range(len(placed.messages))
        if truncation == "disabled":
            return encode(whole, sizes.limit_tokens - 1)
        roles, pinned = _turn_roles(placed)
        counts = self._counter.count(placed.messages, tools, salt=salt)
        limit_tokens = sizes.limit_tokens - -(-sizes.reserve_tokens // 2)
        extra_steps = 0
        while True:
            # Counts are above what a prompt has, but for templates that do what no count foresees.
            cut = find_cut(
                sizes, roles, counts.messages, counts.fixed, pinned=pinned, extra_steps=extra_steps
            )
            encoded = encode(cut.kept(len(roles)), limit_tokens)
            if len(encoded.ids) <= limit_tokens:
                return encoded
            extra_steps += 1

    def remember(
        self,
        encoded: EncodedDialogue,
        text: str,
        token_ids: Sequence[int],
        *,
        salt: bytes = b"",
        key: str | None = None,
    ) -> None:
        """Keeps the reply to a prompt, whole or partial: the text that was sent and the ids that were sampled,
        without the one that ended the reply."""
        begun = encoded.ids[encoded.reply_start :].tolist()
        self._replies.remember(
            salt, encoded.ids[: encoded.reply_start], encoded.reply_text + text, [*begun, *token_ids], key
        )

    def forget(self, salt: bytes) -> None:
        """Drops all replies and inserts of this salt."""
        self._replies.forget(salt)
        self._volatile.forget(salt)

    def forget_key(self, salt: bytes, key: str) -> None:
        """Drops the replies and inserts that came under `key` and under no other."""
        self._replies.forget_key(salt, key)
        self._volatile.forget_key(salt, key)

    @property
    def memory_bytes(self) -> int:
        """What all that is remembered takes, about."""
        stores = (self._pieces, self._replies, self._counter, self._volatile)
        return sum(store.used_bytes for store in stores)


def without_end(token_ids: Sequence[int], end_ids: Collection[int]) -> Sequence[int]:
    """The ids of a reply less the one that ended it, which the template writes itself."""
    return token_ids[:-1] if token_ids and token_ids[-1] in end_ids else token_ids


def _turn_roles(placed: PlacedMessages) -> tuple[list[str], int]:
    """Roles for `find_cut`, in which a turn begins with the inserts before its user message, and the number of
    pinned messages, among which no inserts are."""
    roles = [
        "" if origin is None else str(message["role"])
        for message, origin in zip(template_messages(placed.messages), placed.origins, strict=True)
    ]
    pinned = next((i for i, role in enumerate(roles) if role not in PINNED_ROLES), len(roles))
    for i in range(len(roles) - 1, pinned, -1):
        if roles[i] == "user" and placed.origins[i - 1] is None:
            roles[i - 1], roles[i] = "user", ""
    return roles, pinned
