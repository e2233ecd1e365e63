"""Terms of use of models that have some: shown, and accepted by the user, before anything is downloaded.

Acceptance is a file in the cache folder, so each user is asked once.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from duologue.errors import ModelLoadError
from duologue.models.registry import Terms
from duologue.models.store import cache_folder

ACCEPT_VARIABLE = "DUOLOGUE_ACCEPT_TERMS"
"""Names of terms, separated by commas, that whoever set it has accepted."""


def accept(terms: Terms) -> None:
    """Remembers that the user has accepted the terms. Where the cache cannot be written, nothing is remembered."""
    with suppress(OSError):
        path = _record(terms)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{terms.title}, {terms.url}\n", encoding="utf-8")


def require_accepted(terms: Terms, model: str, *, ask: bool) -> None:
    """Returns once the terms are accepted: earlier, by the environment, or, with `ask` on a terminal, now.

    Raises ModelLoadError naming the terms and how to accept them.
    """
    if _is_accepted(terms):
        return
    if not (ask and sys.stdin.isatty() and sys.stderr.isatty()):
        raise ModelLoadError(
            f"{model} comes under {terms.title} ({terms.url}), to be accepted before it is fetched: read them, then run "
            f"'duologue chat {model} --accept-terms', or set {ACCEPT_VARIABLE}={terms.name} in the environment"
        )
    print(f"{model} comes under {terms.title}:\n  {terms.url}", file=sys.stderr)
    print("Do you accept them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ModelLoadError(
            f"{model} is not fetched, because {terms.title} were not accepted; choose another model"
        )
    accept(terms)


def _is_accepted(terms: Terms) -> bool:
    named = os.environ.get(ACCEPT_VARIABLE, "").lower().split(",")
    return terms.name in (name.strip() for name in named) or os.path.exists(_record(terms))


def _record(terms: Terms) -> Path:
    return cache_folder() / "terms" / f"{terms.name}.accepted"
