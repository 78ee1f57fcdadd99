"""The engine process: models, turn machine, desk. It reads hops, writes playback, answers to its parent.

The parent spawns it early, because loading takes seconds; the sound device starts when it is ready.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from app import events
from app.commands import Command, Quit
from app.config.schema import Config
from app.conversation.agent import Conversation, Engines
from app.conversation.desk import Desk
from app.conversation.output import RingOutput
from app.conversation.resume import ResumePoint
from app.crash import describe_crash, outside_fault
from app.engine.builder import load_engines, open_conversation, open_desk, open_upkeep, places
from app.engine.snapshots import remove_snapshot_file
from app.engine.tended_model import TendedModel
from app.engine.upkeep import Upkeep
from app.errors import AgentError
from app.journal import Journal, is_whole_entry
from app.log import LogSpec, close_log, setup_log
from app.notices import NO_SIGNAL, SIGNAL_BACK, sound_lost
from audio.block import HOP_MS, HOP_SAMPLES
from audio.control import ControlWords
from audio.ear import HOP_DTYPE
from audio.errors import AudioError
from audio.io.device import StreamFormat
from audio.io.records import PLAYBACK_CAPACITY, playback_dtype
from audio.io.segments import SegmentRef, attach, sweep_stale
from audio.meters.signal_presence import SignalPresence
from audio.protocols import Speech
from audio.ring import RecordRing
from gpu.errors import GpuError

HOP_CAPACITY = 4096
"""Hops, 40 s: how much of an unfinished utterance a new engine can hear again."""
_IDLE_WAIT_S = 0.002
_STANDSTILL_S = 0.1
"""No hop for so long: the device is away, and commands cannot wait for the next one."""
_CLOSE_LIMIT_S = 0.5
_UPKEEP_LIMIT_S = 0.1
_LAST_WORDS_S = 0.8
_DEATH_S = 0.2
"""A dying parent closes its pipes a little before it is gone."""
_KEPT_EVENTS = 6
"""Questions and replies whose fate in the pipe to the parent is not known."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the engine process is started with."""

    config: Config
    journal: JournalRef | None = None
    stub: StubSpec | None = None
    log: LogSpec | None = None
    avoids_gpu: bool = False
    """An engine before this one died on the GPU."""
    snapshot: Path | None = None
    """Where the language model's keys and values are kept for the next engine."""


@dataclass(frozen=True, slots=True)
class JournalRef:
    """Where an engine whose face has died writes what was heard last."""

    path: Path
    session: str


@dataclass(frozen=True, slots=True)
class StubSpec:
    """Run on stub engines, to measure the framework alone."""

    first_token_ms: float
    tts_ms: float


