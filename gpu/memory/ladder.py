"""The degrade ladder: under pressure give something up, one rung at a time, mildest first, and take it back later.

What a rung frees is measured, before (on the objects that it would shrink) and after (in the free memory), while
nobody else works on what it shrinks. A rung that frees nothing, or that takes more than is free before it frees
anything, is not listed. One that fails, or turns out to free nothing, is undone and left alone for a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from gpu.errors import GpuError
from gpu.memory.pressure import Level

ORDER = ("spare pages", "window", "kv int8", "weights", "ear on the cpu", "smaller model", "llm on the cpu")
"""Every rung that may be registered, mildest first."""
_RETRY_S = 60.0
"""What stood in a rung's way (RAM, a busy card) may have gone by then; trying costs up to seconds of loading."""
_LOG = logging.getLogger(__name__)


class Rung(Protocol):
    """One thing to give up. The engine registers those that it can carry out."""

    @property
    def name(self) -> str:
        """One of `ORDER`."""
        ...

    @property
    def is_repeatable(self) -> bool:
        """Whether there is nothing to take back, and soon more to give up."""
        ...

    def frees_bytes(self) -> int:
        """What `apply` would free now, from the real sizes; 0 where there is nothing to free."""
        ...

    def takes_bytes(self) -> int:
        """What `apply` takes of the same memory before it frees any."""
        ...

    def hold(self) -> AbstractContextManager[bool]:
        """Keep others off what the rung works on, without waiting; False where it is in use, or elsewhere."""
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
        self._left_alone_until_s: dict[str, float] = {}
        """By name: those that failed."""
        self._repeated = ""
        """The repeatable rung of the last step, which lets the others go first now."""
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
        return [given.rung.name for given in self._given]

    def step(self, level: Level) -> LadderStep | None:
        """One step down or up where it is time for one; None where nothing was done. Raises nothing of a rung's."""
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
        given, free = self.applied(), max(0, self._free_bytes())
        sizes = []
        for rung in self._rungs:
            if rung.name in given or self._is_left_alone(rung):
                continue
            try:
                size = rung.frees_bytes()
                if size > 0 and rung.takes_bytes() <= free:
                    sizes.append((rung, size))
            except Exception as error:  # what it works on may be replaced while it is asked
                self._leave_alone(rung, error)
        return sizes

    def _down(self) -> LadderStep | None:
        rungs = [rung for rung, _ in self._open_rungs()]
        rungs.sort(key=lambda rung: rung.name == self._repeated)
        for rung in rungs[:1]:
            with rung.hold() as is_held:
                if not is_held or rung.name not in dict(self.listed()):
                    return None  # in use, or changed by who used it until now
                done = self._apply(rung)
            self._repeated = rung.name if rung.is_repeatable else ""
            return done
        return None

    def _apply(self, rung: Rung) -> LadderStep:
        before = self._held_bytes()
        try:
            rung.apply()
        except Exception as error:
            return self._leave_alone(rung, error)
        freed = before - self._held_bytes()
        if freed > 0:
            if not rung.is_repeatable:
                self._given.append(_Given(rung, freed))
            return LadderStep(rung.name, "applied", freed)
        try:
            rung.undo()
        except Exception as error:
            self._given.append(_Given(rung, 0))
            return self._leave_alone(rung, error, "it freed nothing and stays: ")
        self._left_alone_until_s[rung.name] = self._clock_s() + _RETRY_S
        return LadderStep(rung.name, "failed", freed, "it freed nothing")

    def _back(self) -> LadderStep | None:
        """Undo the last one where enough stays free afterwards, or it would be given up again at once."""
        last = next((given for given in reversed(self._given) if not self._is_left_alone(given.rung)), None)
        if last is None or self._free_bytes() - last.freed_bytes < self._calm_bytes:
            return None
        with last.rung.hold() as is_held:
            if not is_held:
                return None
            before = self._held_bytes()
            try:
                last.rung.undo()
            except Exception as error:
                return self._leave_alone(last.rung, error)
            taken = self._held_bytes() - before
        self._given.remove(last)
        return LadderStep(last.rung.name, "undone", -taken)

    def _is_left_alone(self, rung: Rung) -> bool:
        return self._clock_s() < self._left_alone_until_s.get(rung.name, 0.0)

    def _leave_alone(self, rung: Rung, error: Exception, before: str = "") -> LadderStep:
        """Try it again later: GpuError says why it failed, anything else is a bug, and neither may end the others."""
        self._left_alone_until_s[rung.name] = self._clock_s() + _RETRY_S
        if isinstance(error, GpuError):
            return LadderStep(rung.name, "failed", 0, before + error.message)
        _LOG.error("the rung %r failed", rung.name, exc_info=error)
        return LadderStep(rung.name, "failed", 0, f"{before}{type(error).__name__}: {error}")
