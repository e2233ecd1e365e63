"""The jinja2 environment that chat templates run in: Hugging Face's conventions, inside a sandbox with
bounds.

A template comes with a model file from anywhere. The immutable sandbox keeps it from reaching Python; the
bounds here keep it from taking all time or memory by accident or by an easy trick: `range` is counted over
the whole rendering, and no single operation (product, power, sum, `~`, `%`, `join`, `replace`, padding, the
rendered text) makes more than 10 million characters. They are no jail: a template that makes many values
below the bound, in nested loops, can still take seconds and gigabytes. Run models whose template is hostile
in a container with limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, nodes, pass_eval_context
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS, do_format, make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from duologue.errors import TemplateError

_MAX_LOOP_STEPS = 1_000_000  # through range(), in one rendering
_MAX_SIZE = 10_000_000  # characters or list entries made by one operation
_MAX_POWER_BITS = 4_096
_MAX_WIDTH = 1_000  # of padding and indentation, and in format strings
_WIDE_PERCENT = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(?:\d{4,}|\*|\d*\.(?:\d{4,}|\*))")
_WIDE_BRACES = re.compile(
    r"\{[^{}]*:[^{}]*(?:\d{4,}|\{)"
)  # a width of four digits, or one that is an argument
_WIDTH_METHODS = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))


class _GenerationTag(Extension):
    """`{% generation %}` marks the reply for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox with bounded operations. Errors are `TemplateError` or jinja2's."""

    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag], autoescape=False
        )
        for name in ("center", "indent"):
            self.filters[name] = _narrow(FILTERS[name])
        self.filters["tojson"] = _narrow(_to_json)
        self.filters["format"] = _bounded_format
        self.filters["join"] = _bounded_join
        self.filters["replace"] = _bounded_replace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        # Compiled templates take `concat` from the environment, but import what `~` calls in their first line.
        imports, newline, rest = super()._generate(source, *args, **options).partition("\n")
        if not imports.endswith(", str_join"):
            raise TemplateError(
                "this version of jinja2 compiles templates in an unknown way; install jinja2 3.1"
            )
        return f"{imports}{newline}str_join = environment.str_join\n{rest}"

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """The pieces joined; `TemplateError` when that is too large."""
        return "".join(_counted(pieces))

    @staticmethod
    def str_join(values: Iterable[Any]) -> str:
        """What `~` makes of its operands."""
        return "".join(_counted(map(str, values)))

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(text := getattr(__obj, "__self__", None), str):
            name = getattr(__obj, "__name__", "")
            if name in _WIDTH_METHODS:
                _require_narrow(*args, *kwargs.values())
            elif name == "join":
                args = (list(_counted(args[0], len(text))), *args[1:])
            elif name == "replace":
                _require_replaceable(text, *args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _require_format(_WIDE_BRACES, value.__self__)
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            sizes = [len(x) for x in (left, right) if isinstance(x, (str, list, tuple, bytes))]
            counts = [x for x in (left, right) if isinstance(x, int)]
            if sizes and counts and sizes[0] * max(counts) > _MAX_SIZE:
                raise TemplateError(
                    f"the chat template repeats a value {max(counts)} times, which is too large"
                )
        elif operator == "+":
            if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                _require_size(len(left) + len(right))
        elif operator == "%":
            if isinstance(left, str):
                _require_format(_WIDE_PERCENT, left)
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


def _require_size(size: int) -> None:
    if size > _MAX_SIZE:
        raise TemplateError(
            f"the chat template makes a value of {size} characters or more, which is too large"
        )


def _require_narrow(*arguments: Any) -> None:
    for argument in arguments:
        width = len(argument) if isinstance(argument, str) else argument
        if isinstance(width, int) and width > _MAX_WIDTH:
            raise TemplateError(f"the chat template pads to a width of {width}, which is too large")


def _require_format(pattern: re.Pattern[str], text: str) -> None:
    if (found := pattern.search(text)) is not None:
        raise TemplateError(f"the chat template formats with {found[0]!r}, which may be too large")


def _require_replaceable(text: str, old: str, new: str, *rest: Any) -> None:
    _require_size(len(text) + text.count(old) * (len(new) - len(old)))


def _counted(pieces: Iterable[str], separator: int = 0) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece) + separator
        _require_size(size)
        yield piece


@pass_eval_context
def _bounded_join(
    context: nodes.EvalContext, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    return str(d).join(_counted(map(str, value), len(str(d))))


def _bounded_replace(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    _require_replaceable(text, old, new)
    return text.replace(old, new, -1 if count is None else count)


def _bounded_format(value: Any, *args: Any, **options: Any) -> str:
    _require_format(_WIDE_PERCENT, str(value))
    return do_format(value, *args, **options)


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments, other than the filtered value, are widths or short."""

    def narrow(value: Any, *args: Any, **options: Any) -> Any:
        _require_narrow(*args, *options.values())
        return function(value, *args, **options)

    return narrow


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
