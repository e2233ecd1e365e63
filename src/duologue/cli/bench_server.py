"""`duologue bench server`."""

from __future__ import annotations

import json

import click

from duologue.cli.examples import examples


@click.command(
    epilog=examples("duologue bench server", "duologue bench server --streams 1 --tokens 1000 --json")
)
@click.option(
    "--streams",
    type=click.IntRange(1, 64),
    multiple=True,
    default=(1, 16),
    show_default=True,
    help="At once.",
)
@click.option(
    "--tokens", type=click.IntRange(1, 2000), default=500, show_default=True, help="Of each stream."
)
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def server(streams: tuple[int, ...], tokens: int, repetitions: int, as_json: bool) -> None:
    """CPU time of a streamed token beside the model's forward step."""
    from duologue.bench.server_overhead import bench_server

    results = [bench_server(count, tokens, repetitions) for count in streams]
    if as_json:
        click.echo(json.dumps([result.as_dict() for result in results], indent=2))
        return
    click.echo("streams  engine us  HTTP us  total us  of it system us  (CPU for each token)")
    for result in results:
        click.echo(
            f"{result.streams:7d}  {result.engine_us:9.1f}  {result.http_us:7.1f}  {result.total_us:8.1f}  "
            f"{result.system_us:15.1f}"
        )
