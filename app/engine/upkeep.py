"""What an engine does for itself once a second, in a thread of its own: never on the way of a hop."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from app import events

_logger = logging.getLogger("vivavoce.memory")
_INTERVAL_S = 1.0


class Upkeep:
    """The loop says whether the conversation is idle, and takes the events; the thread works."""

    is_idle = False
    """Nothing is heard, thought or said; the loop keeps it true to life."""

    def __init__(self, interval_s: float = _INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._tasks: list[Callable[[], object]] = []
        self._begin: Sequence[Callable[[], object]] = ()
        self._end: Sequence[Callable[[], object]] = ()
        self._news: deque[Callable[[int], events.Event]] = deque()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def start(
        self,
        tasks: Sequence[Callable[[], object]],
        *,
        begin: Sequence[Callable[[], object]] = (),
        end: Sequence[Callable[[], object]] = (),
    ) -> None:
        """Call `begin`, `tasks` again and again, and `end`. One that fails is logged, and the others go on."""
        self._tasks, self._begin, self._end = list(tasks), begin, end
        self._thread.start()

    def tell(self, news: Callable[[int], events.Event]) -> None:
        """From a task: something for the user."""
        self._news.append(news)

    def take_events(self, now_samples: int) -> list[events.Event]:
        """What was told since the last call."""
        found: list[events.Event] = []
        while self._news:
            found.append(self._news.popleft()(now_samples))
        return found

    def close(self, limit_s: float) -> None:
        """End the thread; a task that takes longer ends with the process."""
        self.is_idle = False
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)

    def _run(self) -> None:
        self._once(self._begin)
        self._begin = ()  # what they hold may be replaced, and is then to be freed, while this thread lives
        while not self._is_over.wait(self._interval_s):
            self._tasks = [task for task in self._tasks if self._try(task)]
        self._once(self._end)

    def _once(self, tasks: Sequence[Callable[[], object]]) -> None:
        for task in tasks:
            self._try(task)

    def _try(self, task: Callable[[], object]) -> bool:
        """Whether it may be tried again: a bug in here must not end the conversation."""
        try:
            task()
        except Exception:
            _logger.exception("%s failed and is not tried again", getattr(task, "__qualname__", task))
            return False
        return True
