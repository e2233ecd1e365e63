"""The KV of any decoder from its Hugging Face `config.json`, without weights; also of families that the engine does not run.

Lenient where the families' own readers are strict: what does not change KV is not looked at, and what the file leaves to its
family's defaults is filled in and said (`KvModel.assumptions`). Strict where a number would be wrong: layers that keep a state
instead of KV, encoders, and settings whose meaning for KV is not known here are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duologue.errors import ModelLoadError, UnsupportedModelError
from duologue.models.duologue_config import MODEL_TYPE, duologue_spec
from duologue.models.hf_config import HfConfig
from duologue.models.kv_accounting import KvLayer, KvModel

_MAX_LAYERS, _MAX_SIZE = 4096, 1 << 31
_NESTED = ("text_config", "llm_config", "language_config")
_LOCAL, _GLOBAL = ("sliding_attention", "chunked_attention"), "full_attention"
# Other names of the same settings, most common first.
_NAMES = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
    "hidden_size": ("n_embd", "d_model"),
    "max_position_embeddings": ("n_positions", "n_ctx", "seq_length"),
}
# What transformers takes where a file leaves a setting out, for families whose files do.
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    },
    "gemma3_text": {
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
    },
    "gemma3n_text": {
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512,
        "num_kv_shared_layers": 15,
    },
    "cohere2": {"sliding_window": 4096},
    "gpt_oss": {"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    "llama4_text": {
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192,
    },
    "llama": {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096},
    "mistral": {
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "sliding_window": 4096,
    },
    "olmo3": {"sliding_window": 4096},
    "qwen3": {"head_dim": 128},
}  # fmt: skip
# The last of so many layers is global, where neither a pattern nor types of layers are given.
_PATTERNS = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "cohere2": 4,
    "gpt_oss": 2,
    "llama4_text": 4,
    "olmo3": 4,
}
_WINDOW_ON_ALL = ("mistral", "mixtral", "phi3", "starcoder2")
_WINDOW_ON_NONE = ("llama",)  # whatever the file says: transformers' Llama has no windows
_RECURRENT_FAMILIES = (
    "mamba", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "falcon_h1", "nemotron_h", "recurrent_gemma", "qwen3_next", "lfm2",
    "granitemoehybrid", "plamo2", "kimi_linear", "olmo_hybrid", "bailing_hybrid", "retnet", "xlstm",
)  # fmt: skip
_RECURRENT_SETTINGS = (
    "ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "mamba_d_ssm", "mamba_num_heads", "linear_num_key_heads",
    "linear_attn_config", "hybrid_override_pattern", "attn_layer_period", "layers_block_type", "block_types", "conv_L_cache",
    "full_attn_idxs",
)  # fmt: skip
# Settings under which KV is something that is not counted here.
_UNKNOWN_KV = {
    "is_encoder_decoder": "an encoder with cross attention",
    "cross_attention_layers": "cross attention",
    "block_configs": "layers of different shapes",
    "use_cla": "KV shared between layers in another way",
    "index_head_dim": "an index of keys beside the KV",
    "attention_k_eq_v": "values that are the keys",
    "global_head_dim": "heads of another size in global layers",
    "sparse_attention_config": "attention to chosen blocks",
    "hybrid_layer_pattern": "heads of another shape in local layers",
    "compress_ratios": "KV that is compressed over positions",
}


def kv_model_of_config(config: Mapping[str, Any], name: str) -> KvModel:
    """The KV of the model that a parsed `config.json` describes; our own architecture is read as the engine reads it.

    Raises UnsupportedModelError naming a setting whose KV cannot be counted, ModelLoadError naming one that is missing or makes no
    sense.
    """
    if config.get("model_type") == MODEL_TYPE:
        return KvModel.of_spec(name, duologue_spec(HfConfig(config)))
    return _Reader(config).model(name)


class _Reader:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self._assumptions: list[str] = []
        outer = config
        for nested in _NESTED:
            inner = config.get(nested)
            if isinstance(inner, dict):
                config = inner
                self._assume(f"only {nested} is counted, the language model")
                break
        for settings in (outer, config):  # wherever they are said
            _refuse_other_kinds(settings)
        self._config = config
        kind = config.get("model_type", f"{outer.get('model_type')}_text")
        self._family = kind if isinstance(kind, str) else ""
        self._defaults = _DEFAULTS.get(self._family, {})

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
        by_default = not self._family.startswith("qwen") and self._family not in _WINDOW_ON_NONE
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
        if pattern is None and self._family in _PATTERNS:
            pattern = _PATTERNS[self._family]
            self._assume(f"one layer in {pattern} is global: as {self._family} has it")
        if pattern is None:
            if self._family not in _WINDOW_ON_ALL:
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


def _refuse_other_kinds(config: Mapping[str, Any]) -> None:
    family = config.get("model_type")
    if isinstance(family, str) and family.startswith(_RECURRENT_FAMILIES):
        raise UnsupportedModelError(
            f"model_type {family!r} cannot be counted: some of its layers keep a state instead of KV"
        )
    for name in _RECURRENT_SETTINGS:
        if config.get(name):
            raise UnsupportedModelError(
                f"{name} is set, so some layers keep a state instead of KV, which cannot be counted"
            )
    kinds = config.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise UnsupportedModelError(
            "attn_type_list has layers with linear attention, which cannot be counted"
        )
    for name, what in _UNKNOWN_KV.items():
        if config.get(name):
            raise UnsupportedModelError(f"{name} is set, which means {what}, and that cannot be counted")


def _whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelLoadError(f"{name} is {value!r}, not a whole number")
    if not least <= value < _MAX_SIZE:
        raise ModelLoadError(f"{name} is {value}, not between {least} and {_MAX_SIZE - 1}")
    return value
