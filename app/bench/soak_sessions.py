"""Conversations opened and closed again and again: what this process keeps of each.

Stub engines, because models are loaded once; the ear is a new one every time, models and native filters included.
Local sessions live in this process. Live ones start the three processes; counted is what is left in this one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from app import events
from app.bench.stubs import StubAsr, StubLanguageModel, StubTts, StubTurnModel
from app.config.schema import Config
from app.conversation.agent import Engines
from app.conversation.costs import CostTable
from app.engine.files import open_session
from app.engine.live import LiveSession
from app.engine.process import StubSpec
from audio.ear import EarSpec
from audio.io.device import ScriptSpec, SimulatedSpec, Utterance

_RATE_HZ = 48_000
_LIMIT_S = 30.0
_POLL_S = 0.02
_SHARED_MEMORY = Path("/dev/shm")


def local_rows(config: Config, ear: EarSpec, costs: CostTable, question: str, count: int) -> list[dict[str, Any]]:
    """One question and its answer in each; a row behind each."""
    engines = Engines(StubAsr(), StubTurnModel(), StubLanguageModel(first_token_ms=0.0), StubTts(delay_ms=0.0))
    device = SimulatedSpec(input=_script(question), rate_hz=_RATE_HZ, is_paced=False)

    def talk(emit: Callable[[events.Event], None]) -> None:
        session = open_session(config, engines, ear, device, emit, costs=costs, is_paced=False)
        try:
            session.run(limit_s=_LIMIT_S)
        finally:
            session.close()

    return _rows("session", count, talk)


def live_rows(config: Config, question: str, count: int) -> list[dict[str, Any]]:
    """The same in real time and in real processes."""
    device = SimulatedSpec(input=_script(question), rate_hz=_RATE_HZ)

    def talk(emit: Callable[[events.Event], None]) -> None:
        session = LiveSession(config, device, emit, stub=StubSpec(first_token_ms=0.0, tts_ms=0.0))
        try:
            session.start()
            while session.poll(_POLL_S) is None:
                pass
        finally:
            session.stop()

    return _rows("live_session", count, talk)


def _script(question: str) -> ScriptSpec:
    return ScriptSpec((Utterance(question),), lead_s=0.3, last_pause_s=0.5)


def _rows(scene: str, count: int, talk: Callable[[Callable[[events.Event], None]], None]) -> list[dict[str, Any]]:
    rows = []
    for number in range(1, count + 1):
        log: list[events.Event] = []
        talk(log.append)
        answered = sum(isinstance(event, events.AgentSaid) and bool(event.heard) for event in log)
        del log
        rows.append({"scene": scene, "number": number, "answered": answered, **_held()})
    return rows


def _held() -> dict[str, int]:
    """What this process holds now."""
    gc.collect()  # native echo cancellers sit in reference cycles; what matters is what nobody can free
    process = psutil.Process()
    own = f"vivavoce-{process.pid}-"
    segments = sum(path.name.startswith(own) for path in _SHARED_MEMORY.iterdir()) if _SHARED_MEMORY.is_dir() else 0
    return {
        "rss_kb": process.memory_info().rss // 1024,
        "threads": process.num_threads(),
        "handles": process.num_fds() if hasattr(process, "num_fds") else process.num_handles(),
        "segments": segments,
        "children": len(process.children()),
    }


def left_over(rows: Sequence[dict[str, Any]]) -> int:
    """Threads, handles, segments and processes that are there behind the last session and were not behind the first."""
    if not rows:
        return 0
    names = ("threads", "handles", "segments", "children")
    return sum(max(0, rows[-1][name] - rows[0][name]) for name in names)
