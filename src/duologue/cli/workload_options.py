"""The options that describe a benchmark's dialogues."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.units import FiniteRange

if TYPE_CHECKING:
    from duologue.bench.dialogue_workload import Length


def _length(text: str) -> Length:
    from duologue.bench.dialogue_workload import Length

    try:
        return Length.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


_OPTIONS = (
    click.option("--dialogues", type=click.IntRange(1), default=12, show_default=True, help="How many."),
    click.option("--turns", type=click.IntRange(1), default=8, show_default=True, help="Messages in each."),
    click.option(
        "--persona",
        type=click.Choice(["shared", "own", "none"]),
        default="shared",
        show_default=True,
        help="One system message for all, one for each, or none.",
    ),
    click.option(
        "--persona-words", type=click.IntRange(1), default=300, show_default=True, help="Its length."
    ),
    click.option(
        "--message-words",
        type=_length,
        metavar="N[:SIGMA]",
        default="40",
        show_default=True,
        help="Words of a message: fixed, or log-normal around a median of N.",
    ),
    click.option(
        "--reply-tokens",
        type=_length,
        metavar="N[:SIGMA]",
        default="32",
        show_default=True,
        help="Tokens of a reply, likewise.",
    ),
    click.option(
        "--history",
        "history_turns",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Turns before the first request.",
    ),
    click.option(
        "--regenerate-rate",
        type=FiniteRange(0, 1),
        default=0.0,
        show_default=True,
        help="Share of turns whose reply is asked for again.",
    ),
    click.option(
        "--edit-rate",
        type=FiniteRange(0, 1),
        default=0.0,
        show_default=True,
        help="Share of turns whose message is then worded anew.",
    ),
    click.option("--seed", type=int, default=0, show_default=True, help="Decides all texts and lengths."),
)
_FIELDS = (
    "dialogues", "turns", "persona", "persona_words", "message_words", "reply_tokens", "history_turns", "regenerate_rate",
    "edit_rate", "seed",
)  # fmt: skip


def workload_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options; `command` gets one `workload` (WorkloadSpec) in their place."""

    @functools.wraps(command)
    def with_workload(**arguments: Any) -> None:
        from duologue.bench.dialogue_workload import WorkloadSpec

        fields = {name: arguments.pop(name) for name in _FIELDS}
        command(workload=WorkloadSpec(**fields), **arguments)

    decorated: Callable[..., None] = with_workload
    for decorate in reversed(_OPTIONS):
        decorated = decorate(decorated)
    return decorated
