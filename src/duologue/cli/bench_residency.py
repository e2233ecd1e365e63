"""`duologue bench residency` and `duologue bench context`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from duologue.cli.examples import examples
from duologue.cli.options import engine_options, load_engine
from duologue.cli.units import FiniteRange


@click.command(
    epilog=examples(
        "duologue bench residency --dialogues 20 --messages 20",
        "duologue bench residency gemma3-270m --kv-memory 4GiB --plot ttft.png",
    )
)
@engine_options
@click.option("--dialogues", type=click.IntRange(1), default=100, show_default=True)
@click.option(
    "--messages", type=click.IntRange(1), default=180, show_default=True, help="Of a filled dialogue."
)
@click.option("--message-tokens", type=click.IntRange(1), default=53, show_default=True)
@click.option("--reply-tokens", type=click.IntRange(1), default=16, show_default=True)
@click.option(
    "--rounds", type=click.IntRange(1), default=2, show_default=True, help="Visits of each dialogue."
)
@click.option(
    "--regenerate-rate",
    type=FiniteRange(0, 1),
    default=0.1,
    show_default=True,
    help="Visits for the same reply again.",
)
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw the times, as a PNG."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def residency(
    model: str,
    kv_memory: int,
    threads: int | None,
    context: int | None,
    accept_terms: bool,
    dialogues: int,
    messages: int,
    message_tokens: int,
    reply_tokens: int,
    rounds: int,
    regenerate_rate: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """How many long dialogues stay in the cache of MODEL, and what returning to each of them costs.

    Fills dialogues with random tokens and visits them in turn, so that all others lie between two visits of one.
    """
    from rich.console import Console

    from duologue.bench.plot import check_plot
    from duologue.bench.residency import ResidencyConfig, run_residency
    from duologue.bench.residency_report import plot_residency, residency_dict, residency_lines

    if plot is not None:
        check_plot(plot)  # before minutes of filling
    config = ResidencyConfig(
        dialogues=dialogues,
        messages=messages,
        message_tokens=message_tokens,
        reply_tokens=reply_tokens,
        rounds=rounds,
        regenerate_rate=regenerate_rate,
    )
    with (
        load_engine(model, kv_memory, threads, context, accept_terms) as engine,
        Console(stderr=True).status("") as status,
    ):
        try:
            result = run_residency(engine, config, on_progress=status.update)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--messages") from None
    if plot is not None:
        plot_residency(plot, result)
    if as_json:
        click.echo(json.dumps(residency_dict(result), indent=2))
    else:
        click.echo("\n".join(residency_lines(result)))


@click.command(
    epilog=examples(
        "duologue bench context smollm2-135m",
        "duologue bench context smollm2-135m gemma3-270m --depth 1024 --depth 8192 --plot context.png",
    )
)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--threads", type=click.IntRange(1), help="All cores unless given.")
@click.option(
    "--depth",
    "depths",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 1024, 2048, 4096, 8192, 16384, 32768),
    help="Tokens before the decoded one; may be repeated.  [default: powers of two up to 32768]",
)
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw them, as a PNG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def context(
    models: tuple[str, ...],
    threads: int | None,
    depths: tuple[int, ...],
    repetitions: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Time per decoded token against the context before it, for each MODEL as far as its context goes."""
    from rich.console import Console

    from duologue.bench.context import context_dict, context_lines, measure_contexts, plot_contexts
    from duologue.bench.plot import check_plot

    if plot is not None:
        check_plot(plot)
    with Console(stderr=True).status("") as status:
        curves = measure_contexts(
            models, sorted(set(depths)), threads=threads, repetitions=repetitions, on_progress=status.update
        )
    if plot is not None:
        plot_contexts(plot, curves)
    if as_json:
        click.echo(json.dumps(context_dict(curves), indent=2))
    else:
        click.echo("\n".join(context_lines(curves)))
