"""Turns the scheduler's chunks into one native forward step."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from duologue.cache.kv_cache import GLOBAL, LOCAL
from duologue.engine.chunk import Chunk
from duologue.engine.sampling_batch import SamplingBatch
from duologue.errors import CapacityError, InvalidRequestError
from duologue.kernels import PAGE_TOKENS, _native, isa_name

_MAX_THREADS = 1024
_ADDRESS_BYTES = 1 << 47
"""What a process can address on x86-64."""

_NO_PAGES = np.zeros((0, 0), dtype=np.int32)


def debug_checks_enabled() -> bool:
    """Whether every quantiser's input is checked for NaN and infinity (DUOLOGUE_DEBUG=1)."""
    return os.environ.get("DUOLOGUE_DEBUG", "") not in ("", "0")


def _require_memory(kv_bytes: int) -> None:
    """Raise CapacityError for more KV than there can be: the system would grant it and kill the process once it is used."""
    if kv_bytes > _ADDRESS_BYTES:
        raise CapacityError(
            f"{kv_bytes} bytes of KV are more than a process can address ({_ADDRESS_BYTES}); lower --kv-memory"
        )
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kv_bytes > memory_bytes:
        raise CapacityError(
            f"{kv_bytes} bytes of KV are more than this machine's {memory_bytes} bytes of memory; lower --kv-memory"
        )


class Runner:
    """Owns the KV memory and the native executor of one model.

    Raises CapacityError when `page_count` pages of KV do not fit into memory or the system refuses the threads,
    InvalidRequestError when `threads` is out of range, and RuntimeError for an instruction set that the CPU does not have.
    """

    def __init__(
        self,
        model: _native.Model,
        *,
        vocab_size: int,
        page_count: int,
        threads: int,
        isa: str = "",
        local_page_count: int = 0,
    ) -> None:
        if not 1 <= threads <= _MAX_THREADS:
            raise InvalidRequestError(
                f"threads must be between 1 and {_MAX_THREADS}, not {threads}", param="threads"
            )
        page_bytes = (model.global_page_bytes, model.local_page_bytes)
        counts = (page_count, local_page_count)
        kv_bytes = sum(count * size for count, size in zip(counts, page_bytes, strict=True))
        _require_memory(kv_bytes)
        isa_name(isa)
        try:
            self._executor = _native.Executor(model, threads, isa)
        except RuntimeError as error:
            raise CapacityError(
                f"the system refused {threads} engine threads ({error}); lower --threads"
            ) from error
        try:
            # Memory becomes resident when it is first written, so a pool without pages costs nothing.
            self._kv_memory = [
                _native.HugeBuffer(max(1, count * size))
                for count, size in zip(counts, page_bytes, strict=True)
            ]
        except MemoryError as error:
            raise CapacityError(f"the system refused {kv_bytes} bytes for KV; lower --kv-memory") from error
        self.kv_pools: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] = (
            self._pool(GLOBAL, page_count, page_bytes[GLOBAL]),
            self._pool(LOCAL, local_page_count, page_bytes[LOCAL]),
        )
        self._vocab_size = vocab_size
        self._logits: npt.NDArray[np.float32] = np.empty((1, vocab_size), dtype=np.float32)
        self._check_finite = debug_checks_enabled()
        self.forward_s_total = 0.0
        self.sampling = SamplingBatch((), vocab_size)  # of the last step that sampled

    def _pool(self, kind: int, pages: int, page_bytes: int) -> npt.NDArray[np.uint8]:
        return self._kv_memory[kind].array()[: pages * page_bytes].reshape(pages, page_bytes)

    def copy_page(self, kind: int, source: int, destination: int) -> None:
        """Copy the KV of one page; between steps only."""
        pool = self.kv_pools[kind]
        pool[destination] = pool[source]

    @property
    def workspace_bytes(self) -> int:
        """Bytes of activations and logits kept between steps."""
        return int(self._executor.workspace_bytes) + self._logits.nbytes

    def step(
        self, chunks: Sequence[Chunk], *, every_logit: bool = False
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Compute the chunks and sample one token for each that asks, and one more for each of its drafts.

        Returns the sampled ids [1 + drafts of each chunk that samples] in order, and the logits [rows, vocab]: rows of those
        tokens, or of every token of the step when `every_logit`. The logits are a view that the next step overwrites.
        """
        # Between two steps of a decode every call is cold in the caches: few array operations, and none on scalars.
        requests = [chunk.request for chunk in chunks]
        bounds = list(itertools.accumulate((chunk.rows for chunk in chunks), initial=0))
        ends = [request.computed + chunk.rows for request, chunk in zip(requests, chunks, strict=True)]
        columns = -(-max(ends) // PAGE_TOKENS)
        page_tables = [
            np.empty((len(chunks), columns), dtype=np.int32) if pool.shape[1] else _NO_PAGES
            for pool in self.kv_pools
        ]
        for row, request in enumerate(requests):
            assert request.tables is not None
            for kind, page_table in enumerate(page_tables):
                if page_table is not _NO_PAGES:
                    request.tables.copy_table(kind, page_table[row])
        parts = []
        for chunk in chunks:
            computed = chunk.request.computed
            parts.append(chunk.request.tokens[computed : computed + chunk.count])
            if chunk.drafts:
                parts.append(np.array(chunk.drafts, dtype=np.int32))
        tokens = np.concatenate(parts)
        if every_logit:
            logit_tokens = np.arange(bounds[-1], dtype=np.int32)
        else:
            wanted: list[int] = []
            for end, chunk in zip(bounds[1:], chunks, strict=True):
                if chunk.samples:
                    wanted.extend(range(end - 1 - len(chunk.drafts), end))
            logit_tokens = np.array(wanted, dtype=np.int32)
        starts = np.array(bounds, dtype=np.int32)
        first_position = np.array([request.computed for request in requests], dtype=np.int32)
        if len(logit_tokens) > len(self._logits):
            self._logits = np.empty((len(logit_tokens), self._vocab_size), dtype=np.float32)
        logits = self._logits[: len(logit_tokens)]
        sampling = None
        if not every_logit:
            rows = [
                (chunk.request, chunk.drafts[:count])
                for chunk in chunks
                if chunk.samples
                for count in range(1 + len(chunk.drafts))
            ]
            sampling = self.sampling = SamplingBatch(rows, self._vocab_size)
        started = time.perf_counter()
        self._executor.step(
            tokens,
            starts,
            first_position,
            page_tables[GLOBAL],
            page_tables[LOCAL],
            self.kv_pools[GLOBAL],
            self.kv_pools[LOCAL],
            logit_tokens,
            logits,
            sampling.arrays if sampling is not None else None,
            sampling.sampled if sampling is not None else None,
            self._check_finite,
        )
        self.forward_s_total += time.perf_counter() - started
        return sampling.sampled if sampling is not None else np.empty(0, dtype=np.int32), logits
