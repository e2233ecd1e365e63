"""`duologue bench lookup`."""

from __future__ import annotations

import json

import click

from duologue.cli.examples import examples


@click.command(
    epilog=examples("duologue bench lookup", "duologue bench lookup --pages 100000 --dialogues 1000 --json")
)
@click.option(
    "--pages", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Stored pages."
)
@click.option(
    "--dialogues", type=click.IntRange(8), default=10_000, show_default=True, help="Children of one persona."
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(384),
    default=8_000,
    show_default=True,
    help="Of the prompts looked up.",
)
@click.option("--lookups", type=click.IntRange(10), default=5_000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def lookup(pages: int, dialogues: int, prompt_tokens: int, lookups: int, as_json: bool) -> None:
    """How long the prefix index takes to find a prompt among many stored pages, hash included."""
    from duologue.bench.lookup import measure_lookup

    def say(text: str) -> None:
        if not as_json:
            click.echo(text, err=True)

    try:
        reading = measure_lookup(pages, dialogues, prompt_tokens, lookups, say)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--pages") from None
    result = {
        "pages": reading.pages,
        "dialogues": reading.dialogues,
        "prompt_tokens": reading.prompt_tokens,
        "index_bytes": reading.index_bytes,
        "index_bytes_per_page": reading.index_bytes / reading.pages,
        **{f"p{percent}_us": reading.percentile_us(percent) for percent in (50, 90, 99)},
    }
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    click.echo(
        f"{reading.prompt_tokens:,} tokens among {reading.pages:,} pages of {reading.dialogues:,} dialogues: "
        f"p50 {result['p50_us']:.1f}, p90 {result['p90_us']:.1f}, p99 {result['p99_us']:.1f} microseconds\n"
        f"index: {result['index_bytes_per_page']:.0f} bytes per page"
    )
