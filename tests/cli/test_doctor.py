"""`duologue doctor`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from tests.cli.invoke import CommandLine


def _checks(out: str) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in json.loads(out)["checks"]}


def test_the_machine_and_a_model_as_json(duologue: CommandLine, tiny_model_dir: Path) -> None:
    code, out, err = duologue("doctor", str(tiny_model_dir), "--measure", "--threads", "1", "--json")
    report = json.loads(out)
    checks = _checks(out)
    assert (code, report["ok"]) == (0, True), (out, err)
    assert set(checks) >= {
        "duologue", "kernels", "cores", "memory", "cache folder", "models", "configuration", "port", "load", "self-check",
        "memory reads", "expected speed", "measured speed",
    }  # fmt: skip
    assert all((check["status"] == "ok") == (check["remedy"] == "") for check in checks.values())
    low, high = report["forecast"]["decode_per_s"]
    assert 0 < low < high
    assert report["measured"]["decode_per_s"] > 0
    assert report["peaks"]["threads"] == 1


def test_a_port_in_use_is_a_warning_and_a_missing_model_a_problem(duologue: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, out, _ = duologue(
            "doctor", "smollm2-135", "--json", "--threads", "1", DUOLOGUE_SERVE_PORT=str(port)
        )
    checks = _checks(out)
    assert checks["port"]["status"] == "warning"
    assert str(port) in checks["port"]["text"]
    assert code == 1
    assert checks["model"]["status"] == "problem"
    assert "smollm2-135m" in checks["model"]["text"] + checks["model"]["remedy"]


def test_what_is_wrong_has_a_remedy_in_plain_lines(
    duologue: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packed = tmp_path / "cache" / "packed"
    packed.mkdir(parents=True)
    (packed / "a.b.safetensors").write_bytes(b"\x07" * 100)
    monkeypatch.setenv("DUOLOGUE_CACHE", str(tmp_path / "cache"))
    file = duologue.write("[chat]\ntemperature = 9\n")
    code, out, err = duologue("doctor", "--config", file, DUOLOGUE_ISA="bogus")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    for begin, remedy in (
        ("problem  kernels        DUOLOGUE_ISA=bogus is unknown", "unset DUOLOGUE_ISA"),
        ("warning  models         1 packed", f"rm {packed / 'a.b.safetensors'}"),
        ("problem  configuration  settings.toml:2: temperature = 9 in [chat]", "correct it there"),
    ):
        at = next(i for i, line in enumerate(lines) if line.startswith(begin))
        assert remedy in lines[at + 1]
    assert "\x1b" not in out


def test_a_folder_that_cannot_be_written_is_a_problem(duologue: CommandLine) -> None:
    duologue.write("", "file")
    code, out, _ = duologue("doctor", "--json", "--threads", "1", DUOLOGUE_CACHE="file/cache")
    assert code == 1
    assert _checks(out)["cache folder"]["status"] == "problem"
    assert "DUOLOGUE_CACHE" in _checks(out)["cache folder"]["remedy"]


def test_wrong_settings_of_another_command_do_not_stop_it(duologue: CommandLine) -> None:
    file = duologue.write("[serve]\nport = 70000\n")
    code, out, err = duologue("doctor", "--json", "--threads", "1", "--config", file)
    assert (code, err) == (1, "")
    checks = _checks(out)
    assert "settings.toml:2: port = 70000" in checks["configuration"]["text"]
    assert checks["port"]["status"] == "problem"
    assert checks["self-check"]["status"] == "ok"
    code, out, _ = duologue("doctor", "--json", "--threads", "1", DUOLOGUE_SERVE_PORT="x")
    assert (code, _checks(out)["port"]["status"]) == (1, "problem")


def test_measuring_needs_a_model(duologue: CommandLine) -> None:
    code, _, err = duologue("doctor", "--measure")
    assert code == 2
    assert "needs a MODEL" in err
