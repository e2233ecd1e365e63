"""`duologue serve` as a process: its address, its signals, and a port in use."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.processes import command, environment, run


class Process:
    """A server process. `url` ends with a slash."""

    def __init__(self, model: Path, *options: str) -> None:
        self.process = subprocess.Popen(
            command("serve", str(model), "--port", "0", "--kv-memory", "16MiB", *options),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        said = ""
        while (match := re.search(r"chat page +(http://127\.0\.0\.1:\d+/)", said)) is None:
            line = self.process.stdout.readline()
            assert line, f"the server quit: {self.process.communicate()[1]}"
            said += line
        self.url = match[1]
        self.model = httpx.get(self.url + "v1/models").json()["data"][0]["id"]

    def body(self, **fields: object) -> dict[str, object]:
        messages = [{"role": "user", "content": "Hi"}]
        return {"model": self.model, "messages": messages, "ignore_eos": True, **fields}

    def wait(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def process(tiny_model_dir: Path) -> Iterator[Process]:
    server = Process(tiny_model_dir)
    yield server
    server.process.kill()
    server.process.communicate()


def test_sigterm_drains_and_exits_clean(process: Process) -> None:
    with httpx.stream(
        "POST",
        process.url + "v1/chat/completions",
        json=process.body(stream=True, max_tokens=600),
        timeout=60,
    ) as response:
        lines = response.iter_lines()
        next(lines)
        process.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    code, errors = process.wait()
    assert code == 0
    assert "stopping: 1 replies" in errors
    assert errors.count("\n") == 1


def test_a_second_signal_ends_everything(tiny_model_dir: Path) -> None:
    server = Process(tiny_model_dir, "--drain-timeout", "600")
    with httpx.stream(
        "POST", server.url + "v1/chat/completions", json=server.body(stream=True), timeout=60
    ) as response:
        next(response.iter_lines())
        started_s = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.wait()
    assert time.monotonic() - started_s < 15
    assert "Traceback" not in errors
    assert code == 0


def test_a_port_in_use(tiny_model_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", str(tiny_model_dir), "--port", str(port))
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"error: cannot listen on 127.0.0.1 port {port}: address already in use")


def test_a_budget_too_small_for_one_request(tiny_model_dir: Path) -> None:
    result = run("serve", str(tiny_model_dir), "--port", "0", "--kv-memory", "1")
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "--kv-memory" in result.stderr


def test_limits_that_contradict_each_other(tiny_model_dir: Path) -> None:
    result = run(
        "serve", str(tiny_model_dir), "--port", "0", "--max-num-seqs", "64", "--max-batch-tokens", "8"
    )
    assert result.returncode == 2
    assert "max_num_seqs" in result.stderr
    assert "Traceback" not in result.stderr
