"""Messages to token ids, with replies that were generated here put in as the ids that were generated.

The text is the template's, unchanged (`MarkedChat.pieces`). Where it holds the content of an assistant message,
as it is or trimmed, and the store knows that reply, its ids take the place of the text. What stands before and
after is encoded on its own: the prompt that the reply was generated after ended there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from duologue.dialogue.encoded_dialogue import EncodedDialogue, Part, SplicedReply, as_ids
from duologue.dialogue.marked_chat import ContentSpan, MarkedChat
from duologue.dialogue.messages import MessageLike, template_messages
from duologue.dialogue.piece_encoder import After, PieceEncoder
from duologue.dialogue.reply_store import PromptDigest, ReplyStore
from duologue.dialogue.template import ChatTemplate
from duologue.errors import InvalidRequestError


def encode_dialogue(
    template: ChatTemplate,
    pieces: PieceEncoder,
    messages: Sequence[MessageLike],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    replies: ReplyStore | None = None,
    salt: bytes = b"",
    continue_final_message: bool = False,
    limit_tokens: int | None = None,
    step_tokens: int = 1,
    origins: Sequence[int | None] | None = None,
    passed: frozenset[int] = frozenset(),
) -> EncodedDialogue:
    """The prompt for the next reply; without stored replies the ids are `template.encode_chat`'s.

    With `continue_final_message` the last message, an assistant's, is left open to be continued, exactly as it
    was sent. Past `limit_tokens`, replies whose ids are more than their text needs are encoded from the text,
    the oldest first and as many as save a multiple of `step_tokens`, so that they are not given up one by one
    from turn to turn; the result may still be longer. `origins` are the places of the messages in the request,
    for `locate` (None: not from there), `passed` is a PlacedMessages'.

    Raises `InvalidRequestError` for a malformed message or one that cannot be continued, and `TemplateError`.
    """
    final = _final_message(messages) if continue_final_message else None
    if final is not None and not template_messages(messages)[final]["content"].strip():
        messages, final = messages[:-1], None  # nothing of it is written yet
    chat = template.marked(pieces.tokenizer, messages, final is None, tools)
    splicing = _Splicing(chat, pieces, replies, salt, final, origins, passed)
    encoded = splicing.encode()
    while limit_tokens is not None and len(encoded.ids) > limit_tokens:
        excess = len(encoded.ids) - limit_tokens
        if not splicing.give_up_oldest(encoded, -(-excess // step_tokens) * step_tokens):
            break
        encoded = splicing.encode()
    return encoded


def _final_message(messages: Sequence[MessageLike]) -> int:
    role = None
    if messages:
        last = messages[-1]
        role = last.get("role") if isinstance(last, Mapping) else last.role
    if role != "assistant":
        raise InvalidRequestError(
            f"continue_final_message needs a last message of role 'assistant', not {role!r}",
            param="continue_final_message",
            code="invalid_value",
        )
    return len(messages) - 1


class _Splicing:
    """One dialogue on its way to ids; `encode` may be repeated after replies were given up."""

    def __init__(
        self,
        chat: MarkedChat,
        pieces: PieceEncoder,
        replies: ReplyStore | None,
        salt: bytes,
        final: int | None,
        origins: Sequence[int | None] | None,
        passed: frozenset[int],
    ) -> None:
        self._chat = chat
        self._pieces = pieces
        self._replies = replies
        self._salt = salt
        self._final = final
        self._origins = tuple(range(len(chat.plain)) if origins is None else origins)
        self._passed = passed
        self._given_up: set[int] = set()
        wanted = {
            i
            for i, message in enumerate(chat.plain)
            if i == final
            or (replies and message["role"] == "assistant" and replies.knows(salt, message["content"]))
        }
        self._spans: dict[int, list[ContentSpan]] = {}
        if wanted:
            users = [i for i, message in enumerate(chat.plain) if message["role"] == "user"]
            self._spans = chat.spans(wanted.union(users[:1], users[-1:]))
        self._end = next((s for ss in self._spans.values() for s in ss if s.message == final), None)
        if final is not None and self._end is None:
            raise InvalidRequestError(
                "the model's chat template changes the last message, so it cannot be continued; "
                "leave out continue_final_message",
                param="continue_final_message",
                code="invalid_value",
            )

    def encode(self) -> EncodedDialogue:
        out = _Output()
        tokenizer, pieces = self._pieces.tokenizer, self._chat.pieces
        if tokenizer.adds_bos and tokenizer.bos_id is not None and pieces[:1] != [tokenizer.bos_id]:
            out.append(array("i", [tokenizer.bos_id]))
        reply_start, reply_text = None, ""
        after = After.START
        for number, piece in enumerate(pieces):
            if isinstance(piece, int):
                out.add(Part(number, 0, 0, out.tokens), array("i", [piece]))
                after = After.CONTROL
                continue
            at = 0
            for span in self._spans.get(number, ()):
                if self._chat.plain[span.message]["role"] != "assistant":
                    continue
                before = piece[at : span.start]
                before_ids = self._pieces.encode(before, after) if before else array("i")
                ids = self._stored(span, out.digest.after(before_ids))
                content = self._chat.plain[span.message]["content"][span.lead :]
                if ids is None and span is not self._end:
                    continue
                if before:
                    out.add(Part(number, at, span.start, out.tokens), before_ids)
                    after = After.TEXT
                if span is self._end:
                    reply_start = out.tokens
                    reply_text = content if ids is None else tokenizer.decode(ids)
                if ids is None:
                    ids = self._pieces.encode(content, after)
                    out.add(Part(number, span.start, span.end, out.tokens), ids)
                else:
                    out.spliced.append(SplicedReply(span.message, out.tokens, out.tokens + len(ids)))
                    out.add(Part(number, span.start, span.end, out.tokens, spliced=True), ids)
                at, after = span.end, After.TEXT
                if span is self._end:
                    break
            if reply_start is not None:
                break
            if at < len(piece):
                out.add(Part(number, at, len(piece), out.tokens), self._pieces.encode(piece[at:], after))
                after = After.TEXT
        return EncodedDialogue(
            ids=as_ids(out.chunks),
            reply_start=out.tokens if reply_start is None else reply_start,
            reply_text=reply_text,
            spliced=tuple(out.spliced),
            origins=self._origins,
            passed=self._passed,
            _chat=self._chat,
            _parts=tuple(out.parts),
            _spans=self._spans,
            _tokenizer=tokenizer,
        )

    def _stored(self, span: ContentSpan, digest: bytes) -> array[int] | None:
        message = self._chat.plain[span.message]
        if self._replies is None or span.message in self._given_up:
            return None
        is_final = span.message == self._final
        return self._replies.find(self._salt, message["content"], digest, exact_end=is_final)

    def give_up_oldest(self, encoded: EncodedDialogue, wanted_tokens: int) -> bool:
        """Encode from now on from their text the oldest replies that are longer as ids, until that saves what is
        wanted. False if there is none."""
        saved = 0
        for reply in encoded.spliced:
            text = self._chat.plain[reply.message]["content"]
            gain = reply.end - reply.start - len(self._pieces.encode(text))
            if gain > 0 and saved < wanted_tokens:
                self._given_up.add(reply.message)
                saved += gain
        return saved > 0


class _Output:
    """Ids as they come, in chunks."""

    def __init__(self) -> None:
        self.chunks: list[array[int]] = []
        self.parts: list[Part] = []
        self.spliced: list[SplicedReply] = []
        self.tokens = 0
        self.digest = PromptDigest()

    def append(self, ids: array[int]) -> None:
        self.chunks.append(ids)
        self.tokens += len(ids)
        self.digest.update(ids)

    def add(self, part: Part, ids: array[int]) -> None:
        self.parts.append(part)
        self.append(ids)
