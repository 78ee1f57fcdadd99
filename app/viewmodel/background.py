"""Work that takes longer than a frame: done in threads, its results taken on the thread that asks for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Background:
    """Threads for one view model. They are no reason for the program to stay: work is cut off when it ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._results: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open = 0

    @property
    def is_busy(self) -> bool:
        """Whether there is work whose result was not taken yet."""
        return self._open > 0

    def start(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        """Run `work` in a thread; `poll` gives its result to `take`. What it raises, `poll` raises."""
        self._open += 1
        threading.Thread(target=self._run, args=(work, take), name=self._name, daemon=True).start()

    def hand_over(self, call: Callable[[], None]) -> None:
        """For work under way: have `poll` make this call."""
        self._results.put(call)

    def poll(self) -> bool:
        """Take what has come; whether there was anything."""
        is_any = False
        while not self._results.empty():
            is_any = True
            self._results.get()()
        return is_any

    def _run(self, work: Callable[[], T], take: Callable[[T], None]) -> None:
        try:
            result = work()
        except Exception as error:
            self._results.put(lambda error=error: self._fail(error))  # type: ignore[misc]
        else:
            self._results.put(lambda: self._finish(take, result))

    def _finish(self, take: Callable[[T], None], result: T) -> None:
        self._open -= 1
        take(result)

    def _fail(self, error: Exception) -> None:
        self._open -= 1
        raise error
