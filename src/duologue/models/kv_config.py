"""The KV of any decoder from its Hugging Face `config.json`, without weights; also of families that the engine does not run.

A family that the engine runs is counted from the spec that the engine makes of the same settings. The others are read here: lenient
where the families' own readers are strict: what does not change KV is not looked at, and what the file leaves to its
family's defaults is filled in and said (`KvModel.assumptions`). Strict where a number would be wrong: layers that keep a state
instead of KV, encoders, and settings whose meaning for KV is not known here are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.duologue_config import MODEL_TYPE
from duologue.models.families import FAMILIES
from duologue.models.hf_checkpoint import spec_from_config
from duologue.models.kv_accounting import KvLayer, KvModel
from duologue.models.kv_families import DEFAULTS, PATTERNS, WINDOW_ON_ALL, WINDOW_ON_NONE, refuse_other_kv

_MAX_LAYERS, _MAX_SIZE = 4096, 1 << 31
_NESTED = ("text_config", "llm_config", "language_config")
# What the engine asks of a family's configuration and KV does not depend on: how weights are stored and what is put on top.
_NOT_OF_KV = ("architectures", "quantization_config")
_LOCAL, _GLOBAL = ("sliding_attention", "chunked_attention"), "full_attention"
# Other names of the same settings, most common first.
_NAMES = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "hidden_size": ("n_embd", "d_model"),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length"),
}


def kv_model_of_config(config: Mapping[str, Any], name: str) -> KvModel:
    """The KV of the model that a parsed `config.json` describes.

    What the engine refuses of a family that it runs is counted as other families are, and `assumptions` say so; of our own
    architecture it is refused here too.

    Raises UnsupportedModelError naming a setting whose KV cannot be counted, ModelLoadError naming one that is missing or makes no
    sense.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        return lenient_kv_model(config, name)
    notes = tuple(f"only {nested} is counted, the language model" for nested in _nested_in(config))
    try:
        return KvModel.of_spec(name, spec_from_config(dict(config)), notes)
    except UnsupportedModelError as error:
        if kind == MODEL_TYPE:
            raise
        refusal = not_run(error)
    stored = {key: value for key, value in config.items() if key not in _NOT_OF_KV}
    try:
        return KvModel.of_spec(name, spec_from_config(stored), (*notes, refusal))
    except UnsupportedModelError:
        return lenient_kv_model(config, name, refusal)


def lenient_kv_model(config: Mapping[str, Any], name: str, *assumptions: str) -> KvModel:
    """As `kv_model_of_config`, without asking the families; `assumptions` come before its own."""
    return _Reader(config, assumptions).model(name)


def not_run(error: UnsupportedModelError) -> str:
    """The assumption under which a model is counted that the engine refuses with this error."""
    return f"its settings mean for KV what they mean in other models, for the engine does not run it: {error}"


def _nested_in(config: Mapping[str, Any]) -> list[str]:
    return [nested for nested in _NESTED if isinstance(config.get(nested), dict)][:1]


