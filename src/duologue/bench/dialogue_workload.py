"""The dialogues that `duologue bench dialogues` plays: who says what, decided by a seed before anything runs.

A dialogue is a list of steps. Each step is one request: a new message, the same request again (a reply that the user wants
regenerated), or another wording of the last message (an edit). Replies are the server's own and become part of the later prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from duologue.bench.dialogue_words import make_text

Message = dict[str, str]
StepKind = Literal["message", "regenerate", "edit"]
PersonaKind = Literal["shared", "own", "none"]


@dataclass(frozen=True)
class Length:
    """A length in words or tokens: `median`, spread log-normally by `sigma` (0: always the median)."""

    median: int
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if self.median < 1:
            raise ValueError("a length is at least 1")
        if not 0 <= self.sigma <= 3:
            raise ValueError("the sigma of a log-normal length lies between 0 and 3")

    @classmethod
    def parse(cls, text: str) -> Length:
        """`40`, or `40:0.6` for a log-normal length with median 40 and sigma 0.6. Raises ValueError."""
        median, _, sigma = text.partition(":")
        try:
            return cls(int(median), float(sigma or 0))
        except ValueError as error:
            raise ValueError(f"'{text}' is not a length such as 40 or 40:0.6 ({error})") from None

    def draw(self, generator: random.Random) -> int:
        """One length; at least 1 and at most 20 times the median, so that one draw cannot fill a context."""
        if self.sigma == 0:
            return self.median
        drawn = round(self.median * math.exp(generator.gauss(0.0, self.sigma)))
        return min(max(drawn, 1), 20 * self.median)


@dataclass(frozen=True)
class WorkloadSpec:
    """What decides every text and length. Raises ValueError for values that contradict each other.

    `history_turns` are turns that lie before the first request and were never served: their replies are made up too.
    `regenerate_rate` and `edit_rate` are the shares of turns after which one such request follows.
    """

    dialogues: int = 12
    turns: int = 8
    persona: PersonaKind = "shared"
    persona_words: int = 300
    message_words: Length = field(default_factory=lambda: Length(40))
    reply_tokens: Length = field(default_factory=lambda: Length(32))
    history_turns: int = 0
    regenerate_rate: float = 0.0
    edit_rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dialogues < 1 or self.turns < 1:
            raise ValueError("there is at least one dialogue, of at least one turn")
        if self.history_turns < 0 or self.persona_words < 1:
            raise ValueError("history turns are not negative, and a persona has at least one word")
        if not (0 <= self.regenerate_rate <= 1 and 0 <= self.edit_rate <= 1):
            raise ValueError("rates lie between 0 and 1")


@dataclass(frozen=True)
class Step:
    """One request. `turn` counts from 1; `text` is the user's message (again, for a regeneration)."""

    kind: StepKind
    turn: int
    text: str
    reply_tokens: int


@dataclass(frozen=True)
class DialogueScript:
    """One dialogue: the messages before its first request (persona, history), and its steps."""

    number: int
    opening: tuple[Message, ...]
    steps: tuple[Step, ...]


def make_persona(spec: WorkloadSpec, dialogue: int = 0) -> str | None:
    """The system message: one for all dialogues, one for each, or None."""
    if spec.persona == "none":
        return None
    whose = "shared" if spec.persona == "shared" else str(dialogue)
    return make_text(_generator(spec, "persona", whose), spec.persona_words)


def make_dialogues(spec: WorkloadSpec) -> list[DialogueScript]:
    """All dialogues of a workload. Each depends on the spec and its own number only, not on how many there are."""
    return [_script(spec, number) for number in range(spec.dialogues)]


def _script(spec: WorkloadSpec, number: int) -> DialogueScript:
    persona = make_persona(spec, number)
    opening: list[Message] = [] if persona is None else [{"role": "system", "content": persona}]
    generator = _generator(spec, "history", str(number))
    for _ in range(spec.history_turns):
        opening.append({"role": "user", "content": make_text(generator, spec.message_words.draw(generator))})
        opening.append(
            {"role": "assistant", "content": make_text(generator, spec.reply_tokens.draw(generator))}
        )
    generator = _generator(spec, "steps", str(number))
    steps: list[Step] = []
    for turn in range(1, spec.turns + 1):
        steps.append(_step(spec, generator, "message", turn))
        # Both are always drawn, so that one rate does not shift what the other decides.
        regenerates, edits = generator.random() < spec.regenerate_rate, generator.random() < spec.edit_rate
        if regenerates:
            steps.append(Step("regenerate", turn, steps[-1].text, spec.reply_tokens.draw(generator)))
        if edits:
            steps.append(_step(spec, generator, "edit", turn))
    return DialogueScript(number, tuple(opening), tuple(steps))


def _step(spec: WorkloadSpec, generator: random.Random, kind: StepKind, turn: int) -> Step:
    text = make_text(generator, spec.message_words.draw(generator))
    return Step(kind, turn, text, spec.reply_tokens.draw(generator))


def _generator(spec: WorkloadSpec, *names: str) -> random.Random:
    # Seeding with a string hashes it by content, so it does not depend on the process.
    return random.Random("/".join(["dialogues", str(spec.seed), *names]))


@dataclass
class DialogueState:
    """A dialogue while it is played: what the next request sends, and how much of it the server processed before.

    A server has processed a reply except for its last token, which was sampled but never fed back.
    """

    script: DialogueScript
    next_step: int = 0
    _history: list[Message] = field(default_factory=list)  # up to the turn before the current one
    _history_tokens: int = 0  # of _history, that the server processed
    _asked: Message | None = None
    _reply: Message | None = None
    _prompt_tokens: int = 0  # of the last request
    _reply_tokens: int = 0

    def __post_init__(self) -> None:
        self._history = list(self.script.opening)

    @property
    def step(self) -> Step | None:
        """The step to play next; None at the end."""
        steps = self.script.steps
        return steps[self.next_step] if self.next_step < len(steps) else None

    def messages(self) -> tuple[Sequence[Message], int]:
        """The messages of the next step's request, and how many of their tokens were processed before.

        The count leaves out what only other dialogues processed (a shared persona before the first reply). It is an upper bound
        where the server cut the history to fit its context, and a lower bound after an edit whose wording begins as before.
        """
        step = self.step
        assert step is not None, "the dialogue is over"
        if step.kind == "message" and self._reply is not None:
            assert self._asked is not None
            self._history += [self._asked, self._reply]
            self._history_tokens = self._prompt_tokens + self._reply_tokens - 1
            self._reply = None
        self._asked = {"role": "user", "content": step.text}
        # The last prompt token is computed again in any case: its logits give the first token of the reply.
        processed = self._prompt_tokens - 1 if step.kind == "regenerate" else self._history_tokens
        return [*self._history, self._asked], processed

    def replied(self, text: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Records the reply to the request of `messages` and moves on."""
        self._reply = {"role": "assistant", "content": text}
        self._prompt_tokens, self._reply_tokens = prompt_tokens, completion_tokens
        self.next_step += 1
