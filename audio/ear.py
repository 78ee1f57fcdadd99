"""The ear: one device block in, one hop record out. Pure computation; the process is `audio.ear_process`.

    near, far at the device's rate -> both to 16 kHz -> chain of stages -> `clean` for the ASR
                                                            |
                                        after `vad_after`: gate, judge, hysteresis

Same blocks, same spec: same record bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ, Float32Array, ms_to_samples
from audio.denoise.deepfilternet import DeepFilterNet
from audio.echo.bypass import EchoBypass
from audio.echo.delay import RoundTrip, RoundTripEstimator
from audio.echo.listener import EchoListener
from audio.echo.webrtc_aec3 import WebRtcAec3
from audio.io.records import FLAG_REPLY
from audio.meters.level import level_db
from audio.protocols import Stage
from audio.resample import HopResampler
from audio.vad.hysteresis import Hysteresis, HysteresisSpec
from audio.vad.silero import FRAME_SAMPLES, SileroVad
from audio.vad.webrtc import WebRtcVad

HOP_DTYPE = np.dtype(
    [
        ("block", "<i8"),  # number of the block that made this hop: the clock; it covers 160 x block onwards
        ("index_samples", "<i8"),  # microphone index of clean[0]: 160 x block - Ear.latency_samples
        ("onset_samples", "<i8"),  # microphone index where the present voiced run began, -1 outside of runs
        ("generation", "<i8"),  # these three are copied from the block
        ("reply_frames", "<i8"),
        ("flags", "<u4"),
        ("level_db", "<f4"),  # RMS of the hop in dBFS: microphone, loudspeaker, clean
        ("far_level_db", "<f4"),
        ("clean_level_db", "<f4"),
        ("gate", "u1"),  # webrtcvad
        ("speech_probability", "<f4"),  # Silero; 0 where the loudspeaker explains the microphone
        ("voiced", "u1"),  # Silero behind hysteresis
        ("room_known", "u1"),  # the echo residual has proved itself: barge-in may act on less evidence
        ("backlog", "<u2"),  # blocks that were waiting behind this one; 0 when nobody keeps time
        ("late_ms", "<f4"),  # finished so long after the block's callback; 0 when nobody keeps time
        ("clean", "<f4", (HOP_SAMPLES,)),
    ]
)

HopRecord = np.void


@dataclass(frozen=True, slots=True)
class EarSpec:
    """What the ear is made of. Plain values: it travels to another process."""

    silero_path: str
    """The file `silero_vad.onnx`."""
    chain: tuple[str, ...] = ("echo",)
    """Names of `STAGES`, in order; the ASR hears the end of the chain."""
    vad_after: str = "echo"
    """The stage whose output the detectors hear; the bare microphone where the chain has no such stage."""
    gate_mode: int = 2
    """`webrtcvad` mode, 0 (lets everything through) to 3."""
    vad_on: float = 0.5
    vad_off: float = 0.35
    vad_minimum_on_ms: float = 0.0


def _echo() -> Stage:
    return EchoBypass(WebRtcAec3())


STAGES: dict[str, Callable[[], Stage]] = {"echo": _echo, "denoise": DeepFilterNet}
"""Every stage by its name in the configuration."""


class Ear:
    """Hop loop of one stream."""

    round_trip: RoundTrip | None
    """Set once the first reply has shown it."""

    def __init__(self, spec: EarSpec, device_rate_hz: int = SAMPLE_RATE_HZ) -> None:
        """Load everything; `open` changes the rate later, where it is not known yet.

        Raises:
            ValueError: a stage name is unknown or given twice.
            AudioError: an engine or a model file is missing or broken.
        """
        unknown = [name for name in spec.chain if name not in STAGES]
        if unknown or len(set(spec.chain)) != len(spec.chain):
            raise ValueError(f"chain {list(spec.chain)}: each of {sorted(STAGES)} at most once")
        self._stages = [STAGES[name]() for name in spec.chain]
        self._vad_after = spec.vad_after if spec.vad_after in spec.chain else ""
        self._gate = WebRtcVad(spec.gate_mode)
        self._judge = SileroVad(Path(spec.silero_path))
        self._hysteresis = Hysteresis(HysteresisSpec(spec.vad_on, spec.vad_off, ms_to_samples(spec.vad_minimum_on_ms)))
        self._estimator = RoundTripEstimator()
        self._listener: EchoListener | None = None
        if self._vad_after == "echo":
            self._listener = EchoListener(sum(self._stages_to("echo")))
        self.open(device_rate_hz)

    def open(self, device_rate_hz: int, first_delay_ms: float | None = None) -> None:
        """A new stream at this rate (a multiple of 100 Hz) is about to come. Call it on a new or reset ear.

        `first_delay_ms`: a guess at the round trip, until this stream's own is measured.
        """
        # One kind of filter for both ways: they stay aligned to the sample.
        self._near_resampler = HopResampler(device_rate_hz)
        self._far_resampler = HopResampler(device_rate_hz)
        self._forget()
        if first_delay_ms is not None:
            self._tell_canceller(first_delay_ms)

    def reopened(self) -> None:
        """The stream was interrupted and runs again: the way from loudspeaker to microphone is another one."""
        self._estimator.reset()
        if self._listener is not None:
            self._listener.reset()
        for stage in self._stages:
            if isinstance(stage, EchoBypass):
                stage.reset()
        self.round_trip = None

    @property
    def latency_samples(self) -> int:
        """By how much `clean` lags the microphone, resampler included; `index_samples` has it taken off."""
        return self._near_resampler.latency_samples + sum(stage.latency_samples for stage in self._stages)

    @property
    def vad_latency_samples(self) -> int:
        """By how much the detectors' input lags the microphone, resampler included."""
        return self._near_resampler.latency_samples + sum(self._stages_to(self._vad_after))

    def process(self, block: Any) -> HopRecord:
        """One record of `block_dtype` to a new one of `HOP_DTYPE`."""
        near = _finite(self._near_resampler.process(block["near"]))
        far = _finite(self._far_resampler.process(block["far"]))
        self._measure_round_trip(near, far)
        clean = heard = near
        for stage in self._stages:
            clean = stage.process(clean, far)
            if stage.name == self._vad_after:
                heard = clean
        if self._listener is not None:
            heard = self._listener.push(near, far, heard)
        record: HopRecord = np.zeros(1, HOP_DTYPE)[0]
        record["block"] = block["index"]
        start_samples = int(block["index"]) * HOP_SAMPLES
        record["index_samples"] = start_samples - self.latency_samples
        record["generation"] = block["generation"]
        record["reply_frames"] = block["reply_frames"]
        record["flags"] = block["flags"]
        record["level_db"] = level_db(near)
        record["far_level_db"] = level_db(far)
        record["clean_level_db"] = level_db(clean)
        record["clean"] = clean
        self._listen(record, heard, start_samples)
        return record

    def reset(self) -> None:
        """Equal to a new ear, for a stream that was opened again. Loads the denoiser again: tenths of a second."""
        self._near_resampler.reset()
        self._far_resampler.reset()
        for stage in self._stages:
            stage.reset()
        self._gate.reset()
        self._judge.reset()
        self._hysteresis.reset()
        self._estimator.reset()
        if self._listener is not None:
            self._listener.reset()
        self._forget()

    def memory_bytes(self) -> int:
        """Bytes of everything in `backends()`."""
        return sum(held for _, _, held in self.backends())

    def backends(self) -> list[tuple[str, str, int]]:
        """(stage, backend, bytes) of each part."""
        parts = [(stage.name, getattr(stage, "backend", "python"), stage.memory_bytes()) for stage in self._stages]
        parts.append(("gate", "webrtcvad", self._gate.memory_bytes()))
        parts.append(("vad", "silero-onnx", self._judge.memory_bytes()))
        parts.append(("round trip", "gcc-phat", self._estimator.memory_bytes()))
        if self._listener is not None:
            parts.append(("echo residual", "kalman-numpy", self._listener.memory_bytes()))
        return parts

    def _stages_to(self, name: str) -> list[int]:
        """Latencies of the stages up to `name`; none for "", the bare microphone."""
        names = [stage.name for stage in self._stages]
        return [stage.latency_samples for stage in self._stages[: names.index(name) + 1]] if name else []

    def _forget(self) -> None:
        self._heard_samples = 0
        self._judged_samples = 0
        self._was_playing = False
        self.round_trip = None

    def _is_room_known(self) -> bool:
        """Echo can be told from a user: by the proved residual, or because there is none."""
        if self._listener is not None and self._listener.is_proved:
            return True
        return any(isinstance(stage, EchoBypass) and stage.has_no_echo for stage in self._stages)

    def _measure_round_trip(self, near: Float32Array, far: Float32Array) -> None:
        trip = self._estimator.push(near, far)
        if trip is None:
            return
        self.round_trip = trip
        if self._listener is not None:
            self._listener.align(trip)
        self._tell_canceller(trip.delay_ms)

    def _tell_canceller(self, delay_ms: float) -> None:
        for stage in self._stages:
            if isinstance(stage, EchoBypass):
                stage.canceller.set_delay_ms(round(delay_ms))

    def _listen(self, record: HopRecord, heard: Float32Array, start_samples: int) -> None:
        """Gate, judge and runs; run positions are counted in the detectors' stream and shown in the microphone's."""
        is_playing = bool(record["flags"] & FLAG_REPLY)
        if is_playing and not self._was_playing:
            self._judge.forget()
        self._was_playing = is_playing
        record["gate"] = self._gate.process(heard)
        probability = self._judge.process(heard)
        if self._listener is not None and self._listener.is_echo:
            probability = 0.0
        if self._judge.frame_end_samples != self._judged_samples:
            self._judged_samples = self._judge.frame_end_samples
            self._hysteresis.push(probability, self._judged_samples - FRAME_SAMPLES, self._judged_samples)
        onset = self._hysteresis.onset_samples
        record["speech_probability"] = probability
        record["room_known"] = self._is_room_known()
        record["voiced"] = onset is not None
        to_microphone = start_samples - self._heard_samples - self.vad_latency_samples
        record["onset_samples"] = -1 if onset is None else max(0, onset + to_microphone)
        self._heard_samples += HOP_SAMPLES


def _finite(hop: Float32Array) -> Float32Array:
    """A driver that delivers NaN would poison every recurrent state behind it for good."""
    return hop if np.isfinite(hop).all() else np.nan_to_num(hop, nan=0.0, posinf=1.0, neginf=-1.0)
