"""Sampling: equal to the reference on every instruction set, and distributed as its parameters say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duologue.kernels import sampling
from duologue.kernels.reference import sampling as reference
from tests.kernels.isas import ISAS

Floats = npt.NDArray[np.float32]
SEEDS = (0, 1, 42, 2**32, 2**63, 2**64 - 1)


def logits_of(vocab: int, seed: int, kind: str) -> Floats:
    """Rows with the accidents that real ones have: ties, masked tokens, one token far above the others."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 3, vocab).astype(np.float32)
    if kind == "ties":
        logits = np.rint(logits)
    elif kind == "masked":
        logits[rng.random(vocab) < 0.7] = -np.inf
        logits[rng.integers(vocab)] = 1.0
    elif kind == "peaked":
        logits[rng.integers(vocab)] = 60.0
    elif kind == "flat":
        logits[:] = 2.5
    return logits


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert reference.philox4x32(counter, key) == words


@pytest.mark.parametrize("isa", ISAS)
@settings(deadline=None, max_examples=150)
@given(
    vocab=st.integers(1, 400),
    rows=st.integers(0, 10_000),
    kind=st.sampled_from(["plain", "ties", "masked", "peaked", "flat"]),
    temperature=st.one_of(st.sampled_from([0.0, 1e-45, 1e-39, 1e-30, 1.0, 100.0]), st.floats(0.01, 5)),
    top_p=st.one_of(st.sampled_from([1.0, 1e-30, 0.999999]), st.floats(0.01, 1)),
    top_k=st.one_of(st.just(0), st.integers(1, 450)),
    noise=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
)
def test_equals_the_reference(
    isa: str,
    vocab: int,
    rows: int,
    kind: str,
    temperature: float,
    top_p: float,
    top_k: int,
    noise: tuple[int, int, int],
) -> None:
    logits = logits_of(vocab, rows, kind)
    arguments = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": noise[0],
        "choice": noise[1],
        "position": noise[2],
    }
    assert sampling.sample(logits, **arguments, isa=isa) == reference.sample(logits, **arguments)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [49152, 128_003])
def test_equals_the_reference_on_real_vocabularies(isa: str, vocab: int) -> None:
    logits = logits_of(vocab, 7, "plain")
    for position, (top_p, top_k) in enumerate([(1.0, 0), (0.9, 0), (0.999, 0), (1.0, 50), (0.8, 1000)]):
        for seed in SEEDS[-3:]:
            arguments = {
                "temperature": 0.9,
                "top_p": top_p,
                "top_k": top_k,
                "seed": seed,
                "position": position,
            }
            assert sampling.sample(logits, **arguments, isa=isa) == reference.sample(logits, **arguments)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 203, 1000])
def test_greedy_takes_the_first_maximum(isa: str, vocab: int) -> None:
    for first in {0, vocab // 2, vocab - 1}:
        logits = np.full(vocab, -np.inf, dtype=np.float32)
        logits[first:] = 3.0
        # The inverse of the last two is infinite in float32.
        for temperature in (0.0, 1e-45, 1e-39):
            got = sampling.sample(logits, temperature=temperature, top_p=0.9, seed=1, isa=isa)
            assert got == first


@pytest.mark.parametrize("isa", ISAS)
def test_top_k_of_1_and_a_tiny_top_p_leave_the_first_maximum(isa: str) -> None:
    for kind in ("plain", "ties", "masked", "flat"):
        logits = logits_of(203, 3, kind)
        for position in range(200):
            noise = {"temperature": 5.0, "seed": 9, "position": position, "isa": isa}
            assert sampling.sample(logits, top_k=1, **noise) == np.argmax(logits)
            assert sampling.sample(logits, top_p=1e-30, **noise) == np.argmax(logits)


@pytest.mark.parametrize(("top_p", "top_k"), [(1.0, 0), (0.95, 0), (1.0, 40), (0.95, 40)])
def test_masked_tokens_are_never_chosen(top_p: float, top_k: int) -> None:
    logits = logits_of(61, 5, "masked")
    chosen = {
        sampling.sample(logits, temperature=100.0, top_p=top_p, top_k=top_k, seed=2, position=i)
        for i in range(2000)
    }
    assert len(chosen) > 3
    assert np.isfinite(logits[list(chosen)]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_broken_logits_give_some_token_of_the_vocabulary(isa: str) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        for logits in (np.full(37, bad, dtype=np.float32), np.array([1.0, bad, 2.0], dtype=np.float32)):
            for top_p, top_k in ((1.0, 0), (0.5, 0), (1.0, 2), (0.5, 2)):
                got = sampling.sample(logits, temperature=1.0, top_p=top_p, top_k=top_k, isa=isa)
                assert 0 <= got < len(logits)


def expected_shares(logits: Floats, temperature: float, top_p: float, top_k: int) -> npt.NDArray[np.float64]:
    """Probabilities in float64, written from the definition."""
    shares = np.exp((logits - logits.max()).astype(np.float64) / temperature)
    order = np.argsort(-shares, kind="stable")
    if top_k:
        shares[order[top_k:]] = 0
    shares /= shares.sum()
    kept = np.searchsorted(np.cumsum(shares[order]), top_p) + 1
    shares[order[kept:]] = 0
    return np.asarray(shares / shares.sum())


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [(1.0, 1.0, 0), (0.6, 1.0, 0), (1.5, 0.83, 0), (1.0, 1.0, 9), (1.3, 0.7, 12)],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_shares_are_those_of_the_distribution(
    seed: int, temperature: float, top_p: float, top_k: int
) -> None:
    logits = np.random.default_rng(1).normal(0, 1.2, 37).astype(np.float32)
    shares = expected_shares(logits, temperature, top_p, top_k)
    draws = 20_000
    counts = Counter(
        sampling.sample(
            logits, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, position=position
        )
        for position in range(draws)
    )
    assert set(counts) <= set(np.flatnonzero(shares).tolist())
    observed = np.array([counts[i] for i in np.flatnonzero(shares)])
    expected = shares[shares > 0] * draws
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    # The seeds are fixed, so this passes always or never; 5 standard deviations above the mean is one chance in 10^5 or so.
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


def test_each_part_of_the_noise_matters() -> None:
    logits = np.zeros(50_000, dtype=np.float32)
    noises = [
        {"seed": 0},
        {"seed": 1},
        {"seed": 2**32},
        {"choice": 1},
        {"position": 1},
        {"position": 2**32},
    ]
    drawn = [sampling.sample(logits, temperature=1.0, **noise) for noise in noises]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": np.zeros(0)}, "empty"),
        ({"logits": np.zeros((2, 2))}, "dimensions"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"choice": 2**32}, "choice"),
        ({"position": -1}, "position"),
    ],
)
def test_parameters_out_of_range_are_named(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"logits": np.zeros(5), "temperature": 1.0}
    with pytest.raises(ValueError, match=message):
        sampling.sample(**{**arguments, **change})  # type: ignore[arg-type]
