"""Byte sizes on the command line."""

from __future__ import annotations

import pytest

from duologue.cli.units import parse_bytes


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
