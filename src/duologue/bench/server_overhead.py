"""What a streamed token costs beside the model: CPU time of the server's process, less that of the forward step.

The server runs in this process around a tiny random model, its clients in another that only reads. CPU time, not
wall time, is counted, and the forward step's on the thread that runs it, so that other programs on the machine
do not show. What is left is Python: the scheduler, sampling's book-keeping, the hand-over between threads, the
chunk, and the socket (system calls included).

The tiny model is faster than any real one, and its tokens would reach the event loop several at a time, which
costs less. So each step is followed by a pause, as long as no one's CPU time, in which the loop comes round.
"""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duologue.engine.engine import Engine
from duologue.models.random_model import write_random_llama

_PAUSE_S = 0.002

# Reads streams until they end; a process of its own, so that none of its time counts.
_READER = """
import concurrent.futures, json, socket, sys
port, streams, tokens = map(int, sys.argv[1:])
body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "stream": True,
                   "max_tokens": tokens, "ignore_eos": True, "seed": 1}).encode()
head = f"POST /v1/chat/completions HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n"
head += f"content-length: {len(body)}\\r\\n\\r\\n"
def read(_):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        tail = b""
        while piece := connection.recv(65536):
            tail = (tail + piece)[-200:]
        assert b"data: [DONE]" in tail, tail
with concurrent.futures.ThreadPoolExecutor(streams) as pool:
    list(pool.map(read, range(streams)))  # raises what any of them does
"""


@dataclass(frozen=True)
class ServerOverhead:
    """CPU microseconds for each token of `streams` streams at once, of the median repetition.

    `engine_us` is the engine's thread beside the forward step, `http_us` everything else; `system_us` is what of both, and of
    the forward step, was spent in the kernel.
    """

    streams: int
    tokens: int
    engine_us: float
    http_us: float
    system_us: float

    @property
    def total_us(self) -> float:
        return self.engine_us + self.http_us

    def as_dict(self) -> dict[str, Any]:
        return {
            "streams": self.streams,
            "tokens": self.tokens,
            "engine_us": round(self.engine_us, 1),
            "http_us": round(self.http_us, 1),
            "total_us": round(self.total_us, 1),
            "system_us": round(self.system_us, 1),
        }


class _EngineClock:
    """CPU seconds of the engine's thread, in all and in native code."""

    def __init__(self, engine: Engine) -> None:
        self.step_s = 0.0
        self.forward_s = 0.0
        native, worker = engine._runner._executor, engine._worker
        forward, step = native.step, worker.step

        def timed_step() -> None:
            started_s = time.thread_time()
            step()
            self.step_s += time.thread_time() - started_s

        def timed_forward(*args: Any) -> Any:
            started_s = time.thread_time()
            try:
                return forward(*args)
            finally:
                time.sleep(_PAUSE_S)
                self.forward_s += time.thread_time() - started_s

        engine._runner._executor = _Executor(native, timed_forward)  # type: ignore[assignment]
        worker.step = timed_step  # type: ignore[method-assign]


class _Executor:
    """The native executor with another `step`."""

    def __init__(self, native: Any, step: Any) -> None:
        self._native = native
        self.step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def bench_server(streams: int, tokens: int, repetitions: int) -> ServerOverhead:
    """Measures with `streams` streams at once, each of `tokens` tokens."""
    with _serving() as (engine, port):
        clock = _EngineClock(engine)
        _read(port, streams, 20)  # first use of everything
        readings = [_measure(clock, port, streams, tokens) for _ in range(repetitions)]
    middle = sorted(readings, key=lambda reading: reading[0] + reading[1])[len(readings) // 2]
    return ServerOverhead(streams, tokens, *middle)


def _measure(clock: _EngineClock, port: int, streams: int, tokens: int) -> tuple[float, float, float]:
    system_s = resource.getrusage(resource.RUSAGE_SELF).ru_stime
    process_s, step_s, forward_s = time.process_time(), clock.step_s, clock.forward_s
    _read(port, streams, tokens)
    process_s, step_s = time.process_time() - process_s, clock.step_s - step_s
    forward_s = clock.forward_s - forward_s
    each_us = 1e6 / (streams * tokens)
    system_s = resource.getrusage(resource.RUSAGE_SELF).ru_stime - system_s
    return (step_s - forward_s) * each_us, (process_s - step_s) * each_us, system_s * each_us


def _read(port: int, streams: int, tokens: int) -> None:
    subprocess.run([sys.executable, "-c", _READER, *map(str, (port, streams, tokens))], check=True)


@contextlib.contextmanager
def _serving() -> Iterator[tuple[Engine, int]]:
    from duologue.server.bind import bind
    from duologue.server.run import Server

    with (
        tempfile.TemporaryDirectory() as folder,
        Engine.load(
            write_random_llama(Path(folder) / "tiny", layers=1), kv_memory_bytes=16 << 20, threads=1
        ) as engine,
        bind("127.0.0.1", 0) as sock,
    ):
        server = Server(engine, sock)
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(ready.set,), kwargs={"handle_signals": False})
        thread.start()
        try:
            if not ready.wait(60):
                raise RuntimeError("the server did not start within a minute")
            yield engine, sock.getsockname()[1]
        finally:
            server.stop()
            server.stop()
            thread.join()
