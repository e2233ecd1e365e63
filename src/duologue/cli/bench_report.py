"""How benchmark results are shown: tables for people, dicts for JSON. Shares are of the machine's peaks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duologue.bench.attention import AttentionReading
    from duologue.bench.engine import Comparison
    from duologue.bench.kernels import Peaks


def attention_lines(readings: Sequence[AttentionReading], peaks: Peaks) -> list[str]:
    """A table of text, to stand under the one of the GEMM."""
    lines = ["attention                        us   GOP/s  %peak   GB/s  %reads"]
    for reading, share in zip(readings, attention_dicts(readings, peaks), strict=True):
        of_peak = share["share_of_int8_peak"]
        percent = "" if of_peak is None else f"{100 * of_peak:.0f}"
        lines.append(
            f"{reading.workload.name:<25} {1e6 * reading.seconds:>9.1f} {reading.gop_per_s:>7.1f} "
            f"{percent:>6} {reading.gb_per_s:>6.1f} {100 * share['share_of_bandwidth']:>7.0f}"
        )
    return lines


def attention_dicts(readings: Sequence[AttentionReading], peaks: Peaks) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            **asdict(reading),
            "ops_per_s": reading.gop_per_s * 1e9,
            "kv_bytes_per_s": reading.gb_per_s * 1e9,
            "share_of_int8_peak": _share(reading.gop_per_s * 1e9, peaks.int8_ops_per_s),
            "share_of_bandwidth": reading.gb_per_s * 1e9 / peaks.read_bytes_per_s,
        }
        for reading in readings
    ]


def engine_dict(
    model: str, threads: int, results: Sequence[Comparison], peaks: Sequence[Peaks]
) -> dict[str, Any]:
    """For JSON. The shares are None when no peaks were measured."""
    int8_peak, read_peak = _best(peaks)
    return {
        "model": model,
        "threads": threads,
        "isa": peaks[0].isa if peaks else None,
        "int8_peak_ops_per_s": int8_peak,
        "read_peak_bytes_per_s": read_peak,
        "workloads": [
            {
                "name": result.ours.workload.name,
                "tokens_per_s": result.ours.tokens_per_s,
                "samples_tokens_per_s": list(result.ours.samples),
                "bytes_per_s": result.ours.bytes_per_s,
                "ops_per_s": result.ours.operations_per_s,
                "share_of_int8_peak": _share(result.ours.operations_per_s, int8_peak),
                "share_of_bandwidth": _share(result.ours.bytes_per_s, read_peak),
                "peers": {
                    label: {
                        "tokens_per_s": reading.tokens_per_s,
                        "samples_tokens_per_s": list(reading.samples),
                        "ratio": result.ours.tokens_per_s / reading.tokens_per_s,
                    }
                    for label, reading in result.peers.items()
                },
            }
            for result in results
        ],
    }


def print_engine_table(results: Sequence[Comparison], labels: Sequence[str], peaks: Sequence[Peaks]) -> None:
    """A table on stdout; `labels` are the peers' columns, in order."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    int8_peak, read_peak = _best(peaks)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload", no_wrap=True)
    for column in ("tokens/s", "min to max", "GB/s", "%reads", "GOP/s", "%peak"):
        table.add_column(column, justify="right", no_wrap=True)
    for label in labels:
        table.add_column(label, justify="right")
        table.add_column("ratio", justify="right")
    for result in results:
        ours, peers = result.ours, [result.peers[label].tokens_per_s for label in labels]
        decode = ours.bytes_per_s > 0
        table.add_row(
            ours.workload.name,
            f"{ours.tokens_per_s:,.1f}",
            f"{min(ours.samples):,.1f} to {max(ours.samples):,.1f}",
            f"{ours.bytes_per_s / 1e9:.1f}" if decode else "",
            _percent(_share(ours.bytes_per_s, read_peak)) if decode else "",
            f"{ours.operations_per_s / 1e9:,.0f}",
            _percent(_share(ours.operations_per_s, int8_peak)),
            *(text for speed in peers for text in (f"{speed:,.1f}", f"{ours.tokens_per_s / speed:.2f}x")),
        )
    # A file or pipe has no width, and rich would then drop columns behind the 80th.
    console = Console(width=None if sys.stdout.isatty() else _FILE_COLUMNS)
    if peaks:
        console.print(
            f"{peaks[0].isa}, {peaks[0].threads} threads; this machine's peaks in the same run: "
            f"{(read_peak or 0) / 1e9:.1f} GB/s of reads, {(int8_peak or 0) / 1e9:,.0f} int8 GOP/s",
            highlight=False,
        )
    console.print(table)


_FILE_COLUMNS = 200


def _best(peaks: Sequence[Peaks]) -> tuple[float | None, float | None]:
    """The highest readings of int8 operations and of bytes read; None where there is none."""
    int8_peak = max((reading.int8_ops_per_s for reading in peaks), default=0.0)
    read_peak = max((reading.read_bytes_per_s for reading in peaks), default=0.0)
    return int8_peak or None, read_peak or None


def _share(rate: float, peak: float | None) -> float | None:
    return rate / peak if peak else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"
