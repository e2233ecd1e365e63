"""duologue: a serving platform for long conversations.

The public API is `Engine` and the small types that it takes and returns; everything is imported on first use, so that
`import duologue` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duologue.engine import (
        Completion,
        Engine,
        EngineStats,
        Grammar,
        SamplingParams,
        TokenEvent,
        TokenLogprob,
    )

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "Engine",
    "EngineStats",
    "Grammar",
    "SamplingParams",
    "TokenEvent",
    "TokenLogprob",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name in __all__:
        from duologue import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
