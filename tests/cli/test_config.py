"""`duologue config`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.invoke import CommandLine

_FILE = """\
[serve]
model = "gemma3-270m"
kv-memory = "2GiB"
port = 9100

[bench.engine]
workload = ["prefill_512",
            "decode_short"]
peaks = false

[bench.dialogues]
api-key = "hush"
"""


def _shown(out: str) -> dict[str, tuple[str, str]]:
    rows = [re.split(r"  +", line) for line in out.splitlines() if line.count("  ")]
    return {key: (value, origin) for key, value, origin in rows}


def test_each_value_has_its_source(duologue: CommandLine) -> None:
    file = duologue.write(_FILE)
    arguments = ("config", "show", "--config", file, "serve", "--threads", "3", "--warm", "a.json", "b.json")
    code, out, err = duologue(*arguments, DUOLOGUE_SERVE_PORT="7", DUOLOGUE_SERVE_HOST="")
    assert (code, err) == (0, "")
    shown = _shown(out)
    assert shown["model"] == ("gemma3-270m", "file settings.toml:2")
    assert shown["kv-memory"] == ("2GiB", "file settings.toml:3")
    assert shown["port"] == ("7", "environment DUOLOGUE_SERVE_PORT")
    assert shown["host"] == ("127.0.0.1", "default")
    assert shown["threads"] == ("3", "flag --threads")
    assert shown["warm"] == ("a.json b.json", "flag --warm")
    assert shown["api-keys"] == ("-", "default")


def test_as_json_with_every_command_and_no_secrets(duologue: CommandLine) -> None:
    code, out, _ = duologue("config", "show", "--json", DUOLOGUE_CONFIG=duologue.write(_FILE))
    assert code == 0
    report = json.loads(out)
    assert report["file"] == "settings.toml"
    rows = {(row["command"], row["key"]): row for row in report["settings"]}
    assert rows["serve", "kv-memory"]["value"] == 2 << 30
    assert rows["bench engine", "workload"]["value"] == ["prefill_512", "decode_short"]
    assert rows["bench engine", "workload"]["place"] == "settings.toml:7"
    assert rows["bench engine", "peaks"]["value"] is False
    assert rows["chat", "temperature"]["source"] == "default"
    assert rows["keys list", "file"]["variable"] == "DUOLOGUE_KEYS_LIST_FILE"
    assert rows["bench dialogues", "api-key"]["source"] == "file"
    assert "hush" not in out
    assert "hush" not in duologue("config", "show", DUOLOGUE_CONFIG="settings.toml")[1]


def test_the_argument_goes_before_settings_of_its_name(duologue: CommandLine) -> None:
    def row(*arguments: str) -> list[str]:
        _, out, _ = duologue("config", "show", "serve", *arguments, DUOLOGUE_SERVE_MODEL="x=other.gguf")
        (found,) = [line.split() for line in out.splitlines() if line.startswith("model ")]
        return found

    assert row("m.gguf") == ["model", "m.gguf", "flag", "MODEL"]
    assert row() == ["model", "x=other.gguf", "environment", "DUOLOGUE_SERVE_MODEL"]


def test_a_group_shows_its_commands(duologue: CommandLine) -> None:
    _, out, _ = duologue("config", "show", "bench")
    tables = re.findall(r"^\[(.*)\]$", out, re.MULTILINE)
    assert "bench.engine" in tables
    assert all(table.startswith("bench.") for table in tables)


def test_wrong_commands_and_flags_are_usage_errors(duologue: CommandLine) -> None:
    for arguments, says in (
        (["dance"], "No such command 'dance'"),
        (["serve", "--prot", "5"], "--prot"),
        (["serve", "--port", "x"], "'x' is not a valid integer"),
    ):
        code, _, err = duologue("config", "show", *arguments)
        assert code == 2
        assert says in err


def test_a_new_file_changes_nothing_and_holds_every_setting(duologue: CommandLine) -> None:
    _, before, _ = duologue("config", "show", "--json")
    code, out, _ = duologue("config", "init")
    path = duologue.folder / "config" / "duologue" / "duologue.toml"
    assert (code, out) == (0, f"wrote {path}\n")
    _, after, _ = duologue("config", "show", "--json")
    settings = json.loads(before)["settings"]
    assert json.loads(after) == {"file": str(path), "settings": settings}
    # With every default in force, each of them comes from the file and is the same.
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    in_force = [
        block if "No default." in block else re.sub(r"(?m)^#(?=[a-z])", "", block) for block in blocks
    ]
    path.write_text("\n\n".join(in_force), encoding="utf-8")
    code, out, err = duologue("config", "show", "--json")
    assert (code, err) == (0, "")
    for was, row in zip(settings, json.loads(out)["settings"], strict=True):
        assert row["value"] == was["value"], row
        assert row["source"] == ("default" if was["value"] in (None, []) else "file"), row


def test_init_replaces_nothing_unasked(duologue: CommandLine) -> None:
    file = duologue.write("[serve]\n")
    code, _, err = duologue("config", "init", file)
    assert code == 1
    assert err == "error: settings.toml is there already; pass --force to replace it\n"
    assert duologue("config", "init", file, "--force")[0] == 0
    code, _, err = duologue("config", "init", "settings.toml/x")
    assert code == 1
    assert err.count("\n") == 1


def test_the_path_of_the_file(duologue: CommandLine) -> None:
    code, out, err = duologue("config", "path")
    assert code == 0
    assert Path(out.strip()) == duologue.folder / "config" / "duologue" / "duologue.toml"
    assert "duologue config init" in err
    assert duologue("config", "path", DUOLOGUE_CONFIG=duologue.write("[broken")) == (0, "settings.toml\n", "")
