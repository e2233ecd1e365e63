"""The configuration file: which one is read, its tables, and the line that each value stands on.

One file is read, never two merged: `--config FILE`, else `DUOLOGUE_CONFIG`, else `duologue.toml` in the user's configuration
folder if there is one. The current folder is not searched, so that what a command does never depends on where it is started.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duologue.errors import SettingError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_VARIABLE = "DUOLOGUE_CONFIG"
MAX_CONFIG_BYTES = 1 << 20
_MAX_VALUE_LINES = 500
"""Finding a value's end takes time that grows with the square of its lines."""

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class ConfigFile:
    """`path` None means that there is no file; `tables` is the parsed document."""

    path: Path | None = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    text: str = field(default="", repr=False)

    def table(self, path: KeyPath) -> Mapping[str, Any]:
        """The table at `path`, empty if there is none."""
        table: Any = self.tables
        for name in path:
            table = table.get(name, {}) if isinstance(table, Mapping) else {}
        return table if isinstance(table, Mapping) else {}

    def place(self, path: KeyPath) -> str:
        """`FILE:LINE` of a key or table; without the line where a value of very many lines stands before it."""
        line = next((line for found, line in _lines(self.text) if found == path), None)
        return f"{self.path}" if line is None else f"{self.path}:{line}"


def default_config_path() -> Path:
    """`duologue.toml` in `duologue` of the user's configuration folder (on Linux `~/.config`, or `$XDG_CONFIG_HOME`)."""
    import platformdirs  # takes milliseconds that no `--help` should wait for

    return platformdirs.user_config_path("duologue", appauthor=False) / "duologue.toml"


def read_config(path: Path | None) -> ConfigFile:
    """The file at `path`, or at the default path, where none is no error.

    Raises SettingError naming the file and, where one is to blame, the line.
    """
    if path is None:
        path = default_config_path()
        try:
            path.lstat()
        except OSError:
            return ConfigFile()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except IsADirectoryError:
        raise SettingError(f"{path} is a folder, not a configuration file; give the file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SettingError(
            f"the configuration file {path} cannot be read ({reason}); check the path and its permissions"
        ) from None
    if len(data) > MAX_CONFIG_BYTES:
        raise SettingError(
            f"{path} is larger than {MAX_CONFIG_BYTES >> 20} MiB and so no configuration file; give another"
        )
    return _parse(path, data)


def _parse(path: Path, data: bytes) -> ConfigFile:
    try:
        text = data.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingError(
            f"{path}:{line}: byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None
    text = text.replace("\r\n", "\n")
    try:
        return ConfigFile(path, tomllib.loads(text), text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # TOMLDecodeError is a ValueError; so is that of a huge integer
        reason = "values are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SettingError(f"{path} is not valid TOML: {reason}; correct it there") from None


def _lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """(path of a key or table, its line), in order.

    The parser tells no lines, so it is given one statement after the other; it decides where each one ends.
    """
    table: KeyPath = ()
    lines = text.split("\n")
    begin = 0
    while begin < len(lines):
        statement, end = _statement(lines, begin)
        if statement is None:
            return
        is_header = lines[begin].lstrip().startswith("[")
        base = () if is_header else table
        for path in _paths(statement, base):
            yield path, begin + 1
            if is_header:
                table = path
        begin = end


def _statement(lines: list[str], begin: int) -> tuple[Mapping[str, Any] | None, int]:
    """The statement that begins on a line, parsed, and the line after it."""
    for end in range(begin + 1, min(len(lines), begin + _MAX_VALUE_LINES) + 1):
        try:
            return tomllib.loads("\n".join(lines[begin:end])), end
        except ValueError:
            continue
    return None, begin


def _paths(value: Any, base: KeyPath) -> Iterator[KeyPath]:
    """Outer tables before what they hold. Of arrays only the name counts."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield (*base, name)
            yield from _paths(inner, (*base, name))
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield from _paths(value[0], base)
