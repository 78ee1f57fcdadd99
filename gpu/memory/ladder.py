"""The degrade ladder: under pressure give something up, one rung at a time, mildest first, and take it back later.

What a rung frees is measured, before (on the objects that it would shrink) and after (in the free memory). A rung
that frees nothing is not listed, and one that turns out to free nothing is undone and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpu.errors import GpuError
from gpu.memory.pressure import Level

ORDER = ("spare pages", "window", "kv int8", "weights", "ear on the cpu", "smaller model", "llm on the cpu")
"""Every rung that may be registered, mildest first."""


class Rung(Protocol):
    """One thing to give up. The engine registers those that it can carry out."""

    @property
    def name(self) -> str:
        """One of `ORDER`."""
        ...

    def frees_bytes(self) -> int:
        """What `apply` would free now, from the real sizes; 0 where there is nothing to free."""
        ...

    def apply(self) -> None:
        """Give it up. GpuError where it cannot."""
        ...

    def undo(self) -> None:
        """Take it back. GpuError where it cannot; then it stays given up."""
        ...


@dataclass(frozen=True, slots=True)
class LadderStep:
    """What happened, for an event. `freed_bytes` is what came free, negative where it was taken back."""

    rung: str
    action: str
    """`applied`, `undone`, or `failed`."""
    expected_bytes: int
    freed_bytes: int
    reason: str = ""


@dataclass(slots=True)
class _Given:
    rung: Rung
    freed_bytes: int


class Ladder:
    """Steps at most once in `wait_s` (memory needs time to come free), at once where it is critical."""

    def __init__(
        self,
        free_bytes: Callable[[], int],
        emit: Callable[[LadderStep], None],
        clock_s: Callable[[], float],
        *,
        calm_bytes: int,
        wait_s: float = 2.0,
        held_bytes: Callable[[], int] | None = None,
    ) -> None:
        """`calm_bytes`: free memory that must be left after a step back (`PressureLimits.calm_bytes`).

        `held_bytes`: what this process has taken from the system, where that is known: other programs come and go
        by more than a rung frees. None: the free memory tells what a step freed.
        """
        self._free_bytes = free_bytes
        self._held_bytes = held_bytes or (lambda: -free_bytes())
        self._emit = emit
        self._clock_s = clock_s
        self._calm_bytes = calm_bytes
        self._wait_s = wait_s
        self._rungs: list[Rung] = []
        self._given: list[_Given] = []
        self._stuck: list[Rung] = []
        """Given up, and taking them back failed: they are left alone."""
        self._stepped_s: float | None = None

    def register(self, rung: Rung) -> None:
        """Add a rung in its place. GpuError for a name that has none, or that is there."""
        if rung.name not in ORDER or rung.name in [other.name for other in self._rungs]:
            raise GpuError(f"{rung.name!r} is no free place on the ladder", fix=f"Use one of: {', '.join(ORDER)}")
        self._rungs.append(rung)
        self._rungs.sort(key=lambda other: ORDER.index(other.name))

    def listed(self) -> list[tuple[str, int]]:
        """(name, bytes) of every rung that would free something now, in order."""
        return [(rung.name, size) for rung, size in self._open_rungs()]

    def applied(self) -> list[str]:
        """What is given up, in the order in which it was."""
        return [rung.name for rung in (*self._stuck, *(given.rung for given in self._given))]

    def step(self, level: Level) -> LadderStep | None:
        """One step down or up where it is time for one; None where nothing was done."""
        now_s = self._clock_s()
        waits = self._stepped_s is not None and now_s - self._stepped_s < self._wait_s
        if waits and level is not Level.CRITICAL:
            return None
        done = self._back() if level is Level.CALM else self._down()
        if done is not None:
            self._stepped_s = now_s
            self._emit(done)
        return done

    def _open_rungs(self) -> list[tuple[Rung, int]]:
        given = [*self._stuck, *(entry.rung for entry in self._given)]
        sizes = [(rung, rung.frees_bytes()) for rung in self._rungs if rung not in given]
        return [(rung, size) for rung, size in sizes if size > 0]

    def _down(self) -> LadderStep | None:
        for rung, expected in self._open_rungs():
            before = self._held_bytes()
            try:
                rung.apply()
            except GpuError as error:
                self._rungs.remove(rung)
                return LadderStep(rung.name, "failed", expected, 0, error.message)
            freed = before - self._held_bytes()
            if freed > 0:
                self._given.append(_Given(rung, freed))
                return LadderStep(rung.name, "applied", expected, freed)
            self._rungs.remove(rung)
            return self._drop(rung, expected, freed)
        return None

    def _drop(self, rung: Rung, expected: int, freed: int) -> LadderStep:
        try:
            rung.undo()
        except GpuError as error:
            return LadderStep(rung.name, "failed", expected, freed, f"it freed nothing and stays: {error.message}")
        return LadderStep(rung.name, "failed", expected, freed, "it freed nothing")

    def _back(self) -> LadderStep | None:
        """Undo the last one where enough stays free afterwards, or it would be given up again at once."""
        if not self._given or self._free_bytes() - self._given[-1].freed_bytes < self._calm_bytes:
            return None
        last, before = self._given.pop(), self._held_bytes()
        try:
            last.rung.undo()
        except GpuError as error:
            self._stuck.append(last.rung)
            return LadderStep(last.rung.name, "failed", last.freed_bytes, 0, error.message)
        return LadderStep(last.rung.name, "undone", last.freed_bytes, before - self._held_bytes())
