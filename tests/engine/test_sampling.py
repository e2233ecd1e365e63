"""What the sampling parameters do to a reply, against the reference on the engine's own logits, and in any company."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from duologue import Engine, Grammar, SamplingParams
from duologue.engine.chunk import Chunk
from duologue.engine.scheduler import SchedulerConfig
from duologue.errors import InvalidRequestError
from duologue.kernels import PAGE_TOKENS
from duologue.kernels.reference import sampling as reference
from duologue.models.packed_model import PackedModel
from tests.engine.driving import assert_nothing_is_held

PROMPT = [5, 9, 9, 60, 61, 62, 60]
EVERYTHING = SamplingParams(
    temperature=0.9,
    top_p=0.95,
    top_k=200,
    min_p=0.001,
    seed=11,
    max_tokens=40,
    presence_penalty=0.4,
    frequency_penalty=0.7,
    repetition_penalty=1.2,
    logit_bias=((60, 3.0), (61, -2.0), (300, 1.5)),
    logprobs=3,
    ignore_eos=True,
)


@pytest.fixture
def engine(tiny_gqa: PackedModel) -> Iterator[Engine]:
    # One token for each step, so that a step's logits are those of its token.
    plain = SchedulerConfig(speculation_tokens=0)
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, scheduler=plain) as engine:
        yield engine
        if engine.failure is None:
            assert_nothing_is_held(engine)


def record_logits(engine: Engine, patch: pytest.MonkeyPatch) -> list[npt.NDArray[np.float32]]:
    """Logits [vocab] of each step of one request."""
    step, logs = engine._runner.step, []

    def recording(chunks: Sequence[Chunk], **options: Any) -> Any:
        sampled, logits = step(chunks, **options)
        logs.append(logits[0].copy())
        return sampled, logits

    patch.setattr(engine._runner, "step", recording)
    return logs


def test_every_token_is_the_one_that_the_reference_chooses(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = record_logits(engine, monkeypatch)
    reply = engine.generate(PROMPT, EVERYTHING)
    assert len(logs) == len(reply.token_ids) == len(reply.logprobs) == 40
    for i, logits in enumerate(logs):
        said = reply.token_ids[:i]
        expected = reference.sample(
            logits,
            temperature=EVERYTHING.temperature,
            top_p=EVERYTHING.top_p,
            top_k=EVERYTHING.top_k,
            min_p=EVERYTHING.min_p,
            presence_penalty=EVERYTHING.presence_penalty,
            frequency_penalty=EVERYTHING.frequency_penalty,
            repetition_penalty=EVERYTHING.repetition_penalty,
            bias=dict(EVERYTHING.logit_bias),
            prompt=PROMPT,
            reply=said,
            seed=11,
            position=len(PROMPT) + i,
        )
        assert reply.token_ids[i] == expected
    plain = SamplingParams(temperature=0.9, top_p=0.95, top_k=200, seed=11, max_tokens=40, ignore_eos=True)
    assert engine.generate(PROMPT, plain).token_ids != reply.token_ids


def test_log_probabilities_are_of_the_models_own_distribution(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = record_logits(engine, monkeypatch)
    reply = engine.generate(PROMPT, EVERYTHING)
    for token, logits, got in zip(reply.token_ids, logs, reply.logprobs, strict=True):
        ids, values = reference.log_probabilities(logits, 3)
        exact = logits.astype(np.float64) - logits.max()
        exact -= np.log(np.exp(exact).sum())
        assert got.token_id == token
        assert got.logprob == pytest.approx(exact[token], abs=1e-5)
        assert [token for token, _ in got.top] == ids[1:].tolist()
        assert [value for _, value in got.top] == pytest.approx(values[1:].tolist(), abs=1e-5)


def test_log_probabilities_come_only_when_asked_for_and_change_nothing(engine: Engine) -> None:
    without = engine.generate(PROMPT, replace(EVERYTHING, logprobs=None))
    with_none = engine.generate(PROMPT, replace(EVERYTHING, logprobs=0))
    assert without.logprobs == ()
    assert [entry.top for entry in with_none.logprobs] == [()] * 40
    assert without.token_ids == with_none.token_ids


def test_a_strong_bias_forces_and_bans(engine: Engine) -> None:
    forced = SamplingParams(temperature=1.0, max_tokens=5, logit_bias=((77, 100.0),))
    assert engine.generate(PROMPT, forced).token_ids == (77,) * 5
    banned = replace(forced, logit_bias=((77, 100.0), (77 + 1, 100.0)), temperature=0.0)
    assert set(engine.generate(PROMPT, banned).token_ids) <= {77, 78}


def test_a_stop_token_ends_a_reply_unseen_and_not_too_early(engine: Engine) -> None:
    always = SamplingParams(temperature=0.0, max_tokens=9, stop_token_ids=(77,), logit_bias=((77, 100.0),))
    reply = engine.generate(PROMPT, always)
    assert (reply.token_ids, reply.text, reply.finish_reason) == ((77,), "", "stop")
    late = engine.generate(PROMPT, replace(always, min_tokens=4))
    assert (len(late.token_ids), late.token_ids[-1], late.finish_reason) == (5, 77, "stop")
    assert 77 not in late.token_ids[:-1]


def test_min_tokens_keeps_the_models_own_end_and_stop_strings_away(engine: Engine) -> None:
    eos = engine.tokenizer.eos_id
    assert eos is not None
    params = SamplingParams(temperature=0.0, max_tokens=9, min_tokens=6, logit_bias=((eos, 100.0),))
    reply = engine.generate(PROMPT, params)
    assert (len(reply.token_ids), reply.token_ids[-1]) == (7, eos)
    a = engine.tokenizer.encode("a")[0]
    stopped = SamplingParams(
        temperature=0.0, max_tokens=9, min_tokens=6, logit_bias=((a, 100.0),), stop=("a",)
    )
    reply = engine.generate(PROMPT, stopped)
    assert (reply.token_ids, reply.text, reply.finish_reason) == ((a,) * 6, "aaaaa", "stop")


def test_unknown_ids_are_refused_before_anything_runs(engine: Engine) -> None:
    for params in (SamplingParams(logit_bias=((320, 1.0),)), SamplingParams(stop_token_ids=(320,))):
        with pytest.raises(InvalidRequestError, match="320"):
            engine.generate(PROMPT, params)
    assert engine.stats().requests_total == 0


def test_replies_are_equal_alone_in_a_batch_and_after_preemption(tiny_gqa: PackedModel) -> None:
    mixed = [
        EVERYTHING,
        SamplingParams(temperature=1.0, seed=3, max_tokens=90, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=4, max_tokens=90, grammar=Grammar("regex", "[a-f]{80}")),
        replace(EVERYTHING, seed=5, max_tokens=90, grammar=Grammar("regex", "([a-z] ){40}"), top_k=0),
        SamplingParams(temperature=0.0, max_tokens=90, frequency_penalty=1.5, logprobs=5, ignore_eos=True),
        SamplingParams(
            temperature=1.0, seed=6, max_tokens=90, min_p=0.2, repetition_penalty=0.5, min_tokens=80
        ),
    ]
    prompts = [[7 + i] * (40 + 9 * i) for i in range(len(mixed))]
    page_bytes = tiny_gqa.native().global_page_bytes
    with Engine(tiny_gqa, kv_memory_bytes=64 * page_bytes, threads=1) as roomy:
        alone = [roomy.generate(ids, params) for ids, params in zip(prompts, mixed, strict=True)]
    pages = -(-(max(map(len, prompts)) + 90 + 1) // PAGE_TOKENS) + 6
    with Engine(tiny_gqa, kv_memory_bytes=pages * page_bytes, threads=2) as tight:
        together = tight._run_all(prompts, mixed, choices=[0] * len(mixed))
        assert tight.stats().preemptions_total > 0
    for one, other in zip(alone, together, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (
            other.token_ids,
            other.text,
            other.finish_reason,
        )
        assert one.logprobs == other.logprobs
