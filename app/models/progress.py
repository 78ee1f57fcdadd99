"""Shows a download: one line that is rewritten in a terminal, a plain line now and then elsewhere; or its figures."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

_TERMINAL_EVERY_S = 0.2
_PLAIN_EVERY_S = 5.0
_RATE_OVER_S = 5.0
_MARK_EVERY_S = 0.2


class Rate:
    """How fast something grows, over the last seconds."""

    def __init__(self, now_s: float, done_bytes: int) -> None:
        self._marks = deque([(now_s, done_bytes)])

    def mark(self, now_s: float, done_bytes: int) -> None:
        """So much is here now."""
        self._marks.append((now_s, done_bytes))
        while now_s - self._marks[0][0] > _RATE_OVER_S and len(self._marks) > 2:
            self._marks.popleft()

    @property
    def bytes_per_s(self) -> float:
        """0 before anything came."""
        (first_s, first_bytes), (last_s, last_bytes) = self._marks[0], self._marks[-1]
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0


class Progress:
    """Lines and byte counts on their way to a stream. The clock can be replaced in tests."""

    def __init__(self, stream: TextIO, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock_s = clock_s
        self._is_terminal = stream.isatty()
        self._every_s = _TERMINAL_EVERY_S if self._is_terminal else _PLAIN_EVERY_S
        self._rate = Rate(0.0, 0)
        self._shown_s = 0.0
        self._width = 0

    def say(self, line: str) -> None:
        """A line that stays."""
        self._clear()
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def check(self) -> None:
        """Called while a fetch waits for another one; one who watches may end it here."""

    def begin(self, done_bytes: int) -> None:
        """A download starts, with what is here already."""
        self._shown_s = self._clock_s()
        self._rate = Rate(self._shown_s, done_bytes)

    def update(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """`done_bytes` of `total_bytes` are here; shown when it is time."""
        now_s = self._clock_s()
        if now_s - self._shown_s < self._every_s:
            return
        self._shown_s = now_s
        self._rate.mark(now_s, done_bytes)
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
        rate = self._rate.bytes_per_s
        text = f"  {name}: {done_bytes / 1e6:.1f} of {total_bytes / 1e6:.1f} MB"
        if rate <= 0:
            return text
        left_s = round((total_bytes - done_bytes) / rate)
        return f"{text}, {rate / 1e6:.1f} MB/s, {left_s // 60}:{left_s % 60:02d} left"

    def _clear(self) -> None:
        if self._width:
            self._stream.write(f"\r{'':{self._width}}\r")
            self._width = 0


class FetchStoppedError(Exception):
    """The one who watches has stopped the download. What was received stays."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One moment of a download. `total_bytes` is that of the file that is under way; 0: none is yet."""

    done_bytes: int = 0
    total_bytes: int = 0
    bytes_per_s: float = 0.0
    remark: str = ""
    """The last line that was said."""


class Gauge(Progress):
    """Figures for another thread instead of lines, and a way to stop: the next sign of life of the fetch raises."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(io.StringIO(), clock_s)
        self.figures = Figures()
        self._is_stopped = False

    def stop(self) -> None:
        """End the fetch with FetchStoppedError, as soon as it says or receives something."""
        self._is_stopped = True

    def say(self, line: str) -> None:
        """See `Progress`."""
        self.check()
        self.figures = replace(self.figures, remark=line.strip())

    def begin(self, done_bytes: int) -> None:
        """See `Progress`."""
        super().begin(done_bytes)
        self.figures = replace(self.figures, done_bytes=done_bytes, total_bytes=0, bytes_per_s=0.0)

    def update(self, name: str, done_bytes: int, total_bytes: int) -> None:
        """See `Progress`. `name` is the one that the fetch was asked for."""
        self.check()
        now_s = self._clock_s()
        if now_s - self._shown_s >= _MARK_EVERY_S:
            self._shown_s = now_s
            self._rate.mark(now_s, done_bytes)
        self.figures = replace(
            self.figures, done_bytes=done_bytes, total_bytes=total_bytes, bytes_per_s=self._rate.bytes_per_s
        )

    def check(self) -> None:
        """See `Progress`."""
        if self._is_stopped:
            raise FetchStoppedError
