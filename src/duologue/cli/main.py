"""Entry point of `duologue`: subcommands that are imported when they run, and errors in one line.

`--help` must be instant, so this module imports nothing but click and a few small modules; the table below repeats each command's
one-line help for that reason.
"""

from __future__ import annotations

import errno
import importlib
import sys

import click

import duologue
from duologue.cli.config_sources import configure
from duologue.cli.examples import examples
from duologue.errors import DuologueError

# name -> (module, its click command, one line of help)
_COMMANDS = {
    "serve": ("duologue.cli.serve", "serve", "Serve a model over HTTP, with OpenAI's API and a chat page."),
    "keys": ("duologue.cli.keys", "keys", "Make and list API keys."),
    "cache": ("duologue.cli.cache", "cache", "Explain cache misses."),
    "chat": ("duologue.cli.chat", "chat", "Chat with a model in the terminal."),
    "bench": (
        "duologue.cli.bench",
        "bench",
        "Measure kernels, the engine, dialogues over HTTP and the cache.",
    ),
    "models": ("duologue.cli.models", "models", "List, fetch and remove models, and tell what they cost."),
    "eval": ("duologue.cli.evaluate", "evaluate", "Measure a model's quality."),
    "doctor": ("duologue.cli.doctor", "doctor", "Check this machine, and tell what speed to expect."),
    "config": (
        "duologue.cli.config",
        "config",
        "Show settings and where they come from, or write a file of them.",
    ),
    "completion": (
        "duologue.cli.completion",
        "completion",
        "Print a script that completes commands in a shell.",
    ),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        configure(command, (cmd_name,))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.command(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "duologue chat                          # the default model, in the terminal",
        "duologue serve gemma3-270m             # over HTTP, with a chat page",
        "duologue doctor smollm2-135m           # what speed to expect here",
    ),
)
@click.version_option(duologue.__version__, prog_name="duologue", message="%(prog)s %(version)s")
def cli() -> None:
    """Serve and chat with language models, in int8 end to end, on a CPU."""


def main() -> None:
    """Runs the command line; every expected error is one line on stderr and exit code 1 (usage: 2)."""
    try:
        code = cli.main(prog_name="duologue", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except DuologueError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        code = 1
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # The reader of our output is gone (`duologue ... | head`); the interpreter must not try to flush.
        sys.stdout = None
        code = 141
    except OSError as error:
        if error.filename is not None or error.errno not in (
            errno.ENOSPC,
            errno.EIO,
            errno.EFBIG,
            errno.EDQUOT,
        ):
            raise
        sys.stdout = None  # what is left in it must not be tried again
        click.echo(f"error: the output cannot be written: {(error.strerror or str(error)).lower()}", err=True)
        code = 1
    sys.exit(code)
