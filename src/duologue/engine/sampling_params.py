"""How one request's tokens are chosen and when it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from duologue.dialogue.grammar import Grammar
from duologue.errors import InvalidRequestError

MAX_STOP_STRINGS = 1024
MAX_STOP_TOKEN_IDS = 1024
MAX_LOGIT_BIASES = 4096
MAX_TOP_LOGPROBS = 20
MAX_SEED = 2**64 - 1


def _require(condition: bool, param: str, message: str) -> None:
    if not condition:
        raise InvalidRequestError(f"{param} {message}", param=param, code="invalid_value")


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping. Raises InvalidRequestError naming the field that is out of range.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 are off. The noise depends on `seed` and the token's position alone,
    so a seeded request repeats whatever else runs; `seed` None draws one. `max_tokens` None runs to the context's end.

    `min_p` drops tokens less likely than this share of the likeliest one; 0 is off. `presence_penalty` (once) and
    `frequency_penalty` (per occurrence) are of the reply's tokens, `repetition_penalty` of the prompt's too. `logit_bias` is
    pairs of a token's id and what is added to its logit. `logprobs` n gives the log-probability of the chosen token and of the n
    likeliest, of the model's own distribution. `stop_token_ids` end a reply as the model's own end token does; no end of
    either kind and no stop string comes before `min_tokens` tokens. `grammar` says what the reply must look like.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    grammar: Grammar | None = None

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
        _require(0 <= self.min_p <= 1, "min_p", f"must be from 0 to 1, not {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, f"must be from -2 to 2, not {value}")
        _require(
            0 < self.repetition_penalty <= 10,
            "repetition_penalty",
            f"must be above 0 and at most 10, not {self.repetition_penalty}",
        )
        _require(
            self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
            "logprobs",
            f"must be from 0 to {MAX_TOP_LOGPROBS}, not {self.logprobs}",
        )
        self._require_ids()
        _require(
            self.min_tokens >= 0 and (self.max_tokens is None or self.min_tokens <= self.max_tokens),
            "min_tokens",
            f"must be at least 0 and at most max_tokens, not {self.min_tokens}",
        )

    @cached_property
    def penalizes(self) -> bool:
        """Whether what was said before matters."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @cached_property
    def is_plain(self) -> bool:
        """Whether only temperature, the filters and noise choose the token, and it alone is asked for."""
        return not (
            self.penalizes
            or self.logit_bias
            or self.min_tokens
            or self.grammar is not None
            or self.logprobs is not None
        )

    @cached_property
    def bias_arrays(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Ids and values of `logit_bias`, each [biases]."""
        ids = np.array([token for token, _ in self.logit_bias], dtype=np.int32)
        return ids, np.array([bias for _, bias in self.logit_bias], dtype=np.float32)

    def _require_ids(self) -> None:
        _require(
            len(self.logit_bias) <= MAX_LOGIT_BIASES,
            "logit_bias",
            f"names {len(self.logit_bias)} tokens; at most {MAX_LOGIT_BIASES}",
        )
        for token, bias in self.logit_bias:
            _require(token >= 0, "logit_bias", f"names the token {token}; ids begin at 0")
            _require(
                -100 <= bias <= 100, "logit_bias", f"must be from -100 to 100, not {bias} (token {token})"
            )
        _require(
            len({token for token, _ in self.logit_bias}) == len(self.logit_bias),
            "logit_bias",
            "names a token twice",
        )
        _require(
            len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
            "stop_token_ids",
            f"holds {len(self.stop_token_ids)} ids; at most {MAX_STOP_TOKEN_IDS}",
        )
        _require(min(self.stop_token_ids, default=0) >= 0, "stop_token_ids", "must hold ids of 0 and above")

    def require_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidRequestError when a token id here is not below `vocab_size`."""
        for name, ids in (
            ("logit_bias", [token for token, _ in self.logit_bias]),
            ("stop_token_ids", self.stop_token_ids),
        ):
            highest = max(ids, default=0)
            _require(
                highest < vocab_size, name, f"names the token {highest}, but the vocabulary has {vocab_size}"
            )
