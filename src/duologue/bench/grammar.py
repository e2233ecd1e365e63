"""What a grammar costs: decode time per token of free replies and of replies that follow a JSON schema, by turns in one run."""

from __future__ import annotations

import json
import queue
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from duologue.dialogue.grammar import Grammar
from duologue.engine.engine import Engine
from duologue.engine.events import TokenEvent
from duologue.engine.load import load_for_engine
from duologue.engine.sampling_params import SamplingParams
from duologue.engine.scheduler import SchedulerConfig
from duologue.errors import DuologueError

_KV_BYTES = 64 << 20
# Long enough that no reply is at its end before `tokens` are decoded.
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "hobbies": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["human", "robot"]},
    },
    "required": ["name", "age", "hobbies", "kind"],
    "additionalProperties": False,
}
SCHEMA = Grammar("json_schema", json.dumps({"type": "array", "minItems": 1000, "items": _PERSON}))
_PROMPT = "Describe many people as JSON."


@dataclass(frozen=True)
class GrammarReading:
    """Seconds per token, one for each repetition; the readings of one repetition are neighbours in time."""

    free_s: tuple[float, ...]
    schema_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median over the repetitions of the schema's time by the free one's."""
        return statistics.median(b / a for a, b in zip(self.free_s, self.schema_s, strict=True))


def bench_grammar(
    model: str | Path,
    *,
    threads: int | None = None,
    tokens: int = 128,
    repetitions: int = 8,
    on_progress: Callable[[str], None] = lambda message: None,
) -> GrammarReading:
    """Decode `tokens` with and without SCHEMA, `repetitions` times after one for warming up, without drafts: these would be
    right more often under a schema and hide its cost. Raises ModelLoadError or UnsupportedModelError."""
    packed = load_for_engine(model, progress=True)
    free_s, schema_s = [], []
    with Engine(
        packed,
        threads=threads,
        kv_memory_bytes=_KV_BYTES,
        scheduler=SchedulerConfig(speculation_tokens=0),
    ) as engine:
        ids = engine.encode_prompt(_PROMPT)
        for turn in range(repetitions + 1):
            on_progress(f"repetition {turn} of {repetitions}" if turn else "warming up")
            readings = [_token_s(engine, ids, tokens, turn, grammar) for grammar in (None, SCHEMA)]
            if turn:
                free_s.append(readings[0])
                schema_s.append(readings[1])
    return GrammarReading(tuple(free_s), tuple(schema_s))


def _token_s(engine: Engine, ids: list[int], tokens: int, seed: int, grammar: Grammar | None) -> float:
    """Mean seconds from one token to the next, from the first on."""
    events: queue.SimpleQueue[tuple[float, TokenEvent]] = queue.SimpleQueue()
    params = SamplingParams(
        temperature=0.7, top_p=0.95, seed=seed, max_tokens=tokens, ignore_eos=True, grammar=grammar
    )
    engine.submit(ids, params, lambda event: events.put((time.perf_counter(), event)))
    times_s = []
    while True:
        at_s, event = events.get()
        if event.error is not None:
            raise DuologueError(event.error)
        times_s.append(at_s)
        if event.finish_reason is not None:
            return (times_s[-1] - times_s[0]) / (len(times_s) - 1)
