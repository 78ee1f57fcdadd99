"""The conversation's thread: the window hands over commands and takes events, and never waits for either.

The thread is the face that DESIGN speaks of: it owns the journal, the segments and the three processes. What it does
with them is `app.engine.live`'s; here is only what a window needs of it.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Literal

from app import events
from app.cli.keeper import Keeper
from app.cli.talk import event_logs, journal_path, live_device, started
from app.commands import Command, Quit
from app.config.load import Loaded
from app.crash import describe_crash
from app.engine.builder import places
from app.engine.live import LiveSession
from app.errors import AgentError
from app.log import begin_session, close_log, setup_log
from audio.errors import AudioError
from audio.io.device import DeviceSpec
from audio.ring import RecordRing
from gpu.errors import GpuError

_POLL_S = 0.03
RunState = Literal["loading", "running", "ended"]

_logger = logging.getLogger("vivavoce.face")


class SessionRunner:
    """One conversation from `start` to its end. `state`, `problem` and `mic_ring` may be read from any thread."""

    def __init__(
        self,
        args: argparse.Namespace,
        loaded: Loaded,
        *,
        resume: bool,
        device: DeviceSpec | None = None,
        remarks: Sequence[str] = (),
    ) -> None:
        """`resume`: go on with what the journal has, as after a change of the configuration.

        `device`: instead of what flags and configuration ask for. `remarks`: sentences that the user should see first.
        """
        self.loaded = loaded
        self.state: RunState = "loading"
        self.problem = ""
        """Why it ended by itself, in a sentence; "" where it did not."""
        self.mic_ring: RecordRing | None = None
        """Microphone and loudspeaker blocks while it runs, for those who only watch."""
        self._args = args
        self._resume = resume
        self._device = device
        self._events: deque[events.Event] = deque()
        self._commands: deque[Command] = deque()
        self._session: LiveSession | None = None
        self._is_stopped = False
        for remark in remarks:
            self._remark(remark)
        self._thread = threading.Thread(target=self._run, name="conversation", daemon=True)

    def start(self) -> None:
        """Load, open the device, talk; returns at once."""
        self._thread.start()

    def send(self, command: Command) -> None:
        """Pass a command on within 30 ms; lost where the conversation has ended."""
        self._commands.append(command)

    def take_events(self, at_most: int) -> list[events.Event]:
        """The next events, oldest first."""
        taken: list[events.Event] = []
        while self._events and len(taken) < at_most:
            taken.append(self._events.popleft())
        return taken

    def stop(self) -> None:
        """Ask it to end; `is_alive` says when it has. Models that are being loaded are not waited for."""
        self._commands.append(Quit())
        if not self._is_stopped:
            self._is_stopped = True
            threading.Thread(target=self._give_up_loading, name="give-up-loading", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has something to do still."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._talk()
        except (AgentError, AudioError, GpuError) as error:
            self.problem = f"{error.message}. {error.fix}" if error.fix else error.message
        except OSError as error:
            self.problem = f"{error.filename or 'a file'}: {error.strerror}"
        except Exception as error:
            _logger.exception("unexpected")
            self.problem = describe_crash(error)
        finally:
            close_log()
            if self._is_stopped:  # what fails in a conversation that nobody wants any more concerns nobody
                self.problem = ""
            self.mic_ring = self._session = None
            self.state = "ended"

    def _give_up_loading(self) -> None:
        """Kill what loads: nothing that it holds is worth a minute of a user who wants to leave."""
        while self.state == "loading" and self._thread.is_alive():
            session = self._session
            pids = [] if session is None else list(session.pids.values())
            for child in multiprocessing.active_children():
                if child.pid in pids:
                    child.kill()
            time.sleep(_POLL_S)

    def _talk(self) -> None:
        config = self.loaded.config
        keeper = Keeper(journal_path(self._args, config), event_logs(self._args), self._remark)

        def emit(event: events.Event) -> None:
            keeper.take(event)
            self._events.append(event)

        try:
            exchanges = keeper.exchanges() if self._resume else []
            if self._args.resume and not exchanges:
                self._remark("note: there is no conversation in the journal; this is a new one")
            device = self._device or live_device(self._args, config, self._remark)
            log = begin_session(places(config, os.environ).data)
            setup_log(log, "face")
            session = LiveSession(
                config,
                device,
                emit,
                exchanges=exchanges,
                journal=keeper.journal_ref,
                record_dir=self._args.record,
                log=log,
            )
            self._session = session
            if self._is_stopped:
                return
            reason = "quit"
            try:
                stream = session.start()
                emit(started(config, exchanges, "live", stream.rate_hz, stream.output_latency_ms))
                self.mic_ring, self.state = session.mic_ring, "running"
                reason = self._follow(session)
            finally:
                self.mic_ring = None
                session.stop()
            emit(events.SessionEnded(session.now_samples, reason))
        finally:
            keeper.close()

    def _follow(self, session: LiveSession) -> str:
        while True:
            while self._commands:
                session.send(self._commands.popleft())
            over = session.poll(_POLL_S)
            if over is not None:
                if over.is_error:
                    self.problem = f"the session ended by itself: {over.reason}"
                return over.reason

    def _remark(self, sentence: str) -> None:
        """What a terminal would print; there the first word says how bad it is."""
        word, colon, rest = sentence.partition(": ")
        severity = {"note": "info", "warning": "warning", "error": "error"}.get(word) if colon else None
        self._events.append(events.Notice(0, severity or "info", rest if severity else sentence))
