"""`duologue bench`: measurements of the kernels and of the engine."""

from __future__ import annotations

import click


@click.group()
def bench() -> None:
    """Measure kernels or the engine against the machine's peaks."""
