"""How one request's tokens are chosen and when it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass

from duologue.errors import InvalidRequestError

MAX_STOP_STRINGS = 1024
MAX_SEED = 2**64 - 1


def _require(condition: bool, param: str, message: str) -> None:
    if not condition:
        raise InvalidRequestError(f"{param} {message}", param=param, code="invalid_value")


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping. Raises InvalidRequestError naming the field that is out of range.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. The noise depends on `seed` and the token's position alone,
    so a seeded request repeats whatever else runs; `seed` None draws one. `max_tokens` None runs to the context's end.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.temperature) and 0 <= self.temperature <= 100,
            "temperature",
            f"must be a number from 0 to 100, not {self.temperature}",
        )
        _require(
            math.isfinite(self.top_p) and 0 < self.top_p <= 1,
            "top_p",
            f"must be above 0 and at most 1, not {self.top_p}",
        )
        _require(0 <= self.top_k < 2**31, "top_k", f"must be 0 (off) or a positive integer, not {self.top_k}")
        _require(
            self.seed is None or 0 <= self.seed <= MAX_SEED,
            "seed",
            f"must be an integer from 0 to 2^64 - 1, not {self.seed}",
        )
        _require(
            self.max_tokens is None or self.max_tokens >= 1,
            "max_tokens",
            f"must be at least 1, not {self.max_tokens}",
        )
        _require(
            len(self.stop) <= MAX_STOP_STRINGS,
            "stop",
            f"holds {len(self.stop)} strings; at most {MAX_STOP_STRINGS}",
        )
        _require(all(self.stop), "stop", "must not hold an empty string")
