"""Speed of the int8 GEMM on a model's shapes, beside what this machine's instructions and memory can do.

The peaks are measured in the same run: multiply-adds on registers alone (the fastest exact sequence that the
instruction set has) and plain reading of memory. Every weight stands in memory many times over and each copy
is used once per pass, so that the weights of one product are out of cache, as they are in a model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from duologue.kernels import _native, isa_name
from duologue.kernels.gemm import Epilogue, PackedWeight, pack_weight
from duologue.kernels.rows import padded_depth

ROWS = (1, 8, 32, 128, 512)
"""Rows of activations: one stream, batched decoding, prefill chunks."""

_INT8_SEQUENCES = 3


@dataclass(frozen=True)
class Effort:
    """How much is measured. The defaults take about a minute on a quiet machine of two cores."""

    passes: int = 5
    """Passes over the copies of a weight, after one that is not counted."""
    pass_s: float = 0.2
    """A pass ends about here even when not all copies were used."""
    weight_bytes: int = 96 << 20
    """Bytes of copies of one weight: well over a last-level cache."""
    peak_repeats: int = 20
    peak_rounds: int = 1_000_000
    """Rounds of a register loop in each repeat, of about 8 cycles."""
    memory_bytes: int = 256 << 20
    """Bytes read in each repeat of the bandwidth reading."""


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True)
class GemmShape:
    """One linear map, y = x W^T with W [n, k]."""

    name: str
    n: int
    k: int
    gated: bool = False


SMOLLM2_135M = (
    GemmShape("qkv", 960, 576),
    GemmShape("output", 576, 576),
    GemmShape("gate_up", 3072, 576, gated=True),
    GemmShape("down", 576, 1536),
    GemmShape("head", 49152, 576),
)


@dataclass(frozen=True)
class Peaks:
    """The most that this machine did in this run, with `threads` threads unless said otherwise."""

    isa: str
    threads: int
    int8_ops_per_s: float
    int8_ops_per_s_one_thread: float
    fp32_ops_per_s: float
    read_bytes_per_s: float
    read_bytes_per_s_one_thread: float


@dataclass(frozen=True)
class GemmReading:
    """One shape at `m` rows; `samples_s` are seconds of one product, a mean over copies for each pass."""

    shape: GemmShape
    m: int
    samples_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Median over the passes."""
        return statistics.median(self.samples_s)

    @property
    def ops_per_s(self) -> float:
        """int8 operations, two for each multiply-add."""
        return 2 * self.m * self.shape.n * self.shape.k / self.seconds

    @property
    def weight_bytes_per_s(self) -> float:
        return self.shape.n * self.shape.k / self.seconds


@dataclass(frozen=True)
class KernelReport:
    peaks: Peaks
    readings: tuple[GemmReading, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "peaks": asdict(self.peaks),
            "gemm": [
                {
                    **asdict(reading),
                    "ops_per_s": reading.ops_per_s,
                    "weight_bytes_per_s": reading.weight_bytes_per_s,
                    "share_of_int8_peak": self.share_of_int8_peak(reading),
                    "share_of_bandwidth": self.share_of_bandwidth(reading),
                }
                for reading in self.readings
            ],
        }

    def share_of_int8_peak(self, reading: GemmReading) -> float | None:
        """None where the instruction set has no loop that shows its peak."""
        return reading.ops_per_s / self.peaks.int8_ops_per_s if self.peaks.int8_ops_per_s else None

    def share_of_bandwidth(self, reading: GemmReading) -> float:
        return reading.weight_bytes_per_s / self.peaks.read_bytes_per_s

    def lines(self) -> list[str]:
        """The report as a table of text."""

        def giga(value: float) -> str:
            return f"{value / 1e9:7.1f}"

        peaks = self.peaks
        lines = [
            f"{peaks.isa}, {peaks.threads} threads (one thread in brackets)",
            f"int8 peak     {giga(peaks.int8_ops_per_s)} GOP/s ({giga(peaks.int8_ops_per_s_one_thread)})",
            f"fp32 peak     {giga(peaks.fp32_ops_per_s)} GFLOP/s, multiply and add not fused",
            f"memory reads  {giga(peaks.read_bytes_per_s)} GB/s ({giga(peaks.read_bytes_per_s_one_thread)})",
            "",
            "   M  map             N x K        us   GOP/s  %peak   GB/s  %reads",
        ]
        for reading in self.readings:
            shape, share = reading.shape, self.share_of_int8_peak(reading)
            percent = "" if share is None else f"{100 * share:.0f}"
            size = f"{shape.n} x {shape.k}"
            lines.append(
                f"{reading.m:>4}  {shape.name:<8} {size:>12} {1e6 * reading.seconds:>9.1f} "
                f"{reading.ops_per_s / 1e9:>7.1f} {percent:>6} {reading.weight_bytes_per_s / 1e9:>6.1f} "
                f"{100 * self.share_of_bandwidth(reading):>7.0f}"
            )
        return lines


