"""The waterfall of a model's KV, as a PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from duologue.bench.plot import PlotError, check_plot
from duologue.models.kv_waterfall import Waterfall

_MIB = 1 << 20
_DOWN, _UP = "tab:blue", "tab:red"


def plot_waterfalls(path: Path, name: str, waterfalls: Mapping[int, Waterfall]) -> None:
    """Draws one panel for each context: a bar for each step with its factor over the one before, and the whole factor over grouped
    heads.

    The scale is logarithmic, so that equal heights are equal factors. Raises PlotError as `check_plot`, or when `path` cannot be
    written.
    """
    check_plot(path)
    from matplotlib.figure import Figure

    rows = len(next(iter(waterfalls.values())).steps)
    figure = Figure(figsize=(4.2 + 3.3 * len(waterfalls), 0.5 * rows + 1.6), layout="constrained")
    panels = figure.subplots(1, len(waterfalls), sharey=True, squeeze=False)[0]
    for axes, (tokens, steps) in zip(panels, waterfalls.items(), strict=True):
        sizes = [step.total_bytes / _MIB for step in steps.steps]
        grows = [i > 0 and sizes[i] > sizes[i - 1] for i in range(rows)]
        axes.barh(range(rows), sizes, color=[_UP if up else _DOWN for up in grows], log=True)
        for i, size in enumerate(sizes):
            by = "" if i == 0 else f"   {steps.factor_of_step(i):.2f}x"
            axes.annotate(
                f"{size:,.1f}{by}", (size, i), xytext=(3, 0), textcoords="offset points", va="center"
            )
        axes.set_xlim(min(sizes) / 4, max(sizes) * 100)
        axes.set_xlabel("MiB a dialogue")
        axes.set_title(f"{tokens:,} tokens: {steps.factor_of_grouped(rows - 1):,.0f}x below GQA in fp16")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(rows), [step.label for step in next(iter(waterfalls.values())).steps])
    panels[0].invert_yaxis()
    figure.suptitle(f"KV of {name}")
    try:
        figure.savefig(path, format="png", dpi=144)
    except OSError as error:
        raise PlotError(
            f"the plot cannot be written to {path} ({error.strerror}); choose another path"
        ) from None
