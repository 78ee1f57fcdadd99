"""A live session from the face's side: starts the three processes, passes events on, keeps journal and recording.

engine, ear     spawned first, they load models side by side
audio           started when both are ready; it says what the device is and makes the rings
face (here)     creates every segment, relays events and commands, stops everything
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from app import events
from app.commands import Command, Quit
from app.config.schema import Config
from app.conversation.history import Exchange
from app.engine.builder import check_models, ear_spec, model_files, places
from app.engine.process import (
    HOP_CAPACITY,
    Attach,
    EngineFailed,
    EngineSpec,
    Ready,
    StubSpec,
    engine_process_main,
)
from app.errors import AgentError
from app.recorder.recorder import Recorder, loudspeaker_track, session_tracks
from audio.block import HOP_SAMPLES
from audio.ear import HOP_DTYPE
from audio.ear_process import EarProcess, EarStopped
from audio.io.device import DeviceSpec, SpokenUtterance, StreamFormat
from audio.io.process import AudioProcess
from audio.io.segments import attach
from audio.ring import RecordRing

_LOAD_LIMIT_S = 120.0
_STOP_LIMIT_S = 1.0
_DRAIN_LIMIT_S = 0.6
_ENGINE_GONE = "the engine process ended by itself"


class EngineError(AgentError):
    """The engine could not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class SessionOver:
    """Why a session ended, and what a scripted user said in it."""

    reason: str
    spoken: tuple[SpokenUtterance, ...] = ()
    is_error: bool = False
    """It did not end because somebody wanted it to."""


