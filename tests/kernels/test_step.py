"""The executor's step: equal to the numpy reference, and equal to itself however the work is cut."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from duologue.kernels import _native
from duologue.kernels.gemm import Epilogue, gemm_int8, pack_weight
from duologue.kernels.reference import step as reference
from duologue.kernels.rows import quantize_rows
from duologue.models.checkpoint import Weights
from duologue.models.random_model import random_weights
from duologue.models.spec import Mlp, ModelSpec
from tests.kernels.isas import ISAS
from tests.kernels.step_case import Ids, StepCase, key_offsets, make_spec, reference_decoder

SPECS = {
    "mha": make_spec(4, 4),
    "gqa": make_spec(6, 2),
    "mqa": make_spec(5, 1),
    "windows": make_spec(4, 2, windows=(40, 0, 100)),
    "shared": make_spec(4, 1, windows=(70, 70, 0, 0, 70), owners=(None, 0, None, 2, 0)),
    "wide-heads": make_spec(2, 1, head_dim=256),
    "gemma2": make_spec(
        4, 2, windows=(30, 0), tied_head=True, embedding_scale=9.8, logit_softcap=3.0, mlp=Mlp.GATED_GELU, post_norms=True,
        attention_softcap=2.0, softmax_scale=0.3,
    ),
    "gemma3": make_spec(
        4, 1, windows=(40, 40, 0), tied_head=True, embedding_scale=9.8, mlp=Mlp.GATED_GELU, post_norms=True, qk_norm=True,
        softmax_scale=0.2,
    ),
    "gemma3-groups": make_spec(
        4, 1, windows=(40, 40, 0), tied_head=True, embedding_scale=9.8, mlp=Mlp.GATED_GELU, post_norms=True, qk_norm=True,
        softmax_scale=0.2, mlp_size=192,
    ),
    "duologue": make_spec(
        4, 1, windows=(70, 70, 0, 70, 70, 0), owners=(None, 0, None, None, 3, 2), mlp=Mlp.RELU2, qkv_clamp=1.0, mlp_clamp=1.5,
        qk_norm=True,
    ),
    "sinks": make_spec(6, 2, windows=(0, 50), sinks=True),
    "qwen2": make_spec(4, 2, windows=(0, 40, 0), owners=(None, None, 0), qkv_bias=True),
    "clamped-bias": make_spec(4, 2, qkv_bias=True, qkv_clamp=1.0, rope_divisors=(1.0,) * 8 + (4.0,) * 8),
    "groups": make_spec(4, 2, windows=(0, 40, 0), owners=(None, None, 0), mlp_size=320),
    "groups-post-norms": make_spec(4, 2, mlp_size=192, mlp=Mlp.GATED_GELU, post_norms=True),
}  # fmt: skip


def weights_of(name: str, seed: int) -> Weights:
    """Random weights; those of Gemma 3's kind with the factors that calibration leaves beside a tied head."""
    weights = random_weights(SPECS[name], seed)
    if name.startswith("gemma3"):
        weights["embedding_channels"] = np.linspace(0.5, 2.0, SPECS[name].hidden_size, dtype=np.float32)
    return weights


def prompt(spec: ModelSpec, n: int, seed: int = 3) -> Ids:
    return np.random.default_rng(seed).integers(0, spec.vocab_size, n).astype(np.int32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SPECS)
def test_equals_the_reference(name: str, isa: str) -> None:
    spec = SPECS[name]
    weights = weights_of(name, 1)
    tokens = prompt(spec, 150)
    expected = reference.forward(reference_decoder(spec, weights), tokens)
    got = StepCase(spec, weights, threads=2, isa=isa).run(tokens, [61, 1, 1, 30])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "wide-heads"])
def test_chunks_threads_and_batch_do_not_matter(name: str) -> None:
    spec = SPECS[name]
    weights = weights_of(name, 2)
    tokens = prompt(spec, 1100)  # over two splits and 17 tiles
    expected = StepCase(spec, weights, threads=1).run(tokens, [len(tokens)])
    for threads in (1, 2, 3):
        case = StepCase(spec, weights, threads=threads)
        for chunks in ([512], [64], [7, 1, 500, 1, 1, 3, 64]):
            np.testing.assert_array_equal(case.run(tokens, chunks), expected)
    case = StepCase(spec, weights, threads=2)
    np.testing.assert_array_equal(case.run(tokens[:70], [1]), expected[:70])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["gqa", "shared", "groups", "gemma3-groups"])
