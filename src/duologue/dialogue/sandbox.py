"""The jinja2 environment that chat templates run in: Hugging Face's conventions, inside a sandbox with
bounds.

A template comes with a model file from anywhere. The immutable sandbox keeps it from reaching Python; the
bounds here keep it from taking all time or memory: `range` is counted over the whole rendering, and products
and powers are refused where their result would be huge.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from duologue.errors import TemplateError

_MAX_LOOP_STEPS = 1_000_000  # through range(), in one rendering
_MAX_PRODUCT = 10_000_000  # characters or list entries made by one multiplication
_MAX_POWER_BITS = 4_096


class _GenerationTag(Extension):
    """`{% generation %}` marks the reply for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with bounded arithmetic. Errors are `TemplateError` or jinja2's."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag], autoescape=False
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            sizes = [len(x) for x in (left, right) if isinstance(x, (str, list, tuple, bytes))]
            counts = [x for x in (left, right) if isinstance(x, int)]
            if sizes and counts and sizes[0] * max(counts) > _MAX_PRODUCT:
                raise TemplateError(
                    f"the chat template repeats a value {max(counts)} times, which is too large"
                )
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MAX_POWER_BITS:
            raise TemplateError(f"the chat template computes {left} ** {right}, which is too large")
        return super().call_binop(context, operator, left, right)


def bounded_range() -> Callable[..., range]:
    """A `range` for one rendering, which counts the steps of all its calls together."""
    left = _MAX_LOOP_STEPS

    def counted_range(*args: int) -> range:
        nonlocal left
        steps = range(*args)
        left -= len(steps)
        if left < 0:
            raise TemplateError(f"the chat template loops more than {_MAX_LOOP_STEPS} times")
        return steps

    return counted_range


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which a prompt is not.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(f"the chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def compile_template(source: str) -> Template:
    """The compiled template; jinja2's `TemplateSyntaxError` if it is not one."""
    return TemplateEnvironment().from_string(source)
