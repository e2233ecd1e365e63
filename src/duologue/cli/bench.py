"""`duologue bench`: measurements of the kernels and of the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.options import DEFAULT_MODEL

if TYPE_CHECKING:
    from duologue.bench.engine import Comparison


@click.group()
def bench() -> None:
    """Measure kernels or the engine against the machine's peaks."""


def _labelled_path(text: str) -> tuple[str, Path]:
    label, _, path = text.partition("=")
    if not path:
        raise click.BadParameter(f"'{text}' is not LABEL=GGUF, for example Q8_0=model-q8_0.gguf")
    if not Path(path).is_file():
        raise click.BadParameter(f"'{path}' is not a file")
    return label, Path(path)


@bench.command()
@click.argument("model", default=DEFAULT_MODEL)
@click.option("--threads", type=click.IntRange(1), help="Engine threads; all cores unless given.")
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, help="Turns taken with peers."
)
@click.option("--workload", "names", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--peer",
    "peers",
    type=_labelled_path,
    metavar="LABEL=GGUF",
    multiple=True,
    help="Measure llama.cpp beside, on this.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def engine(
    model: str,
    threads: int | None,
    repetitions: int,
    rounds: int,
    names: tuple[str, ...],
    peers: tuple[tuple[str, Path], ...],
    as_json: bool,
) -> None:
    """Prefill and decode of MODEL, at several depths and batch sizes."""
    from rich.console import Console

    from duologue.bench.engine import bench_engine
    from duologue.bench.llama_cpp import WORKLOADS, LlamaCpp, default_peers_dir

    known = {workload.name: workload for workload in WORKLOADS}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"'{name}' is none of {', '.join(known)}", param_hint="--workload")
    peer = LlamaCpp(default_peers_dir()) if peers else None
    with Console(stderr=True).status("") as status:
        results = bench_engine(
            model,
            threads=threads,
            repetitions=repetitions,
            rounds=rounds,
            workloads=[known[name] for name in names or known],
            peer=peer,
            peer_models=dict(peers),
            on_progress=status.update,
        )
    if as_json:
        click.echo(json.dumps([_comparison_dict(result) for result in results], indent=2))
    else:
        _print_comparisons(results, [label for label, _ in peers])


def _comparison_dict(result: Comparison) -> dict[str, Any]:
    ours = result.ours
    return {
        "workload": ours.workload.name,
        "tokens_per_s": ours.tokens_per_s,
        "samples_tokens_per_s": list(ours.samples),
        "bytes_per_s": ours.bytes_per_s,
        "operations_per_s": ours.operations_per_s,
        "peers": {
            label: {
                "tokens_per_s": reading.tokens_per_s,
                "samples_tokens_per_s": list(reading.samples),
                "ratio": ours.tokens_per_s / reading.tokens_per_s,
            }
            for label, reading in result.peers.items()
        },
    }


def _print_comparisons(results: list[Comparison], labels: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("workload")
    for column in (
        "tokens/s",
        "min to max",
        "GB/s",
        "GOP/s",
        *labels,
        *(f"ratio to {label}" for label in labels),
    ):
        table.add_column(column, justify="right")
    for result in results:
        ours, peers = result.ours, [result.peers[label].tokens_per_s for label in labels]
        table.add_row(
            ours.workload.name,
            f"{ours.tokens_per_s:,.1f}",
            f"{min(ours.samples):,.1f} to {max(ours.samples):,.1f}",
            f"{ours.bytes_per_s / 1e9:.1f}" if ours.bytes_per_s else "",
            f"{ours.operations_per_s / 1e9:,.0f}",
            *(f"{speed:,.1f}" for speed in peers),
            *(f"{ours.tokens_per_s / speed:.2f}x" for speed in peers),
        )
    Console().print(table)
