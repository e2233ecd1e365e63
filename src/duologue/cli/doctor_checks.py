"""The checks of `duologue doctor`: each looks at one thing and says what it found, and what to do if that is bad."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import click

import duologue
from duologue.bench.forecast import PROMPT_TOKENS, Forecast
from duologue.bench.kernels import Peaks
from duologue.bench.machine import Machine
from duologue.cli.config_file import ConfigFile
from duologue.cli.config_keys import leaf_commands, settings_of
from duologue.cli.config_sources import file_values
from duologue.errors import DuologueError, ModelLoadError, SettingError
from duologue.kernels import isa_name
from duologue.kernels.self_check import runnable_isas, wrong_kernels
from duologue.models.safetensors_file import read_header
from duologue.models.store import CACHE_VARIABLE, cache_folder
from duologue.server.bind import bind

OK, WARNING, PROBLEM = "ok", "warning", "problem"
GIB = 1 << 30
_LOW_DISK_BYTES = 2 * GIB


@dataclass(frozen=True)
class Check:
    """One line: `status` is OK, WARNING or PROBLEM; the last two have a remedy."""

    name: str
    status: str
    text: str
    remedy: str = ""


def check_program() -> Check:
    return Check(
        "duologue",
        OK,
        f"{duologue.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}",
    )


def check_processor(machine: Machine) -> Check:
    """Which kernels will run, and why not better ones."""
    try:
        chosen = isa_name()
    except RuntimeError as error:
        return Check("kernels", PROBLEM, str(error), "unset DUOLOGUE_ISA")
    text = f"{chosen} on {machine.processor} ({', '.join(machine.features) or 'no vector features that kernels use'})"
    best = runnable_isas()[-1]
    if chosen != best and os.environ.get("DUOLOGUE_ISA"):
        return Check(
            "kernels", WARNING, f"{text}; this processor can run {best}", "unset DUOLOGUE_ISA for more speed"
        )
    if chosen == "scalar":
        return Check(
            "kernels",
            WARNING,
            text,
            "without AVX2 everything takes many times as long; use another processor",
        )
    return Check("kernels", OK, text)


def check_cores(machine: Machine) -> Check:
    text = f"{machine.engine_threads} engine threads; {machine.usable_cores} of {machine.cores} cores may be used"
    if machine.engine_threads < machine.usable_cores:
        return Check(
            "cores",
            WARNING,
            f"{text}, but a CPU quota allows fewer",
            "raise the container's CPU limit to use them all",
        )
    if machine.usable_cores < machine.cores:
        return Check("cores", WARNING, text, "widen the process's CPU affinity to use the others")
    return Check("cores", OK, text)


def check_memory(machine: Machine) -> Check:
    if machine.memory_bytes is None or machine.available_bytes is None:
        return Check("memory", OK, "unknown on this system")
    limit = "" if machine.limit_bytes is None else f", limited to {gib(machine.limit_bytes)}"
    text = f"{gib(machine.available_bytes)} available of {gib(machine.memory_bytes)}{limit}"
    if machine.available_bytes < GIB:
        return Check(
            "memory",
            WARNING,
            text,
            "the default model and 1 GiB of KV want 1.3 GiB: free some, or lower --kv-memory",
        )
    return Check("memory", OK, text)


def check_cache_folder() -> Check:
    """Whether models can be stored."""
    folder = cache_folder()
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            free_bytes = shutil.disk_usage(there).free
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return Check(
            "cache folder",
            PROBLEM,
            f"{folder} cannot be written ({reason})",
            f"set {CACHE_VARIABLE} to another folder",
        )
    text = f"{folder}, {gib(free_bytes)} free"
    if free_bytes < _LOW_DISK_BYTES:
        return Check(
            "cache folder", WARNING, text, f"a model takes twice its size: make room, or set {CACHE_VARIABLE}"
        )
    return Check("cache folder", OK, text)


def check_packed_models() -> Check:
    """Whether the packed models are whole, by their headers and sizes."""
    paths = sorted(cache_folder().glob("packed/*.safetensors"))
    damaged, total_bytes = [], 0
    for path in paths:
        try:
            total_bytes += read_header(path).size_bytes
        except (ModelLoadError, OSError) as error:
            damaged.append((path, error))
    text = f"{len(paths)} packed, {gib(total_bytes)}" if paths else "none packed yet"
    if damaged:
        path, reason = damaged[0]
        remove = shlex.join(["rm", *(str(path) for path, _ in damaged)])
        return Check("models", WARNING, f"{text}; {len(damaged)} damaged: {path.name}: {reason}", remove)
    return Check("models", OK, text)


def check_config(ctx: click.Context, file: ConfigFile) -> Check:
    """The values of every command, where a run checks its own alone."""
    root = ctx.find_root()
    assert isinstance(root.command, click.Group)
    count = 0
    try:
        for path, command in leaf_commands(root.command, root):
            count += len(file_values(file, settings_of(command, path), ctx))
    except SettingError as error:
        return Check("configuration", PROBLEM, str(error), "correct it there, or pass another --config")
    if file.path is None:
        return Check("configuration", OK, "no file; defaults, environment and flags")
    return Check("configuration", OK, f"{file.path}, {count} settings")


def check_port(host: str, port: int) -> Check:
    """Whether `duologue serve` could listen."""
    try:
        bind(host, port).close()
    except DuologueError as error:
        return Check("port", WARNING, str(error), "stop what listens there, or serve elsewhere")
    return Check("port", OK, f"{host} port {port} is free" if port else f"{host}, any free port")


def check_kernels() -> Check:
    wrong = [f"{name} ({isa})" for isa in runnable_isas() for name in wrong_kernels(isa)]
    if wrong:
        return Check(
            "self-check",
            PROBLEM,
            f"wrong results from {', '.join(wrong)}",
            "set DUOLOGUE_ISA=scalar, and report this with the processor's name",
        )
    return Check(
        "self-check", OK, f"kernels agree with their references bit for bit: {', '.join(runnable_isas())}"
    )


def check_peaks(peaks: Peaks) -> Iterator[Check]:
    """What memory and arithmetic can do, and whether something else ran beside the measurement."""
    threads, one = f"with {peaks.threads} threads", "with one"
    reads = (peaks.read_bytes_per_s / 1e9, peaks.read_bytes_per_s_one_thread / 1e9)
    yield Check("memory reads", OK, f"{reads[0]:.1f} GB/s {threads}, {reads[1]:.1f} {one}")
    if peaks.int8_ops_per_s:
        ops = (peaks.int8_ops_per_s / 1e9, peaks.int8_ops_per_s_one_thread / 1e9)
        yield Check("int8 peak", OK, f"{ops[0]:,.0f} GOP/s {threads}, {ops[1]:,.0f} {one}")


def check_load(machine: Machine) -> Check:
    """Whether other processes take the cores, and so make the measurements read low."""
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    text = f"{busy:.1f} of {machine.usable_cores} cores busy in the last minute"
    if busy > 0.5 * machine.usable_cores:
        return Check(
            "load", WARNING, text, "figures measured now are low; stop what runs beside for true ones"
        )
    return Check("load", OK, text)


def check_forecast(name: str, expected: Forecast, machine: Machine) -> Iterator[Check]:
    text = f"{name}: {_range(expected.decode_per_s)} tokens/s for one reply"
    if expected.prefill_per_s is not None:
        text += f", {_range(expected.prefill_per_s)} for a prompt of {PROMPT_TOKENS} tokens"
    yield Check("expected speed", OK, f"{text} (a prediction; --measure runs it)")
    text = f"{gib(expected.weight_bytes)} of weights in int8"
    available = machine.available_bytes
    if available is not None and expected.weight_bytes > available:
        remedy = "free memory, raise the container's limit, or choose a smaller model"
        yield Check("model's memory", PROBLEM, f"{text}, more than the {gib(available)} available", remedy)
    else:
        yield Check("model's memory", OK, text)


def _range(rates: tuple[float, float]) -> str:
    low, high = (f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" for rate in rates)
    return f"{low} to {high}"


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
