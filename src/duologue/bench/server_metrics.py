"""What a duologue server's metrics say of its KV pool; other servers do not tell."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duologue.bench.dialogue_http import BenchError, Client

# With or without labels: a server may have several models, of which the first counts.
_SAMPLE = re.compile(r"duologue_(kv_\w+|cache_pages\w*)(?:\{.*\})? (\S+)\Z")


@dataclass(frozen=True)
class KvReading:
    """The KV pool at one moment. `used_pages` are those that hold KV, of running requests or cached."""

    bytes_per_token: int
    page_bytes: int
    pages: int
    used_pages: int

    @property
    def is_full(self) -> bool:
        """Whether the next page evicts another."""
        return self.used_pages >= self.pages


async def read_kv(client: Client) -> KvReading | None:
    """From `/metrics`; None where the server has none or does not name these."""
    try:
        answer = await client.get("/metrics")
    except BenchError:
        return None
    if answer.status != 200:
        return None
    return parse_kv(answer.body().decode("utf-8", errors="replace"))


def parse_kv(exposition: str) -> KvReading | None:
    """The same from Prometheus' text."""
    values: dict[str, float] = {}
    for line in exposition.splitlines():
        sample = _SAMPLE.match(line)
        if sample is not None:
            values.setdefault(sample[1], float(sample[2]))
    try:
        pages = int(values["kv_pages"])
        return KvReading(
            bytes_per_token=int(values["kv_bytes_per_token"]),
            page_bytes=int(values["kv_memory_bytes"]) // pages,
            pages=pages,
            # Without a cache the pages in use are those that are not free.
            used_pages=int(values.get("cache_pages", pages - values["kv_pages_free"])),
        )
    except (KeyError, ZeroDivisionError):
        return None
