"""`duologue bench grammar`."""

from __future__ import annotations

import json
import statistics

import click

from duologue.cli.completion import complete_model
from duologue.cli.examples import examples
from duologue.models.registry import DEFAULT_MODEL


@click.command(
    epilog=examples("duologue bench grammar", "duologue bench grammar gemma3-270m --repetitions 4 --json")
)
@click.argument("model", default=DEFAULT_MODEL, shell_complete=complete_model)
@click.option("--threads", type=click.IntRange(1), help="All cores unless given.")
@click.option("--tokens", type=click.IntRange(2, 1024), default=128, show_default=True, help="Of each reply.")
@click.option("--repetitions", type=click.IntRange(1), default=8, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def grammar(model: str, threads: int | None, tokens: int, repetitions: int, as_json: bool) -> None:
    """Decode time of replies that follow a JSON schema beside that of free ones."""
    from duologue.bench.grammar import bench_grammar

    def say(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    reading = bench_grammar(model, threads=threads, tokens=tokens, repetitions=repetitions, on_progress=say)
    if as_json:
        figures = {"free_s": reading.free_s, "schema_s": reading.schema_s, "ratio": reading.ratio}
        click.echo(json.dumps(figures, indent=2))
        return
    for name, times_s in (("free", reading.free_s), ("JSON schema", reading.schema_s)):
        click.echo(f"{name:<12}{1e3 * statistics.median(times_s):>8.2f} ms per token")
    click.echo(f"{'ratio':<12}{reading.ratio:>8.3f}, median of {repetitions} pairs")
