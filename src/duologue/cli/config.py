"""`duologue config`: the file of settings, and where each value comes from."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from duologue.cli.config_file import CONFIG_VARIABLE, ConfigFile, KeyPath, default_config_path
from duologue.cli.config_keys import Setting, leaf_commands, settings_of
from duologue.cli.config_sources import Origin, config_file_of, origin_of
from duologue.cli.config_template import config_template, default_of
from duologue.cli.examples import examples
from duologue.errors import SettingError


@click.group(epilog=examples("duologue config init", "duologue config show serve", "duologue config path"))
def config() -> None:
    """Show settings and where they come from, or write a file of them.

    A flag wins over the environment, the environment over the file, the file over the default. All have the same names: --kv-memory
    of 'duologue serve' is kv-memory in the file's table [serve], and the variable DUOLOGUE_SERVE_KV_MEMORY.
    """


@config.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog=examples(
        "duologue config show",
        "duologue config show serve",
        "duologue config show serve --port 9000",
        "duologue config show --json bench engine",
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND [FLAGS]...]")
@click.pass_context
def show(ctx: click.Context, command: tuple[str, ...], as_json: bool) -> None:
    """Show each setting's value and whether it is a flag, from the environment, from a line of the file, or the default.

    COMMAND is a command of duologue as it would be typed, with flags or without; all commands unless given. Options of this command
    stand before it.
    """
    paths, flags = _commands_named(ctx, command)
    rows = [row for path in paths for row in _rows(ctx, path, flags)]
    file = config_file_of(ctx)
    if as_json:
        click.echo(
            json.dumps(
                {"file": file.path and str(file.path), "settings": [row.as_dict() for row in rows]}, indent=2
            )
        )
        return
    click.echo(f"file: {file.path or f'none ({default_config_path()} does not exist)'}")
    width = max((len(row.setting.key) for row in rows), default=0)
    value_width = min(40, max((len(row.text) for row in rows), default=0))
    command_path: KeyPath = ()
    for row in rows:
        if row.setting.command != command_path:
            command_path = row.setting.command
            click.echo(f"\n[{'.'.join(command_path)}]")
        click.echo(f"{row.setting.key:<{width}}  {row.text:<{value_width}}  {row.origin}")


@config.command("path", epilog=examples("duologue config path"))
def path_command() -> None:
    """Print the path of the file that commands read unless --config names another."""
    path = _chosen_path()
    click.echo(path)
    if not path.exists():
        click.echo("There is no such file yet; 'duologue config init' writes one.", err=True)


@config.command(
    epilog=examples("duologue config init", "duologue config init here.toml", "duologue config init --force")
)
@click.argument("path", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_context
def init(ctx: click.Context, path: Path | None, force: bool) -> None:
    """Write a file with every setting, explained and commented out.

    FILE is what 'duologue config path' prints unless given.
    """
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    commands = [
        (command.get_short_help_str(200), settings_of(command, leaf))
        for leaf, command in leaf_commands(root.command, root)
    ]
    path = path or _chosen_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(config_template(commands))
    except FileExistsError:
        raise SettingError(f"{path} is there already; pass --force to replace it") from None
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SettingError(f"{path} cannot be written ({reason}); give another FILE") from None
    click.echo(f"wrote {path}")


def _chosen_path() -> Path:
    chosen = os.environ.get(CONFIG_VARIABLE)
    return Path(chosen) if chosen else default_config_path()


def _commands_named(ctx: click.Context, words: tuple[str, ...]) -> tuple[list[KeyPath], list[str]]:
    """The commands that the words name, all of a group's or of the program's, and the flags after a single one."""
    root = ctx.find_root()
    command: click.Command | None = root.command
    depth = 0
    while isinstance(command, click.Group):
        if depth == len(words):
            return [path for path, _ in leaf_commands(command, root, words)], []
        _, command, _ = command.resolve_command(
            click.Context(command, info_name="duologue"), list(words[depth:])
        )
        depth += 1
    return [words[:depth]], list(words[depth:])


class _Row:
    """One setting with its value: `given` as it was written, `value` as the command gets it."""

    def __init__(self, setting: Setting, ctx: click.Context, file: ConfigFile) -> None:
        name = str(setting.param.name)
        self.setting = setting
        self.origin: Origin = origin_of(setting, ctx.get_parameter_source(name), file)
        self.value: Any = "***" if setting.is_secret and ctx.params[name] else ctx.params[name]
        argument = _argument_instead(setting, ctx)
        if argument is not None:
            self.value = ctx.params[argument]
            self.origin = Origin("flag", argument.upper())
        self._given = self._as_given(file)

    def _as_given(self, file: ConfigFile) -> Any:
        if self.setting.is_secret:
            return self.value
        if self.origin.source == "environment":
            return os.environ[self.origin.place]
        if self.origin.source == "file":
            return file.table(self.setting.command)[self.setting.key]
        return default_of(self.setting) if self.origin.source == "default" else self.value

    @property
    def text(self) -> str:
        if self._given in (None, (), []):
            return "-"
        if isinstance(self._given, bool):
            return str(self._given).lower()
        if isinstance(self._given, (list, tuple)):
            return " ".join(map(str, self._given))
        return str(self._given)

    def as_dict(self) -> dict[str, Any]:
        value = self.value
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(item is None or isinstance(item, (bool, int, float, str, Path)) for item in items):
            value = self._given  # what JSON has no form for stands as it was written
        if isinstance(value, (list, tuple)):
            value = [str(item) if isinstance(item, Path) else item for item in value]
        elif isinstance(value, Path) or not isinstance(value, (bool, int, float, str, type(None))):
            value = str(value)
        return {
            "command": " ".join(self.setting.command),
            "key": self.setting.key,
            "value": value,
            "source": self.origin.source,
            "place": self.origin.place or None,
            "variable": self.setting.variable,
        }


def _argument_instead(setting: Setting, ctx: click.Context) -> str | None:
    """The argument of the setting's name, if it is given: MODEL stands in for every `--model` that is not on the command line."""
    for param in ctx.command.params:
        if (
            isinstance(param, click.Argument)
            and param.name == setting.key
            and param.name != setting.param.name
        ):
            given = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
            return param.name if given else None
    return None


def effective_values(ctx: click.Context, path: KeyPath) -> dict[str, Any]:
    """What the command at `path` would get if it were run without flags, by the keys of its settings."""
    return {row.setting.key: row.value for row in _rows(ctx, path, [])}


def _rows(ctx: click.Context, path: KeyPath, flags: list[str]) -> list[_Row]:
    """Parses the flags as the command would, except that nothing is required."""
    root = ctx.find_root()
    command = dict(leaf_commands(root.command, root))[path]  # type: ignore[arg-type]
    lenient = copy.copy(command)
    lenient.params = [copy.copy(param) for param in command.params]
    for param in lenient.params:
        param.required = False
    inner = lenient.make_context(" ".join(path), list(flags), parent=ctx)
    if "config" not in [param.name for param in lenient.params]:
        return []
    return [_Row(setting, inner, config_file_of(inner)) for setting in settings_of(command, path)]
