"""A device at another rate than the rings: exact blocks, nothing heard of the seam."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import AudioBlock, Float32Array
from audio.io.adapted import AdaptedDevice
from audio.io.device import ScriptSpec, SimulatedSpec, Utterance
from audio.io.simulated import SimulatedDevice

_RATES = [(44_100, 48_000), (48_000, 44_100), (16_000, 48_000), (48_000, 16_000), (8_000, 44_100), (48_000, 48_000)]


def _sine(frequency_hz: float, rate_hz: int, lag_frames: float = 0.0) -> Float32Array:
    frames = np.arange(rate_hz) - lag_frames
    return (0.5 * np.sin(2 * np.pi * frequency_hz * frames / rate_hz)).astype(np.float32)


def _snr_db(expected: Float32Array, got: Float32Array) -> float:
    error = expected.astype(np.float64) - got
    return float(10 * np.log10(np.mean(expected.astype(np.float64) ** 2) / (np.mean(error**2) + 1e-20)))


@pytest.mark.parametrize(("device_hz", "ring_hz"), _RATES)
def test_both_ways_are_whole_blocks_without_a_seam(device_hz: int, ring_hz: int) -> None:
    tone_hz = 997.0
    spec = SimulatedSpec(
        input=AudioBlock(_sine(tone_hz, device_hz), 0, device_hz), rate_hz=device_hz, is_paced=False, keep_output=True
    )
    below = SimulatedDevice(spec)
    device = AdaptedDevice(below, ring_hz)
    stream = device.open()
    assert (stream.rate_hz, stream.block_frames) == (ring_hz, ring_hz // 100)
    near: list[Float32Array] = []
    reply = _sine(tone_hz, ring_hz).reshape(100, -1)

    def callback(block: Float32Array, out: Float32Array, time_ns: int) -> None:
        out[:] = reply[len(near)]
        near.append(block.copy())

    device.start(callback)
    assert device.active
    assert below.step(100) == 100
    device.stop()
    lag_ms = 0.0 if device_hz == ring_hz else 4.0
    heard, played = np.concatenate(near), below.output
    assert len(heard) == ring_hz
    assert len(played) == device_hz
    for got, rate_hz in ((heard, ring_hz), (played, device_hz)):
        lag = round(lag_ms * rate_hz / 1000)
        assert _snr_db(_sine(tone_hz, rate_hz, lag)[rate_hz // 50 :], got[rate_hz // 50 :]) >= 90
    assert stream.output_latency_ms == pytest.approx(lag_ms, abs=0.02)


def test_what_a_user_said_is_told_in_frames_of_the_rings() -> None:
    script = ScriptSpec((Utterance(AudioBlock(_sine(300, 16_000), 0, 16_000)),), lead_s=0.5, timeout_s=0.1)
    below = SimulatedDevice(SimulatedSpec(input=script, rate_hz=48_000, is_paced=False))
    device = AdaptedDevice(below, 16_000)
    device.open()
    device.start(lambda near, out, time_ns: out.fill(0.0))
    below.step(400)
    device.stop()
    assert [utterance.start_frames for utterance in device.spoken()] == [8_000]
    assert device.finished == below.finished


def test_a_ring_rate_without_whole_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="22050"):
        AdaptedDevice(SimulatedDevice(SimulatedSpec(is_paced=False)), 22_050)
