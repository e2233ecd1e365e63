"""`duologue cache`: questions about the inter-turn cache that need no running server."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from duologue.cli.completion import complete_model
from duologue.cli.examples import examples
from duologue.models.registry import DEFAULT_MODEL

_FILE = click.Path(path_type=Path)


@click.group(epilog=examples("duologue cache explain before.json after.json"))
def cache() -> None:
    """Explain cache misses."""


@cache.command(
    epilog=examples(
        "duologue cache explain before.json after.json",
        "duologue cache explain before.json after.json --model gemma3-270m --json",
    )
)
@click.argument("a", type=_FILE, metavar="A.json")
@click.argument("b", type=_FILE, metavar="B.json")
@click.option(
    "--model",
    default=DEFAULT_MODEL,
    show_default=True,
    shell_complete=complete_model,
    help="Whose tokenizer and chat template.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(a: Path, b: Path, model: str, as_json: bool) -> None:
    """Say where dialogue B leaves dialogue A, which is in the cache, and what that costs.

    Each file holds a list of messages or the body of a chat completion.
    """
    from duologue.api.comparison import compare_dialogues, read_dialogue
    from duologue.dialogue.template import ChatTemplate
    from duologue.dialogue.tokenizer import Tokenizer
    from duologue.engine.load import load_for_engine

    first, second = read_dialogue(a), read_dialogue(b)
    packed = load_for_engine(model, progress=True)  # mapped, not read
    tokenizer = Tokenizer.from_bytes(packed.tokenizer)
    template = ChatTemplate.for_tokenizer(packed.chat_template, tokenizer)
    comparison = compare_dialogues(template, tokenizer, first, second)
    if as_json:
        found = {**asdict(comparison), "recomputed_tokens": comparison.recomputed_tokens}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo("\n".join(comparison.lines()))
