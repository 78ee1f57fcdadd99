"""A lock between processes, held on a file. The system releases it when its holder dies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.1


@contextmanager
def exclusive(
    path: Path, *, on_wait: Callable[[], None], while_waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Hold `path` alone; call `on_wait` once where another process holds it, then wait for it.

    `while_waiting` is called again and again; what it raises ends the wait.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        told = False
        while not _try_lock(descriptor):
            if not told:
                on_wait()
                told = True
            while_waiting()
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


if os.name == "nt":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
