"""The engine process from its parent's side: start, hear from it, notice when it is gone, begin anew."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from app import events
from app.crash import describe_death
from app.engine.process import Attach, EngineFailed, EngineSpec, Ready, engine_process_main
from app.errors import AgentError
from app.log import LogSpec
from audio.child import end_child
from audio.control import ControlWords
from audio.watch import StallWatch

_LOAD_LIMIT_S = 120.0
_HANG_LIMIT_S = 5.0
_STOP_GRACE_S = 0.6
_LOST_GRACE_S = 0.0


class EngineError(AgentError):
    """The engine could not start, or ended by itself. `exit_code` 3: the memory did not suffice."""

    def __init__(self, message: str, *, fix: str = "", exit_code: int = 2) -> None:
        super().__init__(message, fix=fix)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class EngineLoaded:
    """The engine that was restarted waits for `attach`."""

    ready: Ready


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """The engine has ended, or does not move."""

    reason: str
    is_hopeless: bool = False
    """It said itself why it cannot run; a second try ends the same way."""
    exit_code: int = 2


EngineNews = EngineLoaded | EngineStopped | Sequence[events.Event]


class EngineProcess:
    """`start`, `wait_ready`, `attach`, then `poll_events` and `send`; `restart` after an `EngineStopped`."""

    def __init__(self) -> None:
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._control: ControlWords | None = None
        self._is_running = False
        self._hanging = StallWatch(_HANG_LIMIT_S)
        self._loading_until_s = 0.0
        self._log: LogSpec | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Loaded, attached and not known to be gone."""
        return self._is_running

    def start(self, spec: EngineSpec) -> None:
        """Start the process; it loads its models while the caller does other things."""
        self._log = spec.log
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        arguments = (child, spec, os.getpid())
        self._process = context.Process(target=engine_process_main, args=arguments, name="vivavoce-engine", daemon=True)
        self._process.start()
        child.close()
        self._loading_until_s = time.monotonic() + _LOAD_LIMIT_S

    def wait_ready(self) -> Ready:
        """Wait until everything is loaded.

        Raises:
            EngineError: it does not load, with the reason it gave.
        """
        while True:
            for news in self._receive(0.1):
                if isinstance(news, EngineStopped):
                    fix = "" if news.is_hopeless else "Run: vivavoce doctor"
                    raise EngineError(news.reason, fix=fix, exit_code=news.exit_code)
                if isinstance(news, EngineLoaded):
                    return news.ready

    def attach(self, message: Attach, control: ControlWords) -> None:
        """Give the engine its rings; it works from now on."""
        self._control = control
        self._control.heartbeat_ns = time.monotonic_ns()
        self._is_running = True
        self.send(message)

    def restart(self, spec: EngineSpec) -> None:
        """Begin anew; does not wait. `poll_events` has an `EngineLoaded` when it can be attached."""
        self._end(_LOST_GRACE_S)
        self.start(spec)

    def poll_events(self, timeout_s: float) -> list[EngineNews]:
        """What has come; waits up to `timeout_s` for something to come."""
        if self._connection is None:
            time.sleep(timeout_s)
            return []
        return self._receive(timeout_s)

    def send(self, message: object) -> None:
        """Pass something on; what a dead or loading engine does not get is lost. `poll_events` says that it is dead."""
        if self._connection is not None and self._is_running:
            try:
                self._connection.send(message)
            except OSError:
                pass  # the engine has ended; poll_events says so

    def stop(self) -> list[events.Event]:
        """End it; returns its last events: a reply that was being heard is settled. Harmless where nothing runs."""
        last: list[events.Event] = []
        if self._is_running and self._connection is not None:
            last = self._drain(self._connection)
        # A loading engine hears nothing; it holds nothing that must be saved.
        self._end(_STOP_GRACE_S if self._is_running else _LOST_GRACE_S)
        self._control = None
        return last

    def _receive(self, timeout_s: float) -> list[EngineNews]:
        connection = self._connection
        assert connection is not None
        news: list[EngineNews] = []
        try:
            while connection.poll(0.0 if news else timeout_s):
                message = connection.recv()
                if isinstance(message, EngineFailed):
                    stopped = self._stopped(message.message, is_hopeless=not message.is_crash)
                    return [*news, replace(stopped, exit_code=message.exit_code)]
                news.append(EngineLoaded(message) if isinstance(message, Ready) else message)
                if isinstance(message, Ready):
                    return news  # what follows is for after `attach`
        except (EOFError, OSError):
            if self._process is not None:
                self._process.join(_STOP_GRACE_S)
                code = self._process.exitcode
                return [*news, self._stopped(f"the engine process ended by itself (exit code {code})")]
        if self._is_running and self._control is not None:
            if self._hanging.is_stalled(self._control.heartbeat_ns, time.monotonic()):
                news.append(self._stopped("the engine process does not move"))
        elif time.monotonic() > self._loading_until_s:
            news.append(self._stopped("the models did not load in two minutes", is_hopeless=True))
        return news

    def _stopped(self, reason: str, *, is_hopeless: bool = False) -> EngineStopped:
        pid = self.pid
        self._end(_LOST_GRACE_S)
        return EngineStopped(reason + describe_death(self._log, "engine", pid), is_hopeless)

    def _drain(self, connection: Connection[Any, Any]) -> list[events.Event]:
        """The engine settles the reply that is being heard, and closes."""
        deadline_s = time.monotonic() + _STOP_GRACE_S
        last: list[events.Event] = []
        try:
            while connection.poll(max(0.0, deadline_s - time.monotonic())):
                message = connection.recv()
                if isinstance(message, list):
                    last += message
        except (EOFError, OSError):
            pass  # that was all
        return last

    def _end(self, grace_s: float) -> None:
        self._is_running = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            end_child(self._process, grace_s)
            self._process = None
