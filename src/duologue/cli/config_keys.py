"""Every setting of the command line, from click's own definitions: its key in the file and its variable.

An option `--kv-memory` of `duologue bench residency` is `kv-memory` in the table `[bench.residency]` and the variable
DUOLOGUE_BENCH_RESIDENCY_KV_MEMORY. Arguments that may be left out count as well; those that must be given say what a command acts
upon and come from the command line alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from duologue.cli.config_file import CONFIG_VARIABLE, KeyPath

PREFIX = "DUOLOGUE_"
OTHER_VARIABLES = {
    CONFIG_VARIABLE: "the configuration file",
    "DUOLOGUE_CACHE": "the cache folder, for models and what is made of them",
    "DUOLOGUE_ACCEPT_TERMS": "names of terms of use that you have accepted, separated by commas",
    "DUOLOGUE_ISA": "the instruction set of the kernels: scalar, avx2 or avx512vnni",
    "DUOLOGUE_DEBUG": "1: the engine checks its own state after every step",
    "HF_ENDPOINT": "the hub that models named ORG/NAME come from",
    "HF_TOKEN": "a token for models there that are gated or private",
    "HF_HUB_OFFLINE": "1: nothing is fetched from there",
    "DUOLOGUE_PEERS_DIR": "where scripts/peers built what benchmarks compare with",
}
"""Variables that are no command's option."""

_NOT_SETTINGS = ("config", "help", "version")
_SECRETS = ("api-key", "token", "password", "secret")


@dataclass(frozen=True)
class Setting:
    """One option or optional argument. `command` is its path below `duologue`: ("bench", "engine")."""

    command: KeyPath
    key: str
    param: click.Parameter

    @property
    def path(self) -> KeyPath:
        """Where its value stands in the file."""
        return (*self.command, self.key)

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper().replace("-", "_")

    @property
    def is_secret(self) -> bool:
        return any(self.key == word or self.key.endswith(f"-{word}") for word in _SECRETS)

    @property
    def is_repeated(self) -> bool:
        """Whether it takes several values: an array in the file."""
        return self.param.multiple or self.param.nargs != 1

    @property
    def is_flag(self) -> bool:
        return isinstance(self.param, click.Option) and bool(self.param.is_flag)


def settings_of(command: click.Command, path: KeyPath) -> list[Setting]:
    """The settings of one command, in the order of its help."""
    options = [p for p in command.params if isinstance(p, click.Option)]
    found = [
        Setting(path, key, param) for param in options if (key := option_key(param)) not in _NOT_SETTINGS
    ]
    taken = {setting.key for setting in found}
    arguments = []
    for param in command.params:
        if isinstance(param, click.Argument) and not param.required and param.nargs == 1:
            key = str(param.name).replace("_", "-")
            if key not in taken:  # an option of the same name has the name
                arguments.append(Setting(path, key, param))
    return arguments + found


def option_key(option: click.Option) -> str:
    """`kv-memory` of `--kv-memory`, and `peaks` of `--peaks/--no-peaks`: the first long name."""
    names = [name for name in option.opts if name.startswith("--")]
    return (names or option.opts)[0].lstrip("-")


def leaf_commands(
    group: click.Group, ctx: click.Context, path: KeyPath = ()
) -> Iterator[tuple[KeyPath, click.Command]]:
    """Every command below `group` that is not a group itself."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from leaf_commands(command, ctx, (*path, name))
        elif command is not None:
            yield (*path, name), command


def all_settings(ctx: click.Context) -> list[Setting]:
    """The settings of every command of the program that `ctx` belongs to. Imports all of their modules."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    return [
        setting
        for path, command in leaf_commands(root.command, root)
        for setting in settings_of(command, path)
    ]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing when no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def shown(value: Any) -> str:
    """A value or name as it can stand in a line: escaped, and not too long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return text if len(text) <= 80 else text[:77] + "..."
