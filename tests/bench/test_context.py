from __future__ import annotations

from pathlib import Path

import pytest

from duologue.bench.context import context_dict, context_lines, measure_contexts, plot_contexts
from duologue.errors import CapacityError
from duologue.models.random_model import write_random_llama


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_random_llama(tmp_path / "little", context_tokens=600)


def test_each_depth_that_fits_is_measured(folder: Path, tmp_path: Path) -> None:
    curves = measure_contexts([str(folder)], [1, 300, 300, 570, 600, 5000], threads=1, repetitions=1)
    assert [(curve.model, curve.depths) for curve in curves] == [("little", (1, 300, 567))]
    assert all(ms > 0 for ms in curves[0].ms_per_token)
    assert [point["depth_tokens"] for point in context_dict(curves)[0]["points"]] == [1, 300, 567]
    assert len(context_lines(curves)) == 4
    plot_contexts(tmp_path / "context.png", curves)
    assert (tmp_path / "context.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("context_tokens", "depths", "says"),
    [(33, [1], "short has a context of 33 tokens"), (34, [35, 64], "no depth fits into the context of .*short, 34 tokens")],
)  # fmt: skip
def test_a_context_without_room_is_refused_by_name(
    context_tokens: int, depths: list[int], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    short = write_random_llama(tmp_path / "short", context_tokens=context_tokens)
    with pytest.raises(CapacityError, match=says):
        measure_contexts([str(short)], depths, threads=1, repetitions=1)


def test_the_shortest_context_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    short = write_random_llama(tmp_path / "short", context_tokens=34)
    assert measure_contexts([str(short)], [1, 16, 34], threads=1, repetitions=1)[0].depths == (1,)
