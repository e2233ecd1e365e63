"""The embedded engine: scheduling, forward steps, sampling, streams."""

from __future__ import annotations

from duologue.dialogue.grammar import Grammar
from duologue.engine.engine import Engine
from duologue.engine.events import Completion, EngineStats, TokenEvent, TokenLogprob
from duologue.engine.sampling_params import SamplingParams

__all__ = ["Completion", "Engine", "EngineStats", "Grammar", "SamplingParams", "TokenEvent", "TokenLogprob"]
