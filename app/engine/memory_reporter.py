"""Tells once a second what the language model's memory holds, for a map of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from app import events
from app.engine.pressure_guard import GpuMemory, News, PressureGuard
from app.engine.tended_model import TendedModel
from gpu.kv.census import Holder
from gpu.memory.host_peak import resident_bytes
from gpu.memory.places import read_host


class MemoryReporter:
    """`look` reads, and tells where anything is new."""

    def __init__(self, model: TendedModel, guard: PressureGuard | None, tell: Callable[[News], None]) -> None:
        self._model = model
        self._guard = guard
        self._tell = tell
        self._told: events.MemoryState | None = None

    def look(self) -> None:
        """One reading; less than a millisecond."""
        state = self._read()
        if state != self._told:
            self._told = state
            self._tell(lambda now: replace(state, at_samples=now))

    def _read(self) -> events.MemoryState:
        model, guard = self._model, self._guard
        device = model.device
        total, free, engine = _memory_of(device, model)
        census = model.census()
        return events.MemoryState(
            at_samples=0,
            device=device,
            total_bytes=total,
            free_bytes=free,
            engine_bytes=engine,
            weights_bytes=model.weights_bytes(),
            page_bytes=census.page_bytes,
            pages=census.pages,
            shared_pages=census.shared_pages,
            parked_sessions=census.parked_sessions,
            live_tokens=census.sessions[0].tokens if census.sessions else 0,
            window_tokens=model.window_tokens,
            sessions=_rows(census.sessions),
            prefixes=_rows(census.prefixes),
            level=guard.level if guard else "",
            rungs_given=guard.ladder.applied() if guard else [],
            rungs_open=dict(guard.ladder.listed()) if guard else {},
        )


def _memory_of(device: str, model: TendedModel) -> tuple[int, int, int]:
    """(total, free, held by this process) in bytes."""
    if device == "cpu":
        host = read_host()
        return host.total_bytes, host.free_bytes, resident_bytes()
    gpu = GpuMemory(model, device)
    return gpu.total_bytes(), gpu.free_bytes(), gpu.held_bytes()


def _rows(holders: Iterable[Holder]) -> list[list[int]]:
    return [[holder.pages, holder.shared_pages, holder.room_pages, holder.tokens] for holder in holders]
