"""`duologue bench dialogues`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.examples import examples
from duologue.cli.units import FiniteRange
from duologue.cli.workload_options import workload_options

if TYPE_CHECKING:
    from duologue.bench.dialogue_report import Group, Percentiles, Report
    from duologue.bench.dialogue_workload import WorkloadSpec
    from duologue.bench.dialogues import Run


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise click.BadParameter("not a JSON object")
    return value


@click.command(
    epilog=examples(
        "duologue bench dialogues",
        "duologue bench dialogues --dialogues 24 --turns 14 --in-flight 8 --plot ttft.png",
        "duologue bench dialogues --url http://127.0.0.1:8080 --rate 2 --json",
    )
)
@click.option(
    "--url", default="http://127.0.0.1:8000", show_default=True, help="An OpenAI-compatible server."
)
@click.option("--model", help="Name in requests.  [default: the first that the server lists]")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Sent as a bearer token; or OPENAI_API_KEY.")
@workload_options
@click.option(
    "--in-flight", type=click.IntRange(1), default=4, show_default=True, help="Requests at any time."
)
@click.option(
    "--rate", type=FiniteRange(0, min_open=True), help="Arrivals per second, instead of --in-flight."
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Ask for replies of full length; an extension that not every server knows.",
)
@click.option("--warm/--no-warm", default=True, show_default=True, help="Ask once before the clock starts.")
@click.option(
    "--extra", type=_json_object, metavar="JSON", default="{}", help="Fields added to every request."
)
@click.option("--timeout", type=FiniteRange(1), default=600.0, show_default=True, help="Seconds a request.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw TTFT by turn."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every request included.")
def dialogues(
    workload: WorkloadSpec,
    url: str,
    model: str | None,
    api_key: str | None,
    in_flight: int,
    rate: float | None,
    ignore_eos: bool,
    warm: bool,
    extra: dict[str, Any],
    timeout: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Many dialogues with a server: latency by turn, hit rates, requests per second.

    Turn t of all dialogues comes before turn t + 1 of any. Works with any OpenAI-compatible server.
    """
    from rich.console import Console

    from duologue.bench.dialogue_report import make_report, report_dict
    from duologue.bench.dialogues import LoadSpec, play

    if plot is not None:
        from duologue.bench.plot import check_plot

        check_plot(plot)  # before minutes of measuring
    load = LoadSpec(in_flight, rate, ignore_eos, warm, model, extra)
    with Console(stderr=True).status("") as status:
        run = play(url, workload, load, api_key=api_key, timeout_s=timeout, on_progress=status.update)
    report = make_report(run)
    if plot is not None:
        from duologue.bench.dialogue_plot import plot_ttft

        plot_ttft(plot, {run.model: report})
    if as_json:
        click.echo(json.dumps(report_dict(run, report), indent=2))
    else:
        click.echo("\n".join(report_lines(run, report)))


def report_lines(run: Run, report: Report) -> list[str]:
    """The report as text."""
    everything = report.everything
    load = (
        f"{run.load.in_flight} in flight"
        if run.load.rate_per_s is None
        else f"{run.load.rate_per_s:g} arrivals/s"
    )
    lines = [
        f"{run.model}: {everything.requests} requests in {run.wall_s:.1f} s, {load}, {everything.errors} errors",
        f"requests/s {report.requests_per_s:.2f}, reply tokens/s {report.output_tokens_per_s:.1f}; "
        f"this client took {100 * report.client_cpu_share:.1f} % of one core",
    ]
    if run.late:
        lines.append(
            f"{run.late} arrivals found every dialogue busy and came late; raise --dialogues or lower --rate"
        )
    for error in sorted({record.error for record in run.records if record.error})[:5]:
        lines.append(f"error: {error}")
    lines += ["", "                     TTFT ms                  TPOT ms                cached, of"]
    lines += ["turn          p50     p90     p99      p50     p90     p99     prompt  processed  queries"]
    lines += [_group_line(group) for group in (*report.turns, report.first, report.later, everything)]
    if report.kv is not None:
        kv = report.kv
        measured = "not measured" if kv.bytes_measured is None else f"{kv.bytes_measured / 2**20:.2f} MiB"
        lines += [
            "",
            f"KV of a dialogue: {kv.bytes_if_alone / 2**20:.2f} MiB if it shared nothing, {measured} in the pool; "
            f"{kv.dialogues_per_gib:.0f} dialogues per GiB",
        ]
    return lines


def _group_line(group: Group) -> str:
    reuse = group.reuse
    shares = (
        f"{_percent(reuse.by_token):>10} {_percent(reuse.of_processed):>10} {_percent(reuse.by_query):>8}"
    )
    return f"{group.name:<11} {_ms(group.ttft)} {_ms(group.tpot)} {shares}"


def _ms(percentiles: Percentiles | None) -> str:
    if percentiles is None:
        return f"{'-':>7} {'-':>7} {'-':>7}"
    return " ".join(f"{1e3 * s:>7.1f}" for s in (percentiles.p50, percentiles.p90, percentiles.p99))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
