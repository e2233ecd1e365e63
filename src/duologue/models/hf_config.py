"""A Hugging Face `config.json`, read strictly: what a family asks for is checked for type, and named when it is odd."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.rope import llama3_divisors

CONFIG_FILE = "config.json"
LOCAL, GLOBAL = "sliding_attention", "full_attention"
"""The layer types that are run, as configurations spell them."""

_MAX_LAYERS = 4096  # a damaged count must not cost the machine's memory


@dataclass(frozen=True)
class Rope:
    """RoPE of one kind of layer: positions are divided by `factor`, and each pair's frequency by its divisor, if there are any."""

    base: float
    factor: float = 1.0
    divisors: tuple[float, ...] = ()


class HfConfig:
    """One JSON object of settings.

    The methods raise ModelLoadError for a value of the wrong type or one that contradicts another, UnsupportedModelError for one
    that is not run; both name the setting and the file.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; `default` where it is missing or null, which without a default is an error."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{CONFIG_FILE}: {name} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value!r}, not a whole number")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.integer(name, default)
        if value < 1:
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value}, but must be at least 1")
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number; `default` where it is missing or null."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value!r}, not a number")
        return float(value)

    def positive(self, name: str, default: float) -> float:
        """A number above 0; `default` where it is missing or null."""
        value = self.number(name, default)
        if value <= 0:
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value}, but must be positive")
        return value

    def bound(self, name: str, default: float = 0.0) -> float:
        """A cap or clamp: `default` where it is missing, 0.0 (none) where it is null; never 0 itself."""
        if name not in self.values:
            return default
        if self.values[name] is None:
            return 0.0
        value = self.number(name, default)
        if value <= 0:
            raise UnsupportedModelError(
                f"{name} = {value} in {CONFIG_FILE} is not supported (it must be positive, or null for none)"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean; `default` where it is missing or null."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value!r}, not true or false")
        return value

    def nested(self, name: str) -> HfConfig:
        """An object inside this one; empty where it is missing or null."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value!r}, not an object")
        return HfConfig(value or {})

    def require(self, name: str, *supported: object) -> None:
        """UnsupportedModelError unless the value is one of `supported`; the first stands for a missing one."""
        value = self.values.get(name, supported[0])
        if value not in supported:
            shown = value if value is None or isinstance(value, (str, bool, int, float)) else "set"
            raise UnsupportedModelError(f"{name} = {shown!r} in {CONFIG_FILE} is not supported")

    def layers(self, default: int | None = None) -> int:
        """`num_hidden_layers`."""
        value = self.integer("num_hidden_layers", default)
        if value > _MAX_LAYERS:
            raise ModelLoadError(f"{CONFIG_FILE}: num_hidden_layers is {value}, more than {_MAX_LAYERS}")
        return value

    def window(self, default: int | None) -> int | None:
        """`sliding_window`: positions that a query of a local layer sees, its own included (as transformers'
        masks count); None where it is null."""
        if self.values.get("sliding_window", default) is None:
            return None
        value = self.integer("sliding_window", default)
        if value < 1:
            raise UnsupportedModelError(
                f"sliding_window = {value} in {CONFIG_FILE} is not supported "
                "(a window has at least 1 position, null means none)"
            )
        return value

    def windows(self, local: list[bool], default: int | None) -> list[int]:
        """The window of each layer, 0 for global ones."""
        window = self.window(default)
        if any(local) and window is None:
            raise ModelLoadError(f"{CONFIG_FILE}: sliding_window is null, but there are {LOCAL} layers")
        return [window if is_local and window else 0 for is_local in local]

    def local_layers(self, layers: int, pattern: int) -> list[bool]:
        """Which layers are local: from `layer_types`, or where it is missing all but every `pattern`-th."""
        if self.values.get("layer_types") is None:
            if pattern < 1:
                raise UnsupportedModelError(
                    f"sliding_window_pattern = {pattern} in {CONFIG_FILE} is not supported (it must be at least 1)"
                )
            return [(i + 1) % pattern != 0 for i in range(layers)]
        types = self.layer_list("layer_types", layers)
        for i, kind in enumerate(types):
            if kind not in (LOCAL, GLOBAL):
                raise UnsupportedModelError(
                    f"layer_types[{i}] = {kind!r} in {CONFIG_FILE} is not supported ({LOCAL} and {GLOBAL} are)"
                )
        return [kind == LOCAL for kind in types]

    def layer_list(self, name: str, layers: int) -> list[Any]:
        """A list with one entry for each layer."""
        value = self.values.get(name)
        if not isinstance(value, list):
            raise ModelLoadError(f"{CONFIG_FILE}: {name} is {value!r}, not a list")
        if len(value) != layers:
            raise ModelLoadError(
                f"{CONFIG_FILE}: {name} has {len(value)} entries, but num_hidden_layers is {layers}; "
                "there must be one for each layer"
            )
        return value

    def rope(self, head_dim: int, default_base: float = 10000.0) -> Rope:
        """RoPE of a model with one kind: `rope_parameters` (newer), or `rope_theta` and `rope_scaling`."""
        base = self.number("rope_theta", default_base)
        parameters = self.nested("rope_parameters")
        if any(isinstance(value, dict) for value in parameters.values.values()):
            raise UnsupportedModelError(
                f"RoPE by layer type (rope_parameters in {CONFIG_FILE}) is not supported"
            )
        rope = parameters._rope("rope_parameters", base, head_dim)
        scaling = self.nested("rope_scaling")
        return scaling._rope("rope_scaling", rope.base, head_dim) if scaling.values else rope

    def rope_by_kind(self, global_base: float, local_base: float) -> tuple[Rope, Rope]:
        """RoPE of (local, global) layers: `rope_parameters` by layer type (newer), or `rope_theta` and `rope_scaling` of the global
        layers and `rope_local_base_freq` of the local ones."""
        parameters = self.nested("rope_parameters")
        others = sorted(parameters.values.keys() - {LOCAL, GLOBAL})
        if others:
            raise UnsupportedModelError(
                f"rope_parameters.{others[0]} in {CONFIG_FILE} is not supported "
                f"(there is one object for {LOCAL} and one for {GLOBAL})"
            )
        ropes = []
        for kind, base_name, base, scaling in (
            (LOCAL, "rope_local_base_freq", local_base, HfConfig({})),
            (GLOBAL, "rope_theta", global_base, self.nested("rope_scaling")),
        ):
            own = parameters.nested(kind)
            both = HfConfig({**own.values, **scaling.values})
            where = "rope_scaling" if scaling.values else f"rope_parameters.{kind}"
            ropes.append(both._rope(where, self.number(base_name, base)))
        return ropes[0], ropes[1]

    def _rope(self, where: str, base: float, head_dim: int | None = None) -> Rope:
        """RoPE as this object, called `where`, describes it: plain, scaled linearly or, where a head size is given, as
        Llama 3's; all else is refused."""
        kind = self.values.get("rope_type", self.values.get("type")) or "default"
        known = ("default", "linear") if head_dim is None else ("default", "linear", "llama3")
        if kind not in known:
            raise UnsupportedModelError(
                f"RoPE scaling of type {kind!r} ({where} in {CONFIG_FILE}) is not supported ({', '.join(known)} are)"
            )
        if self.number("partial_rotary_factor", 1.0) != 1.0:
            raise UnsupportedModelError(f"partial_rotary_factor ({where} in {CONFIG_FILE}) is not supported")
        base = self.positive("rope_theta", base)
        if kind == "linear":
            return Rope(base, self._of_rope("factor", where, kind))
        if kind == "llama3" and head_dim is not None:
            names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
            return Rope(
                base,
                divisors=llama3_divisors(base, head_dim, *(self._of_rope(n, where, kind) for n in names)),
            )
        return Rope(base)

    def _of_rope(self, name: str, where: str, kind: str) -> float:
        if self.values.get(name) is None:
            raise ModelLoadError(f"{CONFIG_FILE}: {where} is of type {kind!r} but has no {name}")
        return self.positive(name, 1.0)
