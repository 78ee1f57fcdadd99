"""A live session from the face's side: starts the three processes, passes events on, keeps journal and recording.

engine, ear     spawned first, they load models side by side
audio           started when both are ready; it says what the device is and makes the rings
face (here)     creates every segment, relays events and commands, stops everything

Whichever of the three is lost, another takes its place on the same rings (`app.engine.recovery`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app import events
from app.commands import Command, Quit, SayText, SetMuted, StopSpeaking
from app.config.schema import Config
from app.conversation.history import Exchange
from app.conversation.output import RingOutput
from app.conversation.resume import Progress
from app.crash import describe_death
from app.engine.builder import check_models, ear_spec, model_files, places
from app.engine.device_keeper import DeviceKeeper
from app.engine.handle import EngineError, EngineLoaded, EngineProcess, EngineStopped
from app.engine.process import HOP_CAPACITY, Attach, EngineSpec, JournalRef, Ready, SayOneMoment, StubSpec
from app.engine.recovery import Outage, Restarts
from app.engine.round_trips import RoundTrips, round_trips_file
from app.engine.snapshots import open_snapshot_file, remove_snapshot_file
from app.log import LogSpec, setup_log
from app.recorder.recorder import Recorder, loudspeaker_track, session_tracks
from audio.control import ControlWords
from audio.ear import HOP_DTYPE
from audio.ear_process import EarProcess, EarRunning, EarStopped
from audio.hop_loop import RoundTripMeasured
from audio.io.device import DeviceSpec, SpokenUtterance, StreamFormat
from audio.io.segments import attach
from audio.protocols import Speech
from audio.ring import RecordRing

_QUIT_LIMIT_S = 1.0


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
        journal: JournalRef | None = None,
        record_dir: Path | None = None,
        output: Path | None = None,
        stub: StubSpec | None = None,
        log: LogSpec | None = None,
    ) -> None:
        self._config = config
        self._emit = emit
        self._spec = EngineSpec(config, journal, stub, log)
        self._progress = Progress(exchanges)
        self._record_dir = record_dir
        self._output = output
        self._recorders: list[Recorder] = []
        trips = RoundTrips(round_trips_file(os.environ))
        self._device = DeviceKeeper(device, config.recovery.when_device_lost, emit, trips, log)
        self._engine = EngineProcess()
        self._ear: EarProcess | None = None
        self._has_rings = False
        self._reported_frames = 0
        self._quit_s = 0.0
        self._is_muted = False
        self._unsaid: list[SayText] = []
        """Typed, and no engine has taken it yet."""
        self._one_moment: Speech | None = None
        self._is_on_gpu = False
        self._voice: RingOutput | None = None
        self._restarts = {"ear": Restarts(), "engine": Restarts()}
        self._outages: dict[str, Outage] = {}

    def start(self) -> StreamFormat:
        """Load, open the device, begin.

        Raises:
            AgentError, AudioError: what is missing or does not answer, with the fix.
        """
        where = places(self._config, os.environ)
        files = model_files(self._config, where)
        check_models(self._config, where)
        if self._config.llm.snapshots and self._spec.stub is None:
            with suppress(OSError):  # a folder that cannot be written costs a new engine some seconds, no more
                self._spec = replace(self._spec, snapshot=open_snapshot_file(where.cache))
        log = self._spec.log
        on_birth = None if log is None else partial(setup_log, log, "ear")
        self._ear = EarProcess(ear_spec(self._config, files), on_birth)
        with _no_interrupt():
            self._engine.start(self._spec)
            self._ear.start()
        ready = self._engine.wait_ready()
        self._take_ready(ready)
        self._ear.wait_ready()
        with _no_interrupt():
            stream = self._device.start(self._attach)
        self._record(stream.rate_hz)
        for stage, backend, held in [*self._ear.backends, *ready.backends]:
            self._emit(events.StageBackend(0, stage, backend, held))
        self._show_notices(ready)
        return stream

    def _take_ready(self, ready: Ready) -> None:
        self._one_moment = ready.one_moment
        self._is_on_gpu = any(stage == "llm" and "cuda" in backend for stage, backend, _ in ready.backends)

    def _attach(self, stream: StreamFormat) -> None:
        """Ear and engine stand at the rings before the first block comes, or they would begin behind."""
        assert self._ear is not None
        refs = self._device.audio.refs
        trip_ms = self._device.stored_round_trip_ms()
        hops = self._ear.attach(refs, stream, RecordRing.nbytes(HOP_DTYPE, HOP_CAPACITY), trip_ms)
        self.hop_ring = RecordRing(HOP_DTYPE, HOP_CAPACITY, attach(hops))
        self._link = Attach(stream, hops, refs.playback, refs.control, self._progress.point())
        self._engine.attach(self._link, self._control)
        self._has_rings = True
        for restarts in self._restarts.values():
            restarts.began(time.monotonic())

    def send(self, command: Command) -> None:
        """Pass a user's command to the engine. Stop and quit work while it hangs."""
        if isinstance(command, StopSpeaking) and self._has_rings:
            self._control.muted = 1  # until the engine has stopped the reply itself
            self._progress.give_up()
            self._end_voice()
        match command:
            case Quit():
                self._quit_s = self._quit_s or time.monotonic()
            case SetMuted(muted):
                self._is_muted = muted
            case SayText():
                self._unsaid.append(command)
        self._engine.send(command)

    def poll(self, timeout_s: float) -> SessionOver | None:
        """Relay what has come; wait up to `timeout_s` for something to come.

        Raises:
            EngineError: a process dies again and again, or says that it cannot run.
        """
        for news in self._engine.poll_events(timeout_s):
            match news:
                case EngineStopped() if self._quit_s:
                    return SessionOver("quit")
                case EngineStopped():
                    self._lose("engine", news.reason, is_hopeless=news.is_hopeless)
                case EngineLoaded(ready):
                    self._end_voice()
                    self._control.muted = 0
                    self._engine.attach(replace(self._link, resume=self._progress.point()), self._control)
                    self._repeat_commands()
                    self._take_ready(ready)
                    self._show_notices(ready)
                    self._regain("engine")
                case _:
                    self._relay(news)
        if self._quit_s and time.monotonic() - self._quit_s > _QUIT_LIMIT_S:
            return SessionOver("quit")  # an engine that hangs does not keep the user
        self._follow_ear()
        with _no_interrupt():
            ended = self._device.poll()
        self._follow_playback()
        self._begin_again()
        self._report_losses()
        return None if ended is None else SessionOver(ended.reason, ended.spoken)

    def _repeat_commands(self) -> None:
        """What the user wanted of an engine that died holds for the next one."""
        if self._is_muted:
            self._engine.send(SetMuted(True))
        for command in self._unsaid:
            self._engine.send(command)

    @property
    def mic_ring(self) -> RecordRing:
        """Microphone and loudspeaker blocks, for watchers."""
        return self._device.audio.mic_ring

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of those that run, by name."""
        found = {"engine": self._engine.pid, "ear": self._ear.pid if self._ear else None}
        found["audio"] = self._device.audio.pid if self._has_rings else None
        return {name: pid for name, pid in found.items() if pid is not None}

    @property
    def _control(self) -> ControlWords:
        return self._device.audio.control

    @property
    def now_samples(self) -> int:
        """Input index by the callback's count of blocks."""
        return self._device.now_samples

    def stop(self) -> None:
        """End everything; no process, thread or segment is left, whatever fails on the way."""
        with ExitStack() as steps:
            if self._spec.snapshot is not None:
                steps.callback(remove_snapshot_file, self._spec.snapshot)
            if self._ear is not None:
                steps.callback(self._ear.stop)
                self._ear = None
            steps.callback(self._close_recorders)
            steps.callback(self._device.stop)
            if self._has_rings:
                self._control.shutdown = 1
            self._relay(self._engine.stop())

    # -- the three processes --------------------------------------------------------------------------------

    def _follow_ear(self) -> None:
        assert self._ear is not None
        pid = self._ear.pid
        for happened in self._ear.poll_events():
            match happened:
                case EarStopped(reason):
                    self._lose("ear", reason + describe_death(self._spec.log, "ear", pid))
                case EarRunning():
                    self._regain("ear")
                case RoundTripMeasured(at_samples, trip):
                    self._device.store_round_trip(trip.delay_ms, trip.confidence)
                    self._emit(events.DeviceRoundTrip(at_samples, round(trip.delay_ms, 2), round(trip.confidence, 2)))

    def _lose(self, process: str, reason: str, *, is_hopeless: bool = False) -> None:
        if is_hopeless or not self._restarts[process].allows(time.monotonic()):
            raise EngineError(f"the {process} stopped: {reason}", fix="Start again; vivavoce doctor checks the machine")
        self._emit(events.ProcessLost(self.now_samples, process, reason))
        self._outages[process] = Outage(time.monotonic())

    def _regain(self, process: str) -> None:
        outage = self._outages.pop(process, None)
        self._restarts[process].began(time.monotonic())
        if outage is not None:
            lasted_ms = round(outage.lasted_ms(time.monotonic()), 1)
            self._emit(events.ProcessBack(self.now_samples, process, lasted_ms))

    def _begin_again(self) -> None:
        """Start successors, and ask for patience where they take their time."""
        now_s = time.monotonic()
        for process, outage in self._outages.items():
            if outage.wants_start(now_s):
                with _no_interrupt():
                    self._start_again(process)
            if outage.wants_word(now_s):
                self._ask_for_patience(process)

    def _start_again(self, process: str) -> None:
        assert self._ear is not None
        match process:
            case "ear":
                self._ear.restart()
            case "engine":
                avoids_gpu = self._is_on_gpu and self._restarts["engine"].quick_deaths > 0
                self._spec = replace(self._spec, avoids_gpu=self._spec.avoids_gpu or avoids_gpu)
                self._engine.restart(self._spec)

    # -- the loudspeaker, while no engine writes to it --------------------------------------------------------

    def _ask_for_patience(self, process: str) -> None:
        if process == "ear":
            self._engine.send(SayOneMoment())
            return
        if self._one_moment is None or self._control.muted:  # nobody asks for patience who was told to be quiet
            return
        self._voice = RingOutput(self._device.audio.playback_ring, self._control, self._link.stream.rate_hz)
        self._voice.begin(self._control.generation + 1, self._one_moment.rate_hz)
        self._voice.add(self._one_moment.samples)
        self._voice.end()

    def _end_voice(self) -> None:
        self._voice = None

    def _follow_playback(self) -> None:
        """Know to the word what was heard, engine or not; speak where there is none."""
        ring = self._device.audio.mic_ring
        if ring.written:
            last = (ring.position - 1) % ring.capacity
            generation, frames = int(ring.columns["generation"][last]), int(ring.columns["reply_frames"][last])
            word = self._progress.played(generation, frames, is_alone="engine" in self._outages)
            if word is not None:
                self._emit(word)
        if self._engine.is_running:
            self._end_voice()
        elif self._voice is not None:
            self._control.heartbeat_ns = time.monotonic_ns()
            self._voice.pump()

    # -- showing ------------------------------------------------------------------------------------------------

    def _relay(self, batch: Sequence[events.Event]) -> None:
        for event in batch:
            self._progress.take(event)
            match event:
                case events.CommandTaken(name="stop"):
                    self._control.muted = 0
                case events.CommandTaken(name="say", argument=text):
                    self._unsaid = [one for one in self._unsaid if one.text != text]
            self._emit(self._with_losses(event) if isinstance(event, events.Meters) else event)

    def _with_losses(self, meters: events.Meters) -> events.Meters:
        """The engine sees the ear only; what the device lost is counted here."""
        if not self._has_rings:
            return meters
        control = self._control
        return replace(meters, lost_frames=int(control.lost_frames), underruns=int(control.underruns))

    def _show_notices(self, ready: Ready) -> None:
        for message in ready.notices:
            self._notice("warning", message)

    def _notice(self, severity: str, message: str) -> None:
        self._emit(events.Notice(self.now_samples, severity, message))

    def _report_losses(self) -> None:
        """What the device or the disk lost since the last look."""
        lost_frames = int(self._control.lost_frames)
        if lost_frames > self._reported_frames:
            lost_ms = (lost_frames - self._reported_frames) * 1000 / self._link.stream.rate_hz
            self._reported_frames = lost_frames
            self._notice("warning", f"the sound device lost {lost_ms:.0f} ms of audio")
        self._report_recorders()

    def _report_recorders(self) -> None:
        for recorder in self._recorders:
            if recorder.failure:
                self._notice("error", f"the recording stopped: {recorder.failure}")
                recorder.failure = ""

    def _close_recorders(self) -> None:
        """The last of the sound may fail to be written too."""
        for recorder in self._recorders:
            recorder.close()
        self._report_recorders()
        self._recorders = []

    def _record(self, rate_hz: int) -> None:
        if self._record_dir is not None:
            self._recorders.append(Recorder(self._device.audio.mic_ring, session_tracks(self._record_dir, rate_hz)))
        if self._output is not None:
            self._recorders.append(Recorder(self._device.audio.mic_ring, loudspeaker_track(self._output, rate_hz)))


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Children are born with Ctrl-C and hang-up blocked: both reach the whole group, and only the face may act."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