class LiveSession:
    """`start`, then `poll` until it answers `SessionOver`, then `stop`."""

    hop_ring: RecordRing
    """Hops of the ear, for watchers; there after `start`."""

    def __init__(
        self,
        config: Config,
        device: DeviceSpec,
        emit: Callable[[events.Event], None],
        *,
        exchanges: Sequence[Exchange] = (),
        record_dir: Path | None = None,
        output: Path | None = None,
        stub: StubSpec | None = None,
    ) -> None:
        self._config = config
        self._emit = emit
        self._spec = EngineSpec(config, exchanges, stub)
        self._record_dir = record_dir
        self._output = output
        self._recorders: list[Recorder] = []
        self._audio = AudioProcess(device)
        self._device = device
        self._engine: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._ear: EarProcess | None = None
        self._is_attached = False
        self._rate_hz = 0
        self._reported_frames = 0
        self._has_quit = False

    def start(self) -> StreamFormat:
        """Load, open the device, begin.

        Raises:
            AgentError, AudioError: what is missing or does not answer, with the fix.
        """
        where = places(self._config, os.environ)
        files = model_files(self._config, where)
        check_models(self._config, where)
        self._ear = EarProcess(ear_spec(self._config, files))
        with _no_interrupt():
            self._spawn_engine()
            self._ear.start()
        backends = self._expect_ready()
        self._ear.wait_ready()
        with _no_interrupt():
            stream = self._audio.start(before_stream=self._attach)
        self._rate_hz = stream.rate_hz
        self._record(stream.rate_hz)
        self._emit(
            events.DeviceOpened(
                0,
                stream.input_name,
                stream.output_name,
                stream.rate_hz,
                stream.output_latency_ms,
                self._audio.priority,
            )
        )
        for stage, backend, held in [*self._ear.backends, *backends]:
            self._emit(events.StageBackend(0, stage, backend, held))
        return stream

    def _attach(self, stream: StreamFormat) -> None:
        """Ear and engine stand at the rings before the first block comes, or they would begin behind."""
        assert self._ear is not None
        refs = self._audio.refs
        hops = self._ear.attach(refs, stream, RecordRing.nbytes(HOP_DTYPE, HOP_CAPACITY))
        self.hop_ring = RecordRing(HOP_DTYPE, HOP_CAPACITY, attach(hops))
        self._send(Attach(stream, hops, refs.playback, refs.control))
        self._is_attached = True

    def send(self, command: Command) -> None:
        """Pass a user's command to the engine."""
        self._has_quit = self._has_quit or isinstance(command, Quit)
        self._send(command)

    def poll(self, timeout_s: float) -> SessionOver | None:
        """Relay what has come; wait up to `timeout_s` for something to come."""
        assert self._connection is not None
        assert self._ear is not None
        try:
            if self._connection.poll(timeout_s):
                message = self._connection.recv()
                if isinstance(message, EngineFailed):
                    raise EngineError(message.message)
                self._relay(message)
        except (EOFError, OSError):
            return SessionOver("quit") if self._has_quit else SessionOver(_ENGINE_GONE, is_error=True)
        for happened in self._ear.poll_events():
            if isinstance(happened, EarStopped):
                raise EngineError(f"the ear stopped: {happened.reason}", fix="Start again")
            trip = happened.round_trip
            self._emit(events.DeviceRoundTrip(happened.at_samples, round(trip.delay_ms, 2), round(trip.confidence, 2)))
        for stopped in self._audio.poll_events():
            if stopped.is_lost:
                self._emit(events.DeviceLost(self.now_samples, self._device_name(), stopped.reason))
            return SessionOver(stopped.reason, stopped.spoken, stopped.is_lost)
        self._report_losses()
        return None

    @property
    def mic_ring(self) -> RecordRing:
        """Microphone and loudspeaker blocks, for watchers."""
        return self._audio.mic_ring

    @property
    def now_samples(self) -> int:
        """Input index by the callback's count of blocks."""
        return int(self._audio.control.blocks) * HOP_SAMPLES if self._is_attached else 0

    def stop(self) -> None:
        """End everything; no process, thread or segment is left, whatever fails on the way."""
        with ExitStack() as steps:
            steps.callback(self._end_engine)
            if self._ear is not None:
                steps.callback(self._ear.stop)
                self._ear = None
            if self._connection is not None:
                steps.callback(self._connection.close)
            for recorder in self._recorders:
                steps.callback(recorder.close)
            self._recorders = []
            steps.callback(self._audio.stop)
            if self._is_attached and self._connection is not None:
                self._audio.control.shutdown = 1
                self._drain(self._connection)
            self._connection = None

    def _drain(self, connection: Connection[Any, Any]) -> None:
        """The engine settles the reply that is being heard, and closes; its last events are kept."""
        deadline = time.monotonic() + _DRAIN_LIMIT_S
        try:
            while connection.poll(max(0.0, deadline - time.monotonic())):
                message = connection.recv()
                if isinstance(message, list):
                    self._relay(message)
        except (EOFError, OSError):
            return

    def _relay(self, batch: Sequence[events.Event]) -> None:
        lost_frames = int(self._audio.control.lost_frames)
        for event in batch:
            self._emit(replace(event, lost_frames=lost_frames) if isinstance(event, events.Meters) else event)

    def _report_losses(self) -> None:
        """What the device or the disk lost since the last look."""
        lost_frames = int(self._audio.control.lost_frames)
        if lost_frames > self._reported_frames:
            lost_ms = (lost_frames - self._reported_frames) * 1000 / self._rate_hz
            self._reported_frames = lost_frames
            self._emit(events.Notice(self.now_samples, "warning", f"the sound device lost {lost_ms:.0f} ms of audio"))
        for recorder in self._recorders:
            if recorder.failure:
                self._emit(events.Notice(self.now_samples, "error", f"the recording stopped: {recorder.failure}"))
                recorder.failure = ""

    def _record(self, rate_hz: int) -> None:
        if self._record_dir is not None:
            self._recorders.append(Recorder(self._audio.mic_ring, session_tracks(self._record_dir, rate_hz)))
        if self._output is not None:
            self._recorders.append(Recorder(self._audio.mic_ring, loudspeaker_track(self._output, rate_hz)))

    def _spawn_engine(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        arguments = (child, self._spec, os.getpid())
        self._engine = context.Process(target=engine_process_main, args=arguments, name="vivavoce-engine", daemon=True)
        self._engine.start()
        child.close()

    def _expect_ready(self) -> Sequence[tuple[str, str, int]]:
        assert self._connection is not None
        deadline = time.monotonic() + _LOAD_LIMIT_S
        try:
            while not self._connection.poll(0.1):
                if time.monotonic() > deadline:
                    raise EngineError("the models did not load in two minutes", fix="Run: vivavoce doctor")
            message = self._connection.recv()
        except (EOFError, OSError):
            raise EngineError("the engine ended while it was loading", fix="Run: vivavoce doctor") from None
        if isinstance(message, EngineFailed):
            raise EngineError(message.message)
        assert isinstance(message, Ready)
        return message.backends

    def _send(self, message: object) -> None:
        assert self._connection is not None
        try:
            self._connection.send(message)
        except OSError:
            pass  # the engine has ended; poll says so

    def _end_engine(self) -> None:
        """A loading engine hears nothing, so it is ended by signal; it holds nothing that must be saved."""
        if self._engine is None:
            return
        ends = (None, self._engine.terminate, self._engine.kill)
        for end in ends if self._is_attached else ends[1:]:
            if end is not None:
                end()
            self._engine.join(_STOP_LIMIT_S / 2)
            if self._engine.exitcode is not None:
                break
        self._engine.close()
        self._engine = None

    def _device_name(self) -> str:
        return getattr(self._device, "input_name", "") or "sound device"


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Children are born with Ctrl-C blocked: it reaches the whole group, and only the face may act on it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