def test_keys_are_stored_less_an_offset(name: str, isa: str) -> None:
    spec = SPECS[name]
    weights = weights_of(name, 6)
    weights |= key_offsets(spec, 7)
    tokens = prompt(spec, 150)
    case = StepCase(spec, weights, threads=2, isa=isa)
    got = case.run(tokens, [61, 1, 1, 30])
    np.testing.assert_array_equal(got, reference.forward(reference_decoder(spec, weights), tokens))
    np.testing.assert_array_equal(case.run(tokens, [len(tokens)]), got)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "name", ["gemma2", "gemma3", "sinks", "groups-post-norms", "gemma3-groups", "shared"]
)
def test_logits_of_some_rows_are_those_of_all(name: str, threads: int) -> None:
    """The last layer goes on with the chosen rows alone; none at all is a step that only stores KV."""
    spec = SPECS[name]
    weights = weights_of(name, 10)
    tokens = prompt(spec, 180)
    case = StepCase(spec, weights, threads=threads)
    expected = case.run(tokens, [len(tokens)])
    branch = case.sequence(tokens)
    for count, chosen in ((100, range(10, 90)), (40, ()), (39, (0, 7, 38)), (1, (0,))):
        begin = branch.computed
        got = case.chosen_rows([(branch, count)], chosen)
        np.testing.assert_array_equal(got, expected[[begin + i for i in chosen]])
    other = case.sequence(tokens)
    again = case.sequence(tokens)
    got = case.chosen_rows([(other, 30), (again, 50)], (3, 29, 30, 79))  # rows of two sequences
    np.testing.assert_array_equal(got, expected[[3, 29, 0, 49]])


def test_inputs_of_the_down_projection_have_a_scale_for_each_group() -> None:
    """Negative control: one scale for the whole row gives other logits."""
    spec = SPECS["groups"]
    weights = random_weights(spec, 8)
    assert [spec.down_groups(i) for i in range(3)] == [4, 4, 4]
    tokens = prompt(spec, 20)
    decoder = reference_decoder(spec, weights)
    one_scale = dataclasses.replace(
        decoder, layers=[dataclasses.replace(layer, down_groups=1) for layer in decoder.layers]
    )
    got = StepCase(spec, weights).run(tokens, [20])
    np.testing.assert_array_equal(got, reference.forward(decoder, tokens))
    assert not np.array_equal(got, reference.forward(one_scale, tokens))


@pytest.mark.parametrize("name", ["gqa", "mqa", "groups"])
def test_a_sequence_among_32_others_gets_its_own_logits(name: str) -> None:
    spec = SPECS[name]
    weights = random_weights(spec, 4)
    alone = StepCase(spec, weights, threads=2)
    prompts = [prompt(spec, 20 + 7 * i % 90, seed=i) for i in range(32)]
    expected = [alone.run(tokens, [len(tokens)]) for tokens in prompts]
    case = StepCase(spec, weights, threads=2)
    sequences = [case.sequence(tokens) for tokens in prompts]
    got: list[list[np.ndarray]] = [[] for _ in prompts]
    rng = np.random.default_rng(0)
    while any(s.computed < len(s.tokens) for s in sequences):
        work = [
            (i, int(min(len(s.tokens) - s.computed, rng.integers(1, 20))))
            for i, s in enumerate(sequences)
            if s.computed < len(s.tokens)
        ]
        for (i, _), logits in zip(work, case.step([(sequences[i], count) for i, count in work]), strict=True):
            got[i].append(logits)
    for rows, want in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.concatenate(rows), want)


def test_an_unfinished_model_is_refused() -> None:
    weight = pack_weight(*quantize_rows(np.ones((70, 16), dtype=np.float32)))
    norm = np.ones(16, dtype=np.float32)
    model = _native.Model(vocab=70, hidden=16, norm_eps=1e-5, embedding=weight, head=weight, final_norm=norm)
    with pytest.raises(ValueError, match=r"finish\(\) has not been called"):
        _native.Executor(model, 1)
    model.finish()
    assert _native.Executor(model, 1).threads == 1


def test_a_weight_of_another_type_is_refused_not_converted() -> None:
    weight = pack_weight(*quantize_rows(np.ones((70, 16), dtype=np.float32)))
    wrong = dataclasses.replace(weight, scale=weight.scale.astype(np.float64))
    with pytest.raises(RuntimeError, match=r"bad.cast"):
        gemm_int8(np.ones((1, 16), dtype=np.int8), np.ones(1, dtype=np.float32), wrong)


