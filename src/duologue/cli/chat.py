"""`duologue chat`: a dialogue in the terminal, or one line of stdin per turn when stdin is a pipe.

Replies go to stdout; prompts, statistics and notices go to stderr or to the terminal only, so that
`echo question | duologue chat > answer.txt` holds the answer alone.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from duologue.cli.examples import examples
from duologue.cli.options import engine_options, load_engine
from duologue.cli.units import FiniteRange
from duologue.errors import EngineStoppedError, InvalidRequestError

if TYPE_CHECKING:
    from rich.console import Console

    from duologue.engine.engine import Engine
    from duologue.engine.events import TokenEvent
    from duologue.engine.sampling_params import SamplingParams

_HELP = """\
/reset          forget the dialogue and start a new one
/system TEXT    start a new dialogue under this system prompt
/help           this list
/exit           leave (also Ctrl-D)
Ctrl-C stops the reply."""


@click.command(
    epilog=examples(
        "duologue chat",
        'duologue chat gemma3-270m --system "Answer in one sentence."',
        'echo "Name three rivers." | duologue chat --temperature 0 > answer.txt',
    )
)
@engine_options
@click.option("--system", help="System prompt.")
@click.option("--temperature", type=FiniteRange(0, 2), default=0.7, show_default=True)
@click.option("--top-p", type=FiniteRange(0, 1, min_open=True), default=0.95, show_default=True)
@click.option("--top-k", type=click.IntRange(0), default=0, help="0: off.")
@click.option("--seed", type=click.IntRange(0), help="Makes replies repeatable.")
@click.option("--max-tokens", type=click.IntRange(1), help="Longest reply.")
def chat(
    model: str,
    kv_memory: int,
    threads: int | None,
    context: int | None,
    accept_terms: bool,
    system: str | None,
    temperature: float,
    top_p: float,
    top_k: int,
    seed: int | None,
    max_tokens: int | None,
) -> None:
    """Chat with MODEL in the terminal.

    MODEL is an alias (smollm2-135m), a GGUF file, a Hugging Face folder, or ORG/NAME of a model on the hub.
    """
    from rich.console import Console

    from duologue.engine.sampling_params import SamplingParams

    params = SamplingParams(temperature, top_p, top_k, seed, max_tokens)
    notices = Console(stderr=True, highlight=False)
    with load_engine(model, kv_memory, threads, context, accept_terms) as engine:
        _Chat(engine, params, notices, system).run()


@dataclass
class Turn:
    """One reply as it is received."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    first_s: float | None = None
    last_s: float | None = None
    stopped: bool = False

    def add(self, event: TokenEvent, at_s: float) -> None:
        """`at_s` counts from the moment the turn began."""
        self.text += event.text
        self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
        if event.token_ids:
            self.token_ids += event.token_ids
            self.first_s = at_s if self.first_s is None else self.first_s
            self.last_s = at_s

    def summary(self) -> str:
        """Time to first token, and the decode rate without the first token's prefill."""
        if self.first_s is None or self.last_s is None:
            return "no tokens"
        parts = [f"first token {self.first_s * 1e3:.0f} ms"]
        tokens = len(self.token_ids)
        if tokens > 1 and self.last_s > self.first_s:
            parts.append(f"{(tokens - 1) / (self.last_s - self.first_s):.1f} tokens/s")
        parts.append(f"{tokens} tokens")
        parts.append(f"{self.cached_tokens} of {self.prompt_tokens} prompt tokens from memory")
        return " · ".join(parts) + (" · stopped" if self.stopped else "")


