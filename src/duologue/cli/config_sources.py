"""Where values come from, one precedence for every option: flag, then environment, then file, then default.

click itself knows the order; what is done here is to give each parameter its variable, to fill `default_map` from the file, and to
check names and values before a command begins. Options that commands add need nothing here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from duologue.cli.config_file import CONFIG_VARIABLE, ConfigFile, KeyPath, read_config
from duologue.cli.config_keys import (
    OTHER_VARIABLES,
    PREFIX,
    Setting,
    all_settings,
    did_you_mean,
    option_key,
    settings_of,
    shown,
)
from duologue.errors import SettingError

# What Kubernetes puts into each container's environment for a service named duologue, or duologue-and-so-on.
_SERVICE_LINK = re.compile(
    r"DUOLOGUE_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
_WITHOUT_FILE = {("config", "path"), ("config", "init"), ("completion",)}
"""Commands that must run where there is no file yet, or a broken one."""
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True)
class Origin:
    """Where a value came from: `source` is flag, environment, file or default; `place` is the variable, or FILE:LINE."""

    source: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.place}".rstrip()


def configure(command: click.Command, path: KeyPath) -> None:
    """Gives `command`, or each command below it, its variables and the option `--config`. Once more changes nothing."""
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            if inner is not None:
                configure(inner, (*path, name))
    elif path not in _WITHOUT_FILE and "config" not in [
        option_key(param) for param in command.params if isinstance(param, click.Option)
    ]:
        for setting in settings_of(command, path):
            own = setting.param.envvar
            setting.param.envvar = [setting.variable, *([own] if isinstance(own, str) else own or ())]
        command.params.append(_config_option(path))


def _config_option(path: KeyPath) -> click.Option:
    def load(ctx: click.Context, _: click.Parameter, value: Path | None) -> None:
        if ctx.resilient_parsing:  # half a line, to be completed
            return
        settings = settings_of(ctx.command, path)
        known = ctx.meta.get(__name__)  # of `config show`, whose own file holds for the command that it shows
        file = known if value is None and isinstance(known, ConfigFile) else read_config(value)
        check_names(file, settings, ctx)
        ctx.default_map = file_values(file, settings, ctx)
        check_environment(settings, ctx, warn=known is None)
        ctx.meta[__name__] = file

    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar=CONFIG_VARIABLE,
        is_eager=True,
        expose_value=False,
        callback=load,
        help="Settings in TOML instead of the file that 'duologue config path' names.",
    )


def config_file_of(ctx: click.Context) -> ConfigFile:
    """The file that the running command has read."""
    file = ctx.meta[__name__]
    assert isinstance(file, ConfigFile)
    return file


def check_names(file: ConfigFile, settings: list[Setting], ctx: click.Context) -> None:
    """Raises SettingError for the first key or table of the file that no command has. `settings` are those of the command that
    runs; the others' modules are imported only if the file speaks of them."""
    own = {setting.path for setting in settings}
    named = list(_leaves(file.tables))
    if all(path in own for path in named):
        return
    paths = {setting.path for setting in all_settings(ctx)}
    tables = {path[:end] for path in paths for end in range(1, len(path))}
    for path in named:
        if path not in paths and not (path in tables and isinstance(_value(file, path), Mapping)):
            raise SettingError(_unknown_name(file, path, paths, tables))


def _unknown_name(file: ConfigFile, path: KeyPath, paths: set[KeyPath], tables: set[KeyPath]) -> str:
    depth = next((end for end in range(1, len(path)) if path[:end] not in tables), len(path))
    path, outer = path[:depth], path[: depth - 1]
    place, name, table = file.place(path), shown(path[-1]), f"[{'.'.join(outer)}]"
    if path in tables:
        return f"{place}: {'.'.join(path)} is a table; write its settings below a line [{'.'.join(path)}]"
    if path in paths:  # a table where a value was expected
        return f"{place}: '{path[-1]}' in {table} takes a value and is no table; write {path[-1]} = ..."
    known = {known[-1] for known in (paths | tables) if known[:-1] == outer}
    meant = did_you_mean(path[-1], known)
    if not outer:
        what = "table" if isinstance(_value(file, path), Mapping) else "key outside of a command's table"
        return f"{place}: unknown {what} {name}{meant}; there is one table for each command: {_listed(known)}"
    return f"{place}: unknown key {name} in {table}{meant}; 'duologue {' '.join(outer)} --help' lists the options"


