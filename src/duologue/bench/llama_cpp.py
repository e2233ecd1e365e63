"""Speed of llama.cpp on the workloads that our own engine is measured on.

The peer is run through its own tools, `llama-bench` and `llama-batched-bench`, never through a binding, so
that nothing of ours stands between it and its numbers. Every call measures one workload, so that a caller can
alternate between the peer and our engine: on a shared machine the clock drifts by tens of percent within
minutes, and only neighbouring readings compare.

What is timed is what the tools time: the model step alone, without sampling, tokenizing or detokenizing.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from duologue.errors import DuologueError

BUILD_SCRIPT = "scripts/peers/llama_cpp.sh"


class PeerError(DuologueError):
    """The llama.cpp tools are missing, fail, or answer in a form that this module does not know."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to measure: a prefill, or decoding after `depth_tokens` in each of `streams` sequences.

    Exactly one of `prefill_tokens` and `decode_tokens` is positive. `decode_tokens` counts per stream.
    """

    name: str
    prefill_tokens: int = 0
    decode_tokens: int = 0
    depth_tokens: int = 0
    streams: int = 1

    def __post_init__(self) -> None:
        if min(self.prefill_tokens, self.decode_tokens, self.depth_tokens) < 0 or self.streams < 1:
            raise ValueError(f"workload {self.name}: token counts cannot be negative and streams start at 1")
        if (self.prefill_tokens > 0) == (self.decode_tokens > 0):
            raise ValueError(f"workload {self.name}: set either prefill_tokens or decode_tokens")
        if self.streams > 1 and (self.prefill_tokens or not self.depth_tokens):
            raise ValueError(f"workload {self.name}: several streams are only measured decoding, at a depth")


PREFILL_512 = Workload("prefill_512", prefill_tokens=512)
PREFILL_4096 = Workload("prefill_4096", prefill_tokens=4096)
DECODE_SHORT = Workload("decode_short", decode_tokens=128)
DECODE_4096 = Workload("decode_4096", decode_tokens=128, depth_tokens=4096)
STREAMS_32_512 = Workload("streams_32_512", decode_tokens=32, depth_tokens=512, streams=32)
WORKLOADS = (PREFILL_512, PREFILL_4096, DECODE_SHORT, DECODE_4096, STREAMS_32_512)
_NAMED = re.compile(r"(?:prefill|decode|streams_(?P<streams>\d+))_(?P<tokens>\d+)")


def workload_named(name: str) -> Workload:
    """One of `WORKLOADS`, or any size of their kinds: prefill_8192, decode_8192, streams_16_8192. Raises ValueError."""
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    match = _NAMED.fullmatch(name)
    if (
        match is None
        or not 1 <= int(match["tokens"]) <= 1 << 20
        or not 1 <= int(match["streams"] or 1) <= 1024
    ):
        known = ", ".join(workload.name for workload in WORKLOADS)
        raise ValueError(f"{name!r} is none of {known}, nor another prefill_N, decode_N or streams_S_N")
    tokens = int(match["tokens"])
    if name.startswith("prefill"):
        return Workload(name, prefill_tokens=tokens)
    streams = int(match["streams"] or 1)
    return Workload(name, decode_tokens=32 if streams > 1 else 128, depth_tokens=tokens, streams=streams)


FlashAttention = Literal["on", "off", "best"]


@dataclass(frozen=True, slots=True)
class Settings:
    """llama.cpp's own knobs.

    `flash_attention` "best" measures both and keeps the faster reading. The tools' default means "on" for a
    CPU, and no one choice is right: in processor time of one AVX2 core, on Q8_0, "on" took 14 % less for a
    prefill of 512 tokens, but 19 % more for one of 4,096 and 2.4 times as much for decoding after 4,096.
    """

    threads: int = 2
    flash_attention: FlashAttention = "best"
    ubatch_tokens: int = 512

    def __post_init__(self) -> None:
        if self.threads < 1 or self.ubatch_tokens < 1:
            raise ValueError("threads and ubatch_tokens start at 1")


DEFAULT_SETTINGS = Settings()


@dataclass(frozen=True, slots=True)
class Reading:
    """Speeds of one workload; for several streams, of all of them together.

    `samples` holds tokens per second of each repetition, in the order they ran.
    """

    workload: Workload
    model: Path
    settings: Settings
    samples: tuple[float, ...]

    @property
    def repetitions(self) -> int:
        return len(self.samples)

    @property
    def tokens_per_s(self) -> float:
        """Median over the repetitions."""
        return statistics.median(self.samples)


def default_peers_dir() -> Path:
    """Where `scripts/peers/llama_cpp.sh` builds: DUOLOGUE_PEERS_DIR, or `.peers` in the current folder."""
    return Path(os.environ.get("DUOLOGUE_PEERS_DIR") or ".peers")


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """The tools that `scripts/peers/llama_cpp.sh` built in `peers_dir`.

    Raises:
        PeerError: a tool is missing; the message names the script to run.
    """

    peers_dir: Path

    def __post_init__(self) -> None:
        for tool in ("llama-bench", "llama-batched-bench", "llama-quantize"):
            if not os.access(self.tool(tool), os.X_OK):
                raise PeerError(
                    f"llama.cpp's {tool} is not at {self.tool(tool)}. "
                    f"Run {BUILD_SCRIPT} to build it, with DUOLOGUE_PEERS_DIR set to the same folder."
                )

    def tool(self, name: str) -> Path:
        return self.peers_dir / "llama.cpp" / "bin" / name

    def measure(
        self,
        model: Path,
        workload: Workload,
        *,
        repetitions: int = 3,
        settings: Settings = DEFAULT_SETTINGS,
        timeout_s: float = 600.0,
    ) -> Reading:
        """Run one workload `repetitions` times in one process, after the tool's own warm-up.

        With flash attention "best" that is done twice; the reading's settings say which of the two it is.

        Raises:
            PeerError: `model` is missing, the tool fails, or it runs longer than `timeout_s`.
            ValueError: `repetitions` is below 1.
        """
        if repetitions < 1:
            raise ValueError("repetitions start at 1")
        if not model.is_file():
            raise PeerError(f"there is no GGUF file at {model} for llama.cpp to run")
        if settings.flash_attention == "best":
            choices: tuple[FlashAttention, ...] = ("on", "off")
            readings = [
                self.measure(
                    model,
                    workload,
                    repetitions=repetitions,
                    settings=replace(settings, flash_attention=choice),
                    timeout_s=timeout_s,
                )
                for choice in choices
            ]
            return max(readings, key=lambda reading: reading.tokens_per_s)
        if workload.streams == 1:
            command = self._bench_command(model, workload, repetitions, settings)
            samples = _parse_bench(_run(command, timeout_s), workload)
        else:
            command = self._batched_command(model, workload, repetitions, settings)
            samples = _parse_batched(_run(command, timeout_s), workload)
        if len(samples) != repetitions:
            raise PeerError(
                f"{command[0]} gave {len(samples)} readings of {workload.name}, not {repetitions}"
            )
        return Reading(workload, model, settings, samples)

    def requantize(self, source: Path, target: Path, kind: Literal["Q8_0", "Q4_0"]) -> Path:
        """Write `source`'s weights to `target` at another precision, unless it is there; returns `target`.

        `source` may itself be quantised: a comparison needs the same weights, not the best ones.

        Raises:
            PeerError: the tool fails; `target` is then not written.
        """
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
            try:
                command = [str(self.tool("llama-quantize")), "--allow-requantize"]
                _run([*command, str(source), str(partial), kind, "2"], timeout_s=600.0)
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)
        return target

    def _bench_command(
        self, model: Path, workload: Workload, repetitions: int, settings: Settings
    ) -> list[str]:
        return [
            str(self.tool("llama-bench")),
            *("--model", str(model), "--threads", str(settings.threads)),
            *("--n-prompt", str(workload.prefill_tokens), "--n-gen", str(workload.decode_tokens)),
            *("--n-depth", str(workload.depth_tokens), "--repetitions", str(repetitions)),
            *("--flash-attn", settings.flash_attention, "--ubatch-size", str(settings.ubatch_tokens)),
            *("--output", "json"),
        ]

    def _batched_command(
        self, model: Path, workload: Workload, repetitions: int, settings: Settings
    ) -> list[str]:
        context_tokens = workload.streams * (workload.depth_tokens + workload.decode_tokens)
        # -pps prefills one prompt and copies its KV to every stream. The copies are real (KV is not unified
        # here), so decoding reads as much memory as with distinct prompts, and a run takes seconds.
        return [
            str(self.tool("llama-batched-bench")),
            *("--model", str(model), "--threads", str(settings.threads)),
            *("-npp", str(workload.depth_tokens), "-ntg", str(workload.decode_tokens), "-pps"),
            *("-npl", ",".join([str(workload.streams)] * repetitions), "--ctx-size", str(context_tokens)),
            *("--flash-attn", settings.flash_attention, "--ubatch-size", str(settings.ubatch_tokens)),
            *("--output-format", "jsonl"),
        ]


def _run(command: list[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise PeerError(f"{command[0]} ran longer than {timeout_s:.0f} s; raise timeout_s") from None
    except OSError as error:
        raise PeerError(f"{command[0]} does not start ({error}); run {BUILD_SCRIPT} again") from error
    if done.returncode != 0:
        last_lines = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise PeerError(f"{command[0]} failed with status {done.returncode}:\n{last_lines}")
    return done.stdout


def _parse_bench(output: str, workload: Workload) -> tuple[float, ...]:
    """Tokens per second of each repetition, from `llama-bench --output json`."""
    try:
        (entry,) = json.loads(output)
        asked = (workload.prefill_tokens, workload.decode_tokens, workload.depth_tokens)
        if (entry["n_prompt"], entry["n_gen"], entry["n_depth"]) != asked:
            raise PeerError(f"llama-bench measured another workload than {workload.name}: {entry}")
        return tuple(float(sample) for sample in entry["samples_ts"])
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"llama-bench answered in an unknown form ({error!r}): {output[:200]!r}") from error


def _parse_batched(output: str, workload: Workload) -> tuple[float, ...]:
    """Tokens per second of all streams together, from the JSON lines among the tool's log."""
    try:
        entries: list[dict[str, Any]] = [
            json.loads(line) for line in output.splitlines() if line.startswith("{")
        ]
        for entry in entries:
            if (entry["pp"], entry["tg"], entry["pl"]) != (
                workload.depth_tokens,
                workload.decode_tokens,
                workload.streams,
            ):
                raise PeerError(
                    f"llama-batched-bench measured another workload than {workload.name}: {entry}"
                )
        return tuple(float(entry["speed_tg"]) for entry in entries)
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(
            f"llama-batched-bench answered in an unknown form ({error!r}): {output[:200]!r}"
        ) from error
