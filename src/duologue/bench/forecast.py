"""What speed to expect of a model, from its shape and the machine's peaks, without running it.

Decoding one stream reads every weight once for each token, so it is bound by memory; a long prompt is bound by integer arithmetic.
How much of each peak the engine gets was measured on two models and one machine (docs/benchmarks.md), so a forecast is a range.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from duologue.bench.engine import attention_operations, kv_bytes_read, matmul_weights
from duologue.bench.kernels import Peaks
from duologue.errors import ModelLoadError
from duologue.models.gguf_file import read_gguf_file
from duologue.models.gguf_spec import gguf_spec
from duologue.models.hf_checkpoint import spec_from_config
from duologue.models.hf_config import CONFIG_FILE
from duologue.models.presets import preset
from duologue.models.registry import MODELS
from duologue.models.source import resolve
from duologue.models.spec import ModelSpec
from duologue.models.store import cache_folder

DECODE_SHARES = (0.49, 0.75)
"""Shares of the memory reads that decoding got: SmolLM2-135M in its worst run, Gemma 3 270M."""
PREFILL_SHARES = (0.47, 0.65)
"""Shares of the int8 peak that prompts of 512 and 4,096 tokens got on the same models."""
PROMPT_TOKENS = 512
_PRESET_PREFIX = "duologue-"


@dataclass(frozen=True)
class Forecast:
    """Tokens per second as (low, high): decoding one stream at a short context, and reading a prompt of PROMPT_TOKENS.

    `prefill_per_s` is None where the instruction set has no loop that shows its peak.
    """

    weight_bytes: int
    bytes_per_token: int
    operations_per_prompt_token: int
    decode_per_s: tuple[float, float]
    prefill_per_s: tuple[float, float] | None


def forecast(spec: ModelSpec, peaks: Peaks) -> Forecast:
    """A prediction, no measurement."""
    head = spec.vocab_size * spec.hidden_size
    read_bytes = matmul_weights(spec) + head + kv_bytes_read(spec, 64)
    operations = (
        2 * matmul_weights(spec) + (attention_operations(spec, 0, PROMPT_TOKENS) + 2 * head) // PROMPT_TOKENS
    )
    prefill = None
    if peaks.int8_ops_per_s:
        low, high = (share * peaks.int8_ops_per_s / operations for share in PREFILL_SHARES)
        prefill = (low, high)
    reads = max(peaks.read_bytes_per_s, peaks.read_bytes_per_s_one_thread)
    low, high = (share * reads / read_bytes for share in DECODE_SHARES)
    return Forecast(
        weight_bytes=matmul_weights(spec) + head * (1 if spec.tied_head else 2),
        bytes_per_token=read_bytes,
        operations_per_prompt_token=operations,
        decode_per_s=(low, high),
        prefill_per_s=prefill,
    )


def local_spec(name: str) -> ModelSpec:
    """The spec of a model that is on this machine (alias, GGUF file, Hugging Face folder), or of one of our own sizes.

    Nothing is fetched. Raises ModelLoadError or UnsupportedModelError saying what is wrong and what to do.
    """
    path = os.path.expanduser(name)
    if name.startswith(_PRESET_PREFIX) and not os.path.lexists(path):
        return preset(name.removeprefix(_PRESET_PREFIX))
    if name in MODELS:
        if not (cache_folder() / "models" / name / MODELS[name].file_name).exists():
            raise ModelLoadError(f"{name} was not fetched yet; 'duologue chat {name}' fetches it")
    elif "/" in name and not os.path.lexists(path):
        raise ModelLoadError(f"there is no file or folder {path}; fetch the model first, or check the path")
    source = resolve(name)
    if source.path.is_dir():
        try:
            config = json.loads((source.path / CONFIG_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelLoadError(
                f"{source.path / CONFIG_FILE} cannot be read ({error}); fetch it again"
            ) from None
        if not isinstance(config, dict):
            raise ModelLoadError(f"{source.path / CONFIG_FILE} is not a JSON object; fetch it again")
        return spec_from_config(config)
    return gguf_spec(read_gguf_file(source.path))
