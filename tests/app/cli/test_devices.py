"""`vivavoce devices` and `devices test`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import main


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
