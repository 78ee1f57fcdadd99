"""The audio process: hand-over of the rings, loss, end, and nothing left behind, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from audio.block import AudioBlock
from audio.errors import DeviceError
from audio.files import read_audio
from audio.io.device import PortAudioSpec, ScriptSpec, SimulatedSpec, Utterance
from audio.io.process import AudioProcess
from audio.io.records import FLAG_REPLY
from audio.io.stream_child import DeviceRunning, DeviceStopped

_ROOT = Path(__file__).resolve().parents[3]
_LIMIT_S = 15.0


def _wait(condition: Callable[[], object], limit_s: float = _LIMIT_S) -> float:
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < limit_s, "waited in vain"
        time.sleep(0.005)
    return time.monotonic() - began_s


def _has_exited(pid: int) -> bool:
    """Gone, or only waiting for its parent to notice."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"vivavoce-{os.getpid()}-*")}


def _event(process: AudioProcess) -> DeviceStopped:
    events: list[DeviceStopped | DeviceRunning] = []
    _wait(lambda: events.extend(process.poll_events()) or events)
    assert process.poll_events() == []
    assert isinstance(events[0], DeviceStopped)
    return events[0]


@pytest.fixture
def make() -> Iterator[Callable[..., AudioProcess]]:
    """Makes processes and stops them."""
    made: list[AudioProcess] = []

    def build(spec: SimulatedSpec | PortAudioSpec) -> AudioProcess:
        made.append(AudioProcess(spec))
        return made[-1]

    yield build
    for process in made:
        process.stop()
    assert _segments() == set()


def test_audio_goes_both_ways(make: Callable[..., AudioProcess], tmp_path: Path) -> None:
    source = AudioBlock(np.linspace(0, 0.5, 480_000, dtype=np.float32), 0, 48_000)
    process = make(SimulatedSpec(input=source, output_path=str(tmp_path / "out.wav")))
    stream = process.start()
    assert (stream.rate_hz, stream.block_frames, stream.mode) == (48_000, 480, "simulated")
    assert process.priority in ("SCHED_FIFO 10", "nice -11", "normal")
    assert process.control.running == 1
    assert sum((Path("/dev/shm") / name).stat().st_size for name in _segments()) < 5 << 20
    reader = process.mic_ring.reader(first=0)
    process.control.generation = 5
    for number in range(20):
        slot = process.playback_ring.slot()
        slot["generation"], slot["end_frames"], slot["last"] = 5, 480 * (number + 1), number == 19
        slot["samples"] = 0.01 * (number + 1)
        process.playback_ring.commit()
    _wait(lambda: process.control.blocks >= 60)
    process.stop()
    records = reader.read()
    near = records["near"].ravel()
    assert np.array_equal(near, source.samples[: len(near)])
    played = records[(records["flags"] & FLAG_REPLY) != 0]
    assert np.allclose(played["far"][:, 0], 0.01 * np.arange(1, 21))
    assert played["reply_frames"].tolist() == [480 * n for n in range(1, 21)]
    assert records["generation"][-1] == 5
    output, _ = read_audio(tmp_path / "out.wav")
    assert np.abs(output[: len(near)] - records["far"].ravel()).max() < 2**-15


def test_stop_is_quick_and_may_be_repeated(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec())
    process.start()
    pid = process._process.pid  # type: ignore[union-attr]
    began_s = time.monotonic()
    process.stop()
    assert time.monotonic() - began_s < 0.5
    assert not psutil.pid_exists(pid)
    assert _segments() == set()
    process.stop()
    assert process.poll_events() == []


def test_the_shutdown_word_alone_ends_it(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec())
    process.start()
    process.control.shutdown = 1
    assert _wait(lambda: _has_exited(process._process.pid)) < 0.5  # type: ignore[union-attr]


def test_a_script_that_is_over_says_what_was_said(make: Callable[..., AudioProcess]) -> None:
    sound = AudioBlock(np.full(4_800, 0.3, np.float32), 0, 48_000)
    process = make(SimulatedSpec(input=ScriptSpec((Utterance(sound),), lead_s=0.1, timeout_s=0.2)))
    process.start()
    stopped = _event(process)
    assert not stopped.is_lost
    (spoken,) = stopped.spoken
    assert (spoken.onset_frames, spoken.end_frames) == (4_800, 9_600)


def test_a_device_that_stalls_is_lost(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec(stalls=((0.3, 60.0),)))
    process.start()
    stopped = _event(process)
    assert stopped.is_lost
    assert "gave no audio" in stopped.reason


def _back(process: AudioProcess) -> DeviceRunning:
    events: list[DeviceStopped | DeviceRunning] = []
    _wait(lambda: events.extend(process.poll_events()) or events)
    assert isinstance(events[0], DeviceRunning), events
    return events[0]


def _put(process: AudioProcess, generation: int, count: int) -> None:
    frames = process.playback_ring.columns["samples"].shape[1]
    for number in range(count):
        slot = process.playback_ring.slot()
        slot["generation"], slot["end_frames"], slot["last"] = generation, frames * (number + 1), number == count - 1
        slot["samples"] = 0.1
        process.playback_ring.commit()


