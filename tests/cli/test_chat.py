"""`duologue chat`, from a pipe and in a terminal."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.cli.chat import Turn
from duologue.engine.events import TokenEvent
from tests.cli.processes import command, environment, run
from tests.engine.base_case import base_model

_LIMITS = ("--kv-memory", "16MiB")


def test_a_pipe_gets_the_replies_alone(tiny_model_dir: Path) -> None:
    options = (*_LIMITS, "--max-tokens", "6", "--temperature", "0")
    result = run("chat", str(tiny_model_dir), *options, stdin="Hello\n\nHello again\n")
    assert result.returncode == 0
    assert result.stdout
    assert "tokens" not in result.stdout
    turns = re.findall(r"^first token .* · (\d+) tokens · (\d+) of (\d+) prompt", result.stderr, re.MULTILINE)
    (reply, cold, prompt), (_, warm, _) = [[int(count) for count in turn] for turn in turns]
    # The second turn computes its own message only, and the last token of the reply, which was sampled.
    assert (reply, cold, warm) == (6, 0, prompt + reply - 1)
    first = run("chat", str(tiny_model_dir), *options, stdin="Hello").stdout
    assert result.stdout.startswith(first)


def test_reset_forgets(tiny_model_dir: Path) -> None:
    options = (*_LIMITS, "--max-tokens", "6", "--temperature", "0")
    twice = run("chat", str(tiny_model_dir), *options, stdin="Hello\n/reset\nHello\n/exit\nnever\n").stdout
    once = run("chat", str(tiny_model_dir), *options, stdin="Hello\n").stdout
    assert twice == once * 2


def test_commands_explain_themselves(tiny_model_dir: Path) -> None:
    result = run("chat", str(tiny_model_dir), *_LIMITS, stdin="/help\n/dance\n")
    assert "/reset" in result.stderr
    assert "unknown command /dance" in result.stderr


def test_a_line_longer_than_the_context_is_one_error(tiny_model_dir: Path) -> None:
    result = run("chat", str(tiny_model_dir), *_LIMITS, "--context", "64", stdin="word " * 500)
    assert result.returncode == 1
    assert result.stderr.startswith("error: the last turn and the system messages have")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_input_that_is_not_utf_8_is_one_error(tiny_model_dir: Path, locale: str) -> None:
    result = subprocess.run(
        command("chat", str(tiny_model_dir), *_LIMITS),
        env={**environment(), "LC_ALL": locale},
        input=b"caf\xe9\n",
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(b"error: the input is not valid UTF-8")
    assert result.stderr.count(b"\n") == 1


def test_the_figures_of_a_turn() -> None:
    turn = Turn()
    assert turn.summary() == "no tokens"
    for number, at_s in ((0, 0.25), (1, 0.35), (2, 0.45)):
        turn.add(TokenEvent("x", (number,), None, 1, 0, number + 1), at_s)
    turn.add(TokenEvent("", (), "abort", 1, 0, 3), 9.0)
    turn.stopped = True
    assert turn.summary() == (
        "first token 250 ms · 10.0 tokens/s · 3 tokens · 0 of 1 prompt tokens from memory · stopped"
    )


class Terminal:
    """`duologue chat` on a pseudo-terminal."""

    def __init__(self, model: Path) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command("chat", str(model), *_LIMITS),
            env={**environment(), "TERM": "dumb"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # the controlling terminal
        )
        os.close(slave)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode("utf-8", "surrogateescape"))

    def read_until(self, pattern: str, timeout_s: float = 60) -> str:
        """Waits for `pattern` after what was waited for before; returns what matched."""
        deadline_s = time.monotonic() + timeout_s
        while (match := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline_s, self.text
            if select.select([self._master], [], [], 0.05)[0]:
                self.text += self._decoder.decode(os.read(self._master, 65536))
        self.text = self.text[match.end() :]
        return match[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(tiny_model_dir: Path) -> Iterator[Terminal]:
    terminal = Terminal(tiny_model_dir)
    yield terminal
    terminal.close()


def test_a_line_that_is_not_utf_8_does_not_cost_the_dialogue(terminal: Terminal) -> None:
    terminal.read_until("› ")
    terminal.type("\udcff\udcfe\r")
    terminal.read_until("the input is not valid UTF-8")
    terminal.read_until("› ")
    terminal.type("/exit\r")
    assert terminal.process.wait(30) == 0


def test_ctrl_c_stops_the_reply_and_not_the_program(terminal: Terminal) -> None:
    terminal.read_until("/help lists commands")
    # What is typed before there is a prompt, Ctrl-C would flush.
    terminal.read_until("› ")
    # A random model may end its reply before the key arrives; ten such replies in a row do not happen.
    for _ in range(10):
        terminal.type("Hello\r")
        terminal.read_until(r"Hello\r\n.")
        terminal.type("\x03")
        if terminal.read_until(r"stopped|/exit or Ctrl-D leaves") == "stopped":
            break
        terminal.read_until("› ")
    else:
        pytest.fail("no reply was stopped")
    terminal.read_until("› ")
    terminal.type("Hello again\r")
    terminal.read_until(r"\d+ tokens")
    terminal.read_until("› ")
    terminal.type("/exit\r")
    assert terminal.process.wait(30) == 0


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    folder = base_model(tmp_path / "base")
    result = run("chat", str(folder), *_LIMITS, "--max-tokens", "6", "--temperature", "0", stdin="Hello\n")
    assert result.returncode == 0
    assert result.stdout
    assert "warning: the model base has no chat template" in " ".join(result.stderr.split())


def test_terms_of_use_without_a_terminal(tmp_path: Path) -> None:
    result = run("chat", "gemma3-270m", cache=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    for word in ("https://ai.google.dev/gemma/terms", "--accept-terms", "DUOLOGUE_ACCEPT_TERMS=gemma"):
        assert word in result.stderr
    assert list(tmp_path.rglob("*.part")) == []
