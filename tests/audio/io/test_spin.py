"""A driver that waits by asking over and over is noticed, a slow machine is not taken for one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import psutil
import pytest

from audio.io.device import PortAudioSpec
from audio.io.process import AudioProcess
from audio.io.spin import SpinWatch
from audio.io.stream_child import DeviceStopped


def _noticed_after_s(shares: Sequence[float]) -> float | None:
    """Seconds until it is noticed, with these shares of a core in consecutive seconds; None: never."""
    watch, cpu_s = SpinWatch(), 0.0
    for step in range(20 * len(shares)):
        if watch.is_spinning(cpu_s, 100 + step / 20):
            return step / 20
        cpu_s += shares[step // 20] / 20
    return None


@pytest.mark.parametrize("spin", [0.35, 0.6, 1.0])
def test_a_spin_is_noticed_in_two_seconds_of_it(spin: float) -> None:
    assert _noticed_after_s([0.05] * 5 + [spin] * 5) == pytest.approx(7.0, abs=0.15)


@pytest.mark.parametrize("shares", [[0.05] * 20, [0.6] * 20, [0.1, 0.3, 0.05, 0.25] * 5, [0.05, 0.9, 0.05, 0.05] * 5])
def test_a_slow_machine_and_a_short_burst_are_not_a_spin(shares: list[float]) -> None:
    assert _noticed_after_s(shares) is None


def _stall(pid: int, duration_s: float) -> None:
    """Longer than the stream's buffers last: an underrun."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(duration_s)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.audio_device
@pytest.mark.usefixtures("pulse_rig")
def test_portaudio_after_an_underrun_ends_and_leaves_the_core_alone() -> None:
    """Symptom: after one crackle the audio process takes a whole core for good, and it crackles ever more."""
    process = AudioProcess(PortAudioSpec("test_mic", "test_spk", 48_000))
    process.start()
    try:
        (child,) = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
        time.sleep(2.5)  # it learns what this stream takes at its best
        events: list[object] = []
        for _ in range(5):
            _stall(child.pid, 0.12)
            until_s = time.monotonic() + 4.0
            while time.monotonic() < until_s and not events:
                events += process.poll_events()
                time.sleep(0.05)
            if events:
                break
        else:
            times = child.cpu_times()
            pytest.skip(f"this PortAudio does not spin: {times.user + times.system:.1f} s of processor time in 20 s")
        (stopped,) = events
        assert isinstance(stopped, DeviceStopped)
        assert stopped.is_lost
        assert stopped.reason == "the sound driver kept a processor core busy after a gap"
    finally:
        process.stop()
