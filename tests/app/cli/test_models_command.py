"""`vivavoce models` on an empty store and on one with damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.main import main
from app.models.catalog import load_catalog


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, and no configuration of the person who runs the tests."""
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "store"


def _put(store: Path, name: str, data: bytes) -> None:
    """Every file of the model with the right size but other bytes."""
    for member in load_catalog()[name].members:
        path = store / name / member.file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.ljust(member.size_bytes, b"\0"))


def test_list_of_an_empty_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["store"] == str(store)
    assert {row["state"] for row in document["models"]} == {"absent"}
    assert main(["models", "list"]) == 0
    assert "silero-vad" in capsys.readouterr().out


def test_damage_is_seen_by_every_action(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _put(store, "silero-vad", b"not a model")
    assert main(["models", "list", "--json"]) == 0
    states = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["models"]}
    assert states["silero-vad"] == "damaged"
    assert main(["models", "verify"]) == 2
    assert "Run: vivavoce models fetch silero-vad" in capsys.readouterr().out
    assert main(["models", "path", "silero-vad"]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert main(["models", "remove", "silero-vad"]) == 0
    assert not (store / "silero-vad").exists()
    assert main(["models", "verify"]) == 0


def test_offline_fetch_of_an_empty_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch", "--offline"]) == 2
    assert "--offline forbids fetching. Run without --offline once" in capsys.readouterr().err
    assert not store.exists()


def test_unknown_name(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch", "silero"]) == 2
    assert "Did you mean silero-vad?" in capsys.readouterr().err
