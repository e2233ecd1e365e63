"""`duologue keys` as a process."""

from __future__ import annotations

import json
from pathlib import Path

from duologue.api.keys import KeyRing, read_key_file
from tests.cli.processes import run


def test_a_new_key_is_printed_once_and_its_hash_stored(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    made = [
        run("keys", "new", "acme", "--file", str(file)),
        run("keys", "new", "beta", "--file", str(file), "--comment", "the  app"),
    ]
    assert [result.returncode for result in made] == [0, 0]
    keys = [result.stdout.strip() for result in made]
    ring = KeyRing(read_key_file(file))
    assert [ring.tenant_of(key) for key in keys] == ["acme", "beta"]
    listed = run("keys", "list", "--file", str(file)).stdout
    lines = [line.split() for line in listed.splitlines()]
    assert [line[1] for line in lines] == ["acme", "beta"]
    assert listed.endswith("the app\n")
    rows = json.loads(run("keys", "list", "--file", str(file), "--json").stdout)
    assert [(row["hash"], row["tenant"]) for row in rows] == [(line[0], line[1]) for line in lines]
    assert not any(key in listed + file.read_text() for key in keys)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    bad_name = run("keys", "new", "a b", "--file", str(tmp_path / "keys"))
    missing = run("keys", "list", "--file", str(tmp_path / "none"))
    for result, says in ((bad_name, "cannot name a tenant"), (missing, "none")):
        assert result.returncode == 1
        assert result.stdout == ""
        assert says in result.stderr
        assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
