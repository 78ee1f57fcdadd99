"""The audio process: a sound device, its callback, and three shared segments; and how its parent runs it.

Parent and child speak over one pipe: the child opens the device and says what it is, the parent makes the
memory and names it, the child starts the stream. From then on audio goes through the rings, and the pipe only
carries what ends the stream. After a loss another process goes on with the same rings: it waits for the device,
and restarting is also how a new device list is read.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from audio.child import end_child
from audio.control import ControlWords
from audio.errors import AudioError, DeviceError
from audio.io.device import DeviceSpec, SimulatedSpec, StreamFormat
from audio.io.records import MIC_CAPACITY, PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.io.segments import Segment, sweep_stale
from audio.io.stream_child import (
    DeviceRunning,
    DeviceStopped,
    DriftMeasured,
    Failed,
    GoOn,
    Opened,
    Started,
    StreamRefs,
    audio_process_main,
)
from audio.ring import RecordRing
from audio.watch import StallWatch

_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 1.0
_LOST_GRACE_S = 0.5
_HANG_LIMIT_S = 1.0
"""The child's own watchdog is faster; this one is for a child that is itself stopped."""

DeviceEvent = DeviceStopped | DeviceRunning | DriftMeasured


class AudioProcess:
    """Runs a device in a process of its own. `start` it, use the rings, `stop` it.

    When `poll_events` says that the device is lost, `restart` begins anew on the same rings.
    """

    mic_ring: RecordRing
    playback_ring: RecordRing
    control: ControlWords

    def __init__(self, spec: DeviceSpec, on_birth: Callable[[], None] | None = None) -> None:
        """`on_birth` is called first thing in every child; it must be picklable."""
        if isinstance(spec, SimulatedSpec):
            if not spec.is_paced:
                raise ValueError("an unpaced device is stepped by its caller and has no process")
        self._spec = spec
        self._on_birth = on_birth
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._segments: list[Segment] = []
        self._has_ended = True
        self._rate_hz = 0
        self._epoch_ns = 0
        self._watch = StallWatch(_HANG_LIMIT_S)
        self._opened: Opened
        self.priority = ""
        """What the scheduler granted: `SCHED_FIFO 10`, `nice -11` or `normal`."""

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def refs(self) -> StreamRefs:
        """Where the rings lie, for other processes; known after `start`."""
        mic, playback, control = (segment.ref for segment in self._segments)
        return StreamRefs(mic, playback, control)

    def start(self, before_stream: Callable[[StreamFormat], None] | None = None) -> StreamFormat:
        """Start the process and the stream. `before_stream` runs between: the rings are there, no sound yet.

        Raises:
            DeviceError: the device cannot be opened. AudioError: no memory, no process, no answer.
        """
        self.stop()
        sweep_stale()
        try:
            self._spawn(self._spec, None)
            assert self._connection is not None
            opened: Opened = self._expect(Opened)
            self.priority, self._rate_hz = opened.priority, opened.format.rate_hz
            refs = self._make_segments(opened.format)
            if before_stream is not None:
                before_stream(opened.format)
            self._epoch_ns = time.monotonic_ns()
            self._connection.send(refs)
            self._expect(Started)
        except BaseException:
            self.stop()
            raise
        self._has_ended = False
        return opened.format

    def restart(self, spec: DeviceSpec | None = None, fallback: DeviceSpec | None = None) -> None:
        """Go on with another process on the same rings, and on `spec` where one is given; does not wait.

        The child tries until the device is there, and after a second the `fallback` too; when sound flows,
        `poll_events` has a `DeviceRunning`. What waiting does not mend ends in a `DeviceStopped`.
        """
        self._end_process(_LOST_GRACE_S)
        self.control.running = 0
        wanted = spec or self._spec
        if isinstance(wanted, SimulatedSpec) and wanted.epoch_ns is None:
            # Its world goes on without us: a successor comes later in it, and does not repeat a disappearance.
            wanted = replace(wanted, epoch_ns=self._epoch_ns)
        self._spawn(wanted, GoOn(self.refs, self._rate_hz, fallback))
        self._has_ended = False

    def poll_events(self) -> list[DeviceEvent]:
        """What happened since the last call; does not wait."""
        if self._has_ended or self._connection is None or self._process is None:
            return []
        try:
            while self._connection.poll():
                message = self._connection.recv()
                if isinstance(message, Opened):
                    self.priority, self._opened = message.priority, message
                elif isinstance(message, Started):
                    return [DeviceRunning(self._opened.format, self._opened.is_fallback)]
                elif isinstance(message, DriftMeasured):
                    return [message]
                else:
                    self._has_ended = True
                    failed = isinstance(message, Failed)
                    return [DeviceStopped(message.message, is_lost=True) if failed else message]
        except (EOFError, OSError):
            self._process.join(_STOP_LIMIT_S)
            self._has_ended = True
            return [DeviceStopped(f"the audio process died (exit code {self._process.exitcode})", is_lost=True)]
        if self._watch.is_stalled(self.control.blocks, time.monotonic(), should_move=bool(self.control.running)):
            self._has_ended = True
            return [DeviceStopped("the audio process does not move", is_lost=True)]
        return []

    def stop(self) -> None:
        """End the process and remove the segments; the rings stay readable. Harmless where nothing runs."""
        self._has_ended = True
        if self._segments:
            self.control.shutdown = 1
        self._end_process(_STOP_LIMIT_S)
        for segment in self._segments:
            segment.unlink()
        self._segments = []

    def _spawn(self, spec: DeviceSpec, go_on: GoOn | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        arguments = (child, spec, os.getpid(), go_on, self._on_birth)
        self._process = context.Process(target=audio_process_main, args=arguments, name="vivavoce-audio", daemon=True)
        self._process.start()
        child.close()

    def _end_process(self, grace_s: float) -> None:
        if self._connection is not None:
            self._connection.close()  # the child notices within 50 ms
            self._connection = None
        if self._process is not None:
            end_child(self._process, grace_s)
        self._process = None

    def _make_segments(self, stream: StreamFormat) -> StreamRefs:
        mic, playback = block_dtype(stream.block_frames), playback_dtype(stream.block_frames)
        for role, nbytes in (
            ("mic", RecordRing.nbytes(mic, MIC_CAPACITY)),
            ("playback", RecordRing.nbytes(playback, PLAYBACK_CAPACITY)),
            ("control", ControlWords.NBYTES),
        ):
            self._segments.append(Segment(role, nbytes))
        buffers = [segment.buffer for segment in self._segments]
        self.mic_ring = RecordRing(mic, MIC_CAPACITY, buffers[0])
        self.playback_ring = RecordRing(playback, PLAYBACK_CAPACITY, buffers[1])
        self.control = ControlWords(buffers[2])
        return self.refs

    def _expect(self, kind: type[Any]) -> Any:
        assert self._connection is not None
        try:
            if not self._connection.poll(_START_LIMIT_S):
                raise AudioError("the audio process does not answer", fix="Choose another sound device")
            message = self._connection.recv()
        except EOFError:
            raise AudioError("the audio process died while it started", fix="Choose another sound device") from None
        if isinstance(message, Failed):
            if message.device:
                raise DeviceError(
                    message.message, device=message.device, fix=message.fix, is_permanent=message.is_permanent
                )
            raise AudioError(message.message, fix=message.fix)
        if not isinstance(message, kind):
            raise AudioError(f"the audio process sent {message!r} while it started")
        return message
