"""Plays many dialogues against an OpenAI-compatible server and records every request.

Dialogues wait in a queue: one that has its reply goes to the end. So turn t of every dialogue begins before turn t + 1 of any, and
between two turns of one dialogue lies the whole population: the hardest order for a cache.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from duologue.bench.dialogue_http import BenchError, ChatReading, Client, read_chat_stream
from duologue.bench.dialogue_workload import (
    DialogueState,
    Message,
    Step,
    StepKind,
    WorkloadSpec,
    make_dialogues,
    make_persona,
)
from duologue.bench.server_metrics import KvReading, read_kv

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LoadSpec:
    """How requests are sent.

    Closed loop: `in_flight` at any time. Open loop: `rate_per_s` arrivals per second on average (Poisson), however slow the server
    is. `extra` is added to every request's JSON. Raises ValueError.
    """

    in_flight: int = 4
    rate_per_s: float | None = None
    ignore_eos: bool = True
    warm: bool = True
    model: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise ValueError("at least one request is in flight")
        if self.rate_per_s is not None and self.rate_per_s <= 0:
            raise ValueError("a rate is above 0 requests per second")


@dataclass(frozen=True)
class RequestRecord:
    """One request.

    Times count from the run's start. `processed_tokens` are those of the prompt that the server had processed before (see
    DialogueState), a warm persona included. Without `reading` the request failed, and `error` says how.
    """

    dialogue: int
    turn: int
    kind: StepKind
    started_s: float
    ended_s: float
    processed_tokens: int
    reading: ChatReading | None
    error: str = ""

    @property
    def is_first(self) -> bool:
        """Whether nothing of this dialogue was processed before."""
        return self.turn == 1 and self.kind == "message"


@dataclass(frozen=True)
class Run:
    """All that was recorded.

    `late` counts arrivals (open loop) that had to wait because every dialogue was still awaiting its reply.
    """

    workload: WorkloadSpec
    load: LoadSpec
    model: str
    records: tuple[RequestRecord, ...]
    wall_s: float
    client_cpu_s: float
    persona_tokens: int
    late: int
    kv_before: KvReading | None
    kv_after: KvReading | None


def play(
    url: str,
    workload: WorkloadSpec,
    load: LoadSpec,
    *,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    on_progress: Callable[[str], None] = lambda message: None,
) -> Run:
    """Plays a workload. A dialogue whose request fails ends there, and the failure is recorded.

    Raises BenchError when the server cannot be reached, refuses the first request, or fails on every one.
    """
    return run_loop(_play(url, workload, load, api_key, timeout_s, on_progress))


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """`asyncio.run`, on uvloop where there is one: it takes less of the processor that the server needs."""
    try:
        import uvloop
    except ImportError:  # not available on every platform
        return asyncio.run(main)
    result: _Result = uvloop.run(main)
    return result


async def _play(
    url: str,
    workload: WorkloadSpec,
    load: LoadSpec,
    api_key: str | None,
    timeout_s: float,
    on_progress: Callable[[str], None],
) -> Run:
    client = Client(url, api_key=api_key, timeout_s=timeout_s)
    try:
        player = _Player(client, workload, load, await _model(client, load), on_progress)
        if load.warm:
            on_progress("warming up")
            await player.warm_up()
        kv_before = await read_kv(client)
        cpu_s = time.process_time()
        await player.run()
        cpu_s = time.process_time() - cpu_s
        kv_after = await read_kv(client)
    finally:
        await client.close()
    records = player.records
    if all(record.reading is None for record in records):
        raise BenchError(f"every request failed, the first with: {records[0].error}")
    wall_s = max(record.ended_s for record in records) - min(record.started_s for record in records)
    return Run(
        workload, load, player.model, tuple(records), wall_s, cpu_s, player.persona_tokens, player.late, kv_before, kv_after
    )  # fmt: skip


async def _model(client: Client, load: LoadSpec) -> str:
    if load.model is not None:
        return load.model
    answer = await client.get("/v1/models")
    try:
        return str(json.loads(answer.body())["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise BenchError("the server does not name its models at /v1/models; pass --model") from None


class _Player:
    def __init__(
        self,
        client: Client,
        workload: WorkloadSpec,
        load: LoadSpec,
        model: str,
        on_progress: Callable[[str], None],
    ) -> None:
        self.model = model
        self.records: list[RequestRecord] = []
        self.persona_tokens = 0
        self.late = 0
        self._client = client
        self._workload = workload
        self._load = load
        self._on_progress = on_progress
        self._states = [DialogueState(script) for script in make_dialogues(workload)]
        self._total = sum(len(state.script.steps) for state in self._states)
        self._waiting: asyncio.Queue[DialogueState | None] = asyncio.Queue()
        self._unfinished = len(self._states)
        self._origin_s = 0.0

    async def warm_up(self) -> None:
        """One short reply, so that no first use is measured; with a shared persona this makes it warm, and a second one with all
        but its first word left out tells how many tokens it has."""
        persona = make_persona(self._workload) if self._workload.persona == "shared" else None
        hello: Message = {"role": "user", "content": "Hello."}
        if persona is None:
            await self._probe([hello])
            return
        system: Message = {"role": "system", "content": persona}
        whole = await self._probe([system, hello])
        first_word = await self._probe([{"role": "system", "content": persona.split()[0]}, hello])
        self.persona_tokens = whole.prompt_tokens - first_word.prompt_tokens

    async def _probe(self, messages: list[Message]) -> ChatReading:
        answer = await self._client.post("/v1/chat/completions", self._fields(messages, 1))
        return read_chat_stream(answer)

    def _fields(self, messages: list[Message], reply_tokens: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "max_tokens": reply_tokens,
        }
        if self._load.ignore_eos:
            fields["ignore_eos"] = True
        return fields | self._load.extra

    async def run(self) -> None:
        """Plays all dialogues to their ends."""
        for state in self._states:
            self._waiting.put_nowait(state)
        self._origin_s = time.perf_counter()
        if self._load.rate_per_s is None:
            await asyncio.gather(*(self._work() for _ in range(self._load.in_flight)))
        else:
            await self._arrive(self._load.rate_per_s)

    async def _work(self) -> None:
        while (state := await self._waiting.get()) is not None:
            await self._request(state)
        self._waiting.put_nowait(None)  # the next worker ends too

    async def _arrive(self, rate_per_s: float) -> None:
        generator = random.Random(f"arrivals/{self._workload.seed}")
        due_s = self._origin_s
        running: set[asyncio.Task[None]] = set()
        while True:
            due_s += generator.expovariate(rate_per_s)
            await asyncio.sleep(max(due_s - time.perf_counter(), 0))
            found_none = self._waiting.empty()
            state = await self._waiting.get()
            if state is None:
                break
            self.late += found_none
            task = asyncio.ensure_future(self._request(state))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _request(self, state: DialogueState) -> None:
        step = state.step
        assert step is not None
        messages, processed = state.messages()
        fields = self._fields(list(messages), step.reply_tokens)
        started_s = time.perf_counter()
        reading, error = None, ""
        try:
            reading = read_chat_stream(await self._client.post("/v1/chat/completions", fields))
        except BenchError as failure:
            error = str(failure)
        self._record(state, step, started_s, processed, reading, error)
        if reading is not None:
            state.replied(reading.text, reading.prompt_tokens, reading.completion_tokens)
        if reading is not None and state.step is not None:
            self._waiting.put_nowait(state)
            return
        self._unfinished -= 1
        if self._unfinished == 0:
            self._waiting.put_nowait(None)

    def _record(
        self,
        state: DialogueState,
        step: Step,
        started_s: float,
        processed: int,
        reading: ChatReading | None,
        error: str,
    ) -> None:
        self.records.append(
            RequestRecord(
                dialogue=state.script.number,
                turn=step.turn,
                kind=step.kind,
                started_s=started_s - self._origin_s,
                ended_s=time.perf_counter() - self._origin_s,
                processed_tokens=max(processed, self.persona_tokens),
                reading=reading,
                error=error,
            )
        )
        self._on_progress(f"{len(self.records)} of {self._total} requests")
