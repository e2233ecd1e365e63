"""`duologue eval`: measurements of a model's quality."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.completion import complete_model
from duologue.cli.examples import examples
from duologue.models.registry import DEFAULT_MODEL

if TYPE_CHECKING:
    from duologue.bench.greedy_replies import GreedyReply
    from duologue.bench.perplexity import Perplexity


@click.group("eval", epilog=examples("duologue eval perplexity smollm2-135m --reference"))
def evaluate() -> None:
    """Measure a model's quality."""


@evaluate.command(
    epilog=examples(
        "duologue eval perplexity smollm2-135m",
        "duologue eval perplexity gemma3-270m --reference --tokens 2000 --json",
    )
)
@click.argument("model", default=DEFAULT_MODEL, shell_complete=complete_model)
@click.option(
    "--text",
    "path",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="A UTF-8 file.  [default: licence texts that ship with duologue]",
)
@click.option("--reference", is_flag=True, help="Compare with the float32 model.")
@click.option("--tokens", type=click.IntRange(2), help="Read so many; all unless given.")
@click.option(
    "--prompts", is_flag=True, help="Compare greedy replies to 50 chat prompts with the float32 model's."
)
@click.option(
    "--float-attention",
    is_flag=True,
    help="Read the text with attention in float32: weights and activations alone in int8.",
)
@click.option("--threads", type=click.IntRange(1), help="Engine threads; all cores unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def perplexity(
    model: str,
    path: Path | None,
    reference: bool,
    tokens: int | None,
    prompts: bool,
    float_attention: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Perplexity of a text under MODEL in int8."""
    from rich.console import Console

    from duologue.bench.greedy_replies import chat_prompts, measure_greedy
    from duologue.bench.perplexity import licence_text, measure_perplexity
    from duologue.engine.load import load_for_engine
    from duologue.models.source import resolve

    text = licence_text() if path is None else _read(path)
    packed = load_for_engine(model, progress=True)
    with Console(stderr=True).status("") as status:
        checkpoint = None
        if reference or prompts:
            status.update("reading the float weights")
            checkpoint = resolve(model).read().loaded()
        reading = measure_perplexity(
            packed,
            text,
            reference=checkpoint if reference else None,
            tokens=tokens,
            threads=threads,
            float_attention=float_attention,
            on_progress=status.update,
        )
        replies: list[GreedyReply] = []
        if prompts and checkpoint is not None:
            replies = measure_greedy(
                packed, checkpoint, chat_prompts(), threads=threads, on_progress=status.update
            )
    if as_json:
        click.echo(json.dumps(_as_dict(packed.name, reading, replies if prompts else None), indent=2))
        return
    _print_reading(packed.name, reading)
    if prompts:
        _print_replies(replies)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise click.BadParameter(
            f"'{path}' is not UTF-8: byte {error.start} is {error.object[error.start]:#04x}; convert the file",
            param_hint="--text",
        ) from None
    except OSError as error:
        raise click.BadParameter(f"'{path}' cannot be read: {error.strerror}", param_hint="--text") from None


def _as_dict(name: str, reading: Perplexity, replies: Sequence[GreedyReply] | None) -> dict[str, Any]:
    comparison = reading.comparison
    return {
        "model": name,
        "tokens": reading.tokens,
        "predicted_tokens": reading.predicted_tokens,
        "perplexity": reading.perplexity,
        "reference": None if comparison is None else asdict(comparison),
        "windows": [asdict(window) for window in reading.windows],
        "replies": None
        if replies is None
        else [{**asdict(reply), "is_equal": reply.is_equal, "near_tie": reply.near_tie} for reply in replies],
    }


def _print_reading(name: str, reading: Perplexity) -> None:
    rows = [
        ("model", name),
        ("tokens", f"{reading.tokens:,} in {len(reading.windows)} windows"),
        ("perplexity, int8", f"{reading.perplexity:.4f}"),
    ]
    comparison = reading.comparison
    if comparison is not None:
        rows += [
            ("perplexity, float32", f"{comparison.perplexity:.4f}"),
            ("ratio", f"{comparison.ratio:.4f}"),
            ("KL(float32 || int8)", f"{comparison.divergence_nats:.5f} nats"),
            ("top-1 agreement", f"{100 * comparison.top1_agreement:.2f} %"),
        ]
    for label, value in rows:
        click.echo(f"{label:<20} {value}")


def _print_replies(replies: Sequence[GreedyReply]) -> None:
    click.echo(f"\n{'greedy reply to':<60} {'equal':>7}  first difference")
    for reply in replies:
        prompt = reply.prompt if len(reply.prompt) <= 60 else reply.prompt[:57] + "..."
        note = "" if reply.gap is None else f"gap {reply.gap:.3f}" + (", near tie" if reply.near_tie else "")
        click.echo(f"{prompt:<60} {reply.equal_tokens:>3}/{reply.tokens:<3}  {note}".rstrip())
    equal, ties = sum(reply.is_equal for reply in replies), sum(reply.near_tie for reply in replies)
    click.echo(f"{equal} of {len(replies)} replies equal; {ties} of the others differ first at a near tie")
