"""Gives memory back while it is scarce, and takes it again later: readings, level, ladder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from app import events
from app.engine.tended_model import TendedModel
from gpu.memory.ladder import Ladder, LadderStep, Rung
from gpu.memory.places import read_host
from gpu.memory.preflight import reserve_bytes
from gpu.memory.pressure import Level, PressureLimits, PressureMeter, limits_of

_logger = logging.getLogger("vivavoce.memory")

News = Callable[[int], events.Event]
"""An event that lacks only its time, in samples."""


class Memory(Protocol):
    """The memory that the language model lies in."""

    def total_bytes(self) -> int:
        """All of it."""
        ...

    def free_bytes(self) -> int:
        """Free now, for anybody."""
        ...

    def held_bytes(self) -> int:
        """What the language model has taken of it."""
        ...


class HostMemory:
    """This machine's RAM, or the container's share of it."""

    def __init__(self, model: TendedModel) -> None:
        self._model = model

    def total_bytes(self) -> int:
        """See `Memory`."""
        return read_host().total_bytes

    def free_bytes(self) -> int:
        """See `Memory`."""
        return read_host().free_bytes

    def held_bytes(self) -> int:
        """See `Memory`."""
        return self._model.page_bytes("cpu")


class GpuMemory:
    """One GPU's memory; what is free there, CUDA says."""

    def __init__(self, model: TendedModel, device: str) -> None:
        """`device` is torch's name."""
        self._model = model
        self._device = device

    def total_bytes(self) -> int:
        """See `Memory`."""
        import torch

        return int(torch.cuda.mem_get_info(self._device)[1])

    def free_bytes(self) -> int:
        """See `Memory`."""
        import torch

        return int(torch.cuda.mem_get_info(self._device)[0])

    def held_bytes(self) -> int:
        """See `Memory`."""
        import torch

        return self._model.page_bytes(self._device) + int(torch.cuda.memory_reserved(self._device))


def limits(tight_mb: int, total_bytes: int) -> PressureLimits:
    """Of the configuration; 0: the reserve of the memory plan."""
    return limits_of(tight_mb * 1_000_000 or reserve_bytes(total_bytes))


class PressureGuard:
    """`look` reads, steps where it is time, and tells."""

    def __init__(
        self,
        memory: Memory,
        limits: PressureLimits,
        rungs: Sequence[Rung],
        tell: Callable[[News], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._told: set[str] = set()
        """What was given up since memory was calm: spare pages come and go, and are told of once."""
        self._meter = PressureMeter(limits, memory.free_bytes, clock_s)
        self._ladder = Ladder(
            memory.free_bytes, self._note, clock_s, calm_bytes=limits.calm_bytes, held_bytes=memory.held_bytes
        )
        for rung in rungs:
            self._ladder.register(rung)

    def look(self) -> None:
        """One reading, and a step of the ladder where it is due."""
        level = self._meter.read()
        if level is Level.CALM:
            self._told.clear()
        self._ladder.step(level)

    @property
    def level(self) -> str:
        """At the last look: `calm`, `tight` or `critical`."""
        return self._meter.level.name.lower()

    @property
    def ladder(self) -> Ladder:
        """For those who show what is given up and what could be."""
        return self._ladder

    def _note(self, step: LadderStep) -> None:
        level = self.level
        _logger.info("memory %s, %s: %s %s", level, step.rung, step.action, step.reason)
        match step.action:
            case "applied" if step.rung not in self._told:
                self._told.add(step.rung)
                self._tell(lambda now: events.MemoryDegraded(now, level, step.rung, step.freed_bytes))
            case "undone":
                self._tell(lambda now: events.MemoryRestored(now, level, step.rung, -step.freed_bytes))
