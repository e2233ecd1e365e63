"""TTFT against turn number, as a PNG."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from duologue.bench.dialogue_report import Report
from duologue.errors import DuologueError


class PlotError(DuologueError):
    """A plot cannot be drawn or written."""


def check_plot(path: Path) -> None:
    """Raises PlotError without matplotlib, or when there is no folder to write `path` to."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("a plot needs matplotlib; install it with: pip install 'duologue[plot]'")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"the folder of {path} does not exist; create it or choose another path")


def plot_ttft(path: Path, reports: Mapping[str, Report]) -> None:
    """Draws one line (median) with a band up to the 90th percentile for each labelled report.

    Raises PlotError as `check_plot`, or when `path` cannot be written.
    """
    check_plot(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # A figure of its own, not pyplot's: no state of the process, no display.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
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
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=144)
    except OSError as error:
        raise PlotError(
            f"the plot cannot be written to {path} ({error.strerror}); choose another path"
        ) from None
