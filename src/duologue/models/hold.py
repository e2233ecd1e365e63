"""Who uses a file: a shared lock on it for as long as a model is loaded, which ends with the process at the latest."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Hold:
    """Keeps `path` from `only_user` of other processes, and of this one, for as long as this object lives.

    Where the file cannot be opened or locked, nothing is held.
    """

    def __init__(self, path: Path) -> None:
        with suppress(OSError, ImportError):  # Windows has no fcntl
            import fcntl

            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._finalizer = weakref.finalize(self, os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # `only_user` is soon done


@contextmanager
def only_user(path: Path) -> Iterator[bool]:
    """Whether nobody holds `path`; if so, nobody begins to inside of the block."""
    descriptor = None
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except BlockingIOError:
        alone = False
    except (OSError, ImportError):
        alone = True
    try:
        yield alone
    finally:
        if descriptor is not None:
            os.close(descriptor)
