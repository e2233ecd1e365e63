"""The token ids that a workload's dialogues send, in the order in which a server would see them: traces for cache simulations.

Words stand for one token each and replies are made up, so a trace needs no tokenizer, model or server. Requests are replayed one
after another: turn t of every dialogue comes before turn t + 1 of any.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.bench.dialogue_words import WORDS
from duologue.bench.dialogue_workload import DialogueState, Message, WorkloadSpec, make_dialogues

Ids = npt.NDArray[np.int32]

_ROLES = {"system": 0, "user": 1, "assistant": 2}
_BEGIN, _NEW_LINE, _END, _STOP = 3, 4, 5, 6
_FIRST_WORD = 16
_WORD_IDS = {word: _FIRST_WORD + i for i, word in enumerate(WORDS)}
_FIRST_REPLY_ID = _FIRST_WORD + len(WORDS)
_REPLY_IDS = 40_000


@dataclass(frozen=True)
class Access:
    """One request: its prompt [n] and its reply [m]."""

    dialogue: int
    turn: int
    prompt: Ids
    reply: Ids

    @property
    def computed(self) -> Ids:
        """All tokens whose KV exists in the end: [n + m - 1]. The last one was sampled and never processed."""
        return np.concatenate([self.prompt, self.reply[:-1]])


def make_trace(spec: WorkloadSpec) -> list[Access]:
    """Every request of the workload."""
    waiting = deque(_TokenDialogue(DialogueState(script)) for script in make_dialogues(spec))
    generator = random.Random(f"replies/{spec.seed}")
    trace = []
    while waiting:
        dialogue = waiting.popleft()
        step = dialogue.state.step
        if step is None:
            continue
        prompt = dialogue.prompt()
        reply = [_FIRST_REPLY_ID + generator.randrange(_REPLY_IDS) for _ in range(step.reply_tokens)]
        dialogue.replied(len(prompt), reply)
        trace.append(Access(dialogue.state.script.number, step.turn, prompt, np.array(reply, np.int32)))
        waiting.append(dialogue)
    return trace


class _TokenDialogue:
    """A dialogue whose replies are ids: their text names them, and is turned back into them in later prompts."""

    def __init__(self, state: DialogueState) -> None:
        self.state = state
        self._replies: list[list[int]] = []

    def prompt(self) -> Ids:
        messages, _ = self.state.messages()
        ids = [token for message in messages for token in self._message_ids(message)]
        return np.array([*ids, _BEGIN, _ROLES["assistant"], _NEW_LINE], np.int32)

    def replied(self, prompt_tokens: int, reply: list[int]) -> None:
        self.state.replied(f"#{len(self._replies)}", prompt_tokens, len(reply))
        self._replies.append(reply)

    def _message_ids(self, message: Message) -> list[int]:
        text = message["content"]
        content = self._replies[int(text[1:])] if text.startswith("#") else _text_ids(text)
        return [_BEGIN, _ROLES[message["role"]], _NEW_LINE, *content, _END, _NEW_LINE]


def _text_ids(text: str) -> list[int]:
    ids = []
    for word in text.lower().split():
        ids.append(_WORD_IDS[word.removesuffix(".")])
        if word.endswith("."):
            ids.append(_STOP)
    return ids


def working_set_pages(trace: Sequence[Access], page_tokens: int) -> int:
    """Pages that hold the last state of every dialogue, shared prefixes once: what a budget must have to keep all of them."""
    last = {access.dialogue: access.computed for access in trace}
    prefixes = {
        ids[: end + page_tokens].tobytes() for ids in last.values() for end in range(0, len(ids), page_tokens)
    }
    return len(prefixes)
