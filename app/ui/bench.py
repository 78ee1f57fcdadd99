"""The window's part of `bench ui`: one conversation in a process of its own, watched from inside its UI thread."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QObject, Qt, QTimer
from PySide6.QtWidgets import QDockWidget

from app import events
from app.bench.live_scenes import OUTPUT_LATENCY_MS, RATE_HZ
from app.bench.ui import token_rows
from app.cli.main import build_parser
from app.config.load import load_config
from app.config.schema import Config
from app.errors import AgentError
from app.ui.application import Program, run
from app.ui.screen import opens_window
from app.viewmodel.base import ViewModel
from audio.io.device import RoomSpec, ScriptSpec, SimulatedSpec, Utterance

_TICK_MS = 10
_START_LIMIT_S = 120.0
_TURN_LIMIT_S = 60.0


def window_arm(config: Config, questions: Sequence[str], turns: int) -> list[dict[str, Any]]:
    """Rows of one conversation with every panel open: its start, its seconds, its answers.

    Raises:
        AgentError: there is no screen, or it did not come to its end.
    """
    if not opens_window(os.environ):
        raise AgentError("no window opens on this screen", fix="QT_QPA_PLATFORM=offscreen measures without a screen")
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="vivavoce-bench-") as folder:
        mine = config.model_copy(update={"paths": config.paths.model_copy(update={"data": folder})})
        arguments = (sender, mine, list(questions), turns, time.monotonic())
        child = context.Process(target=_talk_in_window, args=arguments, name="vivavoce-window")
        child.start()
        sender.close()
        try:
            found = receiver.recv() if receiver.poll(_START_LIMIT_S + turns * _TURN_LIMIT_S) else "it takes too long"
        except EOFError:
            found = "its process died"
        finally:
            child.terminate()  # SIGTERM closes the window, if it is open still
            child.join()
            receiver.close()
    if isinstance(found, str):
        raise AgentError(f"the window's conversation did not come to its end: {found}", fix="Run: vivavoce doctor")
    return list(found)


def _talk_in_window(sender: Connection, config: Config, questions: Sequence[str], turns: int, born_s: float) -> None:
    """In the child. `born_s`: `time.monotonic()` before it was started."""
    folder = Path(config.paths.data)
    env = {**os.environ, "XDG_CONFIG_HOME": str(folder), "APPDATA": str(folder)}
    loaded = replace(load_config(file=None, env=env), config=config)
    script = ScriptSpec(tuple(Utterance(questions[turn % len(questions)]) for turn in range(turns)), lead_s=2.0)
    device = SimulatedSpec(
        input=script, room=RoomSpec(erl_db=15.0), rate_hz=RATE_HZ, output_latency_ms=OUTPUT_LATENCY_MS
    )
    watches: list[_Watch] = []

    def watch(program: Program) -> None:
        watches.append(_Watch(program, born_s))

    try:
        run(build_parser().parse_args(["--simulate"]), loaded, device=device, watch=watch)
        answer: object = watches[0].rows()
    except Exception as error:  # the one who asked tells the user
        answer = str(error)
    with suppress(BrokenPipeError):
        sender.send(answer)


class _Watch(QObject):
    """Looks at the clock with every tick, and at the UI thread's processor time once a second."""

    def __init__(self, program: Program, born_s: float) -> None:
        super().__init__()
        self._program, self._born_s = program, born_s
        self._kept = _Kept()
        self._start: dict[str, Any] = {}
        self._seconds: list[dict[str, Any]] = []
        program.listen(self._kept)
        program.window.installEventFilter(self)
        for dock in program.window.findChildren(QDockWidget):
            dock.show()
        self._last_s = self._second_s = time.monotonic()
        self._cpu_s, self._stall_ms = time.thread_time(), 0.0
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_tick)
        self._timer.start(_TICK_MS)

    def rows(self) -> list[dict[str, Any]]:
        """Of the conversation that is over."""
        return [self._start, *self._seconds, *token_rows(self._kept.arrivals)]

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The first paint has happened when the loop turns again."""
        if event.type() is QEvent.Type.Paint and not self._start:
            self._start = {"scene": "start"}
            QTimer.singleShot(0, self._is_up)
        return False

    def _is_up(self) -> None:
        self._start["up_s"] = round(time.monotonic() - self._born_s, 3)

    def _on_tick(self) -> None:
        now_s = time.monotonic()
        self._stall_ms = max(self._stall_ms, (now_s - self._last_s) * 1000 - _TICK_MS)
        self._last_s = now_s
        if now_s - self._second_s >= 1.0:
            self._end_second(now_s)

    def _end_second(self, now_s: float) -> None:
        cpu_s = time.thread_time()
        self._seconds.append(
            {
                "scene": "second",
                "is_loading": not self._kept.is_running,
                "wall_s": round(now_s - self._second_s, 4),
                "cpu_s": round(cpu_s - self._cpu_s, 4),
                "stall_ms": round(self._stall_ms, 2),
            }
        )
        self._second_s, self._cpu_s, self._stall_ms = now_s, cpu_s, 0.0
        if self._kept.is_over or self._program.problem:
            self._program.close()


class _Kept(ViewModel):
    """Arrivals, and whether the conversation is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[events.Arrival] = []
        self.is_running = self.is_over = False

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.SessionStarted():
                self.is_running = True
            case events.SessionEnded():
                self.is_running, self.is_over = False, True
            case events.Arrival():
                self.arrivals.append(event)