def test_a_device_that_comes_back_goes_on_with_the_same_rings_and_the_reply(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec(disappears_at_s=1.0, returns_after_s=1.0))
    process.start()
    reader = process.mic_ring.reader(first=0)
    process.control.generation = 2
    assert _event(process).reason == "the device disappeared"
    _put(process, 2, 20)  # the engine went on meanwhile
    began_s = time.monotonic()
    process.restart()
    assert time.monotonic() - began_s < 1.0  # it does not wait for the device
    assert _back(process).format.rate_hz == 48_000
    blocks = process.control.blocks
    _wait(lambda: process.control.blocks > blocks + 30)
    process.stop()
    records = reader.read()
    assert records["index"].tolist() == list(range(len(records)))
    assert reader.lost == 0
    played = records[(records["flags"] & FLAG_REPLY) != 0]
    assert played["reply_frames"].tolist() == [480 * n for n in range(1, 21)]
    gap_ms = float(np.diff(records["time_ns"]).max()) / 1e6
    assert gap_ms > 900
    assert abs(process.control.lost_frames / 48 - gap_ms) < 60


def test_any_process_death_is_mended_on_the_same_rings(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec())
    process.start()
    for number in range(1, 4):
        _wait(lambda: process.control.blocks > 10 * number)  # noqa: B023 - used at once
        os.kill(process._process.pid, signal.SIGKILL if number % 2 else signal.SIGSTOP)  # type: ignore[union-attr]
        stopped: list[DeviceStopped | DeviceRunning] = []
        _wait(lambda: stopped.extend(process.poll_events()) or stopped)  # noqa: B023 - used at once
        assert isinstance(stopped[0], DeviceStopped)
        assert stopped[0].is_lost
        process.restart()
        _back(process)
    assert len(_segments()) == 3


def test_a_device_that_is_back_at_another_rate_is_adapted_to_the_rings(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec(rate_hz=48_000))
    process.start()
    _wait(lambda: process.control.blocks > 10)
    process.restart(SimulatedSpec(rate_hz=44_100, refused_rates_hz=(48_000,)))
    assert _back(process).format.rate_hz == 48_000
    blocks = process.control.blocks
    _wait(lambda: process.control.blocks > blocks + 20)


def test_a_process_that_is_killed_is_reported(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec())
    process.start()
    os.kill(process._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
    stopped = _event(process)
    assert stopped.is_lost
    assert "-9" in stopped.reason


def test_a_device_that_cannot_be_opened_is_an_error_of_the_parent(make: Callable[..., AudioProcess]) -> None:
    with pytest.raises(DeviceError, match="refuses every sample rate"):
        make(SimulatedSpec(refused_rates_hz=(48_000, 44_100, 16_000))).start()


def test_an_unpaced_device_has_no_process() -> None:
    with pytest.raises(ValueError, match="unpaced"):
        AudioProcess(SimulatedSpec(is_paced=False))


_PARENT = """
import os, signal, sys, time
from audio.io.device import SimulatedSpec
from audio.io.process import AudioProcess

if __name__ == "__main__":
    process = AudioProcess(SimulatedSpec())
    process.start()
    print(os.getpid(), process._process.pid, flush=True)
    if sys.argv[1] == "forgets":
        sys.exit(0)
    time.sleep(60)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], int, int]]]:
    """Starts a program that owns an audio process; gives it, its id and the audio process's."""
    script = tmp_path / "parent.py"
    script.write_text(_PARENT)
    started = []

    def start(manner: str) -> tuple[subprocess.Popen[str], int, int]:
        program = subprocess.Popen(
            [sys.executable, str(script), manner],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(program)
        assert program.stdout is not None
        pid, child = map(int, program.stdout.readline().split())
        return program, pid, child

    yield start
    for program in started:
        if program.poll() is None:
            program.kill()
        program.communicate()


_Start = Callable[[str], tuple[subprocess.Popen[str], int, int]]


def test_when_the_parent_is_killed_the_child_goes_and_the_next_start_sweeps(parent: _Start) -> None:
    program, pid, child = parent("waits")
    program.kill()
    program.wait()
    assert _wait(lambda: _has_exited(child)) < 0.5
    process = AudioProcess(SimulatedSpec())
    process.start()
    process.stop()
    assert not list(Path("/dev/shm").glob(f"vivavoce-{pid}-*"))


def test_a_parent_that_forgets_to_stop_leaves_nothing_and_warns_of_nothing(parent: _Start) -> None:
    program, pid, child = parent("forgets")
    _, errors = program.communicate(timeout=_LIMIT_S)
    assert errors == ""
    _wait(lambda: _has_exited(child), 1.0)
    assert not list(Path("/dev/shm").glob(f"vivavoce-{pid}-*"))


def test_ctrl_c_is_the_parents_business(make: Callable[..., AudioProcess]) -> None:
    process = make(SimulatedSpec())
    process.start()
    os.kill(process._process.pid, signal.SIGINT)  # type: ignore[union-attr]
    blocks = process.control.blocks
    _wait(lambda: process.control.blocks > blocks + 20)
    assert process.poll_events() == []
