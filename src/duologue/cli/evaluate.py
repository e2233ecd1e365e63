"""`duologue eval`: measurements of a model's quality."""

from __future__ import annotations

import click


@click.group("eval")
def evaluate() -> None:
    """Measure a model's quality."""
