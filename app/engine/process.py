"""The engine process: models, turn machine, desk. It reads hops, writes playback, answers to its parent.

The parent spawns it early, because loading takes seconds; the sound device starts when it is ready.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from app import events
from app.commands import Command, Quit
from app.config.schema import Config
from app.conversation.agent import Conversation, Engines
from app.conversation.desk import Desk
from app.conversation.history import Exchange
from app.conversation.output import RingOutput
from app.crash import describe_crash
from app.engine.builder import open_conversation, open_desk, open_engines, places
from app.errors import AgentError
from audio.block import HOP_MS, HOP_SAMPLES
from audio.control import ControlWords
from audio.ear import HOP_DTYPE
from audio.errors import AudioError
from audio.io.device import StreamFormat
from audio.io.records import PLAYBACK_CAPACITY, playback_dtype
from audio.io.segments import SegmentRef, attach
from audio.ring import RecordRing
from gpu.errors import GpuError

HOP_CAPACITY = 512
"""Hops, 5 s: how far the engine may fall behind the ear."""
_IDLE_WAIT_S = 0.002
_CLOSE_LIMIT_S = 0.5


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What the engine process is started with."""

    config: Config
    exchanges: Sequence[Exchange]
    stub: StubSpec | None = None


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


@dataclass(frozen=True, slots=True)
class Ready:
    """The models are loaded: (stage, backend, bytes) of each."""

    backends: Sequence[tuple[str, str, int]]


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine cannot run; one sentence."""

    message: str


def engine_process_main(connection: Connection[Any, Any], spec: EngineSpec, parent_pid: int) -> None:
    """Entry of the child: ends when told to, or when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        engines, backends = _load(spec)
        connection.send(Ready(backends))
        attached = connection.recv()
        _Loop(connection, spec, engines, attached, parent_pid).run()
    except (AgentError, AudioError, GpuError) as error:
        _tell(connection, EngineFailed(str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone, and with it everybody who could be told
    except Exception as error:
        _tell(connection, EngineFailed(describe_crash(error)))
    # Workers may sit in a native call that nothing can interrupt; they hold no file and no segment.
    sys.stdout.flush()
    os._exit(0)


def _load(spec: EngineSpec) -> tuple[Engines, Sequence[tuple[str, str, int]]]:
    if spec.stub is not None:
        from app.bench.stubs import stub_engines

        return stub_engines(spec.stub.first_token_ms, spec.stub.tts_ms), [("all", "stub", 0)]
    return open_engines(spec.config, places(spec.config, os.environ))


def _tell(connection: Connection[Any, Any], message: object) -> None:
    try:
        connection.send(message)
    except OSError:
        pass  # nobody listens any more


class _Loop:
    """Hops, commands and results in; playback and events out."""

    def __init__(
        self, connection: Connection[Any, Any], spec: EngineSpec, engines: Engines, link: Attach, parent_pid: int
    ) -> None:
        self._connection = connection
        self._parent_pid = parent_pid
        self._control = ControlWords(attach(link.control))
        hops = RecordRing(HOP_DTYPE, HOP_CAPACITY, attach(link.hops))
        self._hops = hops.reader(from_start=True)
        playback = RecordRing(playback_dtype(link.stream.block_frames), PLAYBACK_CAPACITY, attach(link.playback))
        self._desk: Desk = open_desk(None, is_paced=True)
        output = RingOutput(playback, self._control, link.stream.rate_hz)
        self._outbox: list[events.Event] = []
        self._next_block = 0
        self._conversation: Conversation = open_conversation(
            spec.config,
            engines,
            self._desk,
            output,
            self._outbox.append,
            output_latency_ms=link.stream.output_latency_ms,
            exchanges=spec.exchanges,
        )

    def run(self) -> None:
        """Until shutdown, quit, or the parent's end."""
        try:
            while not self._control.shutdown and os.getppid() == self._parent_pid:
                self._control.heartbeat_ns = time.monotonic_ns()
                if not self._turn():
                    break
                self._flush()
        finally:
            self._conversation.close()
            self._flush()
            self._desk.close(_CLOSE_LIMIT_S)

    def _turn(self) -> bool:
        """Everything that is there now; else wait a little. False when the user quit."""
        hops = self._hops.read()
        for hop in hops:
            self._note_gap(int(hop["block"]))
            self._conversation.hear(hop)
            if not self._take_commands():
                return False
            self._conversation.poll()
        if not len(hops):
            self._desk.wait(_IDLE_WAIT_S)
            self._conversation.poll()
        return True

    def _note_gap(self, block: int) -> None:
        """Sound that came to nobody, because the ear or we were seconds behind, is said."""
        missing, self._next_block = block - self._next_block, block + 1
        if missing:
            message = f"{missing * HOP_MS} ms of sound were lost: this machine was too busy"
            self._outbox.append(events.Notice(block * HOP_SAMPLES, "warning", message))

    def _take_commands(self) -> bool:
        while self._connection.poll():
            command: Command = self._connection.recv()
            self._conversation.command(command)
            if isinstance(command, Quit):
                return False
        return True

    def _flush(self) -> None:
        if self._outbox:
            self._connection.send(list(self._outbox))
            self._outbox.clear()
