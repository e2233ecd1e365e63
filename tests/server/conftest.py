"""A real server on a free port, around the tiny engine."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from duologue import Engine
from duologue.server.bind import bind, page_url
from duologue.server.run import Server

_numbers = itertools.count()


@dataclass(frozen=True)
class RunningServer:
    """A server in a thread of this process. `url` ends with a slash."""

    engine: Engine
    server: Server
    thread: threading.Thread
    url: str

    def chat_body(self, content: str = "Hello there", **fields: Any) -> dict[str, Any]:
        return {"model": self.engine.model_name, "messages": [{"role": "user", "content": content}], **fields}

    def post(self, **fields: Any) -> httpx.Response:
        return httpx.post(self.url + "v1/chat/completions", json=self.chat_body(**fields), timeout=200)

    def wait_idle(self) -> None:
        """Until no request holds or awaits pages; every page must be free for others then."""
        wait_until(lambda: self.engine.stats().running + self.engine.stats().waiting == 0)
        stats = self.engine.stats()
        assert stats.kv_pages_free == stats.kv_pages_total


def unique() -> str:
    """A word that no test has used: as a salt or in a prompt it finds nothing in the cache."""
    return f"unique-{next(_numbers)}"


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition stayed false"
        time.sleep(0.005)


@contextlib.contextmanager
def running_server(
    engine: Engine | Mapping[str, Engine], *, wait: bool = True, **options: Any
) -> Iterator[RunningServer]:
    """With `wait` false the server may not answer yet. Of several engines the first is the one that is asked by default."""
    with bind("127.0.0.1", 0) as sock:
        url = page_url(sock)
        server = Server(engine, sock, **options)
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(ready.set,), kwargs={"handle_signals": False})
        thread.start()
        assert not wait or ready.wait(30)
        try:
            first = next(iter(engine.values())) if isinstance(engine, Mapping) else engine
            yield RunningServer(first, server, thread, url)
        finally:
            server.stop()
            server.stop()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def served(tiny_engine: Engine) -> Iterator[RunningServer]:
    with running_server(tiny_engine) as server:
        yield server
