"""Hear the microphone, play a tone and measure the echo through the real stream: what `devices test` and the window do.

No conversation may hold the devices meanwhile.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from app.engine.round_trips import RoundTrips, device_pair, round_trips_file
from audio.block import HOPS_PER_SECOND, SILENCE_DB, Float32Array
from audio.errors import DeviceError
from audio.io.bluetooth import advise
from audio.io.device import DeviceSpec, PortAudioSpec, StreamFormat
from audio.io.process import AudioProcess
from audio.io.pulse import look
from audio.io.server import ServerView, exact_name
from audio.io.stream_child import DeviceStopped
from audio.meters.echo_path import MAX_DELAY_S, EchoPath, make_sweep, measure_echo_path
from audio.meters.level import level_db

LISTENING, TONE, ECHO = "listening: say something", "you should hear a tone", "measuring the echo"
"""What is being done, in this order."""
LISTEN_S = 3.0
_TONE_S, _TONE_HZ, _TONE_AMPLITUDE = 1.0, 440.0, 0.1
_SWEEPS = 3
_NO_SIGNAL_DB = -90.0
_CLIP = 0.999
_CLIPPED_SAMPLES = 10
_AGREE_MS = 5.0
_LONG_MS = 500.0
_LOUD_ECHO_DB = 0.0
_POLL_S = 0.005
_TONE_TAIL_S = 0.3

Show = Callable[[str, float], None]
"""Gets what is done and the microphone's level in dBFS."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the stream delivered."""

    stream: StreamFormat
    priority: str
    level_db: float
    """RMS of the quiet part."""
    peak: float
    """Largest sample of the whole test."""
    is_constant: bool
    """Not one sample differed from another."""
    clipped_samples: int
    paths: tuple[EchoPath, ...]
    """One for each sweep."""
    lost_ms: float
    late_blocks: int
    underruns: int
    stopped: str = ""
    """Why the device stopped by itself."""

    @property
    def echoes(self) -> list[EchoPath]:
        """Sweeps that came back."""
        return [path for path in self.paths if path.round_trip_ms is not None]

    @property
    def round_trip_ms(self) -> float | None:
        """Median of the sweeps; None where they did not come back or do not agree."""
        trips = [path.round_trip_ms for path in self.echoes if path.round_trip_ms is not None]
        if len(trips) < 2:
            return None
        middle = statistics.median(trips)
        return middle if sum(abs(trip - middle) <= _AGREE_MS for trip in trips) >= 2 else None

    @property
    def erl_db(self) -> float | None:
        """Median echo return loss."""
        return statistics.median(path.erl_db or 0.0 for path in self.echoes) if self.echoes else None


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    status: str
    """`ok`, `warning` or `wrong`."""
    found: str
    fix: str = ""


def check_pair(
    input_name: str, output_name: str, rate_hz: int | None, show: Show, listen_s: float = LISTEN_S
) -> tuple[Measured, list[Finding]]:
    """Measure the pair that two names mean ("" is the default) and judge it; the round trip is kept for conversations.

    Raises:
        DeviceError: a name means no device or several, or the device does not open.
    """
    view, _ = look()
    findings, input_name = _before(view, input_name, output_name)
    measured = measure(_spec(view, input_name, output_name, rate_hz), listen_s, show)
    findings += judge(measured)
    trip_ms = measured.round_trip_ms
    if trip_ms is not None:
        confidence = min(path.confidence for path in measured.echoes)
        pair = device_pair(measured.stream, input_name, output_name, view)
        RoundTrips(round_trips_file(os.environ)).store(pair, trip_ms, confidence)
    return measured, findings


def play_tone(input_name: str, output_name: str, rate_hz: int | None, show: Show) -> StreamFormat:
    """A second of a tone on the loudspeaker that is meant; returns what was opened.

    Raises:
        DeviceError: as in `check_pair`, or it stopped.
    """
    view, _ = look()
    process = AudioProcess(_spec(view, input_name, output_name, rate_hz))
    stream = process.start()
    try:
        tape = _Tape(process, stream, show)
        tape.play(TONE, _tone(stream.rate_hz), _TONE_TAIL_S)
    finally:
        process.stop()
    if tape.stopped:
        raise DeviceError(tape.stopped, device=stream.output_name, fix="Connect the device again, or choose another")
    return stream


