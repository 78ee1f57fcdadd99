"""What a check of a microphone and a loudspeaker finds, and that it plays what it says."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from app.engine.device_check import ECHO, LISTENING, TONE, Measured, Show, check_pair, judge, measure, play_tone
from audio.block import AudioBlock
from audio.errors import DeviceError
from audio.io.device import RoomSpec, SimulatedSpec, StreamFormat
from audio.meters.echo_path import EchoPath

_ECHO = EchoPath(80.0, 20.0, 500.0)
_GOOD = Measured(
    StreamFormat(48_000, 480, "mic", "spk", "duplex", 20.0),
    "SCHED_FIFO 10",
    level_db=-55.0,
    peak=0.2,
    is_constant=False,
    clipped_samples=0,
    paths=(_ECHO, replace(_ECHO, round_trip_ms=80.4), replace(_ECHO, round_trip_ms=79.9)),
    lost_ms=0.0,
    late_blocks=0,
    underruns=0,
)
_NO_ECHO = EchoPath(None, None, 1.5)


def _not_ok(measured: Measured) -> list[tuple[str, str]]:
    findings = judge(measured)
    assert all(finding.fix for finding in findings if finding.status != "ok")
    return [(finding.name, finding.status) for finding in findings if finding.status != "ok"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"peak": 0.0, "is_constant": True, "level_db": -120.0}, [("microphone", "wrong")]),
        ({"peak": 0.5, "is_constant": True}, [("microphone", "wrong")]),
        ({"peak": 2e-5}, [("microphone", "wrong")]),
        ({"peak": 1.0, "clipped_samples": 400}, [("microphone", "wrong")]),
        ({"lost_ms": 120.0}, [("continuity", "wrong")]),
        ({"underruns": 2}, [("continuity", "wrong")]),
        ({"paths": (_NO_ECHO,) * 3}, [("echo", "warning")]),
        ({"paths": (_ECHO, _NO_ECHO, replace(_ECHO, round_trip_ms=150.0))}, [("echo", "wrong")]),
        ({"paths": (replace(_ECHO, round_trip_ms=700.0),) * 3}, [("echo", "wrong")]),
        ({"paths": (replace(_ECHO, erl_db=-4.0),) * 3}, [("echo", "warning")]),
        ({"stopped": "it went away"}, [("stream", "wrong")]),
    ],
)
def test_each_fault_is_named_with_its_fix(change: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert _not_ok(replace(_GOOD, **change)) == expected


def test_the_test_measures_a_room_of_known_delay_and_loss() -> None:
    shown: set[str] = set()
    impulse = np.zeros(480, np.float32)
    impulse[0] = 1.0
    spec = SimulatedSpec(room=RoomSpec(impulse_response=AudioBlock(impulse, 0, 48_000), erl_db=14.0, delay_ms=120.0))
    measured = measure(spec, 0.3, lambda title, _: shown.add(title))
    assert len(shown) == 3
    assert measured.stopped == ""
    if measured.lost_ms or measured.underruns:
        pytest.skip("the machine is too busy: audio was lost")
    assert measured.round_trip_ms == pytest.approx(120.0, abs=0.5)
    assert measured.erl_db == pytest.approx(14.0, abs=1.0)


def _play_tone(show: Show) -> StreamFormat:
    """On a busy machine ALSA's stand-in for the server sometimes gives up; then once more."""
    try:
        return play_tone("test_mic", "test_spk", None, show)
    except DeviceError:
        return play_tone("test_mic", "test_spk", None, show)


@pytest.mark.audio_device
def test_the_tone_is_heard_at_the_loudspeaker(pulse_rig: Any, tmp_path: Path) -> None:
    recorder = pulse_rig.capture(tmp_path / "heard.wav")
    shown: set[str] = set()
    try:
        time.sleep(0.3)  # until it records
        stream = _play_tone(lambda step, _: shown.add(step))
    finally:
        recorder.terminate()
        recorder.wait(10)
    assert stream.output_name == "test_spk"
    assert shown == {TONE}
    heard, rate_hz = soundfile.read(tmp_path / "heard.wav", dtype="float32")
    spectrum = np.abs(np.fft.rfft(heard))
    assert float(np.argmax(spectrum)) * rate_hz / len(heard) == pytest.approx(440.0, abs=3.0)


@pytest.mark.audio_device
def test_a_pair_is_checked_in_three_steps_and_the_round_trip_is_kept(
    pulse_rig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    loop = ("module-loopback", "source=spk.monitor", "sink=micbus", "latency_msec=60")
    module = pulse_rig.run("pactl", "load-module", *loop).stdout.strip()
    shown: list[str] = []
    try:
        measured, findings = check_pair("test_mic", "test_spk", None, lambda step, _: shown.append(step), 0.3)
    finally:
        pulse_rig.run("pactl", "unload-module", module)
    assert list(dict.fromkeys(shown)) == [LISTENING, TONE, ECHO]
    if measured.lost_ms or measured.underruns:
        pytest.skip("the machine is too busy: audio was lost")
    assert {finding.name for finding in findings} == {"stream", "microphone", "continuity", "echo"}
    assert measured.echoes
    if measured.round_trip_ms is not None:
        assert any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.audio_device
def test_a_device_that_is_not_there_is_named(pulse_rig: Any) -> None:
    with pytest.raises(DeviceError, match="nowhere"):
        play_tone("nowhere", "test_spk", None, lambda _step, _level: None)
