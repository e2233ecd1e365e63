"""A package index on this machine with one small wheel: real pip, real HTTP, no network."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from duologue.models.registry import WheelModel

MEMBER = "tiny_llm/tiny.gguf"
CONTENT = b"GGUF" + np.random.default_rng(0).bytes(200_000)
MODEL = WheelModel(
    alias="tiny",
    package="tiny-llm-of-these-tests",
    version="1.2.3",
    member=MEMBER,
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    size_bytes=len(CONTENT),
    download_bytes=len(CONTENT),
)
# Packs to almost nothing: a disk may hold the wheel and not the file.
HOLLOW_CONTENT = b"GGUF" + bytes(2_000_000)
HOLLOW = dataclasses.replace(
    MODEL, sha256=hashlib.sha256(HOLLOW_CONTENT).hexdigest(), size_bytes=len(HOLLOW_CONTENT)
)
WHEEL = "tiny_llm_of_these_tests-1.2.3-py3-none-any.whl"


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    info = "tiny_llm_of_these_tests-1.2.3.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(MEMBER, content)
        metadata = f"Metadata-Version: 2.1\nName: {MODEL.package}\nVersion: 1.2.3\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


@dataclass
class Index:
    """`url` is for PIP_INDEX_URL; `downloads` counts requests for the wheel, which hang while `stalled`."""

    url: str
    downloads: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve_index(wheel: Path) -> Iterator[Index]:
    index = Index("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_wheel = self.path.endswith(".whl")
            page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
            body = wheel.read_bytes() if is_wheel else page
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if is_wheel else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if is_wheel:
                index.downloads += 1
                if index.stalled.is_set():
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    index.released.wait(60)
                    return
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index.url = f"http://127.0.0.1:{server.server_port}/simple"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        index.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
