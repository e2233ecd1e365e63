"""`duologue bench speculation`."""

from __future__ import annotations

import json

import click

from duologue.cli.completion import complete_model
from duologue.cli.examples import examples
from duologue.models.registry import DEFAULT_MODEL


@click.command(
    epilog=examples(
        "duologue bench speculation",
        "duologue bench speculation gemma3-270m --streams 4 --json",
    )
)
@click.argument("model", default=DEFAULT_MODEL, shell_complete=complete_model)
@click.option("--threads", type=click.IntRange(1), help="All cores unless given.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Turns of both engines.")
@click.option("--streams", type=click.IntRange(1, 64), default=1, show_default=True, help="Replies at once.")
@click.option(
    "--speculation", type=click.IntRange(1, 32), default=8, show_default=True, help="Most tokens of a draft."
)
@click.option("--kind", "kinds", multiple=True, help="Only replies of this kind; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def speculation(
    model: str,
    threads: int | None,
    rounds: int,
    streams: int,
    speculation: int,
    kinds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Decode speed with drafts and without, on replies that repeat their prompt and on free chat.

    Fails when a reply with drafts differs from the one without.
    """
    from duologue.bench.speculation import bench_speculation
    from duologue.bench.speculation_workload import CASES

    known = sorted({case.kind for case in CASES})
    if not set(kinds) <= set(known):
        raise click.BadParameter(f"a kind is one of {', '.join(map(repr, known))}", param_hint="--kind")

    def say(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    readings = bench_speculation(
        model,
        threads=threads,
        rounds=rounds,
        streams=streams,
        speculation_tokens=speculation,
        cases=[case for case in CASES if not kinds or case.kind in kinds],
        on_progress=say,
    )
    if as_json:
        result = [
            {
                "kind": reading.kind,
                "tokens": reading.tokens[0],
                "plain_tokens_per_s": reading.plain_tokens_per_s,
                "drafting_tokens_per_s": reading.drafting_tokens_per_s,
                "speedup": reading.speedup,
                "speedups": reading.speedups,
                "drafted_tokens": reading.drafted,
                "accepted_tokens": reading.accepted,
                "acceptance": reading.acceptance,
            }
            for reading in readings
        ]
        click.echo(json.dumps(result, indent=2))
        return
    click.echo(
        f"{'reply':<16}{'tokens':>8}{'tokens/s':>10}{'drafting':>10}{'speedup':>9}   rounds      accepted"
    )
    for reading in readings:
        low, high = min(reading.speedups), max(reading.speedups)
        click.echo(
            f"{reading.kind:<16}{reading.tokens[0]:>8}{reading.plain_tokens_per_s:>10.1f}"
            f"{reading.drafting_tokens_per_s:>10.1f}{reading.speedup:>8.2f}x   {low:.2f}-{high:.2f}   "
            f"{reading.accepted} of {reading.drafted} ({100 * reading.acceptance:.0f} %)"
        )
    click.echo("every reply with drafts was equal to the one without")
