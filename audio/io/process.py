"""The audio process: a sound device, its callback, and three shared segments; and how its parent runs it.

Parent and child speak over one pipe: the child opens the device and says what it is, the parent makes the
memory and names it, the child starts the stream. From then on audio goes through the rings, and the pipe only
carries what ends the stream. Restarting the process is how a new device list is read.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from audio.control import ControlWords
from audio.errors import AudioError, DeviceError
from audio.io.callback import DuplexCallback
from audio.io.device import (
    AudioDevice,
    DeviceSpec,
    Finished,
    SimulatedSpec,
    SpokenUtterance,
    StreamFormat,
    make_device,
)
from audio.io.priority import raise_priority
from audio.io.records import MIC_CAPACITY, PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.io.segments import Segment, SegmentRef, attach, sweep_stale
from audio.ring import RecordRing

_POLL_S = 0.05
_FIRST_BLOCK_LIMIT_S = 3.0
_NO_BLOCK_LIMIT_S = 0.5
_START_LIMIT_S = 20.0
_STOP_LIMIT_S = 1.0
_CLOSE_LIMIT_S = 0.3


@dataclass(frozen=True, slots=True)
class DeviceStopped:
    """The device stopped by itself and the process has ended."""

    reason: str
    is_lost: bool
    """False where a recording or a script came to its end."""
    spoken: tuple[SpokenUtterance, ...] = ()
    """What a scripted user said, and when."""


@dataclass(frozen=True, slots=True)
class _Opened:
    format: StreamFormat
    priority: str


@dataclass(frozen=True, slots=True)
class _Started:
    pass


@dataclass(frozen=True, slots=True)
class _Failed:
    """An AudioError in parts: its class cannot be rebuilt from its arguments by pickle."""

    message: str
    fix: str
    device: str
    is_permanent: bool


@dataclass(frozen=True, slots=True)
class StreamRefs:
    """The segments of a running stream."""

    mic: SegmentRef
    playback: SegmentRef
    control: SegmentRef


class AudioProcess:
    """Runs a device in a process of its own. `start` it, use the rings, `stop` it; it may be started again."""

    mic_ring: RecordRing
    playback_ring: RecordRing
    control: ControlWords

    def __init__(self, spec: DeviceSpec) -> None:
        if isinstance(spec, SimulatedSpec):
            if not spec.is_paced:
                raise ValueError("an unpaced device is stepped by its caller and has no process")
            if spec.epoch_ns is None:  # a restart must not repeat the disappearance
                spec = replace(spec, epoch_ns=time.monotonic_ns())
        self._spec = spec
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._segments: list[Segment] = []
        self._has_ended = True
        self.priority = ""
        """What the scheduler granted: `SCHED_FIFO 10`, `nice -11` or `normal`."""

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
        context = multiprocessing.get_context("spawn")
        self._connection, child = context.Pipe()
        arguments = (child, self._spec, os.getpid())
        self._process = context.Process(target=audio_process_main, args=arguments, name="vivavoce-audio", daemon=True)
        try:
            self._process.start()
            child.close()
            opened: _Opened = self._expect(_Opened)
            self.priority = opened.priority
            refs = self._make_segments(opened.format)
            if before_stream is not None:
                before_stream(opened.format)
            self._connection.send(refs)
            self._expect(_Started)
        except BaseException:
            self.stop()
            raise
        self._has_ended = False
        return opened.format

    def poll_events(self) -> list[DeviceStopped]:
        """What happened since the last call; does not wait."""
        if self._has_ended or self._connection is None or self._process is None:
            return []
        try:
            if not self._connection.poll():
                return []
            event = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(_STOP_LIMIT_S)
            event = DeviceStopped(f"the audio process died (exit code {self._process.exitcode})", is_lost=True)
        self._has_ended = True
        return [event]

    def stop(self) -> None:
        """End the process and remove the segments; the rings stay readable. Harmless where nothing runs."""
        self._has_ended = True
        if self._segments:
            self.control.shutdown = 1
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None and self._process.pid is not None:
            for end in (None, self._process.terminate, self._process.kill):
                if end is not None:
                    end()
                self._process.join(_STOP_LIMIT_S)
                if self._process.exitcode is not None:
                    break
            self._process.close()
        self._process = None
        for segment in self._segments:
            segment.unlink()
        self._segments = []

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
        if isinstance(message, _Failed):
            if message.device:
                raise DeviceError(
                    message.message, device=message.device, fix=message.fix, is_permanent=message.is_permanent
                )
            raise AudioError(message.message, fix=message.fix)
        if not isinstance(message, kind):
            raise AudioError(f"the audio process sent {message!r} while it started")
        return message


def audio_process_main(connection: Connection[Any, Any], spec: DeviceSpec, parent_pid: int) -> None:
    """Entry of the child: ends when told to, when the device does, or when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        priority = raise_priority()
        device = make_device(spec)
        stream = device.open()
        connection.send(_Opened(stream, priority))
        segments: StreamRefs = connection.recv()
        control = ControlWords(attach(segments.control))
        callback = DuplexCallback(
            RecordRing(block_dtype(stream.block_frames), MIC_CAPACITY, attach(segments.mic)),
            RecordRing(playback_dtype(stream.block_frames), PLAYBACK_CAPACITY, attach(segments.playback)),
            control,
            stream.rate_hz,
        )
        gc.collect()
        gc.freeze()
        gc.disable()
        device.start(callback)
        control.running = 1
        connection.send(_Started())
        stopped = _watch(device, control, connection, lambda: os.getppid() != parent_pid)
        control.running = 0
        has_stopped = _stop_in_time(device)
        if stopped is not None:
            connection.send(DeviceStopped(stopped.reason, stopped.is_lost, device.spoken()))
        if not has_stopped:
            connection.close()
            os._exit(0)
    except AudioError as error:
        failed = _Failed(error.message, error.fix, getattr(error, "device", ""), error.is_permanent)
        with suppress(OSError):  # the parent is gone
            connection.send(failed)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone, and with it everybody who could be told


def _stop_in_time(device: AudioDevice) -> bool:
    """Stop the device; False where its driver does not let go.

    With ALSA's pulse plugin, closing a stream whose server has died can wait for ever on a lock of libpulse.
    """
    stopping = threading.Thread(target=device.stop, daemon=True)
    stopping.start()
    stopping.join(_CLOSE_LIMIT_S)
    return not stopping.is_alive()


def _watch(
    device: AudioDevice, control: ControlWords, connection: Connection[Any, Any], is_orphan: Callable[[], bool]
) -> Finished | None:
    """Wait until the stream must end; why, or None where the parent wants it."""
    blocks = 0
    silent_since_s = time.monotonic()
    while not control.shutdown and not is_orphan():
        if connection.poll(_POLL_S):  # the parent sends nothing any more: this is its end of the pipe closing
            return None
        if device.finished is not None:
            return device.finished
        now_s = time.monotonic()
        if control.blocks != blocks:
            blocks, silent_since_s = control.blocks, now_s
        elif now_s - silent_since_s > (_NO_BLOCK_LIMIT_S if blocks else _FIRST_BLOCK_LIMIT_S):
            return Finished(f"the sound device gave no audio for {now_s - silent_since_s:.1f} s", is_lost=True)
    return None
