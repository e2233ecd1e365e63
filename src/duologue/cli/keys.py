"""`duologue keys`: the file of API keys that `duologue serve --api-keys` reads."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import click

from duologue.cli.examples import examples

_file = click.option(
    "--file", "path", type=click.Path(path_type=Path), metavar="FILE", required=True, help="The key file."
)


@click.group(epilog=examples("duologue keys new acme --file keys.txt", "duologue keys list --file keys.txt"))
def keys() -> None:
    """Make and list API keys."""


@keys.command(
    epilog=examples(
        "duologue keys new acme --file keys.txt",
        'duologue keys new acme --file keys.txt --comment "the web shop"',
        "duologue serve --api-keys keys.txt",
    )
)
@click.argument("tenant")
@_file
@click.option("--comment", default="", help="What the key is for; goes into the file.")
def new(tenant: str, path: Path, comment: str) -> None:
    """Make a key for TENANT and print it, once: FILE gets only its hash."""
    from duologue.api.keys import KeyEntry, append_key, check_tenant, key_digest, new_key

    key = new_key()
    noted = " ".join(f"{datetime.date.today().isoformat()} {comment}".split())
    append_key(path, KeyEntry(key_digest(key), check_tenant(tenant), noted))
    click.echo(key)
    click.echo(f"This is the only time that the key is shown; its hash is in {path}.", err=True)


@keys.command(
    "list", epilog=examples("duologue keys list --file keys.txt", "duologue keys list --file keys.txt --json")
)
@_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(path: Path, as_json: bool) -> None:
    """List the tenants in FILE, with the first digits of each key's hash."""
    from duologue.api.keys import read_key_file

    entries = read_key_file(path)
    if as_json:
        rows = [{"hash": e.digest.hex()[:12], "tenant": e.tenant, "comment": e.comment} for e in entries]
        click.echo(json.dumps(rows, indent=2))
        return
    width = max((len(entry.tenant) for entry in entries), default=0)
    for entry in entries:
        click.echo(f"{entry.digest.hex()[:12]}  {entry.tenant:<{width}}  {entry.comment}".rstrip())