class _Chat:
    def __init__(self, engine: Engine, params: SamplingParams, notices: Console, system: str | None) -> None:
        self._engine = engine
        self._params = params
        self._notices = notices
        self._system = system
        self._messages: list[dict[str, str]] = []
        self._interactive = sys.stdin.isatty()
        from duologue.dialogue.encoder import DialogueEncoder
        from duologue.dialogue.truncation import Truncation

        sizes = Truncation.of_context(engine.context_tokens)
        self._dialogues = DialogueEncoder(engine.template, engine.tokenizer, sizes)

    def run(self) -> None:
        self._reset()
        if self._engine.template.is_default:
            from duologue.dialogue.default_template import DEFAULT_WARNING

            self._note(f"warning: {DEFAULT_WARNING.format(name=self._engine.model_name)}")
        if self._interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 - gives input() history and editing
            context = f"{self._engine.context_tokens:,} tokens of context"
            self._note(f"{self._engine.model_name}, {context}; /help lists commands")
        while (line := self._read()) is not None:
            if line.startswith("/"):
                if not self._command(line):
                    return
            elif line:
                self._answer(line)

    def _read(self) -> str | None:
        """The next line, or None at the end."""
        try:
            line = input("› ") if self._interactive else sys.stdin.readline()
            line.encode()  # some locales let bytes through that are not UTF-8, as lone surrogates
            return line.strip() if line or self._interactive else None
        except EOFError:
            self._notices.print()
            return None
        except KeyboardInterrupt:
            # A Ctrl-C that came a moment after the reply's end must not cost the dialogue.
            self._notices.print()
            self._note("/exit or Ctrl-D leaves")
            return ""
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            if self._interactive:
                self._note(f"error: the input is not valid UTF-8 ({error.reason})")
                return ""
            raise InvalidRequestError(f"the input is not valid UTF-8 ({error.reason})") from None

    def _command(self, line: str) -> bool:
        """Runs a slash command; whether to go on."""
        name, _, rest = line.partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/system":
            self._system = rest.strip() or None
        if name in ("/reset", "/system"):
            self._reset()
            self._note("new dialogue")
        elif name == "/help":
            self._note(_HELP)
        else:
            self._note(f"unknown command {name}; /help lists them")
        return True

    def _reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system is not None else []

    def _answer(self, line: str) -> None:
        self._messages.append({"role": "user", "content": line})
        try:
            turn = self._stream()
        except InvalidRequestError as error:
            self._messages.pop()
            if not self._interactive:
                raise
            self._note(f"error: {error}" + ("; /reset starts anew" if error.code else ""))
            return
        self._messages.append({"role": "assistant", "content": turn.text})
        self._note(turn.summary())

    def _stream(self) -> Turn:
        """Prints a reply as it comes. Ctrl-C ends it; what was said stays in the dialogue."""
        from duologue.dialogue.encoder import without_end

        started_s = time.perf_counter()
        turn = Turn()
        events: queue.SimpleQueue[TokenEvent] = queue.SimpleQueue()
        prompt = self._dialogues.encode(self._messages, truncation="auto")
        params = self._engine.chat_params(self._params)
        request = self._engine.submit(prompt.ids, params, events.put)

        def stop() -> None:
            turn.stopped = True
            self._engine.abort(request)

        try:
            with _on_interrupt(stop):
                finish_reason = None
                while finish_reason is None:
                    event = events.get()
                    turn.add(event, time.perf_counter() - started_s)
                    click.echo(event.text, nl=False)
                    finish_reason = event.finish_reason
                click.echo()
        finally:
            self._engine.abort(request)
        if event.error is not None:
            raise EngineStoppedError(f"the engine failed: {event.error}")
        # The next turn's prompt repeats the very ids, and goes on where the cache ends.
        ids = without_end(turn.token_ids, self._engine.tokenizer.eos_ids)
        self._dialogues.remember(prompt, turn.text, ids)
        return turn

    def _note(self, text: str) -> None:
        self._notices.print(text, style="dim", markup=False)


@contextlib.contextmanager
def _on_interrupt(action: Callable[[], None]) -> Generator[None, None, None]:
    """Runs `action` on Ctrl-C instead of raising, so that no second Ctrl-C can hit an exception handler."""
    previous = signal.signal(signal.SIGINT, lambda *_: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
