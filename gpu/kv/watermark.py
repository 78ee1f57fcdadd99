"""A thread that commits pages before the writers get there, so that no token waits for one."""

from __future__ import annotations

import threading
import weakref
from typing import Protocol


class Committer(Protocol):
    """Who owns the pages."""

    def enter_thread(self) -> None:
        """Called once in the thread."""

    def commit_ahead(self) -> None:
        """Commit what the writers will need soon."""


class WatermarkThread:
    """Sleeps until `wake`, then asks the committer; ends with it or at `stop`."""

    def __init__(self, committer: Committer) -> None:
        self._event = threading.Event()
        self._stopped = threading.Event()
        # The thread must not keep a forgotten arena alive.
        weakref.finalize(committer, _stop, self._event, self._stopped)
        self._thread = threading.Thread(
            target=_run, args=(weakref.ref(committer), self._event, self._stopped), name="kv-watermark", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Somebody came near the end of its pages."""
        self._event.set()

    def stop(self) -> None:
        """End the thread and wait for it."""
        _stop(self._event, self._stopped)
        if self._thread is not threading.current_thread():
            self._thread.join()


def _stop(event: threading.Event, stopped: threading.Event) -> None:
    stopped.set()
    event.set()


def _run(committer_ref: weakref.ref[Committer], event: threading.Event, stopped: threading.Event) -> None:
    entered = False
    while True:
        event.wait()
        event.clear()
        committer = committer_ref()
        if stopped.is_set() or committer is None:
            return
        if not entered:
            committer.enter_thread()
            entered = True
        committer.commit_ahead()
        del committer
