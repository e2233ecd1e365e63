"""The metadata entries of one architecture in a GGUF file, checked for type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError


class GgufSettings:
    """The entries below the prefix of `architecture`; the methods name the entry that they refuse.

    ModelLoadError says that one is missing or odd, UnsupportedModelError that it asks for what is not run.
    """

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self._metadata = metadata
        self._prefix = f"{architecture}."

    def optional(self, name: str, default: Any) -> Any:
        return self._metadata.get(self._prefix + name, default)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelLoadError(f"{self._prefix}{name} is {value!r}, not a number")
        return float(value)

    def integer(self, name: str, default: int | None = None) -> int:
        return self._integer(name, self._required(name, default))

    def per_layer(self, name: str, count: int, default: list[int] | None = None) -> list[int]:
        """One number for all layers, or a list with one for each."""
        value = self._required(name, default)
        values = value if isinstance(value, list) else [value] * count
        self._check_length(name, values, count)
        return [self._integer(name, v) for v in values]

    def local_layers(self, count: int, pattern: int) -> list[bool]:
        """Which layers have a window: all but every `pattern`-th, unless the file says another pattern (0: all of them) or lists
        each layer."""
        name = "attention.sliding_window_pattern"
        value = self.optional(name, pattern)
        if not isinstance(value, list):
            every = self._integer(name, value)
            if every < 0:
                raise self.refusal(name)
            return [every == 0 or (i + 1) % every != 0 for i in range(count)]
        self._check_length(name, value, count)
        return [bool(v) for v in value]

    def require(self, name: str, *supported: object) -> None:
        """UnsupportedModelError unless the value is one of `supported`; the first stands for a missing one."""
        value = self.optional(name, supported[0])
        if value not in supported:
            raise self.refusal(name)

    def refusal(self, name: str) -> UnsupportedModelError:
        """The error that says that this entry's value is not run."""
        return UnsupportedModelError(f"{self._prefix}{name} = {self.optional(name, None)!r} is not supported")

    def _check_length(self, name: str, values: list[Any], count: int) -> None:
        if len(values) != count:
            raise ModelLoadError(f"{self._prefix}{name} has {len(values)} entries for {count} layers")

    def _integer(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelLoadError(f"{self._prefix}{name} is {value!r}, not a whole number")
        return value

    def _required(self, name: str, default: Any) -> Any:
        value = self._metadata.get(self._prefix + name, default)
        if value is None:
            raise ModelLoadError(f"metadata entry {self._prefix}{name} is missing")
        return value
