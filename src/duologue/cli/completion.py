"""`duologue completion`, and what arguments are completed to."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from duologue.cli.examples import examples
from duologue.models.registry import MODELS

PROGRAM = "duologue"
COMPLETE_VARIABLE = "_DUOLOGUE_COMPLETE"


@click.command(
    epilog=examples(
        'eval "$(duologue completion bash)"                                     # in ~/.bashrc',
        'eval "$(duologue completion zsh)"                                      # in ~/.zshrc',
        "duologue completion fish > ~/.config/fish/completions/duologue.fish",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands, options and model names in SHELL."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, COMPLETE_VARIABLE).source())


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Aliases that begin so; where none does, files and folders by the shell."""
    aliases = [CompletionItem(alias) for alias in MODELS if alias.startswith(incomplete)]
    return aliases if aliases and incomplete else [*aliases, CompletionItem(incomplete, type="file")]
