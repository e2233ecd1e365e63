"""`/v1/cache` of a server whose engine has failed."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from duologue import Engine
from tests.server.conftest import running_server, wait_until


def test_nothing_is_said_of_the_cache_after_the_engine_has_failed(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    with (
        Engine.load(tiny_model_dir, kv_memory_bytes=4 << 20, threads=1) as engine,
        running_server(engine) as server,
    ):
        assert server.post(max_tokens=1, prompt_cache_key="k").status_code == 200
        monkeypatch.setattr(engine._runner, "step", failing)
        assert server.post(max_tokens=1).status_code == 500
        wait_until(lambda: engine.failure is not None)
        answers = [
            server.post(max_tokens=1),
            httpx.post(server.url + "v1/cache/lookup", json=server.chat_body()),
            httpx.delete(server.url + "v1/cache/k"),
            httpx.delete(server.url + "v1/cache"),
        ]
    assert [answer.status_code for answer in answers] == [503] * 4
    assert [answer.json()["error"]["code"] for answer in answers] == ["engine_stopped"] * 4
    assert len({answer.text for answer in answers}) == 1
