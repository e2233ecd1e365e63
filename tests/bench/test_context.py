from __future__ import annotations

from pathlib import Path

import pytest

from duologue.bench.context import context_dict, context_lines, measure_contexts, plot_contexts
from duologue.models.random_model import write_random_llama


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_random_llama(tmp_path / "little", context_tokens=600)


def test_each_depth_that_fits_is_measured(folder: Path, tmp_path: Path) -> None:
    curves = measure_contexts([str(folder)], [1, 300, 600, 5000], threads=1, repetitions=1)
    assert [(curve.model, curve.depths) for curve in curves] == [("little", (1, 300, 567))]
    assert all(ms > 0 for ms in curves[0].ms_per_token)
    assert [point["depth_tokens"] for point in context_dict(curves)[0]["points"]] == [1, 300, 567]
    assert len(context_lines(curves)) == 4
    plot_contexts(tmp_path / "context.png", curves)
    assert (tmp_path / "context.png").read_bytes().startswith(b"\x89PNG")
