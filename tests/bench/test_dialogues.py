"""`duologue bench dialogues` against a real server with a tiny model."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from duologue import Engine
from duologue.bench.dialogue_http import BenchError, Client
from duologue.bench.dialogue_report import make_report
from duologue.bench.dialogue_workload import Length, WorkloadSpec
from duologue.bench.dialogues import LoadSpec, Run, play
from duologue.cli.bench import bench
from tests.server.conftest import RunningServer, running_server

SMALL = WorkloadSpec(
    dialogues=5,
    turns=3,
    persona_words=10,
    message_words=Length(5),
    reply_tokens=Length(6),
    regenerate_rate=0.3,
)


@pytest.fixture(scope="module")
def served(tiny_engine: Engine) -> Iterator[RunningServer]:
    with running_server(tiny_engine) as server:
        yield server


@pytest.fixture(scope="module")
def run(served: RunningServer) -> Run:
    return play(served.url, SMALL, LoadSpec(in_flight=2))


def test_every_step_is_played_once_and_in_order(run: Run) -> None:
    assert all(record.reading is not None for record in run.records)
    by_dialogue: dict[int, list[Any]] = {}
    for record in sorted(run.records, key=lambda record: record.started_s):
        by_dialogue.setdefault(record.dialogue, []).append(record)
    assert sorted(by_dialogue) == [0, 1, 2, 3, 4]
    for records in by_dialogue.values():
        assert [record.turn for record in records if record.kind == "message"] == [1, 2, 3]
        for before, after in itertools.pairwise(records):
            assert before.ended_s <= after.started_s
    assert any(record.kind == "regenerate" for record in run.records)


def test_all_dialogues_begin_a_turn_before_any_begins_the_next(served: RunningServer) -> None:
    run = play(
        served.url, WorkloadSpec(dialogues=6, turns=4, message_words=Length(3), persona="none"), LoadSpec(3)
    )
    turns = [record.turn for record in sorted(run.records, key=lambda record: record.started_s)]
    assert turns == sorted(turns)


def test_no_more_requests_are_in_flight_than_asked_for(run: Run) -> None:
    moments = [(record.started_s, 1) for record in run.records] + [
        (record.ended_s, -1) for record in run.records
    ]
    in_flight = most = 0
    for _, change in sorted(moments):
        in_flight += change
        most = max(most, in_flight)
    assert most == 2


def test_replies_have_their_length_and_times(run: Run) -> None:
    for record in run.records:
        reading = record.reading
        assert reading is not None
        assert reading.completion_tokens == 6
        assert reading.cached_tokens is not None
        assert 0 < reading.first_s <= reading.last_s <= record.ended_s - record.started_s
        assert reading.per_token_s == pytest.approx((reading.last_s - reading.first_s) / 5)


def test_processed_tokens_follow_the_replies(run: Run) -> None:
    assert run.persona_tokens > 0
    tokens: dict[tuple[int, int], int] = {}
    for record in run.records:  # in the order of their ends, which is that of their starts within a dialogue
        assert record.reading is not None
        if record.is_first:
            assert record.processed_tokens == run.persona_tokens
        elif record.kind == "message":
            assert record.processed_tokens == tokens[record.dialogue, record.turn - 1] - 1
        assert record.processed_tokens < record.reading.prompt_tokens
        tokens[record.dialogue, record.turn] = record.reading.prompt_tokens + record.reading.completion_tokens


def test_a_second_run_gets_the_same_replies(served: RunningServer, run: Run) -> None:
    again = play(served.url, SMALL, LoadSpec(in_flight=5))
    texts = [
        {
            (record.dialogue, record.turn, record.kind): (record.reading.text, record.reading.prompt_tokens)
            for record in played.records
            if record.reading is not None
        }
        for played in (run, again)
    ]
    assert texts[0] == texts[1]


def test_arrivals_come_at_their_rate_however_slow_the_server_is(served: RunningServer) -> None:
    workload = WorkloadSpec(
        dialogues=40, turns=1, persona="none", message_words=Length(2), reply_tokens=Length(60)
    )
    run = play(served.url, workload, LoadSpec(rate_per_s=400))
    assert run.late == 0
    starts = sorted(record.started_s for record in run.records)
    assert 0.03 < starts[-1] < 0.6  # 0.1 s on average
    # Faster than replies come: later ones start before the first has ended.
    assert sum(start < min(record.ended_s for record in run.records) for start in starts) > 1


def test_arrivals_that_find_no_free_dialogue_are_counted(served: RunningServer) -> None:
    workload = WorkloadSpec(dialogues=1, turns=4, persona="none", message_words=Length(2))
    assert play(served.url, workload, LoadSpec(rate_per_s=1e6)).late > 0


def test_a_failed_request_ends_its_dialogue_only(served: RunningServer) -> None:
    # Words of the tiny model's tokenizer are several tokens: the log-normal messages overflow some contexts.
    workload = WorkloadSpec(dialogues=6, turns=6, persona="none", message_words=Length(60, 0.9))
    run = play(served.url, workload, LoadSpec(in_flight=3))
    failed = [record for record in run.records if record.reading is None]
    assert 0 < len(failed) < 6
    assert all("context" in record.error for record in failed)
    last = {record.dialogue: record for record in run.records}
    assert all(last[record.dialogue] is record for record in failed)
    assert {record.turn for record in last.values() if record.reading is not None} == {6}
    assert make_report(run).everything.errors == len(failed)


def test_a_run_without_any_success_is_an_error(served: RunningServer) -> None:
    workload = WorkloadSpec(dialogues=2, turns=2, message_words=Length(3000), persona="none")
    with pytest.raises(BenchError, match=r"every request failed.*context"):
        play(served.url, workload, LoadSpec())
    with pytest.raises(BenchError, match=r"answered 404: .*other"):
        play(served.url, SMALL, LoadSpec(model="other"))


def test_extra_fields_reach_the_server(served: RunningServer) -> None:
    with pytest.raises(BenchError, match=r"answered 400: .*nonsense"):
        play(served.url, SMALL, LoadSpec(extra={"nonsense": 1}))


@pytest.mark.parametrize("fields", [{"in_flight": 0}, {"rate_per_s": 0}])
def test_loads_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"in flight|rate"):
        LoadSpec(**fields)


def test_the_command_prints_a_table_and_draws(served: RunningServer, tmp_path: Path) -> None:
    plot = tmp_path / "ttft.png"
    words = ["--dialogues=3", "--turns=2", "--persona-words=5", "--message-words=4:0.3", "--reply-tokens=4"]
    done = CliRunner().invoke(bench, ["dialogues", "--url", served.url, *words, "--plot", str(plot)])
    assert done.exit_code == 0, done.output
    assert "6 requests in" in done.stdout
    assert "later turns" in done.stdout
    assert "dialogues per GiB" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG\r\n")

    done = CliRunner().invoke(bench, ["dialogues", "--url", served.url + "v1/", *words, "--json"])
    result = json.loads(done.stdout)
    assert len(result["requests"]) == 6
    assert result["everything"]["requests"] == 6
    assert result["everything"]["errors"] == 0
    assert result["later"]["ttft"]["p50"] > 0
    assert result["kv"]["dialogues_per_gib"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--message-words", "0"], "not a length"),
        (["--extra", "[]"], "not a JSON object"),
        (["--extra", "{"], "not JSON"),
        (["--in-flight", "0"], "x>=1"),
    ],
)
def test_wrong_options_are_named(options: list[str], message: str) -> None:
    done = CliRunner().invoke(bench, ["dialogues", *options])
    assert done.exit_code == 2
    assert message in done.output


def test_a_plot_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["dialogues", "--plot", str(tmp_path / "none" / "x.png")])
    assert "does not exist" in str(done.exception)


class RawServer:
    """Answers every request on a connection with the next of some bytes; closes after those that end with CLOSE."""

    def __init__(self, answers: list[bytes]) -> None:
        self.connections = 0
        self._answers = answers

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._answers:
                await reader.readuntil(b"\r\n\r\n")
                answer = self._answers.pop(0)
                writer.write(answer.removesuffix(CLOSE))
                await writer.drain()
                if answer.endswith(CLOSE):
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


CLOSE = b"<close>"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def exchange(answers: list[bytes], requests: int = 1) -> tuple[list[bytes], int]:
    """Bodies of as many requests, and the connections that they took."""

    async def main() -> tuple[list[bytes], int]:
        server = RawServer(answers)
        async with server as url:
            client = Client(url, timeout_s=5)
            try:
                return [(await client.get("/")).body() for _ in range(requests)], server.connections
            finally:
                await client.close()

    return asyncio.run(main())


def test_connections_are_kept() -> None:
    assert exchange([OK, OK, OK], 3) == ([b"hi"] * 3, 1)


def test_a_connection_that_closed_while_idle_is_replaced() -> None:
    assert exchange([OK, CLOSE, OK], 2) == ([b"hi"] * 2, 2)


def test_an_answer_may_end_with_its_connection() -> None:
    close = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nbye" + CLOSE
    assert exchange([close])[0] == [b"bye"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (CLOSE, "closed the connection without an answer"),
        (b"SSH-2.0-hello\r\n", "does not answer in HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi" + CLOSE, "in the middle of an answer"),
    ],
)
def test_broken_answers_are_named(answer: bytes, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        exchange([answer])


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(BenchError, match=r"127\.0\.0\.1:1 cannot be reached .*is the server running"):
        play("http://127.0.0.1:1", SMALL, LoadSpec())
    for url in ("ftp://x", "http://", "http://x:y", "http://[x"):
        with pytest.raises(BenchError, match="not a server's address"):
            Client(url)


def test_the_client_leaves_no_threads(served: RunningServer) -> None:
    before = threading.active_count()
    play(served.url, WorkloadSpec(dialogues=1, turns=1, persona="none"), LoadSpec())
    assert threading.active_count() == before
