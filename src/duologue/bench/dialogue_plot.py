"""TTFT against turn number, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duologue.bench.dialogue_report import Report
from duologue.bench.plot import save_plot


def plot_ttft(path: Path, reports: Mapping[str, Report]) -> None:
    """Draws one line (median) with a band up to the 90th percentile for each labelled report. Raises PlotError."""
    save_plot(path, lambda axes: _draw(axes, reports))


def _draw(axes: Any, reports: Mapping[str, Report]) -> None:
    from matplotlib.ticker import MaxNLocator

    for label, report in reports.items():
        points = [(int(turn.name), turn.ttft) for turn in report.turns]
        turns = [turn for turn, ttft in points if ttft is not None]
        medians_ms = [1e3 * ttft.p50 for _, ttft in points if ttft is not None]
        (line,) = axes.plot(turns, medians_ms, marker="o", label=f"{label}, median")
        axes.fill_between(
            turns,
            medians_ms,
            [1e3 * ttft.p90 for _, ttft in points if ttft is not None],
            alpha=0.2,
            color=line.get_color(),
            label=f"{label}, up to p90",
        )
    axes.set_xlabel("turn")
    axes.set_ylabel("time to first token, ms")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
