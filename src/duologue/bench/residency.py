"""How many long dialogues stay resident in one engine, and what returning to each of them costs.

Every dialogue is filled with a history of random tokens, as many messages as asked for; then all of them are visited in turn,
again and again, so that between two visits of one dialogue lie visits of all others. A visit brings a new user message, or asks
for the last reply once more.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duologue.cache.scope import DEFAULT_SCOPE
from duologue.engine.engine import Engine
from duologue.engine.events import TokenEvent
from duologue.engine.request import PromptMarks
from duologue.engine.sampling_params import SamplingParams

Ids = npt.NDArray[np.int32]
_FILLS_AT_ONCE = 8


@dataclass(frozen=True)
class ResidencyConfig:
    """Sizes in tokens; a dialogue begins with `messages` messages of `message_tokens`, a user's and a reply's in turn.

    The first `persona_tokens` are the same in all dialogues. `regenerate_rate` of the visits ask for the last reply again.
    Raises ValueError for sizes that make no dialogue.
    """

    dialogues: int
    messages: int = 180
    message_tokens: int = 53
    persona_tokens: int = 60
    reply_tokens: int = 16
    rounds: int = 2
    regenerate_rate: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dialogues", "messages", "message_tokens", "reply_tokens", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 1")
        if self.persona_tokens < 0 or not 0 <= self.regenerate_rate <= 1:
            raise ValueError("persona_tokens must not be negative and regenerate_rate lie between 0 and 1")

    @property
    def history_tokens(self) -> int:
        """Tokens of a dialogue once it is filled."""
        return self.persona_tokens + self.messages * self.message_tokens


@dataclass(frozen=True)
class Visit:
    """One request of a visit: `processed_tokens` of its prompt had been computed before, `cached_tokens` were still there."""

    dialogue: int
    round: int
    regenerated: bool
    prompt_tokens: int
    processed_tokens: int
    cached_tokens: int
    ttft_s: float

    @property
    def is_hit(self) -> bool:
        """Nothing that was processed before is computed again, but for the last token, which gives the logits."""
        return self.cached_tokens >= min(self.processed_tokens, self.prompt_tokens - 1)


@dataclass(frozen=True)
class Residency:
    """What a run showed. `stored_bytes` after filling, `budget_bytes` of the whole pool."""

    config: ResidencyConfig
    visits: tuple[Visit, ...]
    stored_bytes: int
    budget_bytes: int
    checkpoints: int
    fill_s: float

    @property
    def hit_rate_by_query(self) -> float:
        return sum(visit.is_hit for visit in self.visits) / len(self.visits)

    @property
    def hit_rate_by_token(self) -> float:
        """Of the tokens that had been processed before."""
        processed = sum(min(visit.processed_tokens, visit.prompt_tokens - 1) for visit in self.visits)
        return sum(visit.cached_tokens for visit in self.visits) / processed

    def ttft_s(self, quantile: float) -> float:
        return float(np.quantile([visit.ttft_s for visit in self.visits], quantile))


class _Dialogue:
    def __init__(self, ids: Ids, user_begin: int) -> None:
        self.ids = ids  # ends with the last user message
        self.user_begin = user_begin
        self.reply: list[int] = []
        self.processed = 0

    def say(self, message: Ids) -> None:
        """The last reply becomes history, and a user message follows."""
        self.user_begin = len(self.ids) + len(self.reply)
        self.ids = np.concatenate([self.ids, np.array(self.reply, dtype=np.int32), message])


def run_residency(
    engine: Engine, config: ResidencyConfig, *, on_progress: Callable[[str], None] = lambda message: None
) -> Residency:
    """Fills the engine's cache with dialogues and visits them. Raises ValueError when one does not fit into the context."""
    turn_tokens = config.message_tokens + config.reply_tokens
    if config.history_tokens + (config.rounds + 1) * turn_tokens >= engine.context_tokens:
        raise ValueError(
            f"dialogues of {config.history_tokens} tokens and {config.rounds} turns more do not fit into the context of "
            f"{engine.context_tokens}; lower messages"
        )
    rng = np.random.default_rng(config.seed)
    vocab = engine.spec.vocab_size
    persona = rng.integers(0, vocab, config.persona_tokens).astype(np.int32)

    def message() -> Ids:
        return rng.integers(0, vocab, config.message_tokens).astype(np.int32)

    dialogues = []
    for _ in range(config.dialogues):
        history = rng.integers(0, vocab, config.messages * config.message_tokens).astype(np.int32)
        ids = np.concatenate([persona, history])
        dialogues.append(_Dialogue(ids, len(ids) - config.message_tokens))
    started = time.perf_counter()
    for begin in range(0, len(dialogues), _FILLS_AT_ONCE):
        on_progress(f"filling dialogue {begin + 1} of {len(dialogues)}")
        _fill(engine, dialogues[begin : begin + _FILLS_AT_ONCE], config)
    fill_s = time.perf_counter() - started
    filled = engine.stats()
    visits = []
    for turn in range(config.rounds):
        for number, dialogue in enumerate(dialogues):
            if number % 20 == 0:
                on_progress(f"round {turn + 1}: dialogue {number + 1} of {len(dialogues)}")
            regenerated = rng.random() < config.regenerate_rate
            if not regenerated:
                dialogue.say(message())
            visits.append(_visit(engine, dialogue, config, number, turn, regenerated))
    return Residency(
        config, tuple(visits), filled.cache_bytes, filled.kv_memory_bytes, filled.cache_checkpoints, fill_s
    )


def _fill(engine: Engine, dialogues: Sequence[_Dialogue], config: ResidencyConfig) -> None:
    logs: list[queue.SimpleQueue[TokenEvent]] = [queue.SimpleQueue() for _ in dialogues]
    for dialogue, log in zip(dialogues, logs, strict=True):
        _submit(engine, dialogue, config, log)
    for dialogue, log in zip(dialogues, logs, strict=True):
        _finish(dialogue, log)


def _visit(
    engine: Engine, dialogue: _Dialogue, config: ResidencyConfig, number: int, turn: int, regenerated: bool
) -> Visit:
    log: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
    processed, prompt_tokens = dialogue.processed, len(dialogue.ids)
    started = time.perf_counter()
    _submit(engine, dialogue, config, log)
    first = log.get()
    ttft_s = time.perf_counter() - started
    _finish(dialogue, log, first)
    return Visit(number, turn, regenerated, prompt_tokens, processed, first.cached_tokens, ttft_s)


def _submit(
    engine: Engine, dialogue: _Dialogue, config: ResidencyConfig, log: queue.SimpleQueue[TokenEvent]
) -> None:
    engine.submit(
        dialogue.ids,
        SamplingParams(temperature=0.0, max_tokens=config.reply_tokens, ignore_eos=True),
        log.put,
        scope=DEFAULT_SCOPE,
        marks=PromptMarks(
            turns=(dialogue.user_begin, len(dialogue.ids)),
            shared=(config.persona_tokens,) if config.persona_tokens else (),
        ),
    )


def _finish(dialogue: _Dialogue, log: queue.SimpleQueue[TokenEvent], event: TokenEvent | None = None) -> None:
    reply: list[int] = []
    while True:
        event = log.get() if event is None else event
        if event.finish_reason == "error":
            raise RuntimeError(event.error)
        reply += event.token_ids
        if event.finish_reason is not None:
            break
        event = None
    dialogue.reply = reply
    # The last token of a reply is sampled but not yet run.
    dialogue.processed = len(dialogue.ids) + len(reply) - 1
