"""`duologue bench`: measurements of the kernels and of the engine, held against the machine's own peaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click

from duologue.cli.bench_cache import cache
from duologue.cli.bench_dialogues import dialogues
from duologue.cli.bench_grammar import grammar
from duologue.cli.bench_lookup import lookup
from duologue.cli.bench_residency import context, residency
from duologue.cli.bench_server import server
from duologue.cli.bench_speculation import speculation
from duologue.cli.completion import complete_model
from duologue.cli.examples import examples
from duologue.models.registry import DEFAULT_MODEL


@click.group(
    epilog=examples(
        "duologue bench kernels --quick",
        "duologue bench engine smollm2-135m",
        "duologue bench dialogues --url http://127.0.0.1:8000",
    )
)
def bench() -> None:
    """Measure kernels or the engine against the machine's peaks."""


bench.add_command(dialogues)
bench.add_command(cache)
bench.add_command(lookup)
bench.add_command(server)
bench.add_command(residency)
bench.add_command(context)
bench.add_command(speculation)
bench.add_command(grammar)


@bench.command(
    epilog=examples(
        "duologue bench kernels --quick", "duologue bench kernels --isa scalar --threads 1 --json"
    )
)
@click.option("--threads", type=click.IntRange(1), help="All cores unless given.")
@click.option("--isa", default="", help="Instruction set: scalar, avx2, avx512vnni.  [default: the best]")
@click.option("--quick", is_flag=True, help="Rough figures within seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kernels(threads: int | None, isa: str, quick: bool, as_json: bool) -> None:
    """int8 GEMM and attention on SmolLM2's shapes."""
    from duologue.bench.attention import WORKLOADS, bench_attention
    from duologue.bench.kernels import DEFAULT_EFFORT, Effort, bench_kernels
    from duologue.cli.bench_report import attention_dicts, attention_lines
    from duologue.engine.threads import default_threads

    threads = threads or default_threads()
    effort = Effort(1, 0.02, 4 << 20, 3, 100_000, 32 << 20) if quick else DEFAULT_EFFORT
    workloads = [work for work in WORKLOADS if work.context <= 512] if quick else WORKLOADS
    with _progress() as say:
        try:
            report = bench_kernels(threads, isa=isa, effort=effort, on_progress=say)
            say("attention")
            attention = bench_attention(workloads, threads=threads, repetitions=2 if quick else 5, isa=isa)
        except RuntimeError as error:  # an instruction set that this CPU lacks
            raise click.BadParameter(str(error), param_hint="--isa") from None
    if as_json:
        result = {**report.as_dict(), "attention": attention_dicts(attention, report.peaks)}
        click.echo(json.dumps(result, indent=2))
    else:
        click.echo("\n".join([*report.lines(), "", *attention_lines(attention, report.peaks)]))


def _labelled_path(text: str) -> tuple[str, Path]:
    label, _, path = text.partition("=")
    if not path:
        raise click.BadParameter(f"'{text}' is not LABEL=GGUF, for example Q8_0=model-q8_0.gguf")
    if not Path(path).is_file():
        raise click.BadParameter(f"'{path}' is not a file")
    return label, Path(path)


@bench.command(
    epilog=examples(
        "duologue bench engine smollm2-135m --workload prefill_512 --workload decode_short",
        "duologue bench engine gemma3-270m --peer Q8_0=model-q8_0.gguf --rounds 2",
        "duologue bench engine --workload streams_32_512 --no-peaks --json",
    )
)
@click.argument("model", default=DEFAULT_MODEL, shell_complete=complete_model)
@click.option("--threads", type=click.IntRange(1), help="All cores unless given.")
@click.option("--repetitions", type=click.IntRange(1), default=3, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Turns with peers.")
@click.option(
    "--workload",
    "names",
    multiple=True,
    help="Only this one, also prefill_N, decode_N or streams_S_N; may be repeated.",
)
@click.option(
    "--peer",
    "peers",
    type=_labelled_path,
    metavar="LABEL=GGUF",
    multiple=True,
    help="Measure llama.cpp beside, on this file; may be repeated.",
)
@click.option("--peaks/--no-peaks", default=True, show_default=True, help="Measure the machine's peaks too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def engine(
    model: str,
    threads: int | None,
    repetitions: int,
    rounds: int,
    names: tuple[str, ...],
    peers: tuple[tuple[str, Path], ...],
    peaks: bool,
    as_json: bool,
) -> None:
    """Prefill and decode of MODEL, at several depths and batch sizes."""
    from duologue.bench.engine import bench_engine
    from duologue.bench.kernels import Effort, measure_peaks
    from duologue.bench.llama_cpp import WORKLOADS, LlamaCpp, default_peers_dir, workload_named
    from duologue.cli.bench_report import engine_dict, print_engine_table
    from duologue.engine.load import require_isa
    from duologue.engine.threads import default_threads

    require_isa()
    try:
        workloads = [workload_named(name) for name in names] or list(WORKLOADS)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--workload") from error
    threads = threads or default_threads()
    peer = LlamaCpp(default_peers_dir()) if peers else None
    # Measured before and after, and the higher reading counts: the clock of a shared machine drifts, and a
    # share of a low peak would flatter.
    readings = []
    with _progress() as say:
        if peaks:
            say("peaks of this machine")
            readings.append(measure_peaks(threads, effort=Effort(peak_repeats=5)))
        results = bench_engine(
            model,
            threads=threads,
            repetitions=repetitions,
            rounds=rounds,
            workloads=workloads,
            peer=peer,
            peer_models=dict(peers),
            on_progress=say,
        )
        if peaks:
            say("peaks of this machine, again")
            readings.append(measure_peaks(threads, effort=Effort(peak_repeats=5)))
    if as_json:
        click.echo(json.dumps(engine_dict(model, threads, results, readings), indent=2))
    else:
        print_engine_table(results, [label for label, _ in peers], readings)


@contextmanager
def _progress() -> Generator[Callable[[str], None], None, None]:
    """A spinner with a message on stderr, if that is a terminal."""
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
