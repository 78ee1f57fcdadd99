"""Real PortAudio streams on a virtual microphone and loudspeaker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audio.block import Float32Array
from audio.errors import DeviceError
from audio.files import WavWriter, read_audio
from audio.io.device import PortAudioSpec, StreamFormat
from audio.io.process import AudioProcess
from audio.io.stream_child import DeviceStopped

pytestmark = pytest.mark.audio_device
_ROOT = Path(__file__).resolve().parents[3]
_LIMIT_S = 20.0
_ATTEMPTS = 6


def _wait(condition: Callable[[], object], limit_s: float = _LIMIT_S) -> None:
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.01)


def _tone(frequency_hz: float, rate_hz: int, duration_s: float) -> Float32Array:
    return (0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(round(rate_hz * duration_s)) / rate_hz)).astype(
        np.float32
    )


def _strength(samples: Float32Array, frequency_hz: float, rate_hz: int) -> tuple[float, float]:
    """(amplitude at the frequency, share of the power that is not it), a window of samples."""
    window = np.hanning(len(samples))
    phasor = np.exp(-2j * np.pi * frequency_hz * np.arange(len(samples)) / rate_hz)
    amplitude = 2 * abs(np.sum(window * samples * phasor)) / window.sum()
    power = np.sum(window * samples.astype(np.float64) ** 2) / window.sum()
    return float(amplitude), float(1 - amplitude**2 / 2 / power)


@pytest.fixture
def start(pulse_rig: Any) -> Iterator[Callable[..., tuple[AudioProcess, StreamFormat]]]:
    """Starts an audio process on the rig, and stops it."""
    running: list[AudioProcess] = []

    def begin(**fields: Any) -> tuple[AudioProcess, StreamFormat]:
        running.append(AudioProcess(PortAudioSpec(**fields)))
        return running[-1], running[-1].start()

    yield begin
    for process in running:
        began_s = time.monotonic()
        process.stop()
        assert time.monotonic() - began_s < 1.0
    assert not list(Path("/dev/shm").glob(f"vivavoce-{os.getpid()}-*"))


def test_devices_are_listed(pulse_rig: Any) -> None:
    code = (
        "import dataclasses, json; from audio.io.portaudio import list_devices\n"
        "print(json.dumps([dataclasses.asdict(device) for device in list_devices()]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    devices = {device["name"]: device for device in json.loads(done.stdout)}
    assert {"test_mic", "test_spk", "test_duplex", "pulse", "default"} <= set(devices)
    assert devices["test_duplex"]["host_api"] == "ALSA"
    assert devices["test_duplex"]["inputs"] > 0
    assert devices["test_duplex"]["outputs"] > 0
    assert sum(device["is_default_input"] for device in devices.values()) == 1


def _when_quiet(attempt: Callable[[], AudioProcess]) -> None:
    """Repeat until no block was late: on a machine that starves the sound server nothing can be said of the audio."""
    for _ in range(_ATTEMPTS):
        process = attempt()
        late_blocks, lost_frames = process.control.late_blocks, process.control.lost_frames
        process.stop()
        if late_blocks == 0:
            assert lost_frames == 0
            return
    pytest.skip(f"the machine is too busy: late blocks in each of {_ATTEMPTS} runs")


def test_what_is_said_is_heard_and_nothing_is_lost(pulse_rig: Any, start: Any, tmp_path: Path) -> None:
    with WavWriter(tmp_path / "said.wav", 48_000, "FLOAT") as wav:
        wav.write(_tone(440, 48_000, 2.0))
    heard: list[np.ndarray] = []

    def listen() -> AudioProcess:
        process, stream = start(input_name="test_mic", output_name="test_spk")
        assert (stream.input_name, stream.output_name, stream.mode) == ("test_mic", "test_spk", "duplex")
        assert stream.rate_hz == 44_100
        assert stream.block_frames == 441
        assert 0 < stream.output_latency_ms < 200
        reader = process.mic_ring.reader()
        speaker = pulse_rig.say(tmp_path / "said.wav")
        heard.clear()
        _wait(lambda: heard.append(reader.read()) or (speaker.poll() is not None and process.control.blocks > 300))
        assert reader.lost == 0
        assert process.poll_events() == []
        return process

    _when_quiet(listen)
    records = np.concatenate(heard)
    assert np.all(np.diff(records["index"]) == 1)
    near = records["near"].ravel()
    loud = np.flatnonzero(np.abs(near) > 0.25)
    assert (loud[-1] - loud[0]) / 44_100 == pytest.approx(2.0, abs=0.1)
    start_at = loud[0] + 22_050
    amplitude, rest = _strength(near[start_at : start_at + 22_050], 440, 44_100)
    assert amplitude == pytest.approx(0.5, abs=0.02)
    assert rest < 1e-3


def _play(process: AudioProcess, blocks: Float32Array) -> None:
    """(N, B): one reply of generation 1, to its end in the server."""
    ring = process.playback_ring
    process.control.generation = 1
    for number, block in enumerate(blocks):
        _wait(ring.free)
        slot = ring.slot()
        slot["generation"], slot["end_frames"] = 1, (number + 1) * blocks.shape[1]
        slot["last"], slot["samples"] = number == len(blocks) - 1, block
        ring.commit()
    done_at = process.control.blocks + 80  # what is in the ring, then the server's own latency
    _wait(lambda: process.control.blocks > done_at)


def test_what_is_played_is_at_the_loudspeaker(pulse_rig: Any, start: Any, tmp_path: Path) -> None:
    path = tmp_path / "played.wav"

    def play() -> AudioProcess:
        process, stream = start(input_name="test_duplex", output_name="test_duplex", rate_hz=48_000)
        assert stream.rate_hz == 48_000
        path.unlink(missing_ok=True)
        capture = pulse_rig.capture(path)
        _wait(lambda: path.exists() and process.control.blocks > 50)
        _play(process, _tone(997, 48_000, 1.5).reshape(-1, 480))
        capture.send_signal(signal.SIGINT)
        capture.wait(5)
        record = process.mic_ring.reader(first=0).read()[-1]
        assert (record["generation"], record["reply_frames"]) == (1, 72_000)
        return process

    _when_quiet(play)
    played, rate_hz = read_audio(path)
    loud = np.flatnonzero(np.abs(played) > 0.25)
    assert (loud[-1] - loud[0]) / rate_hz == pytest.approx(1.5, abs=0.005)
    middle = loud[0] + rate_hz // 4
    amplitude, rest = _strength(played[middle : middle + rate_hz // 2], 997, rate_hz)
    assert amplitude == pytest.approx(0.5, abs=0.02)
    assert rest < 1e-3


def test_devices_of_the_server_open_by_their_own_names(start: Any) -> None:
    process, stream = start(input_name="micbus.monitor", output_name="spk")
    assert stream.input_name == "micbus.monitor"
    _wait(lambda: process.control.blocks > 20)
    assert "PULSE_SOURCE" not in os.environ


def test_names_that_nobody_knows_are_refused(start: Any) -> None:
    with pytest.raises(DeviceError, match="'nowhere'") as caught:
        start(input_name="nowhere", output_name="test_spk")
    assert caught.value.fix


def test_names_that_mean_several_devices_are_refused(start: Any) -> None:
    with pytest.raises(DeviceError, match=r"test_mic .*test_spk .*test_duplex"):
        start(input_name="test_", output_name="test_spk")


def test_a_device_that_is_suspended_is_lost_and_opens_again(pulse_rig: Any, start: Any) -> None:
    process, _ = start(input_name="test_mic", output_name="test_spk")
    _wait(lambda: process.control.blocks > 20)
    pulse_rig.run("pactl", "suspend-source", "mic", "1")
    pulse_rig.run("pactl", "suspend-sink", "spk", "1")
    try:
        events: list[DeviceStopped] = []
        _wait(lambda: events.extend(process.poll_events()) or events, 5)
    finally:
        pulse_rig.run("pactl", "suspend-sink", "spk", "0")
        pulse_rig.run("pactl", "suspend-source", "mic", "0")
    assert events[0].is_lost
    process.start()
    _wait(lambda: process.control.blocks > 20)


def test_a_server_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch, new_pulse_rig: Any) -> None:
    for name, value in new_pulse_rig.variables.items():
        monkeypatch.setenv(name, value)
    process = AudioProcess(PortAudioSpec("test_mic", "test_spk"))
    process.start()
    try:
        _wait(lambda: process.control.blocks > 20)
        new_pulse_rig.stop()
        events: list[DeviceStopped] = []
        _wait(lambda: events.extend(process.poll_events()) or events, 5)
        assert events[0].is_lost
        with pytest.raises(DeviceError):
            process.start()
    finally:
        process.stop()
