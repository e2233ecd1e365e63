"""duologue: a serving platform for long conversations."""

from __future__ import annotations

__version__ = "0.1.0"
