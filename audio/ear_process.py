"""The ear in a process of its own, and how its parent runs it.

The child loads its models at normal priority, then asks for a raised one and turns microphone blocks into
hop records until the control words say shutdown, the pipe closes, or the parent is gone. Audio goes
through the rings; the pipe carries the start, the measured round trip, and failures.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

from audio.child import end_child
from audio.control import ControlWords
from audio.ear import HOP_DTYPE, Ear, EarSpec
from audio.errors import AudioError
from audio.hop_loop import HopLoop, RoundTripMeasured
from audio.io.device import StreamFormat
from audio.io.priority import raise_priority
from audio.io.records import MIC_CAPACITY, block_dtype
from audio.io.segments import Segment, SegmentRef, attach
from audio.ring import RecordRing
from audio.watch import StallWatch

_LOAD_LIMIT_S = 60.0
_ATTACH_LIMIT_S = 5.0
_STOP_LIMIT_S = 1.0
_LOST_GRACE_S = 0.2
_HANG_LIMIT_S = 2.0
_ORPHAN_GRACE_S = 1.0
_DEATH_S = 0.05
_FIFO_PRIORITY = 5
"""Below the audio process, which must never wait for us."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class AudioLink(Protocol):
    """What the ear wants of the audio process: names of its microphone ring and its control words."""

    @property
    def mic(self) -> SegmentRef: ...
    @property
    def control(self) -> SegmentRef: ...


@dataclass(frozen=True, slots=True)
class EarStopped:
    """The ear has ended without being told to."""

    reason: str


@dataclass(frozen=True, slots=True)
class EarRunning:
    """The ear that was restarted hears again."""


EarEvent = RoundTripMeasured | EarStopped | EarRunning


@dataclass(frozen=True, slots=True)
class _Ready:
    backends: tuple[tuple[str, str, int], ...]
    priority: str


@dataclass(frozen=True, slots=True)
class _Attached:
    """The rings are open and watched."""


@dataclass(frozen=True, slots=True)
class _Failed:
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class _Attach:
    rate_hz: int
    block_frames: int
    mic: SegmentRef
    control: SegmentRef
    hops: SegmentRef
    hop_capacity: int
    first_block: int
    """Blocks before this one were heard already."""
    first_delay_ms: float | None
    """Round trip measured in an earlier session."""


class EarProcess:
    """`start`, `wait_ready`, `attach` to a started stream, `poll_events` now and then, `stop`.

    When `poll_events` says that the ear has stopped, `restart`; it goes on behind the last hop, and what waited in
    the microphone ring meanwhile is heard late, not lost.
    """

    def __init__(self, spec: EarSpec, on_birth: Callable[[], None] | None = None) -> None:
        """`on_birth` is called first thing in every child; it must be picklable."""
        self._spec = spec
        self._on_birth = on_birth
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._hops: Segment | None = None
        self._has_ended = True
        self.backends: Sequence[tuple[str, str, int]] = ()
        """(stage, backend, bytes), known after `wait_ready`."""
        self.priority = ""
        """What the scheduler granted: `SCHED_FIFO 5`, `nice -11` or `normal`."""
        self._link: _Attach | None = None
        self._hop_ring: RecordRing | None = None
        self._control: ControlWords | None = None
        self._is_hearing = False
        self._hanging, self._loading = StallWatch(_HANG_LIMIT_S), StallWatch(_LOAD_LIMIT_S)

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process; it loads its models while the caller does other things."""
        self.stop()
        self._spawn()

    def restart(self) -> None:
        """Begin anew on the same rings; does not wait. `poll_events` has an `EarRunning` when it hears again."""
        self._end_process(_LOST_GRACE_S)
        self._spawn()

    def _spawn(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        arguments = (child, self._spec, os.getpid(), self._on_birth)
        self._process = context.Process(target=ear_process_main, args=arguments, name="vivavoce-ear", daemon=True)
        with one_thread_each():
            self._process.start()
        child.close()
        self._has_ended = False

    def wait_ready(self) -> None:
        """Wait until everything is loaded.

        Raises:
            AudioError: an engine or model file is missing or broken, or the process died.
        """
        connection = self._open_connection()
        try:
            if not connection.poll(_LOAD_LIMIT_S):
                raise AudioError("the ear did not load in a minute", fix="Run `vivavoce doctor`")
            message = connection.recv()
        except (EOFError, OSError):
            raise AudioError("the ear died while it loaded", fix="Run `vivavoce doctor`") from None
        if isinstance(message, _Failed):
            raise AudioError(message.message, fix=message.fix)
        assert isinstance(message, _Ready)
        self.backends, self.priority = message.backends, message.priority

    def attach(
        self, audio: AudioLink, stream: StreamFormat, hop_ring_nbytes: int, first_delay_ms: float | None = None
    ) -> SegmentRef:
        """Give the ear its stream; where the hop ring of that size lies, for its readers. It listens on return.

        `first_delay_ms`: the round trip of these devices when they were last used.

        Raises:
            AudioError: no shared memory, or the ear is gone.
        """
        capacity = (hop_ring_nbytes - RecordRing.nbytes(HOP_DTYPE, 0)) // HOP_DTYPE.itemsize
        self._hops = Segment("hops", hop_ring_nbytes)
        self._hop_ring = RecordRing(HOP_DTYPE, capacity, self._hops.buffer)
        self._control = ControlWords(attach(audio.control))
        self._link = _Attach(
            stream.rate_hz,
            stream.block_frames,
            audio.mic,
            audio.control,
            self._hops.ref,
            capacity,
            first_block=0,
            first_delay_ms=first_delay_ms,
        )
        try:
            self._open_connection().send(self._link)
            if not self._open_connection().poll(_ATTACH_LIMIT_S):
                raise AudioError("the ear does not answer", fix="Start again")
            answer = self._open_connection().recv()
        except (EOFError, OSError):
            raise AudioError("the ear is gone", fix="Start again") from None
        if isinstance(answer, _Failed):
            raise AudioError(answer.message, fix=answer.fix)
        self._is_hearing = True
        return self._hops.ref

    def poll_events(self) -> list[EarEvent]:
        """What happened since the last call; does not wait."""
        if self._has_ended or self._connection is None:
            return []
        happened: list[EarEvent] = []
        try:
            while not self._has_ended and self._connection.poll():
                happened += self._take(self._connection.recv())
        except (EOFError, OSError):
            self._has_ended = True
            happened.append(EarStopped(f"the ear process died (exit code {self._exit_code()})"))
        if not self._has_ended and self._does_not_move():
            self._has_ended = True
            happened.append(EarStopped("the ear process does not move"))
        return happened

    def _does_not_move(self) -> bool:
        """Blocks wait, and no hop comes. One that loads gets its time too."""
        if self._hop_ring is None or self._control is None:
            return False
        has_work = self._control.blocks > self._next_block(self._hop_ring)
        limit = self._hanging if self._is_hearing else self._loading
        return limit.is_stalled(self._hop_ring.written, time.monotonic(), should_move=has_work)

    @staticmethod
    def _next_block(hops: RecordRing) -> int:
        """The first block that no hop was made of."""
        return int(hops.columns["block"][(hops.position - 1) % hops.capacity]) + 1 if hops.written else 0

    def _take(self, message: object) -> list[EarEvent]:
        """A message of a running ear, or of one that is being restarted."""
        match message:
            case RoundTripMeasured():
                if self._link is not None:  # what a successor should guess
                    self._link = replace(self._link, first_delay_ms=message.round_trip.delay_ms)
                return [message]
            case _Ready() if self._link is not None and self._hop_ring is not None:
                first = self._next_block(self._hop_ring)
                self._open_connection().send(replace(self._link, first_block=first))
                return []
            case _Attached():
                self._is_hearing = True
                return [EarRunning()]
        self._has_ended = True
        return [EarStopped(message.message if isinstance(message, _Failed) else repr(message))]

    def stop(self) -> None:
        """End the process and remove the hop ring's name. Harmless where nothing runs."""
        self._end_process(_STOP_LIMIT_S)
        self._link = self._hop_ring = self._control = None
        if self._hops is not None:
            self._hops.unlink()
            self._hops = None

    def _end_process(self, grace_s: float) -> None:
        self._has_ended, self._is_hearing = True, False
        if self._connection is not None:
            self._connection.close()  # the child notices within 0.1 s
            self._connection = None
        if self._process is not None:
            end_child(self._process, grace_s)
        self._process = None

    def _open_connection(self) -> Connection[Any, Any]:
        if self._connection is None:
            raise AudioError("the ear is not started")
        return self._connection

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        self._process.join(_STOP_LIMIT_S)
        return self._process.exitcode


