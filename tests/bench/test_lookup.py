"""The lookup benchmark on a small index; its figures are not judged."""

from __future__ import annotations

import json

from click.testing import CliRunner

from duologue.cli.bench import bench

ARGUMENTS = ["lookup", "--pages", "3000", "--dialogues", "80", "--prompt-tokens", "1280", "--lookups", "50"]


def test_lookups_as_text_and_json() -> None:
    text = CliRunner().invoke(bench, ARGUMENTS)
    assert text.exit_code == 0, text.output
    assert "microseconds" in text.output
    result = json.loads(CliRunner().invoke(bench, [*ARGUMENTS, "--json"]).output)
    assert 0 < result["p50_us"] <= result["p99_us"]
    assert 2000 < result["pages"] <= 3000
    assert 300 < result["index_bytes_per_page"] < 1500


def test_an_index_too_small_for_one_prompt_is_an_error() -> None:
    result = CliRunner().invoke(
        bench, ["lookup", "--pages", "1000", "--prompt-tokens", "100000", "--dialogues", "8"]
    )
    assert result.exit_code == 2
    assert "--pages" in result.output
