"""`vivavoce doctor` says what is missing and the fix for each, and itself never fails."""

from __future__ import annotations

import json
import os
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest

import app.cli.checks as checks
from app.cli.main import main
from app.cli.probe import ask_in_child
from audio.errors import DeviceError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and no configuration of the person who runs the tests."""
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def _report(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, list[dict[str, str]]]]:
    code = main(["doctor", "--json"])
    document = json.loads(capsys.readouterr().out)
    rows: dict[str, list[dict[str, str]]] = {}
    for row in document["checks"]:
        rows.setdefault(row["name"], []).append(row)
    assert document["ready"] == (code == 0)
    return code, rows


def test_report_on_an_empty_store(capsys: pytest.CaptureFixture[str]) -> None:
    code, rows = _report(capsys)
    assert code == 2
    assert rows["model vad"][0]["status"] == "missing"
    assert rows["model vad"][0]["fix"] == "Run: vivavoce models fetch silero-vad"
    for wanted in (
        "python",
        "cpu cores",
        "memory",
        "disk",
        "torch",
        "sound server",
        "sound devices",
        "scheduling",
        "gpu",
    ):
        assert wanted in rows
    for row in (row for group in rows.values() for row in group):
        assert row["found"]
        assert row["status"] in ("ok", "warning", "missing")
        assert row["fix"] or row["status"] == "ok", row
    assert main(["doctor"]) == 2
    assert "Not ready: mend what is marked MISSING." in capsys.readouterr().out


def test_missing_library_names_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    original = metadata.version

    def version(name: str) -> str:
        if name == "soxr":
            raise metadata.PackageNotFoundError(name)
        return original(name)

    monkeypatch.setattr(checks.metadata, "version", version)
    _, rows = _report(capsys)
    assert rows["soxr"][0]["status"] == "missing"
    assert rows["soxr"][0]["fix"].endswith("-m pip install soxr")


def test_sound_trouble_is_a_note(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import audio.io.portaudio as portaudio

    def fail() -> list[object]:
        raise DeviceError("PortAudio is not installed", device="", fix="Install libportaudio2")

    monkeypatch.setattr(portaudio, "list_devices", fail)
    _, rows = _report(capsys)
    row = rows["sound devices"][0]
    assert (row["status"], row["fix"]) == ("warning", "Install libportaudio2")


def test_full_disk_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: Usage(free=1000))
    check = checks._disk(Path("/nonexistent/store"))
    assert (check.status, check.found) == ("warning", "0.0 GB free at /nonexistent/store")


def _die() -> None:
    os._exit(3)


def _raise() -> None:
    raise OSError("no such thing")


def test_child_that_dies_or_raises_answers_none(capfd: pytest.CaptureFixture[str]) -> None:
    assert ask_in_child(_die, timeout_s=30) is None
    assert ask_in_child(_raise, timeout_s=30) is None
    assert ask_in_child(os.getpid, timeout_s=30) != os.getpid()
    assert capfd.readouterr().err == ""
