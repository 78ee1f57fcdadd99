"""The simulated device: equal specs give equal samples, and every fault is the one that was ordered."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audio.block import AudioBlock, Float32Array
from audio.clock import BLOCK_NS
from audio.control import ControlWords
from audio.errors import DeviceError
from audio.io.callback import DuplexCallback
from audio.io.device import RoomSpec, ScriptSpec, SimulatedSpec, Utterance
from audio.io.records import block_dtype, playback_dtype
from audio.io.simulated import SimulatedDevice
from audio.ring import RecordRing


class _Recorder:
    """Callback that keeps the input and plays noise."""

    def __init__(self) -> None:
        self.near: list[Float32Array] = []
        self.times_ns: list[int] = []
        self._random = np.random.default_rng(5)

    def __call__(self, near: Float32Array, out: Float32Array, time_ns: int) -> None:
        self.near.append(near.copy())
        self.times_ns.append(time_ns)
        out[:] = 0.1 * self._random.standard_normal(len(out))


def _run(spec: SimulatedSpec, blocks: int = 10_000) -> tuple[SimulatedDevice, _Recorder]:
    device, recorder = SimulatedDevice(spec), _Recorder()
    device.open()
    device.start(recorder)
    device.step(blocks)
    device.stop()
    return device, recorder


def _ramp(frames: int, rate_hz: int = 16_000) -> AudioBlock:
    return AudioBlock(np.linspace(0, 0.5, frames, dtype=np.float32), 0, rate_hz)


def test_input_arrives_and_ends_the_device() -> None:
    source = _ramp(1_000)
    device, recorder = _run(SimulatedSpec(input=source, rate_hz=16_000, tail_s=0.1, is_paced=False))
    near = np.concatenate(recorder.near)
    assert np.array_equal(near[:1_000], source.samples)
    assert not near[1_000:].any()
    assert len(near) == 17 * 160  # 1000 + 1600 samples in whole blocks
    assert device.finished is not None
    assert not device.finished.is_lost
    assert not device.active


def test_a_file_is_resampled_to_the_device(tmp_path: Path) -> None:
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    soundfile.write(tmp_path / "in.wav", tone, 22_050)
    _, recorder = _run(SimulatedSpec(input=str(tmp_path / "in.wav"), is_paced=False))
    near = np.concatenate(recorder.near)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(48_000) / 48_000)
    assert len(near) == 48_000
    assert np.abs(near - expected)[500:-500].max() < 1e-3


def test_equal_specs_give_equal_samples_and_times() -> None:
    def spec(seed: int) -> SimulatedSpec:
        room = RoomSpec(erl_db=6, seed=seed, noise_db=-50, noise_seed=seed, soft_clip=1.5)
        return SimulatedSpec(input=_ramp(8_000), room=room, jitter_ms=4, drift_ppm=80, seed=seed, is_paced=False)

    (_, first), (_, second), (_, other) = _run(spec(1)), _run(spec(1)), _run(spec(2))
    assert np.array_equal(first.near, second.near)
    assert first.times_ns == second.times_ns
    assert not np.array_equal(first.near, other.near)
    assert first.times_ns != other.times_ns


def test_drift_and_jitter_are_in_the_times() -> None:
    _, recorder = _run(SimulatedSpec(drift_ppm=200, jitter_ms=3, is_paced=False), 2_000)
    times = np.array(recorder.times_ns)
    due = np.arange(1, 2_001) * BLOCK_NS / (1 + 200e-6)
    late_ms = (times - due) / 1e6
    assert late_ms.min() >= -0.001
    assert 2.5 < late_ms.max() <= 3.001


def test_a_stall_loses_its_audio_and_is_counted() -> None:
    source = AudioBlock(np.arange(96_000, dtype=np.float32) / 96_000, 0, 16_000)
    spec = SimulatedSpec(input=source, rate_hz=16_000, stalls=((2.0, 0.5),), jitter_ms=2, is_paced=False)
    device = SimulatedDevice(spec)
    stream = device.open()
    mic = RecordRing(block_dtype(stream.block_frames), 1024)
    playback, control = RecordRing(playback_dtype(stream.block_frames), 30), ControlWords()
    reader = mic.reader()
    device.start(DuplexCallback(mic, playback, control, stream.rate_hz))
    assert device.step(10_000) == 550
    device.stop()
    records = reader.read()
    assert np.allclose(records["near"][200], source.samples[250 * 160 : 251 * 160])
    assert records["time_ns"][200] - records["time_ns"][199] == pytest.approx(510e6, abs=3e6)
    assert control.lost_frames == pytest.approx(8_000, abs=50)
    assert control.late_blocks == 1


def test_refused_rates_are_passed_over() -> None:
    device = SimulatedDevice(SimulatedSpec(rate_hz=96_000, refused_rates_hz=(96_000, 48_000), is_paced=False))
    assert device.open().rate_hz == 44_100
    every = SimulatedSpec(refused_rates_hz=(48_000, 44_100, 16_000), is_paced=False)
    with pytest.raises(DeviceError, match="refuses every sample rate"):
        SimulatedDevice(every).open()


def test_a_device_disappears_once_and_comes_back() -> None:
    device, recorder = _run(SimulatedSpec(disappears_at_s=1.0, returns_after_s=0.5, is_paced=False))
    assert len(recorder.near) == pytest.approx(100, abs=1)
    assert device.finished is not None
    assert device.finished.is_lost
    attempts = 0
    while True:
        try:
            device.open()
            break
        except DeviceError:
            attempts += 1
    assert 45 <= attempts <= 55
    device.start(recorder)
    assert device.step(300) == 300
    device.stop()


def test_a_device_may_be_gone_for_good() -> None:
    device, _ = _run(SimulatedSpec(disappears_at_s=0.2, is_paced=False))
    for _ in range(100):
        with pytest.raises(DeviceError, match="not there"):
            device.open()


def test_both_sides_are_written(tmp_path: Path) -> None:
    spec = SimulatedSpec(
        input=_ramp(8_000, 48_000),
        is_paced=False,
        keep_output=True,
        output_path=str(tmp_path / "out.wav"),
        record_path=str(tmp_path / "both.wav"),
    )
    device, recorder = _run(spec)
    output, rate_hz = soundfile.read(tmp_path / "out.wav", dtype="float32")
    both, _ = soundfile.read(tmp_path / "both.wav", dtype="float32")
    assert rate_hz == 48_000
    assert device.output.shape == output.shape == (len(recorder.near) * 480,)
    assert np.abs(output - device.output).max() < 2**-15
    assert np.abs(both[:, 0] - np.concatenate(recorder.near)).max() < 2**-15
    assert np.array_equal(both[:, 1], output)


def test_paced_blocks_come_in_real_time_with_the_samples_of_an_unpaced_run() -> None:
    def spec(is_paced: bool) -> SimulatedSpec:
        room = RoomSpec(erl_db=10, noise_db=-60)
        return SimulatedSpec(input=_ramp(48_000, 48_000), room=room, is_paced=is_paced)

    _, unpaced = _run(spec(False))
    device, paced = SimulatedDevice(spec(True)), _Recorder()
    device.open()
    began_s = time.monotonic()
    device.start(paced)
    while device.active and time.monotonic() - began_s < 5:
        time.sleep(0.01)
    took_s = time.monotonic() - began_s
    device.stop()
    assert np.array_equal(paced.near, unpaced.near)
    assert 0.9 < took_s < 2.0


def test_a_callback_that_fails_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail(near: Float32Array, out: Float32Array, time_ns: int) -> None:
        raise RuntimeError("broken")

    device = SimulatedDevice(SimulatedSpec())
    device.open()
    device.start(fail)
    limit_s = time.monotonic() + 5
    while device.active and time.monotonic() < limit_s:
        time.sleep(0.005)
    device.stop()
    assert device.finished is not None
    assert "broken" in device.finished.reason


def test_a_scripted_user_ends_the_device() -> None:
    script = ScriptSpec((Utterance(_ramp(8_000)),), lead_s=0.1, pause_s=0.2, timeout_s=1.0)
    device = SimulatedDevice(SimulatedSpec(input=script, is_paced=False))
    device.open()
    device.start(lambda near, out, time_ns: out.fill(0.0))
    device.step(10_000)
    assert device.finished is not None
    assert len(device.spoken()) == 1
    device.stop()