def _listed(names: set[str]) -> str:
    return ", ".join(f"[{name}]" for name in sorted(names))


def _leaves(table: Mapping[str, Any], base: KeyPath = ()) -> list[KeyPath]:
    """Paths of all values, and of tables that are empty."""
    found: list[KeyPath] = []
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            found += _leaves(value, (*base, name))
        else:
            found.append((*base, name))
    return found


def _value(file: ConfigFile, path: KeyPath) -> Any:
    return file.table(path[:-1])[path[-1]]


def file_values(file: ConfigFile, settings: list[Setting], ctx: click.Context) -> dict[str, Any]:
    """What the file says of one command's settings, by the parameters' own names, as click takes it.

    Raises SettingError naming file, line, key and value for one that the parameter's type refuses.
    """
    values: dict[str, Any] = {}
    for setting in settings:
        table = file.table(setting.command)
        if setting.key not in table:
            continue
        raw = table[setting.key]
        try:
            value = _from_toml(setting, raw, file)
            setting.param.type_cast_value(ctx, value)
        except (click.UsageError, ValueError) as error:
            given = "..." if setting.is_secret else shown(raw)
            raise SettingError(
                f"{file.place(setting.path)}: {setting.key} = {given} in [{'.'.join(setting.command)}]: {_reason(error)}"
            ) from None
        values[str(setting.param.name)] = value
    return values


def _from_toml(setting: Setting, value: Any, file: ConfigFile) -> Any:
    """Raises ValueError with a reason that says what to write."""
    if setting.is_repeated:
        return [_one(setting, item, file) for item in (value if isinstance(value, list) else [value])]
    return _one(setting, value, file)


def _one(setting: Setting, value: Any, file: ConfigFile) -> Any:
    if setting.is_flag:
        if not isinstance(value, bool):
            raise ValueError("write true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"write {_kind(setting)}")
    if isinstance(setting.param.type, click.Path) and isinstance(value, str):
        # No shell has expanded it, and the file may be read from anywhere.
        assert file.path is not None
        return str(file.path.absolute().parent / os.path.expanduser(value)) if value else value
    return str(value)


def _kind(setting: Setting) -> str:
    if isinstance(setting.param.type, (click.types.IntParamType, click.types.FloatParamType)):
        return "a number"
    return "a text in quotes"


def _reason(error: Exception) -> str:
    message = error.message if isinstance(error, click.UsageError) else str(error)
    return message.strip().rstrip(".")


def check_environment(settings: list[Setting], ctx: click.Context, *, warn: bool = True) -> None:
    """Raises SettingError for a variable of these settings whose value their types refuse, and can warn of unknown variables.

    Unknown ones are no error because an environment is shared: with other versions, and with what a container's host puts there.
    """
    for setting in settings:
        given = os.environ.get(setting.variable)
        if not given:
            continue  # an empty variable counts as none
        try:
            setting.param.type_cast_value(ctx, setting.param.value_from_envvar(ctx))
        except click.UsageError as error:
            reason = _reason(error)
            if _SERVICE_ADDRESS.match(given):
                reason = (
                    "Kubernetes sets it for a service of that name; give the pod enableServiceLinks: false"
                )
            shown_value = "..." if setting.is_secret else shown(given)
            raise SettingError(f"the variable {setting.variable}={shown_value}: {reason}") from None
    known = {setting.variable for setting in settings} | OTHER_VARIABLES.keys()
    unknown = [name for name in sorted(os.environ) if name.startswith(PREFIX) and name not in known]
    unknown = [name for name in unknown if not _SERVICE_LINK.fullmatch(name)]
    if not (warn and unknown):
        return
    known |= {setting.variable for setting in all_settings(ctx)}
    for name in unknown:
        if name not in known:
            click.echo(
                f"warning: the variable {shown(name)[1:-1]} means nothing{did_you_mean(name, known)}",
                err=True,
            )


def origin_of(setting: Setting, source: ParameterSource | None, file: ConfigFile) -> Origin:
    """From click's source of a value to its place."""
    if source is ParameterSource.COMMANDLINE:
        return Origin("flag", f"--{setting.key}" if isinstance(setting.param, click.Option) else "")
    if source is ParameterSource.ENVIRONMENT:
        names = setting.param.envvar or ()
        return Origin("environment", next((name for name in names if os.environ.get(name)), ""))
    if source is ParameterSource.DEFAULT_MAP:
        return Origin("file", file.place(setting.path))
    return Origin("default")
