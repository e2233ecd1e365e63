"""Byte sizes and finite numbers on the command line."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from duologue.cli.main import cli
from duologue.cli.units import FiniteRange, origin, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("123", 123),
        ("1GiB", 2**30),
        ("1g", 2**30),
        ("1 GB", 10**9),
        ("1.5MiB", 3 * 2**19),
        ("64k", 65536),
        (" 2 TiB ", 2**41),
        ("10B", 10),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1XiB", "1e9", "nan", "1 2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 1GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan", "inf", "1e999"])
def test_no_number_option_takes_what_is_not_finite(text: str) -> None:
    """`--drain-timeout nan` made a server that no SIGTERM ended. Walks every command for options with a range."""
    options = list(float_options(cli))
    assert {"--drain-timeout", "--temperature", "--rate"} <= {option.opts[0] for option in options}
    for option in options:
        assert isinstance(option.type, FiniteRange), option.opts
        with pytest.raises(click.BadParameter):
            option.type.convert(text, option, None)


def float_options(command: click.Command) -> Iterator[click.Parameter]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from float_options(child)
    yield from (option for option in command.params if isinstance(option.type, click.types.FloatParamType))


@pytest.mark.parametrize(
    "text",
    ["*", "null", "http://localhost:3000", "https://a.example", "chrome-extension://abc", "http://[::1]:80"],
)
def test_origins_as_browsers_send_them(text: str) -> None:
    assert origin(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:3000",
        "http://a.example/",
        "http://a.example/path",
        "http://A.example",
        "http://",
        "a b",
        "http://u@a",
    ],
)
def test_origins_that_no_browser_sends_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no origin"):
        origin(text)
