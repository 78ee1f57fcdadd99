"""What every sound device promises; run on the simulated one and on PortAudio."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from audio.block import Float32Array
from audio.io.device import AudioDevice, DeviceSpec, PortAudioSpec, SimulatedSpec, StreamFormat, make_device


class _Counter:
    def __init__(self) -> None:
        self.blocks = 0
        self.shapes: set[tuple[int, ...]] = set()
        self.times_ns: list[int] = []
        self.came = threading.Event()

    def __call__(self, near: Float32Array, out: Float32Array, time_ns: int) -> None:
        self.blocks += 1
        self.shapes |= {near.shape, out.shape}
        self.times_ns.append(time_ns)
        assert near.dtype == out.dtype == np.float32
        out.fill(0.0)
        if self.blocks >= 20:
            self.came.set()


def _spec(kind: str) -> DeviceSpec:
    specs = {"simulated": SimulatedSpec(), "split": SimulatedSpec(output_drift_ppm=50.0), "portaudio": PortAudioSpec()}
    return specs[kind]


@pytest.fixture(params=["simulated", "split", pytest.param("portaudio", marks=pytest.mark.audio_device)])
def device(request: pytest.FixtureRequest) -> Iterator[AudioDevice]:
    """Each kind of device, not opened."""
    if request.param == "portaudio":
        request.getfixturevalue("pulse_rig")
        _read_devices_anew()
    made = make_device(_spec(request.param))
    yield made
    made.stop()
    if request.param == "portaudio":
        _read_devices_anew()


def _read_devices_anew() -> None:
    """PortAudio knows only the devices that were there when this process first asked, in whatever test that was."""
    import sounddevice

    sounddevice._terminate()
    sounddevice._initialize()


@pytest.mark.parametrize("kind", ["simulated", "split", "portaudio"])
def test_a_specification_travels_between_processes(kind: str) -> None:
    assert type(pickle.loads(pickle.dumps(_spec(kind)))) is type(_spec(kind))


def _run(device: AudioDevice) -> tuple[StreamFormat, _Counter]:
    """Open, start, and see 20 blocks. A starved sound server may end a stream: then it is opened again."""
    for _ in range(5):
        stream, counter = device.open(), _Counter()
        device.start(counter)
        for _ in range(50):
            if counter.came.wait(0.1):
                return stream, counter
            if device.finished is not None:
                break
        device.stop()
    raise AssertionError(f"no 20 blocks in five attempts: {device.finished}")


def test_blocks_of_10_ms_come_until_stop_and_not_after(device: AudioDevice) -> None:
    before_ns = time.monotonic_ns()
    stream, counter = _run(device)
    assert stream.block_frames * 100 == stream.rate_hz
    assert device.active
    device.stop()
    blocks = counter.blocks
    assert counter.shapes == {(stream.block_frames,)}
    assert counter.times_ns == sorted(counter.times_ns)
    assert before_ns <= counter.times_ns[0] <= time.monotonic_ns()
    assert not device.active
    assert device.spoken() == ()
    threading.Event().wait(0.05)
    assert counter.blocks == blocks
    assert device.finished is None


def test_it_opens_again_after_stop_and_stops_twice(device: AudioDevice) -> None:
    for _ in range(2):
        _run(device)
        device.stop()
        device.stop()
        assert not device.active


def test_start_before_open_is_a_mistake() -> None:
    for kind in ("simulated", "portaudio"):
        with pytest.raises(RuntimeError, match="open"):
            make_device(_spec(kind)).start(_Counter())
