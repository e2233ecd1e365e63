"""What the engine tells its callers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class TokenLogprob:
    """The natural logarithm of a chosen token's probability, and of the likeliest tokens, `top`, likeliest first.

    Of the model's own distribution: before temperature, penalties, biases and grammar.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TokenEvent:
    """News of one request, in order. `text` holds whole characters only and may be empty; stop strings never appear in it.

    The last event of a request has a `finish_reason`; nothing follows it. `error` is set when that is "error". `logprobs` has one
    entry for each of `token_ids` when they were asked for, and none otherwise.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    error: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A whole reply."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class EngineStats:
    """Counters since the engine started (`_total`) and readings of now.

    `kv_pages_free` counts pages that a newcomer could have: free ones, and stored ones that no request needs.
    """

    running: int
    waiting: int
    requests_total: int
    aborted_total: int
    preemptions_total: int
    prompt_tokens_total: int
    computed_tokens_total: int
    completion_tokens_total: int
    steps_total: int
    step_s_total: float
    forward_s_total: float
    kv_pages_total: int
    kv_pages_free: int
    kv_memory_bytes: int
    kv_bytes_per_token: int
    workspace_bytes: int
    weight_bytes: int
    cache_pages: int
    cache_bytes: int
    cache_tokens: int
    cache_checkpoints: int
    cache_hit_tokens_total: int
    cache_miss_tokens_total: Mapping[str, int]
    cache_evicted_pages_total: int
    cache_index_bytes: int
    drafted_tokens_total: int
    accepted_tokens_total: int
