"""Examples at the end of a command's help."""

from __future__ import annotations

HEADING = "Examples:"


def examples(*lines: str) -> str:
    """An epilog of these lines, as they are: `\\b` keeps click from wrapping them."""
    return "\n".join(["\b", HEADING, *(f"  {line}" for line in lines)])
