"""`duologue bench cache`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.examples import examples
from duologue.cli.units import FiniteRange
from duologue.cli.workload_options import workload_options

if TYPE_CHECKING:
    from duologue.bench.cache_simulation import Hits, Overcommit
    from duologue.bench.dialogue_workload import WorkloadSpec


@click.command(
    epilog=examples(
        "duologue bench cache", "duologue bench cache --dialogues 24 --turns 14 --overcommit 2 --json"
    )
)
@workload_options
@click.option(
    "--overcommit",
    "factors",
    type=FiniteRange(0.01),
    multiple=True,
    help="Working set over budget; may be repeated.  [default: 1, 2 and 4, as far as the largest request fits]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cache(workload: WorkloadSpec, factors: tuple[float, ...], as_json: bool) -> None:
    """Hit rates of the prefix index when the budget is too small, beside the offline optimum.

    A simulation: the engine's own index runs over the token ids of the dialogues that `bench dialogues` plays, without a model.
    """
    from duologue.bench.cache_simulation import compare, fitting_factors
    from duologue.bench.cache_trace import make_trace

    trace = make_trace(workload)
    if not factors:
        rows = compare(trace, fitting_factors(trace))
    else:
        try:
            rows = compare(trace, factors)
        except ValueError as error:  # a budget that one request does not fit into
            raise click.BadParameter(str(error), param_hint="--overcommit") from None
    if as_json:
        click.echo(json.dumps([_row_dict(row) for row in rows], indent=2))
    else:
        click.echo("\n".join(_lines(rows, len(trace))))


def _lines(rows: list[Overcommit], requests: int) -> list[str]:
    lines = [
        f"{requests} requests; cached tokens, of the prompt and (of what a cache without limit finds)",
        "budget         pages      this index       plain LRU         optimum",
    ]
    for row in rows:
        shares = " ".join(_shares(hits) for hits in (row.index, row.recency, row.optimum))
        lines.append(f"1/{row.factor:<8g} {row.pages:>9} {shares}")
    return lines


def _shares(hits: Hits) -> str:
    return f"{100 * hits.by_token:>6.1f} ({100 * hits.of_reusable:>5.1f}) %"


def _row_dict(row: Overcommit) -> dict[str, Any]:
    result: dict[str, Any] = {"overcommit": row.factor, "pages": row.pages}
    for name, hits in (("index", row.index), ("recency", row.recency), ("optimum", row.optimum)):
        rates = {"by_query": hits.by_query, "by_token": hits.by_token, "of_reusable": hits.of_reusable}
        result[name] = {**asdict(hits), **rates}
    return result
