"""The ear as a process: same hops as in this process, in time, and gone when it must be."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from audio.control import ControlWords
from audio.ear import HOP_DTYPE, Ear, EarSpec
from audio.ear_process import EarProcess, EarRunning, EarStopped
from audio.errors import AudioError
from audio.hop_loop import HopLoop, RoundTripMeasured
from audio.io.device import StreamFormat
from audio.io.records import MIC_CAPACITY, block_dtype
from audio.io.segments import Segment, SegmentRef
from audio.ring import RecordRing, RingReader

pytest.importorskip("livekit")
pytest.importorskip("onnxruntime")

_STREAM = StreamFormat(16000, 160, "microphone", "loudspeaker", "simulated", 10.0)
_HOP_CAPACITY = 512


@dataclass
class _Link:
    mic: SegmentRef
    control: SegmentRef


class _Stream:
    """The audio process's half: rings and words in shared memory, written from here."""

    def __init__(self) -> None:
        self._segments = [
            Segment("mic", RecordRing.nbytes(block_dtype(160), MIC_CAPACITY)),
            Segment("control", ControlWords.NBYTES),
        ]
        self.ring = RecordRing(block_dtype(160), MIC_CAPACITY, self._segments[0].buffer)
        self.control = ControlWords(self._segments[1].buffer)
        self.link = _Link(*(segment.ref for segment in self._segments))

    def write(self, index: int, near: np.ndarray, far: np.ndarray) -> None:
        slot = self.ring.slot()
        slot["index"], slot["time_ns"] = index, time.monotonic_ns()
        slot["near"], slot["far"] = near, far
        self.ring.commit()
        self.control.blocks = self.ring.written

    def close(self) -> None:
        for segment in self._segments:
            segment.unlink()


@pytest.fixture
def spec(model_path) -> EarSpec:
    return EarSpec(str(model_path("silero-vad", "silero_vad.onnx")), chain=("echo",))


@pytest.fixture
def stream():
    made = _Stream()
    yield made
    made.close()


@pytest.fixture
def process(spec: EarSpec):
    ear = EarProcess(spec)
    ear.start()
    ear.wait_ready()
    yield ear
    ear.stop()


def _hops(process: EarProcess, stream: _Stream) -> RingReader:
    from audio.io.segments import attach

    nbytes = RecordRing.nbytes(HOP_DTYPE, _HOP_CAPACITY)
    ref = process.attach(stream.link, _STREAM, nbytes)
    return RecordRing(HOP_DTYPE, _HOP_CAPACITY, attach(ref)).reader(first=0)


def _wait_for(reader: RingReader, count: int, limit_s: float = 10.0) -> np.ndarray:
    got: list[np.ndarray] = []
    deadline = time.monotonic() + limit_s
    while sum(map(len, got)) < count and time.monotonic() < deadline:
        got.append(reader.read())
        time.sleep(0.002)
    return np.concatenate(got)


def test_same_hops_as_without_a_process_and_the_round_trip_is_told(
    spec: EarSpec, process: EarProcess, stream: _Stream, scenes
) -> None:
    far = scenes.at_level(scenes.read("speech/lj/LJ001-0001.flac"), -20)[: 200 * 160]
    near = scenes.room_echo(far, "rir4", 12)
    reader = _hops(process, stream)
    for k in range(200):  # less than the ring holds: no need to keep time
        stream.write(k, near[k * 160 : k * 160 + 160], far[k * 160 : k * 160 + 160])
    got = _wait_for(reader, 200)
    assert len(got) == 200
    local = Ear(spec)
    records = np.zeros(1, block_dtype(160))
    for k in range(200):
        records["index"], records["near"], records["far"] = (
            k,
            near[k * 160 : k * 160 + 160],
            far[k * 160 : k * 160 + 160],
        )
        expected = local.process(records[0])
        for name in HOP_DTYPE.names:
            if name not in ("late_ms", "backlog"):
                assert np.array_equal(got[k][name], expected[name]), (k, name)
    told = [event for event in process.poll_events() if isinstance(event, RoundTripMeasured)]
    assert [event.round_trip for event in told] == [local.round_trip]
    assert {stage for stage, _, _ in process.backends} >= {"echo", "vad"}
    assert process.priority


