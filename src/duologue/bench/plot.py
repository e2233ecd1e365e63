"""What all plots share: a check before the work, a figure without process state, errors that name the path."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duologue.errors import DuologueError


class PlotError(DuologueError):
    """A plot cannot be drawn or written."""


def check_plot(path: Path) -> None:
    """Raises PlotError without matplotlib, or when there is no folder to write `path` to."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("a plot needs matplotlib; install it with: pip install 'duologue[plot]'")
    if not path.absolute().parent.is_dir():
        raise PlotError(f"the folder of {path} does not exist; create it or choose another path")


def save_plot(path: Path, draw: Callable[[Any], None]) -> None:
    """A PNG of what `draw` puts on a matplotlib Axes. Raises PlotError as `check_plot`, or when `path` cannot be written."""
    check_plot(path)
    from matplotlib.figure import Figure

    # A figure of its own, not pyplot's: no state of the process, no display.
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=144)
    except OSError as error:
        raise PlotError(
            f"the plot cannot be written to {path} ({error.strerror}); choose another path"
        ) from None
