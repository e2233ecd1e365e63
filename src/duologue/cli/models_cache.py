"""`duologue models list`, `pull`, `rm` and `prune`: what is in the cache folder."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from duologue.cli.completion import complete_model
from duologue.cli.examples import examples

if TYPE_CHECKING:
    from duologue.models.cleaning import Removal
    from duologue.models.inventory import Entry


@click.command(
    "list",
    epilog=examples("duologue models list", "duologue models list --json | jq '.[] | select(.in_use)'"),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_models(as_json: bool) -> None:
    """List models: known aliases, and what is in the cache folder, with sizes and last use.

    What was packed of a file or folder of yours is listed under its name; the file itself is not in the cache. A model that is
    packed starts at once; any other is quantised first.
    """
    from duologue.models.inventory import inventory

    entries = inventory()
    if as_json:
        click.echo(json.dumps([_as_dict(entry) for entry in entries], indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for column in ("as it came", "packed", "last used"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for entry in entries:
        came = _size(entry.source_bytes) if entry.path is not None else "-"
        if entry.alias is not None and entry.path is None:
            came = f"{_size(entry.alias.download_bytes)} to fetch"
        table.add_row(
            entry.name,
            entry.kind,
            came,
            _size(entry.packed_bytes) if entry.packed else "-",
            "-" if entry.last_used_s is None else _ago(time.time() - entry.last_used_s),
            "in use" if _in_use(entry) else "outdated" if entry.packed and not entry.is_packed else "",
        )
    Console(highlight=False).print(table)


@click.command(
    epilog=examples(
        "duologue models pull smollm2-135m",
        "duologue models pull Qwen/Qwen3-0.6B --prepare      # and quantise it now",
        "duologue models pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0",
    )
)
@click.argument("name", shell_complete=complete_model)
@click.option(
    "--prepare", "prepares", is_flag=True, help="Quantise it too, so that the first start is quick."
)
@click.option(
    "--accept-terms", is_flag=True, help="You have read and accept the terms of use of NAME, if it has any."
)
def pull(name: str, prepares: bool, accept_terms: bool) -> None:
    """Fetch model NAME, an alias or a hub id such as ORG/NAME@REVISION, into the cache folder.

    Of an id that was fetched before, a newer commit is looked for. A file is chosen among several GGUF files by :FILE or, for
    example, :Q8_0.
    """
    from duologue.errors import ModelLoadError
    from duologue.models.fetch import fetch
    from duologue.models.hub import fetch_from_hub
    from duologue.models.hub_id import parse_hub_id
    from duologue.models.registry import MODELS
    from duologue.models.terms import accept

    alias, hub_id = MODELS.get(name), parse_hub_id(name)
    if alias is not None:
        if accept_terms and alias.terms is not None:
            accept(alias.terms)
        path = fetch(alias, progress=True)
    elif hub_id is not None:
        path = fetch_from_hub(hub_id, progress=True, refresh=True)
    else:
        raise ModelLoadError(
            f"{name!r} is neither an alias ({', '.join(MODELS)}) nor a hub id; give ORG/NAME, and serve files by their path"
        )
    click.echo(f"{name} is in {path}")
    if prepares:
        from duologue.engine.load import load_for_engine

        load_for_engine(name, progress=True)
        click.echo(f"{name} is packed: a start takes seconds")


@click.command(epilog=examples("duologue models rm gemma3-270m", "duologue models rm Qwen/Qwen3-0.6B"))
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rm(name: str, as_json: bool) -> None:
    """Remove model NAME, as 'duologue models list' calls it, from the cache folder.

    What was packed of it goes too. Files and folders outside of the cache stay. A model that a process has loaded is not removed.
    """
    from duologue.models.cleaning import remove

    _print_removals(remove(name), as_json=as_json, verb="removed")


@click.command(epilog=examples("duologue models prune --dry-run", "duologue models prune"))
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prune(dry_run: bool, as_json: bool) -> None:
    """Remove from the cache folder what no start would read.

    These are models packed by other versions of duologue, downloads that were cut off, and older revisions of hub models. What a
    process has loaded or is fetching stays.
    """
    from duologue.models.cleaning import prune as prune_cache

    _print_removals(
        prune_cache(dry_run=dry_run), as_json=as_json, verb="would remove" if dry_run else "removed"
    )


def _print_removals(removals: list[Removal], *, as_json: bool, verb: str) -> None:
    if as_json:
        described = [{"path": str(r.path), "bytes": r.size_bytes, "reason": r.reason} for r in removals]
        click.echo(json.dumps(described, indent=2))
        return
    notes = [removal for removal in removals if removal.path.suffix == ".json"]
    for removal in removals:
        if removal not in notes:
            click.echo(f"{verb} {removal.path} ({_size(removal.size_bytes)}, {removal.reason})")
    if notes:
        click.echo(f"{verb} {len(notes):,} notes about files that are gone")
    total_bytes = sum(removal.size_bytes for removal in removals)
    click.echo(f"{verb} {_size(total_bytes)} in all" if removals else "there is nothing to remove")


def _as_dict(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "path": None if entry.path is None else str(entry.path),
        "source_bytes": entry.source_bytes,
        "download_bytes": None if entry.alias is None else entry.alias.download_bytes,
        "packed": entry.is_packed,
        "packed_bytes": entry.packed_bytes,
        "last_used_s": entry.last_used_s,
        "in_use": _in_use(entry),
        "terms": None if entry.alias is None or entry.alias.terms is None else entry.alias.terms.url,
    }


def _in_use(entry: Entry) -> bool:
    return any(packed.in_use for packed in entry.packed)


def _size(size_bytes: int) -> str:
    if size_bytes < 1_000_000:
        return f"{size_bytes / 1000:,.0f} kB"
    return f"{size_bytes / 1e6:,.0f} MB" if size_bytes < 1_000_000_000 else f"{size_bytes / 1e9:,.1f} GB"


def _ago(seconds: float) -> str:
    for unit, length_s in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // length_s)
        if count:
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