def test_a_buffer_of_nearly_all_addresses_is_refused() -> None:
    for size in (2**64 - 1, 2**64 - (4 << 20), 2**62):
        with pytest.raises(MemoryError):
            _native.HugeBuffer(size)


REFUSED_THREADS = """
import os, resource, numpy as np
from duologue.kernels import _native
from duologue.kernels.gemm import pack_weight
from duologue.kernels.rows import quantize_rows
weight = pack_weight(*quantize_rows(np.ones((70, 16), dtype=np.float32)))
norm = np.ones(16, dtype=np.float32)
model = _native.Model(vocab=70, hidden=16, norm_eps=1e-5, embedding=weight, head=weight, final_norm=norm)
model.finish()
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # a stack takes 8 MiB of address space
before = len(os.listdir("/proc/self/task"))
try:
    _native.Executor(model, 1000)
except RuntimeError:
    print("refused", len(os.listdir("/proc/self/task")) - before)
"""


def test_threads_that_cannot_be_started_are_an_error_and_leave_none_behind() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REFUSED_THREADS]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert (result.stdout, result.stderr) == ("refused 0\n", "")


def test_one_corrupted_byte_of_kv_is_noticed() -> None:
    spec = SPECS["gqa"]
    case = StepCase(spec, random_weights(spec, 5), threads=2)
    tokens = prompt(spec, 130)
    clean, corrupt = case.sequence(tokens), case.sequence(tokens)
    for sequence in (clean, corrupt):
        case.step([(sequence, 129)])
    pool = case.pools[0]
    assert pool is not None
    pool[corrupt.pages[0], 100] ^= 0x40
    a, b = case.step([(clean, 1), (corrupt, 1)])
    assert (a != b).any()


def test_a_sequence_may_continue_on_pages_that_another_wrote() -> None:
    spec = SPECS["mqa"]
    case = StepCase(spec, random_weights(spec, 6), threads=2)
    tokens = prompt(spec, 200)
    first, second = case.sequence(tokens), case.sequence(tokens)
    (expected,) = case.step([(first, 200)])
    second.pages[:2] = first.pages[:2]
    second.computed = 128
    (got,) = case.step([(second, 72)])
    np.testing.assert_array_equal(got, expected[128:])


def one_token_step(case: StepCase) -> dict[str, Any]:
    """Arguments of a step of one token at position 0, good ones."""
    return {
        "tokens": np.array([5], dtype=np.int32),
        "starts": np.array([0, 1], dtype=np.int32),
        "first_position": np.array([0], dtype=np.int32),
        "global_pages": np.array([[3]], dtype=np.int32),
        "local_pages": np.array([[3]], dtype=np.int32),
        "global_pool": case.pools[0],
        "local_pool": case.pools[1],
        "logit_tokens": np.array([0], dtype=np.int32),
        "logits": np.empty((1, case.spec.vocab_size), dtype=np.float32),
        "sampling": None,
        "sampled": None,
        "check_finite": False,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.array([203], dtype=np.int32)}, "token id"),
        ({"first_position": np.array([2048], dtype=np.int32)}, "positions"),
        ({"first_position": np.array([2**31 - 1], dtype=np.int32)}, "positions"),
        ({"starts": np.array([0, 2**31 - 1, 1], dtype=np.int32), "first_position": np.array([1, 1], dtype=np.int32)}, "positions"),
        ({"global_pages": np.array([[80]], dtype=np.int32)}, "page id"),
        ({"global_pages": np.array([[-1]], dtype=np.int32)}, "page id"),
        ({"global_pages": np.zeros((1, 0), dtype=np.int32)}, "page table"),
        ({"local_pages": np.array([[-1]], dtype=np.int32)}, "page id"),
        ({"logit_tokens": np.array([1], dtype=np.int32)}, "logit_tokens"),
        ({"starts": np.array([0, 2], dtype=np.int32)}, "starts"),
    ],
)  # fmt: skip
def test_a_step_that_would_read_out_of_bounds_is_refused(change: dict[str, np.ndarray], message: str) -> None:
    spec = SPECS["windows"]
    case = StepCase(spec, random_weights(spec, 7))
    arguments = one_token_step(case)
    case.executor.step(**arguments)
    with pytest.raises(ValueError, match=message):
        case.executor.step(**{**arguments, **change})