def ear_process_main(
    connection: Connection[Any, Any], spec: EarSpec, parent_pid: int, on_birth: Callable[[], None] | None = None
) -> None:
    """Entry of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    if on_birth is not None:
        on_birth()
    try:
        # Loaded once for the answer to `wait_ready`; at another rate than 16 kHz only the resamplers differ.
        ear = Ear(spec)
        priority = raise_priority(_FIFO_PRIORITY)
        connection.send(_Ready(tuple(ear.backends()), priority))
        link: _Attach = connection.recv()
        ear.open(link.rate_hz, link.first_delay_ms)
        gc.collect()
        gc.freeze()  # collection itself stays on: each native echo call leaves a cycle in ctypes
        mic = RecordRing(block_dtype(link.block_frames), MIC_CAPACITY, attach(link.mic))
        loop = HopLoop(
            ear,
            mic.reader(first=link.first_block),
            RecordRing(HOP_DTYPE, link.hop_capacity, attach(link.hops)),
            ControlWords(attach(link.control)),
        )
        connection.send(_Attached())
        loop.run(_Orphan(parent_pid, connection), connection.send)
    except AudioError as error:
        with suppress(OSError):  # the parent is gone
            connection.send(_Failed(error.message, error.fix))
    except (EOFError, BrokenPipeError, ConnectionResetError, FileNotFoundError):
        pass  # the parent is gone, or has removed the rings before we came to them
    except Exception as error:
        logging.getLogger("vivavoce.ear").exception("unexpected")
        with suppress(OSError):  # the parent is gone
            connection.send(_Failed(f"unexpected {type(error).__name__}: {error}", ""))


class _Orphan:
    """Nobody wants hops any more; but after a parent that died, the engine needs a moment to settle what was heard."""

    def __init__(self, parent_pid: int, connection: Connection[Any, Any]) -> None:
        self._parent_pid, self._connection = parent_pid, connection
        self._since_s: float | None = None

    def __call__(self) -> bool:
        if os.getppid() == self._parent_pid:
            # The parent sends nothing any more: this is its end closing. A dying one does that a little before.
            return self._connection.poll() and not self._is_dying()
        self._since_s = self._since_s or time.monotonic()
        return time.monotonic() - self._since_s > _ORPHAN_GRACE_S

    def _is_dying(self) -> bool:
        time.sleep(_DEATH_S)
        return os.getppid() != self._parent_pid


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Native thread pools read these when they are loaded, so the child must be born with them."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
