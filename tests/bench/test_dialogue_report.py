"""Reading streams of several servers, and the arithmetic of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duologue.bench.dialogue_http import Answer, BenchError, ChatReading, read_chat_stream
from duologue.bench.dialogue_plot import plot_ttft
from duologue.bench.dialogue_report import Percentiles, Reuse, make_report, report_dict
from duologue.bench.dialogue_workload import StepKind, WorkloadSpec
from duologue.bench.dialogues import LoadSpec, RequestRecord, Run
from duologue.bench.plot import PlotError
from duologue.bench.server_metrics import KvReading, parse_kv


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def delta(text: str | None, reason: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}], **more})


def usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, **details}


def answer(*pieces: tuple[float, bytes], status: int = 200) -> Answer:
    return Answer(started_s=100.0, status=status, ended_s=pieces[-1][0], pieces=list(pieces))


def test_a_stream_with_openai_s_usage() -> None:
    # vLLM: a role first, then tokens, the last with the finish reason; an empty `choices` with the usage.
    last = usage(50, 3, prompt_tokens_details={"cached_tokens": 32})
    reading = read_chat_stream(
        answer(
            (101.0, delta("")),
            (101.5, delta("Hel")),
            (102.0, delta("l\u2028o")),
            (103.0, delta("!", "length") + event({"choices": [], "usage": last}) + b"data: [DONE]\n\n"),
        )
    )
    assert reading == ChatReading("Hel\u2028lo!".replace("\u2028l", "l\u2028"), 50, 3, 32, 1.5, 3.0)
    assert reading.per_token_s == 0.75


def test_a_stream_with_llama_cpp_s_timings() -> None:
    end = delta(None, "length") + event({"choices": [], "usage": usage(9, 2), "timings": {"cache_n": 7}})
    reading = read_chat_stream(answer((101.0, delta("a")), (102.0, delta("b") + end)))
    assert (reading.text, reading.cached_tokens) == ("ab", 7)


def test_events_may_be_cut_anywhere_and_count_when_they_are_whole() -> None:
    whole = delta("a") + delta("b", "stop") + event({"choices": [], "usage": usage(5, 2)})
    for cut in range(1, len(whole)):
        reading = read_chat_stream(answer((101.0, whole[:cut]), (102.0, whole[cut:])))
        assert reading.text == "ab"
        assert reading.cached_tokens is None
        assert reading.first_s == (1.0 if cut >= whole.index(b"\n") + 1 else 2.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer((101.0, b'{"error":{"message":"too\\nlong"}}'), status=400), "answered 400: too long"),
        (answer((101.0, b"<html>"), status=502), "answered 502: <html>"),
        (answer((101.0, delta("a") + event({"error": {"message": "out"}}))), "in the middle of a reply"),
        (answer((101.0, delta("a") + b"data: [DONE]\n\n")), "without usage"),
        (answer((101.0, b"data: {oops\n\n")), "not JSON"),
    ],
)
def test_refusals_and_damage_are_named(given: Answer, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_chat_stream(given)


def test_one_token_has_no_time_per_further_token() -> None:
    assert ChatReading("a", 5, 1, None, 0.1, 0.1).per_token_s is None


def record(
    dialogue: int,
    turn: int,
    prompt: int,
    cached: int | None,
    processed: int,
    *,
    first_s: float = 0.1,
    kind: StepKind = "message",
) -> RequestRecord:
    reading = ChatReading("text", prompt, 11, cached, first_s, first_s + 0.5)
    return RequestRecord(dialogue, turn, kind, float(turn), turn + 1.0, processed, reading)


FAILED = RequestRecord(1, 2, "message", 2.0, 2.5, 0, None, "the server answered 500: no")


def make_run(
    records: list[RequestRecord], before: KvReading | None = None, after: KvReading | None = None
) -> Run:
    return Run(
        WorkloadSpec(dialogues=2, turns=2), LoadSpec(), "m", tuple(records), 2.0, 0.1, 0, 0, before, after
    )


def test_reuse_counts_tokens_and_queries() -> None:
    records = [
        record(0, 1, 100, 0, 0),
        record(1, 1, 100, 50, 60),
        record(0, 2, 200, 150, 140),  # more than known to be processed: counts in full, not beyond
        record(1, 2, 100, 99, 300),  # the server cut the history: all but one token can be reused
        FAILED,
    ]
    reuse = Reuse.of(records)
    assert reuse.by_query == 0.75
    assert reuse.by_token == pytest.approx(299 / 500)
    assert reuse.of_processed == pytest.approx((50 + 140 + 99) / (60 + 140 + 99))
    assert Reuse.of([record(0, 1, 100, None, 50)]) == Reuse(None, None, None)
    assert Reuse.of([record(0, 1, 100, 0, 0)]) == Reuse(0.0, 0.0, None)


def test_a_report_separates_first_and_later_turns() -> None:
    run = make_run(
        [
            record(0, 1, 100, 0, 0, first_s=0.8),
            record(0, 1, 100, 99, 99, first_s=0.2, kind="regenerate"),
            record(0, 2, 200, 110, 110, first_s=0.4),
            FAILED,
        ]
    )
    report = make_report(run)
    assert report.requests_per_s == 1.5
    assert report.output_tokens_per_s == 16.5
    assert report.client_cpu_share == 0.05
    assert (report.everything.requests, report.everything.errors) == (4, 1)
    assert report.first.ttft == Percentiles(0.8, 0.8, 0.8)
    assert report.later.ttft is not None
    assert report.later.ttft.p50 == pytest.approx(0.3)
    assert report.later.tpot is not None
    assert report.later.tpot.p99 == pytest.approx(0.05)
    assert [(turn.name, turn.requests) for turn in report.turns] == [("1", 2), ("2", 2)]
    assert report.kv is None
    result = json.loads(json.dumps(report_dict(run, report)))
    assert result["errors"] == [FAILED.error]
    assert result["requests"][2]["cached_tokens"] == 110
    assert "text" not in result["requests"][0]


def test_percentiles_interpolate() -> None:
    percentiles = Percentiles.of(range(101))
    assert percentiles == Percentiles(50.0, 90.0, 99.0)
    assert Percentiles.of([]) is None


def test_kv_per_dialogue_is_measured_unless_something_was_evicted() -> None:
    records = [record(0, 1, 100, 0, 0), record(0, 2, 189, 0, 0), record(1, 1, 389, 0, 0)]
    before, after = KvReading(10, 640, 100, 2), KvReading(10, 640, 100, 12)
    kv = make_report(make_run(records, before, after)).kv
    assert kv is not None
    assert kv.bytes_if_alone == 10 * (200 + 400) / 2
    assert kv.bytes_measured == 10 * 640 / 2
    assert kv.dialogues_per_gib == (1 << 30) / 3200
    full = make_report(make_run(records, before, KvReading(10, 640, 100, 100))).kv
    assert full is not None
    assert full.bytes_measured is None
    assert full.dialogues_per_gib == (1 << 30) / 3000


def test_metrics_of_our_server_and_of_others() -> None:
    text = (
        "# HELP duologue_kv_pages KV pages in the pool\nduologue_kv_pages 100.0\nduologue_kv_pages_free 90.0\n"
        "duologue_kv_bytes_per_token 24000.0\nduologue_kv_memory_bytes 1.536e+08\nother 1\n"
    )
    assert parse_kv(text) == KvReading(24000, 1536000, 100, 10)
    assert parse_kv(text + "duologue_cache_pages 42.0\n") == KvReading(24000, 1536000, 100, 42)
    assert parse_kv("vllm:kv_cache_usage_perc 0.5\n") is None


def test_a_plot_has_a_line_for_each_report(tmp_path: Path) -> None:
    report = make_report(make_run([record(0, 1, 100, 0, 0), record(0, 2, 100, 0, 0), FAILED]))
    plot_ttft(tmp_path / "one.png", {"a": report})
    plot_ttft(tmp_path / "two.png", {"a": report, "b": report})
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG\r\n")
    assert one != two
    with pytest.raises(PlotError, match="does not exist"):
        plot_ttft(tmp_path / "none" / "x.png", {"a": report})
    with pytest.raises(PlotError, match="cannot be written"):
        plot_ttft(tmp_path, {"a": report})


def test_without_matplotlib_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(PlotError, match=r"pip install 'duologue\[plot\]'"):
        plot_ttft(tmp_path / "x.png", {})
