"""One precedence for every option: flag, environment, file, default. And what is wrong with a file or a variable is one line."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.cli.config_keys import OTHER_VARIABLES, all_settings, leaf_commands
from duologue.cli.config_sources import configure
from duologue.cli.config_template import toml_value
from duologue.cli.main import cli
from duologue.cli.units import FiniteRange, positive_byte_size
from tests.cli.invoke import CommandLine
from tests.cli.processes import run


@click.group()
def program() -> None:
    """A program with a setting of every kind."""


@program.group()
def outer() -> None:
    """A group."""


@outer.command("run-it")
@click.argument("model", default="tiny")
@click.option("--count", type=click.IntRange(0), default=1)
@click.option("--memory-size", "size", type=positive_byte_size, default="1KiB")
@click.option("--ratio", type=FiniteRange(0), default=0.5)
@click.option("--loud", is_flag=True)
@click.option("--peaks/--no-peaks", default=True)
@click.option("--name", "names", multiple=True)
@click.option("--file", "path", type=click.Path(path_type=Path))
@click.option("--key", envvar="OTHER_KEY")
def run_it(**values: Any) -> dict[str, Any]:
    return values


configure(program, ())

_WORDS = st.from_regex(r"[a-z][a-z0-9_.]{0,8}", fullmatch=True)
_COUNTS = st.integers(0, 10**9)
_KINDS: dict[str, st.SearchStrategy[Any]] = {
    "model": _WORDS,
    "count": _COUNTS,
    "memory-size": st.builds(
        lambda count, unit: f"{count + 1}{unit}", _COUNTS, st.sampled_from(["", "KiB", "MB"])
    ),
    "ratio": st.floats(0, 1e6),
    "loud": st.booleans(),
    "peaks": st.booleans(),
    "name": st.lists(_WORDS, min_size=1, max_size=3),
    "file": _WORDS,
    "key": _WORDS,
}
_DEFAULTS = {
    "model": "tiny",
    "count": 1,
    "memory-size": "1KiB",
    "ratio": 0.5,
    "loud": False,
    "peaks": True,
    "name": [],
    "file": None,
    "key": None,
}
_PARAMETERS = {"memory-size": "size", "name": "names", "file": "path"}


def _flags(key: str, value: Any) -> list[str]:
    if key == "model":
        return [value]
    if key in ("loud", "peaks"):
        return [f"--{key}"] if value else ["--no-peaks"] if key == "peaks" else []
    return [part for item in (value if key == "name" else [value]) for part in (f"--{key}", str(item))]


def _variable(key: str, value: Any) -> tuple[str, str]:
    text = " ".join(value) if key == "name" else str(value).lower() if isinstance(value, bool) else str(value)
    return f"DUOLOGUE_OUTER_RUN_IT_{key.upper().replace('-', '_')}", text


def _as_passed(key: str, value: Any, folder: Path) -> Any:
    if key == "memory-size":
        return positive_byte_size(value)
    if key == "name":
        return tuple(value)
    return None if value is None else folder / value if key == "file" else value


_SOURCES = st.fixed_dictionaries({}, optional=_KINDS)


@settings(max_examples=80, deadline=None)
@given(flags=_SOURCES, variables=_SOURCES, entries=_SOURCES)
def test_the_first_source_that_has_a_value_wins(
    flags: dict[str, Any], variables: dict[str, Any], entries: dict[str, Any]
) -> None:
    if flags.get("loud") is False:
        del flags["loud"]  # cannot be said on a command line
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.toml"
        lines = [f"{key} = {toml_value(value)}" for key, value in entries.items()]
        file.write_text("\n".join(["[outer.run-it]", *lines]), encoding="utf-8")
        arguments = [part for key, value in flags.items() for part in _flags(key, value)]
        environment = dict(_variable(key, value) for key, value in variables.items())
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DUOLOGUE_")}
        with mock.patch.dict(os.environ, {**clean, **environment}, clear=True):
            got = program.main(
                ["outer", "run-it", "--config", str(file), *arguments],
                prog_name="duologue",
                standalone_mode=False,
            )
        for key, default in _DEFAULTS.items():
            source = next((source for source in (flags, variables, entries) if key in source), {key: default})
            # Paths in the file count from its folder, others from the current one.
            base = file.parent if source is entries else Path()
            assert got[_PARAMETERS.get(key, key)] == _as_passed(key, source[key], base), key


def test_one_value_of_an_option_that_may_be_repeated_needs_no_array(duologue: CommandLine) -> None:
    file = duologue.write("[serve]\nmodel = 'gemma3-270m'\nwarm = ['a.json', 'b.json']\n")
    rows = json.loads(duologue("config", "show", "--json", "--config", file, "serve")[1])["settings"]
    values = {row["key"]: row["value"] for row in rows}
    assert values["model"] in ("gemma3-270m", ["gemma3-270m"])
    assert values["warm"] == [str(duologue.folder / name) for name in ("a.json", "b.json")]


def test_an_own_variable_comes_before_a_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUOLOGUE_CONFIG", os.devnull)
    monkeypatch.setenv("OTHER_KEY", "common")
    arguments = ["outer", "run-it"]
    assert program.main(arguments, standalone_mode=False)["key"] == "common"
    monkeypatch.setenv("DUOLOGUE_OUTER_RUN_IT_KEY", "own")
    assert program.main(arguments, standalone_mode=False)["key"] == "own"
    monkeypatch.setenv("DUOLOGUE_OUTER_RUN_IT_KEY", "")  # as if it were not there
    assert program.main(arguments, standalone_mode=False)["key"] == "common"


def test_every_setting_of_every_command_has_a_name_of_its_own() -> None:
    every = all_settings(click.Context(cli))
    variables = [setting.variable for setting in every]
    assert len(variables) > 80
    assert len(set(variables)) == len(variables)
    assert not set(variables) & OTHER_VARIABLES.keys()
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", setting.key) for setting in every)


def test_which_commands_read_a_file() -> None:
    without = {
        " ".join(path)
        for path, command in leaf_commands(cli, click.Context(cli))
        if "config" not in [param.name for param in command.params]
    }
    assert without == {"config path", "config init", "completion"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[serve]\nprot = 5\n", 'settings.toml:2: unknown key "prot" in [serve] (did you mean port?)'),
        ("[serve]\nkv_memory = '1GiB'\n", "did you mean kv-memory?"),
        ("\n[serv]\nport = 5\n", 'settings.toml:2: unknown table "serv" (did you mean serve?)'),
        ("port = 5\n", "settings.toml:1: unknown key outside of a command's table"),
        ("serve = 5\n", "settings.toml:1: serve is a table"),
        ("[[serve]]\nport = 5\n", "settings.toml:1: serve is a table"),
        ("[bench]\nengine = 5\n", "settings.toml:2: bench.engine is a table"),
        ("[bench.engine]\nthreds = 5\n", "settings.toml:2: unknown key"),
        ("[serve]\nport = 'abc'\n", "settings.toml:2: port = \"abc\" in [serve]: 'abc' is not a valid integer"),
        ("[serve]\nport = 70000\n", "settings.toml:2: port = 70000 in [serve]: 70000 is not in the range"),
        ("[serve]\nport = true\n", "write a number"),
        ("[serve]\nport = 2026-01-01\n", "write a number"),
        ("[serve]\nport = 1e999\n", "port = Infinity in [serve]"),
        ("[serve]\napi-keys = 'a\\u0000b'\n".replace("'", '"'), 'api-keys = "a\\u0000b" in [serve]: '),
        ("[serve]\nport.x = 1\n", "takes a value and is no table"),
        ("[serve]\nhost = true\n", "write a text in quotes"),
        ("[serve]\nkv-memory = 'lots'\n", "write for example 1GiB"),
        ("[serve]\nkv-memory = -1\n", "write for example 1GiB"),
        ("[serve]\nwarm = true\n", "write a text in quotes"),
        ("[serve]\nwarm = [\n 'a.json',\n 5.5,\n [] ]\n", "settings.toml:2: warm"),
        ("[serve]\naccess-log = 'yes'\n", "write true or false"),
        ("[serve]\nport = 1\nport = 2\n", "(at line 3, column"),
        ("[serve\n", "(at line 1, column 7)"),
        ("[serve]\nhost = 'a\n", "is not valid TOML"),
        ("a = " + "[" * 5000, "is not valid TOML"),
        ("a = " + "9" * 5000, "is not valid TOML"),
        (b"[serve]\nhost = '\xff'\n", "settings.toml:2: byte 0xff is not UTF-8"),
        ("[serve]\n\"\\u001b[31m\\u202Ex\" = 1\n", r'unknown key "\u001b[31m\u202ex"'),
        (f'[serve]\n"{"x" * 10_000}" = 1\n', "xxx..."),
        (b"#" * 10_000_000, "larger than 1 MiB"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_one_line(duologue: CommandLine, text: str | bytes, says: str) -> None:
    code, out, err = duologue("serve", "no-such-model", "--config", duologue.write(text))
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert says in err
    assert len(err) < 500
    assert err.isascii() or err.isprintable()


@pytest.mark.parametrize(
    ("name", "says"),
    [(".", "is a folder"), ("none.toml", "cannot be read (no such file"), ("/dev/zero", "1 MiB")],
)  # fmt: skip
def test_what_is_no_file_is_one_line(duologue: CommandLine, name: str, says: str) -> None:
    code, _, err = duologue("serve", "--config", name)
    assert code == 1
    assert err.count("\n") == 1
    assert says in err


def test_a_file_that_may_not_be_read_is_one_line(duologue: CommandLine) -> None:
    loop = duologue.folder / "loop.toml"  # as root everything else can be read
    loop.symlink_to(loop)
    code, _, err = duologue("chat", "--config", "loop.toml")
    assert code == 1
    assert err.startswith("error: the configuration file loop.toml cannot be read (")
    assert err.count("\n") == 1


def test_a_byte_order_mark_and_windows_line_ends_are_fine(duologue: CommandLine) -> None:
    file = duologue.write(b"\xef\xbb\xbf[serve]\r\nport = 7\r\nhost = 'b\xc3\xbccher.example'\r\n")
    code, out, _ = duologue("config", "show", "--config", file, "serve")
    assert code == 0
    assert re.search(r"^port +7 +file settings.toml:2$", out, re.MULTILINE)
    assert re.search(r"^host +bücher.example +file settings.toml:3$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("DUOLOGUE_SERVE_PORT", "abc", "the variable DUOLOGUE_SERVE_PORT=\"abc\": 'abc' is not a valid"),
        ("DUOLOGUE_SERVE_PORT", "tcp://10.0.0.1:80", "enableServiceLinks: false"),
        ("DUOLOGUE_SERVE_ACCESS_LOG", "maybe", "DUOLOGUE_SERVE_ACCESS_LOG"),
        ("DUOLOGUE_CONFIG", "gone.toml", "gone.toml cannot be read"),
    ],
)
def test_a_wrong_variable_is_one_line(duologue: CommandLine, name: str, value: str, says: str) -> None:
    code, out, err = duologue("serve", "no-such-model", **{name: value})
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert says in err


def test_an_unknown_variable_is_a_warning(duologue: CommandLine) -> None:
    known = {name: "" for name in OTHER_VARIABLES if name != "DUOLOGUE_CACHE"}
    links = {
        "DUOLOGUE_SERVICE_HOST": "10.0.0.1",
        "DUOLOGUE_PORT": "tcp://10.0.0.1:80",
        "DUOLOGUE_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    code, _, err = duologue(
        "config", "show", "chat", **known, **links, DUOLOGUE_SERVE_PRT="1", DUOLOGUE_SERVE_HOST="x"
    )
    assert code == 0
    assert (
        err == "warning: the variable DUOLOGUE_SERVE_PRT means nothing (did you mean DUOLOGUE_SERVE_PORT?)\n"
    )


def test_a_command_does_what_file_and_environment_say(duologue: CommandLine, tiny_model_dir: Path) -> None:
    limits = f"[chat]\nmodel = {toml_value(str(tiny_model_dir))}\nkv-memory = '16MiB'\ntemperature = 0\nmax-tokens = 6\n"
    file = str(duologue.folder / duologue.write(limits))
    typed = run("chat", "--config", file, stdin="Hello")
    assert typed.returncode == 0, typed.stderr
    assert re.search(r"[1-6] tokens", typed.stderr)
    one = {"DUOLOGUE_CHAT_MAX_TOKENS": "1"}
    assert "· 1 tokens" in run("chat", "--config", file, stdin="Hello", **one).stderr
    assert "· 2 tokens" in run("chat", "--config", file, "--max-tokens", "2", stdin="Hello", **one).stderr


def test_help_comes_in_spite_of_a_broken_file(duologue: CommandLine) -> None:
    code, out, _ = duologue("serve", "--help", DUOLOGUE_CONFIG=duologue.write("[serve"))
    assert code == 0
    assert "--kv-memory" in out
