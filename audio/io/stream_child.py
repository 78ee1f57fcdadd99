"""The audio process itself: opens a device, calls back, watches, and tells its parent what ends the stream.

What the two say to each other stands here too; the parent's half is `audio.io.process`.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from audio.control import ControlWords
from audio.errors import AudioError, DeviceError
from audio.io.adapted import AdaptedDevice
from audio.io.callback import DuplexCallback
from audio.io.device import (
    AudioDevice,
    DeviceSpec,
    Finished,
    PortAudioSpec,
    SpokenUtterance,
    StreamFormat,
    make_device,
)
from audio.io.drift_mapper import SplitStats
from audio.io.priority import one_level_lower, raise_priority
from audio.io.records import MIC_CAPACITY, PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.io.segments import SegmentRef, attach
from audio.io.spin import SpinWatch
from audio.ring import RecordRing

_POLL_S = 0.05
_FIRST_BLOCK_LIMIT_S = 3.0
_NO_BLOCK_LIMIT_S = 0.5
_CLOSE_LIMIT_S = 0.3
_RETRY_S = 0.15
_FALLBACK_AFTER_S = 1.0
_STATS_S = 2.0


@dataclass(frozen=True, slots=True)
class DeviceStopped:
    """The device stopped by itself and the process has ended."""

    reason: str
    is_lost: bool
    """False where a recording or a script came to its end."""
    spoken: tuple[SpokenUtterance, ...] = ()
    """What a scripted user said, and when."""


@dataclass(frozen=True, slots=True)
class DeviceRunning:
    """The stream runs again, on the rings that were there."""

    format: StreamFormat
    is_fallback: bool = False
    """On the device that was given as a makeshift."""


@dataclass(frozen=True, slots=True)
class DriftMeasured:
    """Now and then, of a device of two clocks."""

    stats: SplitStats


@dataclass(frozen=True, slots=True)
class Opened:
    format: StreamFormat
    priority: str
    is_fallback: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Failed:
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


@dataclass(frozen=True, slots=True)
class GoOn:
    """What a child needs that takes over from another one."""

    segments: StreamRefs
    rate_hz: int
    fallback: DeviceSpec | None


def audio_process_main(
    connection: Connection[Any, Any],
    spec: DeviceSpec,
    parent_pid: int,
    go_on: GoOn | None,
    on_birth: Callable[[], None] | None = None,
) -> None:
    """Entry of the child: ends when told to, when the device does, or when the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    if on_birth is not None:
        on_birth()
    try:
        priority = raise_priority()
        is_fallback = False
        if go_on is None:
            device = make_device(spec)
            stream = device.open()
        else:
            device, stream, is_fallback = _open_again(connection, spec, go_on)
        connection.send(Opened(stream, priority, is_fallback))
        segments: StreamRefs = connection.recv() if go_on is None else go_on.segments
        control = ControlWords(attach(segments.control))
        _start(device, stream, segments, control)
        if go_on is None:
            connection.send(Started())
        tell = None if go_on is None else lambda: connection.send(Started())
        spin = None if stream.mode == "simulated" else SpinWatch()
        stopped = _watch(device, control, connection, lambda: os.getppid() != parent_pid, tell, spin)
        control.running = 0
        has_stopped = _stop_in_time(device)
        if stopped is not None:
            connection.send(DeviceStopped(stopped.reason, stopped.is_lost, device.spoken()))
        if not has_stopped:
            connection.close()
            os._exit(0)
    except AudioError as error:
        failed = Failed(error.message, error.fix, getattr(error, "device", ""), error.is_permanent)
        with suppress(OSError):  # the parent is gone
            connection.send(failed)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone, and with it everybody who could be told
    except Exception as error:
        logging.getLogger("vivavoce.audio").exception("unexpected")
        with suppress(OSError):  # the parent is gone
            connection.send(Failed(f"unexpected {type(error).__name__}: {error}", "", "", True))


def _start(device: AudioDevice, stream: StreamFormat, segments: StreamRefs, control: ControlWords) -> None:
    """Let it call back into the rings; from here on no collection may hold the callback up."""
    callback = DuplexCallback(
        RecordRing(block_dtype(stream.block_frames), MIC_CAPACITY, attach(segments.mic)),
        RecordRing(playback_dtype(stream.block_frames), PLAYBACK_CAPACITY, attach(segments.playback)),
        control,
        stream.rate_hz,
    )
    gc.collect()
    gc.freeze()
    gc.disable()
    with one_level_lower():
        device.start(callback)
    control.running = 1


def _open_again(
    connection: Connection[Any, Any], spec: DeviceSpec, go_on: GoOn
) -> tuple[AudioDevice, StreamFormat, bool]:
    """Try until a device is there, and adapt it to the rings; EOFError where the parent does not want it any more."""
    fallback_from_s = time.monotonic() + _FALLBACK_AFTER_S
    while True:
        for candidate in (spec, go_on.fallback):
            if candidate is None or (candidate is not spec and time.monotonic() < fallback_from_s):
                continue
            try:
                return *_open_adapted(candidate, go_on.rate_hz), candidate is not spec
            except DeviceError as error:
                if error.is_permanent and candidate is spec:
                    raise
        if connection.poll(_RETRY_S):
            raise EOFError
        if isinstance(spec, PortAudioSpec):
            from audio.io.portaudio import read_devices_anew

            read_devices_anew()


def _open_adapted(spec: DeviceSpec, rate_hz: int) -> tuple[AudioDevice, StreamFormat]:
    device = make_device(spec)
    stream = device.open()
    if stream.rate_hz == rate_hz:
        return device, stream
    device.stop()
    adapted = AdaptedDevice(make_device(spec), rate_hz)
    return adapted, adapted.open()


def _stop_in_time(device: AudioDevice) -> bool:
    """Stop the device; False where its driver does not let go.

    With ALSA's pulse plugin, closing a stream whose server has died can wait for ever on a lock of libpulse.
    """
    stopping = threading.Thread(target=device.stop, daemon=True)
    stopping.start()
    stopping.join(_CLOSE_LIMIT_S)
    return not stopping.is_alive()


def _watch(
    device: AudioDevice,
    control: ControlWords,
    connection: Connection[Any, Any],
    is_orphan: Callable[[], bool],
    tell_sound: Callable[[], None] | None,
    spin: SpinWatch | None,
) -> Finished | None:
    """Wait until the stream must end; why, or None where the parent wants it.

    With `tell_sound`, which is called at the first block, a device may take its time to deliver one: it is open,
    and the server may be asleep.
    """
    blocks = first = control.blocks
    silent_since_s = stats_due_s = time.monotonic()
    first_limit_s = _FIRST_BLOCK_LIMIT_S if tell_sound is None else float("inf")
    while not control.shutdown and not is_orphan():
        if connection.poll(_POLL_S):  # the parent sends nothing any more: this is its end of the pipe closing
            return None
        if device.finished is not None:
            return device.finished
        now_s = time.monotonic()
        if spin is not None and spin.is_spinning(time.process_time(), now_s):
            return Finished("the sound driver kept a processor core busy after a gap", is_lost=True)
        if now_s >= stats_due_s and device.stats is not None:
            connection.send(DriftMeasured(device.stats))
            stats_due_s = now_s + _STATS_S
        if control.blocks != blocks:
            blocks, silent_since_s = control.blocks, now_s
            if tell_sound is not None:
                tell_sound()
                tell_sound = None
        elif now_s - silent_since_s > (_NO_BLOCK_LIMIT_S if blocks != first else first_limit_s):
            return Finished(f"the sound device gave no audio for {now_s - silent_since_s:.1f} s", is_lost=True)
    return None
