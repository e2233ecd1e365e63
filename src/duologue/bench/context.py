"""Decode time against context length, for several models in one run.

The KV before the decoded tokens is stale memory: what a step costs does not depend on its values, and filling 32,768 positions
would take a hundred times as long as measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duologue.bench.engine import EngineReading, EngineUnderTest
from duologue.bench.llama_cpp import Workload
from duologue.bench.plot import save_plot
from duologue.engine.load import load_for_engine
from duologue.errors import CapacityError

_STEPS = 32


@dataclass(frozen=True)
class ContextCurve:
    """One model's readings, in ascending depth."""

    model: str
    depths: tuple[int, ...]
    readings: tuple[EngineReading, ...]

    @property
    def ms_per_token(self) -> list[float]:
        return [1e3 / reading.tokens_per_s for reading in self.readings]


def measure_contexts(
    models: Sequence[str],
    depths: Sequence[int],
    *,
    threads: int | None = None,
    repetitions: int = 3,
    on_progress: Callable[[str], None] = lambda message: None,
) -> list[ContextCurve]:
    """Decode speed of one stream at each depth that fits into a model's context; a depth of the whole context is measured a few
    tokens before its end, and each only once. Raises as `load_for_engine`, and CapacityError naming a model whose context has no
    room for one of them."""
    curves = []
    for name in models:
        on_progress(f"{name}: loading")
        model = load_for_engine(name, progress=True)
        fitting = _fitting(name, depths, model.spec.context_tokens)
        workloads = [
            Workload(f"decode_{depth}", decode_tokens=_STEPS, depth_tokens=depth) for depth in fitting
        ]
        engine = EngineUnderTest(model, threads=threads, workloads=workloads)
        readings = []
        for workload in workloads:
            on_progress(f"{name}: {workload.depth_tokens} tokens")
            readings.append(engine.measure(workload, repetitions=repetitions, prefill=False))
        curves.append(ContextCurve(model.name, fitting, tuple(readings)))
    return curves


def _fitting(name: str, depths: Sequence[int], context_tokens: int) -> tuple[int, ...]:
    # A depth that fills the whole context leaves no room for the tokens that are timed.
    longest = context_tokens - _STEPS - 1
    if longest < 1:
        raise CapacityError(
            f"{name} has a context of {context_tokens} tokens; measuring takes at least {_STEPS + 2}, choose another model"
        )
    fitting = {min(depth, longest) for depth in depths if depth <= context_tokens}
    if not fitting:
        raise CapacityError(
            f"no depth fits into the context of {name}, {context_tokens} tokens; give a smaller --depth"
        )
    return tuple(sorted(fitting))


def context_dict(curves: Sequence[ContextCurve]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "model": curve.model,
            "points": [
                {
                    "depth_tokens": depth,
                    "tokens_per_s": reading.tokens_per_s,
                    "samples_tokens_per_s": list(reading.samples),
                    "bytes_per_s": reading.bytes_per_s,
                }
                for depth, reading in zip(curve.depths, curve.readings, strict=True)
            ],
        }
        for curve in curves
    ]


def context_lines(curves: Sequence[ContextCurve]) -> list[str]:
    """For people."""
    lines = [f"{'model':<24} {'context':>8} {'ms/token':>9} {'tokens/s':>9} {'GB/s':>6}"]
    for curve in curves:
        for depth, reading in zip(curve.depths, curve.readings, strict=True):
            speed = reading.tokens_per_s
            lines.append(
                f"{curve.model:<24} {depth:>8} {1e3 / speed:>9.2f} {speed:>9.1f} {reading.bytes_per_s / 1e9:>6.1f}"
            )
    return lines


def plot_contexts(path: Path, curves: Sequence[ContextCurve]) -> None:
    """One line for each model. Raises PlotError."""

    def draw(axes: Any) -> None:
        for curve in curves:
            axes.plot(curve.depths, curve.ms_per_token, marker="o", label=curve.model)
        axes.set_xlabel("tokens of context")
        axes.set_ylabel("time per token, ms")
        axes.set_ylim(bottom=0)

    save_plot(path, draw)
