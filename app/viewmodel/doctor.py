"""The doctor's report as it comes in, line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from app.viewmodel.background import Background
from app.viewmodel.base import ViewModel


class Finding(Protocol):
    """What a check yields; see `app.cli.checks.check.Check`."""

    @property
    def name(self) -> str:
        """What was looked at."""

    @property
    def status(self) -> str:
        """`ok`, `warning` or `problem`."""

    @property
    def found(self) -> str:
        """A sentence."""

    @property
    def fix(self) -> str:
        """What to do; "" where nothing must be."""


Checks = Callable[[bool], Iterator[Finding]]
"""All checks; True: without those that measure the models."""


@dataclass(frozen=True, slots=True)
class Line:
    """A finding and how long it took to find."""

    finding: Finding
    took_ms: float


class DoctorModel(ViewModel):
    """Runs the checks in a thread, one run at a time."""

    def __init__(self, checks: Checks) -> None:
        super().__init__()
        self._checks = checks
        self._background = Background("doctor")
        self._is_stopped = False
        self.lines: list[Line] = []
        self.is_complete = False
        """Every check has answered since the last start."""

    @property
    def is_running(self) -> bool:
        """Whether answers are still to come."""
        return self._background.is_busy

    @property
    def counts(self) -> dict[str, int]:
        """Lines by status."""
        counts = dict.fromkeys(("ok", "warning", "problem"), 0)
        for line in self.lines:
            counts[line.finding.status] += 1
        return counts

    def run(self, *, is_quick: bool) -> None:
        """Begin anew."""
        if self.is_running:
            return
        self.lines, self.is_complete, self._is_stopped = [], False, False
        self._background.start(partial(self._work, is_quick), self._end)
        self.changed()

    def stop(self) -> None:
        """End after the check that is under way."""
        self._is_stopped = True

    def poll(self) -> None:
        """Take what was found."""
        if self._background.poll():
            self.changed()

    def _work(self, is_quick: bool) -> bool:
        """In the thread. Whether all checks ran."""
        began_s = time.perf_counter()
        for finding in self._checks(is_quick):
            line = Line(finding, (time.perf_counter() - began_s) * 1000)
            self._background.hand_over(partial(self.lines.append, line))
            if self._is_stopped:
                return False
            began_s = time.perf_counter()
        return True

    def _end(self, is_complete: bool) -> None:
        self.is_complete = is_complete
