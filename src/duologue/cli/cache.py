"""`duologue cache`: questions about the inter-turn cache that need no running server."""

from __future__ import annotations

from pathlib import Path

import click

from duologue.models.registry import DEFAULT_MODEL

_FILE = click.Path(path_type=Path)


@click.group()
def cache() -> None:
    """Explain cache misses."""


@cache.command()
@click.argument("a", type=_FILE, metavar="A.json")
@click.argument("b", type=_FILE, metavar="B.json")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Whose tokenizer and chat template.")
def explain(a: Path, b: Path, model: str) -> None:
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
    for line in compare_dialogues(template, tokenizer, first, second).lines():
        click.echo(line)