def measure(spec: DeviceSpec, listen_s: float, show: Show) -> Measured:
    """Open the pair, listen, play the tone and the sweeps; `show` gets what is done and the level in dBFS.

    Raises:
        DeviceError: it does not open. AudioError: no memory, no process.
    """
    process = AudioProcess(spec)
    stream = process.start()
    try:
        tape = _Tape(process, stream, show)
        quiet, _ = tape.play(LISTENING, np.zeros(0, np.float32), listen_s)
        tape.play(TONE, _tone(stream.rate_hz), _TONE_TAIL_S)
        sweep = make_sweep(stream.rate_hz)
        takes = [tape.play(ECHO, sweep, MAX_DELAY_S) for _ in range(_SWEEPS)]
        paths = tuple(measure_echo_path(near, far, stream.rate_hz) for near, far in takes if far.any())
        heard = np.concatenate([quiet, *(near for near, _ in takes)])
        return Measured(
            stream,
            process.priority,
            level_db(quiet),
            float(np.abs(heard).max(initial=0.0)),
            not len(heard) or float(np.ptp(heard)) == 0.0,
            int(np.count_nonzero(np.abs(heard) >= _CLIP)),
            paths,
            process.control.lost_frames * 1000 / stream.rate_hz,
            process.control.late_blocks,
            process.control.underruns,
            tape.stopped,
        )
    finally:
        process.stop()


def judge(measured: Measured) -> list[Finding]:
    """What is wrong with it, and the fix for each."""
    stream = measured.stream
    opened = f"{stream.input_name} to {stream.output_name}, {stream.mode}, {stream.rate_hz} Hz, {measured.priority}"
    findings = [Finding("stream", "ok", opened)]
    if measured.stopped:
        findings.append(Finding("stream", "wrong", measured.stopped, "Connect the device again, or choose another"))
    return [*findings, _microphone(measured), _losses(measured), _echo(measured)]


class _Tape:
    """Plays and records through a running audio process."""

    def __init__(self, process: AudioProcess, stream: StreamFormat, show: Show) -> None:
        self._process = process
        self._stream = stream
        self._show = show
        self._reader = process.mic_ring.reader()
        self.stopped = ""

    def play(self, title: str, samples: Float32Array, tail_s: float) -> tuple[Float32Array, Float32Array]:
        """(N,) to the loudspeaker, then silence; (M,) of microphone and loudspeaker from its start to the end."""
        frames = self._stream.block_frames
        blocks = np.pad(samples, (0, -len(samples) % frames)).reshape(-1, frames)
        self._process.control.generation += 1
        self._reader.read()
        near: list[Float32Array] = []
        far: list[Float32Array] = []
        sent = 0
        # A few more than are needed: the first may pass before the first block is in the ring.
        while len(near) < len(blocks) + round(tail_s * HOPS_PER_SECOND) + 10 and not self.stopped:
            sent = self._feed(blocks, sent)
            records = self._reader.read()
            near.extend(records["near"])
            far.extend(records["far"])
            if len(records):
                self._show(title, level_db(records["near"][-1]))
            self._watch()
            time.sleep(_POLL_S)
        if not near:
            return np.zeros(0, np.float32), np.zeros(0, np.float32)
        return np.concatenate(near), np.concatenate(far)

    def _feed(self, blocks: Float32Array, sent: int) -> int:
        """Fill the playback ring; blocks sent so far."""
        ring, frames = self._process.playback_ring, self._stream.block_frames
        while sent < len(blocks) and ring.free():
            slot = ring.slot()
            slot["generation"] = self._process.control.generation
            slot["end_frames"] = (sent + 1) * frames
            slot["last"] = sent == len(blocks) - 1
            slot["samples"] = blocks[sent]
            ring.commit()
            sent += 1
        return sent

    def _watch(self) -> None:
        for event in self._process.poll_events():
            if isinstance(event, DeviceStopped):
                self.stopped = event.reason


