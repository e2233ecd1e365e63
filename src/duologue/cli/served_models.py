"""`--model [NAME=]PATH[,kv=SHARE]`: several models in one server, and how they divide the KV budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")
_SHARE = re.compile(r"(?P<path>.*),kv=(?P<share>[^,]*)\Z", re.DOTALL)


@dataclass(frozen=True)
class NamedModel:
    """A model under the name that clients use (empty: its own); `share` of the KV budget, or None for an even part of the rest."""

    name: str
    path: str
    share: float | None = None


class NamedModelType(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """The type of `--model`."""

    name = "model"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> NamedModel:
        if isinstance(value, NamedModel):
            return value
        path, share = str(value), None
        if (found := _SHARE.match(path)) is not None:
            path = found["path"]
            try:
                share = float(found["share"])
            except ValueError:
                self.fail(f"'{value}': kv={found['share']} is no number from 0 to 1", param, ctx)
            if not 0 < share <= 1:
                self.fail(f"'{value}': kv must be above 0 and at most 1", param, ctx)
        name, equals, named_path = path.partition("=")
        if not equals:
            name, named_path = "", path
        elif _NAME.match(name) is None:
            self.fail(f"'{name}' is no name: letters, digits and . _ : / - after the first", param, ctx)
        if not named_path:
            self.fail(f"'{value}' names no model; write NAME=PATH, or NAME=PATH,kv=0.3", param, ctx)
        return NamedModel(name, named_path, share)


def kv_budgets(models: Sequence[NamedModel], total_bytes: int) -> list[int]:
    """Bytes for each model: stated shares of the total, and even parts of the rest.

    Raises `click.UsageError` for a name that comes twice, and for shares that leave nothing to a model.
    """
    names = [model.name or model.path for model in models]
    for name in names:
        if names.count(name) > 1:
            raise click.UsageError(f"--model names '{name}' twice; give each model a name of its own")
    stated = sum(model.share for model in models if model.share is not None)
    rest = [model.name or model.path for model in models if model.share is None]
    if stated > 1 + 1e-9:
        raise click.UsageError(f"the kv shares of --model add up to {stated:g}; at most 1 is there")
    if rest and stated > 1 - 1e-9:
        raise click.UsageError(f"the kv shares of --model leave nothing for {', '.join(rest)}; lower them")
    even = (1 - stated) / len(rest) if rest else 0.0
    return [int(total_bytes * (even if model.share is None else model.share)) for model in models]