def test_only_local_pages_before_the_widest_window_may_be_missing() -> None:
    """The first position that a query at 163 sees through a window of 100 is 64: the first of the second page."""
    spec = SPECS["windows"]
    case = StepCase(spec, random_weights(spec, 7))
    arguments = {**one_token_step(case), "global_pages": np.array([[0, 1, 2]], dtype=np.int32)}
    for position, first_needed in ((162, 0), (163, 1), (191, 1)):
        arguments["first_position"] = np.array([position], dtype=np.int32)
        for missing in range(3):
            pages = np.array([[4, 5, 6]], dtype=np.int32)
            pages[0, missing] = -1
            arguments["local_pages"] = pages
            if missing < first_needed:
                case.executor.step(**arguments)
            else:
                with pytest.raises(ValueError, match="page id"):
                    case.executor.step(**arguments)


def test_a_nan_names_its_layer_and_tensor() -> None:
    spec = SPECS["gqa"]
    weights = random_weights(spec, 8)
    weights["layers.1.mlp_norm"][5] = 1e38
    weights["layers.0.mlp_norm"][:] = 3e37
    case = StepCase(spec, weights, threads=2)
    with pytest.raises(RuntimeError, match=r"layer [01]: the input of \w+ holds a NaN"):
        case.run(prompt(spec, 5), [5])


@pytest.mark.parametrize("tensor", ["q", "k", "v"])
@pytest.mark.parametrize("name", ["gqa", "gemma3"])
def test_a_query_key_or_value_that_overflows_is_named(name: str, tensor: str) -> None:
    spec = SPECS[name]
    weights = random_weights(spec, 8)
    weights[f"layers.1.{tensor}"] = np.copysign(np.float32(3e38), weights[f"layers.1.{tensor}"])
    case = StepCase(spec, weights, threads=2)
    with pytest.raises(RuntimeError, match=f"layer 1: {tensor} holds a NaN"):
        case.run(prompt(spec, 5), [5])


def two_layers(**of_second: Any) -> _native.Model:
    """A model of two layers that share KV, local ones with a squared-ReLU MLP, the second one changed."""
    norm = np.ones(16, dtype=np.float32)
    square = pack_weight(*quantize_rows(np.eye(16, dtype=np.float32)))
    qkv = pack_weight(*quantize_rows(np.ones((48, 16), dtype=np.float32)))
    model = _native.Model(vocab=16, hidden=16, norm_eps=1e-5, embedding=square, head=square, final_norm=norm)
    rope = np.ones((64, 8), dtype=np.float32)
    layer = {
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 16,
        "window": 8,
        "kv_owner": 0,
        "norm_eps": 1e-5,
        "softmax_scale": 0.25,
        "rope_cos": rope,
        "rope_sin": rope,
        "attention_norm": norm,
        "mlp_norm": norm,
        "qkv": qkv,
        "output": square,
        "gate_up": square,
        "down": [square],
        "mlp": int(Epilogue.RELU2),
    }
    model.add_layer(**layer)
    model.add_layer(**{**layer, "qkv": square, **of_second})
    model.finish()
    return model


GATED = pack_weight(*quantize_rows(np.ones((32, 16), dtype=np.float32)), gated=True)
NOT_GATED = pack_weight(*quantize_rows(np.ones((32, 16), dtype=np.float32)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 9}, "layer 1: kv_owner names a layer of another window"),
        ({"window": 0}, "layer 1: kv_owner names a layer of another window"),
        ({"rope_cos": np.ones((64, 8), dtype=np.float32)}, "layer 1: kv_owner names a layer with other RoPE tables"),
        ({"rope_sin": np.ones((64, 8), dtype=np.float32)}, "layer 1: kv_owner names a layer with other RoPE tables"),
        ({"gate_up": GATED}, "gated pair where a plain one belongs"),
        ({"gate_up": NOT_GATED, "mlp": int(Epilogue.GATED_SILU)}, "gated pair where a plain one belongs"),
        ({"output": GATED}, "gated pair where a plain one belongs"),
    ],
)  # fmt: skip
def test_a_layer_that_contradicts_its_owner_or_its_weights_is_refused(
    change: dict[str, Any], message: str
) -> None:
    two_layers()
    two_layers(gate_up=GATED, mlp=int(Epilogue.GATED_GELU))
    with pytest.raises(ValueError, match=message):
        two_layers(**change)