def test_keeps_up_with_a_paced_stream(process: EarProcess, stream: _Stream) -> None:
    reader = _hops(process, stream)
    quiet = np.zeros(160, np.float32)
    begin = time.monotonic()
    for k in range(100):
        time.sleep(max(0.0, begin + k * 0.01 - time.monotonic()))
        stream.write(k, quiet, quiet)
    got = _wait_for(reader, 100)
    assert got["block"].tolist() == list(range(100))
    assert (got["late_ms"] > 0).all()
    assert np.median(got["late_ms"]) < 10


@pytest.mark.parametrize("how", ["shutdown", "pipe"])
def test_ends_within_half_a_second(process: EarProcess, stream: _Stream, how: str) -> None:
    _hops(process, stream)
    child = process._process
    begin = time.monotonic()
    if how == "shutdown":
        stream.control.shutdown = 1
    else:
        process._connection.close()
        process._connection = None
    child.join(2.0)
    assert child.exitcode == 0
    assert time.monotonic() - begin < 0.5 + 0.3  # the interpreter's own end comes on top


def test_ctrl_c_does_not_end_it_and_death_is_told(process: EarProcess, stream: _Stream) -> None:
    reader = _hops(process, stream)
    os.kill(process._process.pid, signal.SIGINT)
    stream.write(0, np.zeros(160, np.float32), np.zeros(160, np.float32))
    assert len(_wait_for(reader, 1)) == 1
    assert process.poll_events() == []
    process._process.kill()
    process._process.join(5.0)
    (event,) = process.poll_events()
    assert isinstance(event, EarStopped)
    assert "-9" in event.reason
    assert process.poll_events() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_new_ear_goes_on_behind_the_last_hop_and_hears_what_waited(
    process: EarProcess, stream: _Stream, how: signal.Signals
) -> None:
    reader = _hops(process, stream)
    quiet = np.zeros(160, np.float32)
    for k in range(20):
        stream.write(k, quiet, quiet)
    _wait_for(reader, 20)
    os.kill(process._process.pid, how)
    for k in range(20, 60):
        stream.write(k, quiet, quiet)
    happened: list[object] = []
    deadline = time.monotonic() + 30.0
    while not any(isinstance(event, EarStopped) for event in happened):
        assert time.monotonic() < deadline
        happened += process.poll_events()
        time.sleep(0.02)
    process.restart()
    while not any(isinstance(event, EarRunning) for event in happened):
        assert time.monotonic() < deadline
        happened += process.poll_events()
        time.sleep(0.02)
    for k in range(60, 80):
        stream.write(k, quiet, quiet)
    assert _wait_for(reader, 60)["block"].tolist() == list(range(20, 80))


def test_leaves_no_segment_and_no_child(process: EarProcess, stream: _Stream) -> None:
    _hops(process, stream)
    name, pid = process._hops.ref.name, process._process.pid
    process.stop()
    process.stop()
    assert not (Path("/dev/shm") / name).exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_missing_model_is_told_with_its_fix() -> None:
    ear = EarProcess(EarSpec("/nonexistent/silero_vad.onnx"))
    ear.start()
    with pytest.raises(AudioError, match="models fetch"):
        ear.wait_ready()
    ear.stop()
    with pytest.raises(AudioError, match="not started"):
        ear.wait_ready()


def test_backlog_is_counted(spec: EarSpec) -> None:
    mic, hops = RecordRing(block_dtype(160), 16), RecordRing(HOP_DTYPE, 16)
    loop = HopLoop(Ear(spec), mic.reader(), hops, ControlWords())
    reader = hops.reader()
    for k in range(3):
        mic.slot()["index"] = k
        mic.slot()["time_ns"] = 1000 + k
        mic.commit()
    assert loop.step(lambda _: None) == 1002
    assert loop.step(lambda _: None) is None
    assert reader.read()["backlog"].tolist() == [2, 1, 0]
