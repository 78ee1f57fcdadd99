"""`vivavoce devices` and `devices test`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.device_test import Measured, judge, measure
from app.cli.main import main
from audio.block import AudioBlock
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


@pytest.mark.audio_device
def test_devices_of_portaudio_and_of_the_server_are_listed(pulse_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"name", "host_api", "rates_hz", "port", "serial", "inputs", "outputs"} <= set(document["devices"][0])
    assert any(48_000 in device["rates_hz"] for device in document["devices"])
    assert document["server"] == "pulseaudio"
    assert {"mic", "spk"} <= {device["name"] for device in document["server_devices"]}
    assert document["default_input"] == "mic"
    assert main(["devices"]) == 0
    text = capsys.readouterr().out
    assert "test_mic, ALSA" in text
    assert "*  mic" in text


@pytest.mark.audio_device
def test_the_real_test_says_what_is_wrong_with_a_monitor_as_microphone(
    pulse_rig: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert main(["devices", "test", "--json", "--input", "spk.monitor", "--output", "test_spk"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert "repeats what spk plays" in document["findings"][0]["found"]
    assert document["rate_hz"] == 44_100
    assert len(document["sweeps"]) == 3


@pytest.mark.audio_device
def test_a_name_that_nobody_knows_is_one_sentence(pulse_rig: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "test", "--input", "nowhere"]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    assert "'nowhere'" in answer.err
