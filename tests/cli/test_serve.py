"""`duologue serve` as a process: its address, its signals, and a port in use."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.cli.processes import command, environment, run
from tests.server.conftest import wait_until


class Process:
    """A server process. `url` ends with a slash."""

    def __init__(self, model: Path | str, *options: str, key: str = "") -> None:
        self.process = subprocess.Popen(
            command("serve", str(model), "--port", "0", "--kv-memory", "16MiB", *options),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Tests may run where hang-ups are ignored (nohup), which a child would inherit.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        assert self.process.stdout is not None
        said = ""
        while (match := re.search(r"chat page +(http://127\.0\.0\.1:\d+/)", said)) is None:
            line = self.process.stdout.readline()
            assert line, f"the server quit: {self.process.communicate()[1]}"
            said += line
        self.url = match[1]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.model = httpx.get(self.url + "v1/models", headers=headers).json()["data"][0]["id"]

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


def test_sighup_reads_the_keys_again_and_mistakes_change_nothing(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    first = run("keys", "new", "acme", "--file", str(file)).stdout.strip()
    server = Process(tiny_model_dir, "--api-keys", str(file), key=first)

    def status(key: str) -> int:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(server.url + "v1/models", headers=headers).status_code

    try:
        assert status("wrong") == 401
        second = run("keys", "new", "beta", "--file", str(file)).stdout.strip()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status(second) == 200)
        assert status(first) == 200
        file.write_text("half a line")
        server.process.send_signal(signal.SIGHUP)
        time.sleep(0.1)
        assert status(first) == status(second) == 200
    finally:
        server.process.terminate()
    code, errors = server.wait()
    assert code == 0
    assert errors.count("line 1") == 1, errors


def test_personas_are_warm_when_the_server_says_so(tiny_model_dir: Path, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "You keep a lighthouse. " * 20}]
    for name in "ab":
        (tmp_path / f"{name}.json").write_text(json.dumps({"messages": messages, "cache_salt": name}))
    # As a shell expands --warm *.json
    server = Process(tiny_model_dir, "--warm", str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    try:
        body = server.body(messages=[*messages, {"role": "user", "content": "Hi"}], max_tokens=1)
        cached = [
            httpx.post(server.url + "v1/chat/completions", json={**body, "cache_salt": salt}).json()["usage"][
                "prompt_tokens_details"
            ]["cached_tokens"]
            for salt in ("a", "b", "c")
        ]
    finally:
        server.process.terminate()
        server.process.communicate()
    assert cached[0] == cached[1] > 100
    assert cached[2] == 0


@pytest.mark.parametrize("option", ["--api-keys", "--warm"])
def test_files_are_checked_before_the_model_is_loaded(option: str, tmp_path: Path) -> None:
    result = run("serve", "no-such-model", "--port", "0", option, str(tmp_path / "none.json"))
    assert result.returncode == 1
    assert "none.json" in result.stderr
    assert "no-such-model" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_persona_that_does_not_fit_ends_the_server(tiny_model_dir: Path, tmp_path: Path) -> None:
    persona = tmp_path / "long.json"
    persona.write_text(json.dumps({"messages": [{"role": "system", "content": "word " * 5000}]}))
    result = run("serve", str(tiny_model_dir), "--port", "0", "--kv-memory", "16MiB", "--warm", str(persona))
    assert result.returncode == 1
    assert "long.json" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_and_exits_clean(process: Process, number: signal.Signals) -> None:
    with httpx.stream(
        "POST",
        process.url + "v1/chat/completions",
        json=process.body(stream=True, max_tokens=600),
        timeout=60,
    ) as response:
        lines = response.iter_lines()
        next(lines)
        process.process.send_signal(number)
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


def test_several_models_in_one_process(tiny_model_dirs: Mapping[str, Path]) -> None:
    server = Process(f"--model=a={tiny_model_dirs['gqa']},kv=0.75", f"--model=b={tiny_model_dirs['mqa']}")
    try:
        listed = httpx.get(server.url + "v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["a", "b"]
        body = {**server.body(max_tokens=2), "model": "b"}
        assert httpx.post(server.url + "v1/chat/completions", json=body, timeout=60).json()["model"] == "b"
    finally:
        server.process.terminate()
        assert server.wait()[0] == 0


def test_what_contradicts_itself_or_is_open_to_all_is_refused(tiny_model_dir: Path) -> None:
    beyond = run("serve", str(tiny_model_dir), "--port", "0", "--host", "0.0.0.0")
    assert (beyond.returncode, "--allow-anonymous" in beyond.stderr) == (2, True)
    both = run("serve", str(tiny_model_dir), f"--model=a={tiny_model_dir}")
    assert (both.returncode, "exclude each other" in both.stderr) == (2, True)


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
