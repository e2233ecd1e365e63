"""Why a prompt was not all in the cache: where the match ended, what was stored there instead, and what that cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duologue.dialogue.encoded_dialogue import EncodedDialogue
    from duologue.dialogue.tokenizer import Tokenizer

_SHOWN_CHARS = 160
_ROLE = re.compile(
    r"\s*(?:system|developer|user|human|assistant|model|tool|function|ipython)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class CacheMiss:
    """What the cache says about a prompt.

    `matched_tokens` of it are used. `cause` is "none" or a `MissCause`. `parting` is the token at which the prompt leaves the
    nearest branch that is stored under the same salt, and `stored_ids` are what that branch has from there on. They are shown as
    text, so they must never be another tenant's.
    """

    matched_tokens: int
    cause: str
    parting: int = 0
    stored_ids: Sequence[int] = ()


def cache_report(prompt: EncodedDialogue, tokenizer: Tokenizer, miss: CacheMiss) -> dict[str, Any]:
    """The `cache_report` of a reply: what was used and computed, and, if something was missing, where the prompt parts from
    what is stored, in the request's terms and as text on both sides.

    `message` and `character` are null for what the template writes; `stored_text` is null when nothing is stored from there on.
    """
    total_tokens = len(prompt.ids)
    report: dict[str, Any] = {
        "prompt_tokens": total_tokens,
        "matched_tokens": miss.matched_tokens,
        "recomputed_tokens": total_tokens - miss.matched_tokens,
        "cause": miss.cause,
        "divergence": None,
    }
    if miss.cause != "none":
        place = prompt.locate(miss.parting)
        report["divergence"] = {
            "token": miss.parting,
            "message": place.message,
            "character": place.character,
            "where": place.name,
            "prompt_text": place.text[:_SHOWN_CHARS],
            "stored_text": _text(tokenizer, miss.stored_ids)[:_SHOWN_CHARS] if miss.stored_ids else None,
        }
    return report


def parts_in_template(
    prompt: EncodedDialogue, tokenizer: Tokenizer, token: int, stored_ids: Sequence[int]
) -> bool:
    """Whether it is what the template writes that differs at `token`, rather than what the client sent.

    Right behind a message's content the template's text begins on our side because the message is shorter than the stored one,
    and a role that differs is the client's doing as well.
    """
    if not stored_ids or prompt.locate(token).message is not None:
        return False
    if token and prompt.locate(token - 1).message is not None:
        return False
    return not (_ROLE.match(prompt.locate(token).text) and _ROLE.match(_text(tokenizer, stored_ids)))


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special=False)