def _spec(view: ServerView | None, input_name: str, output_name: str, rate_hz: int | None) -> PortAudioSpec:
    source = exact_name(view, input_name, is_input=True)
    return PortAudioSpec(source, exact_name(view, output_name, is_input=False), rate_hz)


def _before(view: ServerView | None, input_name: str, output_name: str) -> tuple[list[Finding], str]:
    """What the sound server tells before anything is opened, and the microphone to open."""
    if view is None:
        return [], input_name
    findings = []
    advice = advise(view, input_name, output_name)
    if advice.warning:
        findings.append(Finding("bluetooth", "warning", advice.warning, advice.fix))
    source = view.find(advice.input_name or input_name, is_input=True)
    if source is not None and source.monitor_of:
        found = f"{source.name} is no microphone: it repeats what {source.monitor_of} plays"
        findings.append(Finding("microphone", "wrong", found, "Choose another one; `vivavoce devices` lists them"))
    return findings, advice.input_name or input_name


def _microphone(measured: Measured) -> Finding:
    level = f"{measured.level_db:.0f} dBFS in quiet, peak {peak_db(measured):.0f} dBFS"
    if measured.is_constant or peak_db(measured) < _NO_SIGNAL_DB:
        fix = "Unmute it (also on the device itself), allow programs to use it, or choose another"
        return Finding("microphone", "wrong", f"no signal ({level})", fix)
    if measured.clipped_samples > _CLIPPED_SAMPLES:
        fix = "Lower the level of the microphone, or of the loudspeaker"
        return Finding("microphone", "wrong", f"it clips: {measured.clipped_samples} samples ({level})", fix)
    return Finding("microphone", "ok", level)


def _losses(measured: Measured) -> Finding:
    found = (
        f"{measured.lost_ms:.0f} ms lost, {measured.underruns} gaps in the output, {measured.late_blocks} late blocks"
    )
    if measured.lost_ms or measured.underruns:
        fix = "Close other programs, or allow a higher priority (see: vivavoce doctor)"
        return Finding("continuity", "wrong", found, fix)
    return Finding("continuity", "ok", found)


def _echo(measured: Measured) -> Finding:
    trip_ms, erl_db = measured.round_trip_ms, measured.erl_db
    if erl_db is None:
        fix = "If you heard no tone, turn the loudspeaker up or choose another"
        return Finding("echo", "warning", "none came back: a headset, or a silent loudspeaker", fix)
    if trip_ms is None:
        fix = "Close other programs, and choose a wired device"
        return Finding("echo", "wrong", "its delay changes from one moment to the next", fix)
    found = f"round trip {trip_ms:.1f} ms, {erl_db:.0f} dB below the loudspeaker"
    if trip_ms > _LONG_MS:
        fix = "Choose a wired loudspeaker: echo that late is not cancelled"
        return Finding("echo", "wrong", found, fix)
    if erl_db < _LOUD_ECHO_DB:
        return Finding("echo", "warning", f"{found}: louder than that", "Turn the loudspeaker or the microphone down")
    return Finding("echo", "ok", found)


def peak_db(measured: Measured) -> float:
    """Largest sample in dBFS."""
    return max(SILENCE_DB, 20 * float(np.log10(max(measured.peak, 1e-9))))


def _tone(rate_hz: int) -> Float32Array:
    """(N,) of the test tone, faded in and out."""
    time_s = np.arange(round(_TONE_S * rate_hz)) / rate_hz
    fade = np.minimum(1.0, np.minimum(time_s, _TONE_S - time_s) / 0.02)
    return (_TONE_AMPLITUDE * fade * np.sin(2 * np.pi * _TONE_HZ * time_s)).astype(np.float32)