@dataclass(frozen=True, slots=True)
class Attach:
    """The rings to work on, once the device is open."""

    stream: StreamFormat
    hops: SegmentRef
    playback: SegmentRef
    control: SegmentRef
    resume: ResumePoint
    """What was said and heard before."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded."""

    backends: Sequence[tuple[str, str, int]]
    """(stage, backend, bytes) of each."""
    one_moment: Speech | None
    """What the face plays when this engine has died: its voice dies with it."""
    notices: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot run; one sentence."""

    message: str
    is_crash: bool = False
    """A bug of ours: another try may end otherwise. Else the reason stays."""
    exit_code: int = 2
    """What the command line leaves with, where the engine never began."""


@dataclass(frozen=True, slots=True)
class SayOneMoment:
    """The ear has died: say that it takes a moment, unless a reply is sounding."""


def engine_process_main(connection: Connection[Any, Any], spec: EngineSpec, parent_pid: int) -> None:
    """Entry of the child: ends when told to, or when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if spec.log is not None:
        setup_log(spec.log, "engine")
    try:
        engines, ready, upkeep = _load(spec)
        connection.send(ready)
        attached = connection.recv()
        _Loop(connection, spec, engines, attached, parent_pid, ready.one_moment, upkeep).run()
    except (AgentError, AudioError, GpuError) as error:
        _tell(connection, EngineFailed(str(error), exit_code=getattr(error, "exit_code", 2)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone, and with it everybody who could be told
    except Exception as error:
        fault = outside_fault(error)
        exit_code = 2 if fault is None else fault.exit_code
        _tell(connection, EngineFailed(describe_crash(error), is_crash=True, exit_code=exit_code))
    if os.getppid() != parent_pid:
        sweep_stale()  # what the dead parent cannot remove
    # Workers may sit in a native call that nothing can interrupt; they hold no file and no segment.
    sys.stdout.flush()
    close_log()
    os._exit(0)


def _load(spec: EngineSpec) -> tuple[Engines, Ready, Upkeep]:
    if spec.stub is not None:
        from app.bench.stubs import stub_engines

        engines = stub_engines(spec.stub.first_token_ms, spec.stub.tts_ms)
        ready = Ready([("all", "stub", 0)], engines.tts.synthesize(spec.config.recovery.one_moment))
        return engines, ready, Upkeep()
    notices: list[str] = []
    where = places(spec.config, os.environ)
    loaded = load_engines(spec.config, where, notices.append, avoids_gpu=spec.avoids_gpu, snapshot=spec.snapshot)
    model = TendedModel(loaded.llm)
    engines, phrase = replace(loaded.engines, llm=model), spec.config.recovery.one_moment
    ready = Ready(loaded.backends, engines.tts.synthesize(phrase) if phrase else None, notices)
    return engines, ready, open_upkeep(spec.config, where, loaded, model, spec.snapshot)


def _tell(connection: Connection[Any, Any], message: object) -> None:
    try:
        connection.send(message)
    except OSError:
        pass  # nobody listens any more


class _Loop:
    """Hops, commands and results in; playback and events out."""

    def __init__(
        self,
        connection: Connection[Any, Any],
        spec: EngineSpec,
        engines: Engines,
        link: Attach,
        parent_pid: int,
        one_moment: Speech | None,
        upkeep: Upkeep,
    ) -> None:
        self._upkeep = upkeep
        self._snapshot = spec.snapshot
        self._connection = connection
        self._journal = spec.journal
        self._pending = link.resume.pending
        self._parent_pid = parent_pid
        self._one_moment = one_moment
        self._control = ControlWords(attach(link.control))
        hops = RecordRing(HOP_DTYPE, HOP_CAPACITY, attach(link.hops))
        self._hops = hops.reader(first=0)
        playback = RecordRing(playback_dtype(link.stream.block_frames), PLAYBACK_CAPACITY, attach(link.playback))
        self._desk: Desk = open_desk(None, is_paced=True)
        output = RingOutput(playback, self._control, link.stream.rate_hz)
        self._outbox: list[events.Event] = []
        self._kept: deque[events.Event] = deque(maxlen=_KEPT_EVENTS)
        self._is_cut_off = False
        """Nobody is at the other end of the pipe."""
        self._next_block = link.resume.first_block
        self._heard_s = time.monotonic()
        self._presence = SignalPresence()
        self._conversation: Conversation = open_conversation(
            spec.config,
            engines,
            self._desk,
            output,
            self._outbox.append,
            output_latency_ms=link.stream.output_latency_ms,
            resume=link.resume,
            first_generation=self._control.generation,
        )

    def run(self) -> None:
        """Until shutdown, quit, or the parent's end."""
        try:
            self._beat()
            is_going_on = self._turn()
            if self._pending is not None:
                self._conversation.go_on(self._pending)
            while is_going_on and not self._control.shutdown and not self._is_cut_off and not self._is_orphan:
                self._beat()
                is_going_on = self._turn()
                self._upkeep.is_idle = self._conversation.is_idle
                self._outbox += self._upkeep.take_events(self._conversation.now_samples)
                self._flush()
        finally:
            is_alone = self._has_parent_died()
            if is_alone:
                self._say_last_words()
            self._conversation.close()
            self._desk.close(_CLOSE_LIMIT_S)
            if is_alone:
                self._write_journal()
                if self._snapshot is not None:
                    remove_snapshot_file(self._snapshot)
            else:
                self._flush()
            self._upkeep.close(_UPKEEP_LIMIT_S)

    @property
    def _is_orphan(self) -> bool:
        return os.getppid() != self._parent_pid

    def _has_parent_died(self) -> bool:
        """Whether it has died, rather than told us to end."""
        until_s = time.monotonic() + (_DEATH_S if self._is_cut_off else 0.0)
        while not self._is_orphan and time.monotonic() < until_s:
            time.sleep(_IDLE_WAIT_S)
        return self._is_orphan

    def _beat(self) -> None:
        self._control.heartbeat_ns = time.monotonic_ns()

    def _turn(self) -> bool:
        """Everything that is there now; else wait a little. False when the user quit."""
        hops = self._hops.read()
        for hop in hops[hops["block"] >= self._next_block]:
            self._note_gap(int(hop["block"]))
            self._note_presence(hop)
            self._conversation.hear(hop)
            if not self._take_commands():
                return False
            self._conversation.poll()
        if len(hops):
            self._heard_s = time.monotonic()
            return True
        self._desk.wait(_IDLE_WAIT_S)
        self._conversation.poll()
        return time.monotonic() - self._heard_s < _STANDSTILL_S or self._take_commands()

    def _say_last_words(self) -> None:
        """The face has died, and with it the audio process: hear all that left the loudspeaker until then."""
        until_s = time.monotonic() + _LAST_WORDS_S
        while (now_s := time.monotonic()) < until_s and (
            self._control.running or now_s - self._heard_s < _STANDSTILL_S
        ):
            self._turn()

    def _write_journal(self) -> None:
        """Nobody else can any more. What was sent last may lie in the pipe unread, so it is written again."""
        if self._journal is None:
            return
        journal = Journal(self._journal.path, session=self._journal.session)
        for event in [*self._kept, *self._outbox]:
            journal.take(event)
        journal.close()

    def _note_gap(self, block: int) -> None:
        """Sound that came to nobody, because the ear or we were seconds behind, is said."""
        missing, self._next_block = block - self._next_block, block + 1
        if missing:
            self._outbox.append(events.Notice(block * HOP_SAMPLES, "warning", sound_lost(missing * HOP_MS)))

    def _note_presence(self, hop: np.void) -> None:
        """A microphone that is dead, muted in hardware or barred by the system delivers nothing at all: say so."""
        has_signal = self._presence.push(float(hop["level_db"]))
        if has_signal is not None:
            message = SIGNAL_BACK if has_signal else NO_SIGNAL
            severity = "info" if has_signal else "warning"
            self._outbox.append(events.Notice(int(hop["block"]) * HOP_SAMPLES, severity, message))

    def _take_commands(self) -> bool:
        try:
            while not self._is_cut_off and self._connection.poll():
                message: Command | SayOneMoment = self._connection.recv()
                if isinstance(message, SayOneMoment):
                    if self._one_moment is not None:
                        self._conversation.say_aside(self._one_moment)
                    continue
                self._conversation.command(message)
                if isinstance(message, Quit):
                    return False
        except (EOFError, OSError):
            self._is_cut_off = True
        return True

    def _flush(self) -> None:
        if not self._outbox:
            return
        self._kept.extend(event for event in self._outbox if is_whole_entry(event))
        try:
            self._connection.send(list(self._outbox))
        except OSError:
            self._is_cut_off = True
        self._outbox.clear()
