"""Aborting, draining, closing, failing: whatever happens, every request hears one last word and no page is lost."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from duologue import Engine, SamplingParams, TokenEvent
from duologue.engine.request import Request
from duologue.engine.scheduler import SchedulerConfig
from duologue.errors import EngineStoppedError
from duologue.models.packed_model import PackedModel
from tests.engine.driving import WAIT_S, Gate, Listener, assert_nothing_is_held

ENDLESS = SamplingParams(ignore_eos=True)
SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
ONE_AT_A_TIME = SchedulerConfig(max_batch_tokens=16, max_num_seqs=1)


@pytest.fixture
def engine(tiny_gqa: PackedModel) -> Iterator[Engine]:
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1, scheduler=ONE_AT_A_TIME) as engine:
        yield engine


@pytest.fixture
def gate(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(engine, monkeypatch)
    yield gate
    gate.open()


@pytest.mark.parametrize("seen_by_scheduler", [False, True])
def test_abort_while_waiting(engine: Engine, gate: Gate, seen_by_scheduler: bool) -> None:
    first, second = Listener(), Listener()
    engine.submit([5], SHORT, first)
    gate.wait()
    request = engine.submit([6], SHORT, second)
    if seen_by_scheduler:
        gate.let(1)
        assert engine.stats().waiting == 1
    engine.abort(request)
    gate.open()
    last = second.last()
    assert (last.finish_reason, last.completion_tokens, last.token_ids) == ("abort", 0, ())
    assert (first.last().finish_reason, first.last().completion_tokens) == ("length", 3)
    assert_nothing_is_held(engine)
    assert engine.stats().aborted_total == 1


@pytest.mark.parametrize(("steps", "tokens"), [(3, 0), (15, 3)], ids=["prefill", "decode"])
def test_abort_while_running(engine: Engine, gate: Gate, steps: int, tokens: int) -> None:
    listener = Listener()
    request = engine.submit([5] * 200, ENDLESS, listener)  # 13 chunks of prompt
    gate.wait()
    gate.let(steps)
    assert engine.stats().kv_pages_free < engine.stats().kv_pages_total
    engine.abort(request)
    gate.open()
    # The step that was under way is computed; its token may come before the abort.
    assert listener.last().finish_reason == "abort"
    assert listener.last().completion_tokens == (tokens + 1 if tokens else 0)
    assert_nothing_is_held(engine)


def test_abort_again_and_after_the_end_says_nothing_more(engine: Engine) -> None:
    listener = Listener()
    request = engine.submit([5], ENDLESS, listener)
    assert listener.first.wait(WAIT_S)
    engine.abort(request)
    engine.abort(request)
    assert listener.last().finish_reason == "abort"
    engine.abort(request)
    assert engine.generate([6], SHORT).finish_reason == "length"
    assert listener.last().finish_reason == "abort"
    assert engine.stats().aborted_total == 1
    assert_nothing_is_held(engine)


def test_abort_from_the_callback(engine: Engine) -> None:
    listener, requests = Listener(), list[Request]()
    submitted = threading.Event()

    def on_event(event: TokenEvent) -> None:
        listener(event)
        assert submitted.wait(WAIT_S)
        if event.completion_tokens == 2:
            engine.abort(requests[0])

    requests.append(engine.submit([5], ENDLESS, on_event))
    submitted.set()
    assert (listener.last().finish_reason, listener.last().completion_tokens) == ("abort", 2)
    assert_nothing_is_held(engine)


def test_leaving_a_stream_early_aborts(engine: Engine) -> None:
    stream = engine.stream([5], ENDLESS)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert_nothing_is_held(engine)
    assert engine.stats().aborted_total == 1


def test_drain_waits_for_what_was_accepted(engine: Engine, gate: Gate) -> None:
    assert engine.drain(0.0)
    listener = Listener()
    engine.submit([5], SHORT, listener)
    gate.wait()
    assert not engine.drain(0.05)
    assert not listener.events
    gate.open()
    assert engine.drain()
    assert len(listener.events) == 3


def test_close_ends_every_request(engine: Engine, gate: Gate) -> None:
    listeners = [Listener() for _ in range(4)]
    for listener in listeners:
        engine.submit([5] * 20, ENDLESS, listener)
    gate.wait()
    gate.let(3)  # one decodes, the others wait
    closing = threading.Thread(target=engine.close)
    closing.start()
    while not engine._stopping:
        closing.join(0.01)
    with pytest.raises(EngineStoppedError, match="closed"):
        engine.submit([5], SHORT, Listener())
    gate.open()
    closing.join(WAIT_S)
    assert [listener.last().finish_reason for listener in listeners] == ["abort"] * 4
    assert_nothing_is_held(engine)
    assert not engine._thread.is_alive()
    engine.close()
    with pytest.raises(EngineStoppedError, match="closed"):
        engine.generate([5], SHORT)
    assert engine.failure is None


def test_close_from_the_callback(engine: Engine) -> None:
    listener = Listener()

    def on_event(event: TokenEvent) -> None:
        listener(event)
        engine.close()

    engine.submit([5], ENDLESS, on_event)
    assert listener.last().finish_reason == "abort"
    engine._thread.join(WAIT_S)
    assert not engine._thread.is_alive()


def test_weights_that_overflow_fail_the_engine(
    tiny_gqa: PackedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUOLOGUE_DEBUG", "1")
    norms = {f"layers.{i}.mlp_norm": np.full(64, 3e37, dtype=np.float32) for i in range(2)}
    broken = dataclasses.replace(tiny_gqa, arrays={**tiny_gqa.arrays, **norms})
    with Engine(broken, kv_memory_bytes=4 << 20, threads=1) as engine:
        with pytest.raises(EngineStoppedError, match="holds a NaN"):
            engine.generate([5, 6, 7], SHORT)
        assert "holds a NaN" in str(engine.failure)


def fail_next_step(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(engine._runner, "step", failing)


def test_a_failed_step_ends_every_request_with_an_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    listeners = [Listener() for _ in range(4)]
    for listener in listeners:
        engine.submit([5], ENDLESS, listener)
    assert listeners[0].first.wait(WAIT_S)
    fail_next_step(engine, monkeypatch)
    for listener in listeners:
        last = listener.last()
        assert (last.finish_reason, last.error) == ("error", "RuntimeError: out of luck")
    assert engine.failure == "RuntimeError: out of luck"
    assert_nothing_is_held(engine)
    with pytest.raises(EngineStoppedError, match="has failed: RuntimeError: out of luck"):
        engine.submit([5], SHORT, Listener())
    for ask in (
        lambda: engine.cache_lookup([5]),
        lambda: engine.cache_forget("", "k"),
        lambda: engine.cache_forget_salt(b""),
    ):
        with pytest.raises(EngineStoppedError, match="has failed: RuntimeError: out of luck"):
            ask()
    engine._thread.join(WAIT_S)
    assert not engine._thread.is_alive()


def test_a_stream_raises_when_the_engine_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = engine.stream([5], ENDLESS)
    next(stream)
    fail_next_step(engine, monkeypatch)
    with pytest.raises(EngineStoppedError, match="out of luck"):
        for _ in stream:
            pass


def test_a_callback_that_raises_does_not_silence_the_others(engine: Engine, gate: Gate) -> None:
    def on_event(event: TokenEvent) -> None:
        raise ValueError("not today")

    other = Listener()
    engine.submit([5], SHORT, on_event)
    gate.wait()
    engine.submit([6], SHORT, other)
    gate.open()
    assert other.last().finish_reason == "error"
    assert engine.failure == "ValueError: not today"
    assert_nothing_is_held(engine)


def test_an_engine_that_is_dropped_ends_its_thread(tiny_gqa: PackedModel) -> None:
    engine = Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=1)
    engine.generate([5], SHORT)
    thread, reference = engine._thread, weakref.ref(engine)
    del engine
    gc.collect()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert reference() is None


def test_64_threads_submit_at_once(tiny_gqa: PackedModel) -> None:
    with Engine(tiny_gqa, kv_memory_bytes=4 << 20, threads=2) as engine:
        expected = [
            engine.generate([5 + i], SamplingParams(seed=i, max_tokens=10)).token_ids for i in range(64)
        ]
        start, replies = threading.Barrier(64), {}

        def ask(i: int) -> None:
            start.wait(WAIT_S)
            replies[i] = engine.generate([5 + i], SamplingParams(seed=i, max_tokens=10)).token_ids

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert [replies[i] for i in range(64)] == expected
        assert engine.stats().requests_total == 128
        assert_nothing_is_held(engine)
