"""Shows a download: one line that is rewritten in a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

_TERMINAL_EVERY_S = 0.2
_PLAIN_EVERY_S = 5.0
_RATE_OVER_S = 5.0


class Progress:
    """Lines and byte counts on their way to a stream. The clock can be replaced in tests."""

    def __init__(self, stream: TextIO, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock_s = clock_s
        self._is_terminal = stream.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._is_terminal else _PLAIN_EVERY_S
        self._marks: deque[tuple[float, int]] = deque()
        self._shown_s = 0.0
        self._width = 0

    def say(self, line: str) -> None:
        """A line that stays."""
        self._clear()
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def begin(self, done_bytes: int) -> None:
        """A download starts, with what is here already."""
        self._shown_s = self._clock_s()
        self._marks = deque([(self._shown_s, done_bytes)])

    def update(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """`done_bytes` of `total_bytes` are here; shown when it is time."""
        now_s = self._clock_s()
        if now_s - self._shown_s < self._every_s:
            return
        self._shown_s = now_s
        self._marks.append((now_s, done_bytes))
        while now_s - self._marks[0][0] > _RATE_OVER_S and len(self._marks) > 2:
            self._marks.popleft()
        line = self._line(name, done_bytes, total_bytes)
        if self._is_terminal:
            self._stream.write(f"\r{line.ljust(self._width)}")
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def end(self) -> None:
        """The download is over, well or not: the rewritten line goes away."""
        self._clear()
        self._stream.flush()

    def _line(self, name: str, done_bytes: int, total_bytes: int) -> str:
        (first_s, first_bytes), (last_s, last_bytes) = self._marks[0], self._marks[-1]
        rate = (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0
        text = f"  {name}: {done_bytes / 1e6:.1f} of {total_bytes / 1e6:.1f} MB"
        if rate <= 0:
            return text
        left_s = round((total_bytes - done_bytes) / rate)
        return f"{text}, {rate / 1e6:.1f} MB/s, {left_s // 60}:{left_s % 60:02d} left"

    def _clear(self) -> None:
        if self._width:
            self._stream.write(f"\r{'':{self._width}}\r")
            self._width = 0
