"""`duologue doctor`: is this machine fit, is the installation sound, and what speed is to be expected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.completion import complete_model
from duologue.cli.config_sources import config_file_of
from duologue.cli.examples import examples
from duologue.errors import DuologueError, SettingError

if TYPE_CHECKING:
    from duologue.bench.engine import EngineReading
    from duologue.bench.kernels import Peaks
    from duologue.cli.doctor_checks import Check

_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command(
    epilog=examples(
        "duologue doctor",
        "duologue doctor gemma3-270m",
        "duologue doctor smollm2-135m --measure",
        "duologue doctor --json | jq '.checks[] | select(.status != \"ok\")'",
    )
)
@click.argument("model", required=False, shell_complete=complete_model)
@click.option(
    "--measure",
    is_flag=True,
    help="Run MODEL for some seconds instead of predicting only; may prepare it first.",
)
@click.option("--threads", type=click.IntRange(1), help="All cores unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, model: str | None, measure: bool, threads: int | None, as_json: bool) -> None:
    """Check this machine, and tell what speed to expect.

    Looks at processor, memory, cache folder, configuration and port, checks the kernels against their references and measures what
    memory and arithmetic can do, in a few seconds. With MODEL, an alias, a GGUF file or a Hugging Face folder, predicts its speed
    from that; nothing is fetched. Exit code 1 if there is a problem.
    """
    if measure and model is None:
        raise click.UsageError("--measure needs a MODEL, for example: duologue doctor smollm2-135m --measure")
    from rich.console import Console

    out, report = Console(highlight=False, soft_wrap=True), _Report(ctx, model, measure, threads)
    with Console(stderr=True).status("looking") as status:
        for check in report.checks(status.update):
            if not as_json:
                _print(out, check)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    elif report.problems == 0:
        out.print("no problems", style="green")
    if report.problems:
        ctx.exit(1)


def _print(out: Any, check: Check) -> None:
    from rich.text import Text

    line = Text.assemble(
        (f"{check.status:<8}", _STYLES[check.status]), f" {check.name:<14} {' '.join(check.text.split())}"
    )
    out.print(line)
    if check.remedy:
        out.print(Text(f"{'':<24}-> {check.remedy}"))


class _Report:
    """Runs the checks one after the other, and keeps what they found."""

    def __init__(self, ctx: click.Context, model: str | None, measure: bool, threads: int | None) -> None:
        self._ctx, self._model, self._measure, self._threads = ctx, model, measure, threads
        self._found: list[Check] = []
        self._figures: dict[str, Any] = {}

    @property
    def problems(self) -> int:
        return sum(check.status == "problem" for check in self._found)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.problems == 0, "checks": [asdict(check) for check in self._found], **self._figures}

    def checks(self, say: Any) -> Iterator[Check]:
        for check in self._all(say):
            self._found.append(check)
            yield check

    def _all(self, say: Any) -> Iterator[Check]:
        from duologue.bench.machine import read_machine
        from duologue.cli import doctor_checks as checks

        machine = read_machine()
        self._figures["machine"] = asdict(machine)
        yield checks.check_program()
        processor = checks.check_processor(machine)
        yield processor
        yield checks.check_cores(machine)
        yield checks.check_memory(machine)
        yield checks.check_cache_folder()
        yield checks.check_packed_models()
        yield checks.check_config(self._ctx, config_file_of(self._ctx))
        yield self._port_check()
        yield checks.check_load(machine)
        if processor.status == checks.PROBLEM:
            return  # no kernels, nothing to check or measure
        say("checking the kernels")
        yield checks.check_kernels()
        say("measuring memory and arithmetic")
        peaks = _peaks(self._threads or machine.engine_threads)
        self._figures["peaks"] = asdict(peaks)
        yield from checks.check_peaks(peaks)
        if self._model is not None:
            yield from self._model_checks(self._model, machine, peaks, say)

    def _port_check(self) -> Check:
        """Of the address where `duologue serve` would listen by environment and file."""
        from duologue.cli import doctor_checks as checks
        from duologue.cli.config import effective_values

        try:
            values = effective_values(self._ctx, ("serve",))
        except SettingError as error:
            return checks.Check("port", checks.PROBLEM, str(error), "correct it, or unset it")
        return checks.check_port(str(values["host"]), int(values["port"]))

    def _model_checks(self, model: str, machine: Any, peaks: Peaks, say: Any) -> Iterator[Check]:
        from duologue.bench.forecast import forecast, local_spec
        from duologue.cli import doctor_checks as checks

        try:
            expected = forecast(local_spec(model), peaks)
            self._figures["forecast"] = asdict(expected)
            yield from checks.check_forecast(model, expected, machine)
            if self._measure:
                say(f"running {model}")
                decode, prefill = _measured(model, self._threads)
                self._figures["measured"] = {
                    "decode_per_s": decode.tokens_per_s,
                    "prefill_per_s": prefill.tokens_per_s,
                }
                text = f"{decode.tokens_per_s:,.1f} tokens/s for one reply, {prefill.tokens_per_s:,.0f} for a prompt of 512"
                yield checks.Check("measured speed", checks.OK, f"{model}: {text}")
        except DuologueError as error:
            message, _, remedy = str(error).rpartition("; ")
            yield checks.Check(
                "model", checks.PROBLEM, message or str(error), remedy if message else "choose another model"
            )


def _peaks(threads: int) -> Peaks:
    from duologue.bench.kernels import Effort, measure_peaks

    return measure_peaks(threads, effort=Effort(peak_repeats=5, peak_rounds=300_000, memory_bytes=128 << 20))


def _measured(model: str, threads: int | None) -> tuple[EngineReading, EngineReading]:
    """(decode, prefill)"""
    from duologue.bench.engine import EngineUnderTest
    from duologue.bench.llama_cpp import workload_named
    from duologue.engine.load import load_for_engine

    workloads = [workload_named("decode_short"), workload_named("prefill_512")]
    engine = EngineUnderTest(load_for_engine(model, progress=True), threads=threads, workloads=workloads)
    decode, prefill = (engine.measure(workload, repetitions=2) for workload in workloads)
    return decode, prefill