def measure_peaks(threads: int, *, isa: str = "", effort: Effort = DEFAULT_EFFORT) -> Peaks:
    """Run the register loops and the memory reader; each figure is the best of its repeats."""
    rounds, repeats = effort.peak_rounds, effort.peak_repeats

    def int8(count: int) -> float:
        samples = [_native.int8_peak(s, count, rounds, repeats, isa) for s in range(_INT8_SEQUENCES)]
        return max(map(max, samples))

    def reads(count: int) -> float:
        return max(_native.read_bandwidth(effort.memory_bytes, count, repeats, isa))

    return Peaks(
        isa=isa_name(isa),
        threads=threads,
        int8_ops_per_s=int8(threads),
        int8_ops_per_s_one_thread=int8(1),
        fp32_ops_per_s=max(_native.fp32_peak(threads, rounds, repeats, isa)),
        read_bytes_per_s=reads(threads),
        read_bytes_per_s_one_thread=reads(1),
    )


def _higher(a: Peaks, b: Peaks) -> Peaks:
    figures = [field.name for field in fields(Peaks) if field.name.endswith(("_per_s", "_one_thread"))]
    return replace(a, **{name: max(getattr(a, name), getattr(b, name)) for name in figures})


def _weight(shape: GemmShape) -> PackedWeight:
    rng = np.random.default_rng(shape.n * shape.k)
    codes = rng.integers(-127, 128, (shape.n, shape.k), dtype=np.int8)
    return pack_weight(codes, np.full(shape.n, 1e-3, np.float32), gated=shape.gated)


def measure_gemm(
    shape: GemmShape,
    packed: PackedWeight,
    m: int,
    threads: int,
    *,
    peak_ops_per_s: float = 1e11,
    isa: str = "",
    effort: Effort = DEFAULT_EFFORT,
) -> GemmReading:
    """Time one shape at `m` rows, columns cut over the threads; the peak bounds how many copies are used."""
    rng = np.random.default_rng(m)
    a = np.zeros((m, padded_depth(shape.k)), dtype=np.int8)
    a[:, : shape.k] = rng.integers(-127, 128, (m, shape.k), dtype=np.int8)
    least_s = 2 * m * shape.n * shape.k / peak_ops_per_s
    copies = max(2, min(-(-effort.weight_bytes // packed.codes.nbytes), int(effort.pass_s / least_s)))
    out = np.zeros((m, packed.n_out), dtype=np.float32)
    scale = np.full(m, 1e-3, np.float32)
    epilogue = Epilogue.GATED_SILU if shape.gated else Epilogue.STORE
    samples = _native.time_gemm(a, scale, packed, int(epilogue), out, copies, threads, effort.passes, isa)
    return GemmReading(shape, m, tuple(samples))


def bench_kernels(
    threads: int,
    *,
    isa: str = "",
    rows: Sequence[int] = ROWS,
    shapes: Sequence[GemmShape] = SMOLLM2_135M,
    effort: Effort = DEFAULT_EFFORT,
    on_progress: Callable[[str], None] | None = None,
) -> KernelReport:
    """Measure the machine's peaks and the int8 GEMM of every shape at every number of rows.

    The peaks are measured before and after, and the higher reading of each counts: on a shared machine the
    clock drifts, and a share of a low peak would flatter. Raises RuntimeError for an instruction set that the
    CPU lacks.
    """
    progress = on_progress or (lambda _: None)
    progress("peaks of this machine")
    peaks = measure_peaks(threads, isa=isa, effort=effort)
    peak_ops_per_s = peaks.int8_ops_per_s or 1e9 * threads
    readings = []
    for shape in shapes:
        packed = _weight(shape)
        for m in rows:
            progress(f"{shape.name}, {m} rows")
            readings.append(
                measure_gemm(shape, packed, m, threads, peak_ops_per_s=peak_ops_per_s, isa=isa, effort=effort)
            )
    progress("peaks of this machine, again")
    peaks = _higher(peaks, measure_peaks(threads, isa=isa, effort=effort))
    readings.sort(key=lambda reading: reading.m)
    return KernelReport(peaks, tuple(readings))
