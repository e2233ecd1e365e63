"""`duologue models list`, `pull`, `rm` and `prune`, as users type them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.invoke import CommandLine
from tests.models.hub_case import Hub


def test_from_pull_to_rm(hub: Hub, duologue: CommandLine) -> None:
    code, output, error = duologue("models", "pull", "tiny-org/tiny", "--prepare")
    assert code == 0, error
    assert "tiny-org/tiny is in " in output
    assert "tiny-org/tiny is packed" in output
    code, output, error = duologue("models", "list", "--json")
    assert code == 0, error
    by_name = {entry["name"]: entry for entry in json.loads(output)}
    assert by_name["smollm2-135m"]["path"] is None
    assert by_name["smollm2-135m"]["download_bytes"] > 90_000_000
    tiny = by_name["tiny-org/tiny"]
    assert (tiny["kind"], tiny["packed"], tiny["in_use"]) == ("hub", True, False)
    assert tiny["source_bytes"] > 100_000
    _, table, _ = duologue("models", "list", COLUMNS="100")
    assert "tiny-org/tiny" in table
    assert "just now" in table
    code, _, error = duologue("models", "info", "tiny-org/tiny")
    assert code == 0, error
    code, output, error = duologue("models", "rm", "tiny-org/tiny")
    assert code == 0, error
    assert " in all" in output
    assert "tiny-org/tiny" not in duologue("models", "list")[1]


def test_prune_tells_and_then_removes(hub: Hub, tmp_path: Path, duologue: CommandLine) -> None:
    part = tmp_path / "cache" / "models" / "some-alias" / "x.gguf.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"half")
    assert f"would remove {part}" in duologue("models", "prune", "--dry-run")[1]
    assert part.exists()
    removed = json.loads(duologue("models", "prune", "--json")[1])
    assert removed == [{"path": str(part), "bytes": 4, "reason": "a download that was cut off"}]
    assert not part.exists()
    assert duologue("models", "prune")[1] == "there is nothing to remove\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["pull", "no-such-model"],
            "'no-such-model' is neither an alias (smollm2-135m, gemma3-270m) nor a hub id",
        ),
        (["pull", "tiny-org/none"], "no such model at http://127.0.0.1"),
        (["pull", "gemma3-270m"], "Gemma Terms of Use"),
        (["rm", "no-such-model"], "there is no 'no-such-model'"),
    ],
)
def test_what_is_wrong_is_one_line(hub: Hub, duologue: CommandLine, arguments: list[str], says: str) -> None:
    code, _, error = duologue("models", *arguments)
    assert code == 1
    assert error.count("\n") == 1
    assert says in error