class _Reader:
    def __init__(self, config: Mapping[str, Any], assumptions: Sequence[str]) -> None:
        self._assumptions = list(assumptions)
        outer = config
        for nested in _nested_in(config):
            config = config[nested]
            self._assume(f"only {nested} is counted, the language model")
        for settings in (outer, config):  # wherever they are said
            refuse_other_kv(settings)
        self._config = config
        kind = config.get("model_type", f"{outer.get('model_type')}_text")
        self._family = kind if isinstance(kind, str) else ""
        self._defaults = DEFAULTS.get(self._family, {})

    def model(self, name: str) -> KvModel:
        layers = self._count("num_hidden_layers")
        if layers > _MAX_LAYERS:
            raise ModelLoadError(f"num_hidden_layers is {layers}, more than {_MAX_LAYERS}")
        heads = self._count("num_attention_heads")
        windows = self._windows(layers)
        owners = self._owners(windows)
        context = self._optional("max_position_embeddings")
        if self._value("kv_lora_rank") is not None:
            each = [self._latent_layer(heads)] * layers
        else:
            each = self._head_layers(heads, layers)
        return KvModel(
            name,
            tuple(
                KvLayer(
                    layer.heads,
                    layer.kv_heads,
                    layer.key_dim,
                    layer.value_dim,
                    window,
                    owner,
                    layer.head_width,
                )
                for layer, window, owner in zip(each, windows, owners, strict=True)
            ),
            context,
            tuple(self._assumptions),
        )

    def _head_layers(self, heads: int, layers: int) -> list[KvLayer]:
        """Layers that keep keys and values of KV heads."""
        head_dim = self._optional("head_dim")
        if head_dim is None:
            hidden = self._count("hidden_size")
            head_dim = hidden // heads
            if hidden % heads:
                raise ModelLoadError(
                    f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}, and there is no head_dim"
                )
            self._assume(f"head_dim is {head_dim}: hidden_size by num_attention_heads")
        value_dim = self._optional("v_head_dim") or head_dim
        kv_heads = self._value("num_key_value_heads")
        if isinstance(kv_heads, list):
            counts = [
                _whole("num_key_value_heads", count)
                for count in self._layer_list("num_key_value_heads", layers)
            ]
        else:
            counts = [self._kv_heads(heads)] * layers
        return [KvLayer(heads, count, head_dim, value_dim) for count in counts]

    def _kv_heads(self, heads: int) -> int:
        if self._value("new_decoder_architecture") is not True and self._value("multi_query") is True:
            return 1  # falcon, gpt_bigcode
        if self._value("multi_query_attention") is True:
            return self._count("multi_query_group_num")  # chatglm
        count = self._optional("num_key_value_heads")
        if count is None:
            self._assume(f"num_key_value_heads is {heads}, one for each head: the config does not say")
            return heads
        return count

    def _latent_layer(self, heads: int) -> KvLayer:
        """Multi-head latent attention keeps a compressed latent and one RoPE key for all heads."""
        rope, nope, value = (self._count(n) for n in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        self._assume("int8 latents would have two scales a position, of the latent and of the RoPE key")
        return KvLayer(heads, 1, self._count("kv_lora_rank"), rope, head_width=nope + rope + value)

    def _windows(self, layers: int) -> list[int]:
        """The window of each layer, 0 for global ones."""
        uses = self._value("use_sliding_window")
        by_default = not self._family.startswith("qwen") and self._family not in WINDOW_ON_NONE
        window = self._window() if uses or (uses is None and by_default) else None
        if self._value("layer_types") is not None:
            local = self._local_types(layers)
            if any(local) and window is None:
                raise ModelLoadError(
                    "layer_types has layers with windows, but there is no sliding_window in use"
                )
        elif window is None:
            local = [False] * layers
        else:
            local = self._local_layers(layers, bool(uses))
        return [window if is_local and window else 0 for is_local in local]

    def _window(self) -> int | None:
        chunk = self._optional("attention_chunk_size")
        if chunk is not None:
            self._assume(f"attention within chunks of {chunk} tokens keeps as much as a window of that size")
            return chunk
        return self._optional("sliding_window")

    def _local_types(self, layers: int) -> list[bool]:
        types = self._layer_list("layer_types", layers)
        for i, kind in enumerate(types):
            if kind not in (*_LOCAL, _GLOBAL):
                raise UnsupportedModelError(
                    f"layer_types[{i}] = {kind!r} cannot be counted: its state is not known to be KV"
                )
        return [kind != _GLOBAL for kind in types]

    def _local_layers(self, layers: int, uses_window: bool) -> list[bool]:
        """Which layers have the window, where no list of types says it."""
        if self._value("no_rope_layers"):  # Llama 4: those without RoPE see everything
            return [bool(rope) for rope in self._layer_list("no_rope_layers", layers)]
        if uses_window and self._value("max_window_layers") is not None:
            first = _whole("max_window_layers", self._value("max_window_layers"), least=0)
            return [i >= first for i in range(layers)]
        pattern = self._value("sliding_window_pattern")
        if pattern is None:
            pattern = self._value("_sliding_window_pattern")
        if pattern is None and self._family in PATTERNS:
            pattern = PATTERNS[self._family]
            self._assume(f"one layer in {pattern} is global: as {self._family} has it")
        if pattern is None:
            if self._family not in WINDOW_ON_ALL:
                self._assume("every layer has the window: the config names no pattern")
            return [True] * layers
        if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 1:
            raise UnsupportedModelError(
                f"sliding_window_pattern = {pattern!r} cannot be counted: it is not a number of layers"
            )
        return [(i + 1) % pattern != 0 for i in range(layers)]

    def _owners(self, windows: Sequence[int]) -> list[int | None]:
        """The last `num_kv_shared_layers` layers read the KV of the last layer of their kind before them."""
        shared = self._value("num_kv_shared_layers")
        if shared is None:
            shared = self._default("num_kv_shared_layers", 0)
        first = len(windows) - _whole("num_kv_shared_layers", shared, least=0)
        owners: list[int | None] = [None] * len(windows)
        for i in range(max(0, first), len(windows)):
            earlier = [j for j in range(first) if windows[j] == windows[i]]
            if not earlier:
                raise ModelLoadError(
                    f"num_kv_shared_layers is {shared}, but layer {i} has no earlier layer of its kind to share with"
                )
            owners[i] = earlier[-1]
        return owners

    def _value(self, name: str) -> Any:
        """A setting under any of its names; None where it is missing or null."""
        for known in (name, *_NAMES.get(name, ())):
            if self._config.get(known) is not None:
                return self._config[known]
        return None

    def _optional(self, name: str) -> int | None:
        """A whole number of at least 1; its family's default where the setting is missing, None where it is null or has none."""
        value = self._value(name)
        if value is None:
            if name in self._config:
                return None
            value = self._default(name, None)
        return None if value is None else _whole(name, value)

    def _count(self, name: str) -> int:
        value = self._optional(name)
        if value is None:
            raise ModelLoadError(f"{name} is missing, so KV cannot be counted")
        return value

    def _default(self, name: str, otherwise: int | None) -> int | None:
        if name not in self._defaults:
            return otherwise
        self._assume(f"{name} is {self._defaults[name]}: the default of {self._family}")
        return self._defaults[name]

    def _layer_list(self, name: str, layers: int) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list):
            raise ModelLoadError(f"{name} is {value!r}, not a list")
        if len(value) != layers:
            raise ModelLoadError(f"{name} has {len(value)} entries for {layers} layers")
        return value

    def _assume(self, text: str) -> None:
        if text not in self._assumptions:
            self._assumptions.append(text)


def _whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelLoadError(f"{name} is {value!r}, not a whole number")
    if not least <= value < _MAX_SIZE:
        raise ModelLoadError(f"{name} is {value}, not between {least} and {_MAX_SIZE - 1}")
    return value
