"""A residency run in lines, as JSON, and as a plot of time to first token against a dialogue's age."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from duologue.bench.plot import save_plot
from duologue.bench.residency import Residency

_GIB = 1 << 30


def residency_dict(result: Residency) -> dict[str, Any]:
    """For JSON, without the visits."""
    per_dialogue = result.stored_bytes / result.config.dialogues
    return {
        "config": {**asdict(result.config), "history_tokens": result.config.history_tokens},
        "visits": len(result.visits),
        "hit_rate_by_query": result.hit_rate_by_query,
        "hit_rate_by_token": result.hit_rate_by_token,
        "ttft_s": {f"p{100 * q:g}": result.ttft_s(q) for q in (0.5, 0.9, 0.99)},
        "stored_bytes": result.stored_bytes,
        "budget_bytes": result.budget_bytes,
        "bytes_per_dialogue": per_dialogue,
        "dialogues_per_gib": _GIB / per_dialogue,
        "checkpoints": result.checkpoints,
        "fill_s": result.fill_s,
    }


def residency_lines(result: Residency) -> list[str]:
    """For people."""
    config, figures = result.config, residency_dict(result)
    ttft = figures["ttft_s"]
    return [
        f"{config.dialogues} dialogues of {config.messages} messages, {config.history_tokens} tokens each, filled in "
        f"{result.fill_s:.0f} s",
        f"resident        {result.stored_bytes / _GIB:.2f} GiB of {result.budget_bytes / _GIB:.2f} GiB, "
        f"{figures['bytes_per_dialogue'] / 1e6:.2f} MB each, {figures['dialogues_per_gib']:.0f} per GiB",
        f"visits          {len(result.visits)} in turn, {100 * result.hit_rate_by_query:.2f} % of queries hit, "
        f"{100 * result.hit_rate_by_token:.2f} % of processed tokens reused",
        f"TTFT            p50 {1e3 * ttft['p50']:.1f} ms, p90 {1e3 * ttft['p90']:.1f} ms, p99 {1e3 * ttft['p99']:.1f} ms",
    ]


def plot_residency(path: Path, result: Residency) -> None:
    """TTFT of every visit in the order of the dialogues: the first was filled longest ago. Raises PlotError."""

    def draw(axes: Any) -> None:
        for turn in range(result.config.rounds):
            visits = [visit for visit in result.visits if visit.round == turn]
            axes.plot(
                [visit.dialogue for visit in visits],
                [1e3 * visit.ttft_s for visit in visits],
                ".",
                markersize=3,
                label=f"round {turn + 1}",
            )
        axes.set_xlabel("dialogue, in the order of filling")
        axes.set_ylabel("time to first token, ms")
        axes.set_ylim(bottom=0)

    save_plot(path, draw)
