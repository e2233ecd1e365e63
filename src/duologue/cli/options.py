"""Options that every command with an engine has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duologue.cli.completion import complete_model
from duologue.cli.units import positive_byte_size
from duologue.models.registry import DEFAULT_MODEL, MODELS

if TYPE_CHECKING:
    from duologue.engine.engine import Engine


_Command = TypeVar("_Command", bound=Callable[..., Any])


def engine_options(command: _Command) -> _Command:
    """The MODEL argument and the engine's budgets."""
    decorators = [
        click.argument("model", default=DEFAULT_MODEL, shell_complete=complete_model),
        click.option(
            "--kv-memory",
            type=positive_byte_size,
            metavar="SIZE",
            default="1GiB",
            show_default=True,
            help="KV cache budget.",
        ),
        click.option("--threads", type=click.IntRange(1), help="Engine threads; all cores unless given."),
        click.option(
            "--context", type=click.IntRange(2), help="Longest dialogue in tokens; the model's limit."
        ),
        click.option(
            "--accept-terms",
            is_flag=True,
            help="You have read and accept the terms of use of MODEL, if it has any.",
        ),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def load_engine(
    model: str, kv_memory: int, threads: int | None, context: int | None, accept_terms: bool, **scheduler: int
) -> Engine:
    """Loads with a progress bar on a terminal. `scheduler` takes `max_num_seqs`, `max_batch_tokens`
    and `speculation_tokens`."""
    from duologue.engine.engine import Engine

    terms = MODELS[model].terms if model in MODELS else None
    if accept_terms and terms is not None:
        from duologue.models.terms import accept

        accept(terms)
    try:
        return Engine.load(
            model,
            kv_memory_bytes=kv_memory,
            threads=threads,
            context_tokens=context,
            progress=True,
            **scheduler,
        )
    except ValueError as error:  # limits that contradict each other
        raise click.UsageError(str(error)) from None
