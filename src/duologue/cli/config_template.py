"""The text of a new configuration file: every setting with its help, commented out."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

import click

from duologue.cli.config_keys import Setting

_WIDTH = 100
_HEAD = """\
Settings of duologue, one table for each command. A flag on the command line wins over the environment, the environment over
this file, and this file over the defaults. `duologue config show` tells each value and where it came from.
The lines that begin with a key are commented out and show the defaults, or an example where there is none."""


def config_template(commands: Iterable[tuple[str, list[Setting]]]) -> str:
    """`commands`: the one-line help of each command, and its settings."""
    lines = _comment(_HEAD)
    for summary, settings in commands:
        if not settings:
            continue
        table = ".".join(settings[0].command)
        lines += ["", *_comment(f"duologue {table.replace('.', ' ')}: {summary}"), f"[{table}]"]
        for setting in settings:
            lines += ["", *_comment(_help(setting)), f"#{setting.key} = {_example(setting)}"]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), _WIDTH)]


def _help(setting: Setting) -> str:
    param = setting.param
    text = (
        param.help if isinstance(param, click.Option) else None
    ) or f"{setting.key} of 'duologue {' '.join(setting.command)}'."
    if isinstance(param.type, click.Choice):
        text += f" One of {', '.join(map(str, param.type.choices))}."
    return text if has_default(setting) else f"{text} No default."


def default_of(setting: Setting) -> Any:
    """The default as it was written down, or None."""
    default = setting.param.to_info_dict().get("default")
    return default() if callable(default) else default


def has_default(setting: Setting) -> bool:
    """Whether there is a value when nobody gives one; no values is none."""
    return default_of(setting) not in (None, (), [])


def _example(setting: Setting) -> str:
    if has_default(setting):
        return toml_value(default_of(setting))
    kind = setting.param.type
    if setting.is_flag:
        return "false"
    value: Any
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
        value = getattr(kind, "min", None) or 1
    else:
        value = setting.param.metavar or kind.name.upper()
    return toml_value([value] if setting.is_repeated else value)


def toml_value(value: Any) -> str:
    """A value in TOML; strings are JSON strings, which are TOML strings as well."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
