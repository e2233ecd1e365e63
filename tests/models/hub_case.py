"""A hub on this machine that answers as Hugging Face's does: real HTTP, and the real client in front of it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".gguf")  # stored apart, with their SHA-256


@dataclass
class Repository:
    """`token`: only who shows it may read; with `gated`, who does not is told to accept terms."""

    folder: Path
    commit: str = "1" * 40
    branches: tuple[str, ...] = ("main",)
    gated: bool = False
    token: str | None = None


@dataclass
class Hub:
    """`requests` are (method, path, Range); `cut` names files whose next answers end after so many bytes; `damaged` ones lie."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    cut: dict[str, list[int]] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    failing: bool = False

    def sent(self) -> list[str]:
        """Names of files whose contents were asked for, in order."""
        return [
            path.rpartition("/")[2]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        ]


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("Range")))
            parts = path.strip("/").split("/")
            if hub.failing:
                self._answer(503, b"")
            elif parts[:2] == ["api", "models"]:
                self._describe("/".join(parts[2:4]), "/".join(parts[5:]) or "main")
            else:
                self._file("/".join(parts[:2]), "/".join(parts[4:]))

        def do_HEAD(self) -> None:
            self.do_GET()

        def _repository(self, name: str) -> Repository | None:
            repository = hub.repositories.get(name)
            if repository is None:
                self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
            elif repository.token and self.headers.get("Authorization") != f"Bearer {repository.token}":
                code = "GatedRepo" if repository.gated else "RepoNotFound"
                self._answer(403 if repository.gated else 401, b"", {"X-Error-Code": code})
            else:
                return repository
            return None

        def _describe(self, name: str, revision: str) -> None:
            repository = self._repository(name)
            if repository is None:
                return
            if revision not in (*repository.branches, repository.commit):
                self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
                return
            siblings = []
            for path in sorted(p for p in repository.folder.rglob("*") if p.is_file()):
                content = path.read_bytes()
                sibling = {"rfilename": path.relative_to(repository.folder).as_posix(), "size": len(content)}
                if path.suffix in LARGE:
                    digest = hashlib.sha256(content).hexdigest()
                    sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
                siblings.append(sibling)
            body = {"id": name, "modelId": name, "sha": repository.commit, "siblings": siblings, "tags": []}
            self._answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

        def _file(self, name: str, file: str) -> None:
            repository = self._repository(name)
            if repository is None:
                return
            path = repository.folder / file
            if not path.is_file():
                self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                return
            content = path.read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": repository.commit}
            if file in hub.damaged:
                content = bytes(len(content))
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            if begin:
                headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            self._answer(206 if begin else 200, content[begin:], headers, cut=hub.cut.get(file))

        def _answer(
            self,
            status: int,
            body: bytes,
            headers: dict[str, str] | None = None,
            cut: list[int] | None = None,
        ) -> None:
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                if cut:
                    body = body[: cut.pop(0)]
                    self.close_connection = True
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
