"""A package index on this machine with small wheels: real pip, real HTTP, no network."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np

from duologue.models.registry import Terms, WheelModel, WheelPart

MEMBER = "tiny_llm/tiny.gguf"
CONTENT = b"GGUF" + np.random.default_rng(0).bytes(200_000)
HOLLOW_CONTENT = b"GGUF" + bytes(2_000_000)
_CUTS = (0, 70_000, 70_001, len(CONTENT))
STRETCHES = [CONTENT[begin:end] for begin, end in pairwise(_CUTS)]


def part_of(content: bytes, number: int = 0) -> WheelPart:
    return WheelPart(
        package=f"tiny-llm-of-these-tests{number or ''}",
        version="1.2.3",
        member=MEMBER,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        download_bytes=len(content),
    )


def model_of(alias: str, content: bytes, *parts: WheelPart, terms: Terms | None = None) -> WheelModel:
    return WheelModel(
        alias=alias,
        file_name=f"{alias}.gguf",
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        parts=parts,
        terms=terms,
    )


MODEL = model_of("tiny", CONTENT, part_of(CONTENT))
# Packs to almost nothing: a disk may hold the wheel and not the file.
HOLLOW = model_of("tiny", HOLLOW_CONTENT, part_of(HOLLOW_CONTENT))
IN_PARTS = model_of("cut", CONTENT, *(part_of(content, i + 1) for i, content in enumerate(STRETCHES)))
TERMS = Terms("tiny", "the Tiny Terms", "https://terms.invalid/tiny")
UNDER_TERMS = model_of("tiny", CONTENT, part_of(CONTENT), terms=TERMS)


def wheel_name(part: WheelPart) -> str:
    return f"{part.package.replace('-', '_')}-{part.version}-py3-none-any.whl"


WHEEL = wheel_name(MODEL.parts[0])


def write_wheel(folder: Path, content: bytes = CONTENT, part: WheelPart = MODEL.parts[0]) -> Path:
    """A wheel of the part's name with this content."""
    path = folder / wheel_name(part)
    info = f"{path.name.removesuffix('-py3-none-any.whl')}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(part.member, content)
        metadata = f"Metadata-Version: 2.1\nName: {part.package}\nVersion: {part.version}\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@dataclass
class Index:
    """`url` is for PIP_INDEX_URL; `downloads` counts requests for wheels, which hang while `stalled`, and `requested` names
    them. Requests for one of the `broken` get half of it."""

    url: str
    downloads: int = 0
    requested: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serve_index(folder: Path) -> Iterator[Index]:
    index = Index("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rstrip("/").rpartition("/")[2]
            is_wheel = name.endswith(".whl")
            links = (
                f'<a href="/{p.name}">{p.name}</a>' for p in folder.glob(f"{name.replace('-', '_')}-*.whl")
            )
            body = (folder / name).read_bytes() if is_wheel else "\n".join(links).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream" if is_wheel else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if is_wheel:
                index.downloads += 1
                index.requested.append(name)
                if name in index.broken:
                    self.wfile.write(body[: len(body) // 2])
                    return
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
