"""`vivavoce config check`: right is only what a conversation could be held with."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.main import main


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and no configuration of the person who runs the tests."""
    for name in ("CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("VIVAVOCE_STORE", raising=False)
    (tmp_path / "file").write_text("")


def test_models_that_are_not_yet_fetched_are_notes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["config", "check"]) == 0
    out = capsys.readouterr().out
    assert out.count("note: ") == 5
    assert "The configuration is right." in out
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("key", ["asr.model", "ear.vad_model", "turn.model", "llm.model", "tts.model",
                                 "personas.default.voice"])  # fmt: skip
@pytest.mark.parametrize("kind", ["unknown", "wrong role", "no such file", "wrong file"])
def test_every_model_is_looked_at(key: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "silero-vad" if key != "ear.vad_model" else "smollm2-135m"
    (tmp_path / "wrong.onnx").write_text("text")
    values = {"unknown": "nonesuch", "wrong role": other, "no such file": str(tmp_path / "gone.gguf"),
              "wrong file": str(tmp_path / "wrong.onnx")}  # fmt: skip
    assert main(["config", "check", "--set", f"{key}={values[kind]}"]) == 2
    out = capsys.readouterr().out
    assert out.count("wrong: ") == 1
    assert values[kind] in out
    assert "The configuration cannot work." in out


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("paths.data={file}", "paths.data: {file} cannot be written: file exists"),
        ("paths.data={file}/below", "paths.data: {file}/below cannot be written: not a directory"),
        ("paths.data=/proc/below", "paths.data: /proc/below cannot be written: no such file or directory"),
        ("paths.store={file}", "paths.store: {file} is no folder"),
    ],
)
def test_folders_are_tried(setting: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "file")
    assert main(["config", "check", "--set", setting.format(file=file)]) == 2
    assert f"wrong: {reason.format(file=file)}" in capsys.readouterr().out


def test_a_misspelt_variable_is_a_note(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("VIVAVOCE_LLM_SEED", "7")
    assert main(["config", "check"]) == 0
    assert "note: the variable VIVAVOCE_LLM_SEED is not read." in capsys.readouterr().out


def test_a_file_that_was_named_is_read_whatever_kind_of_file_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", "/dev/null"]) == 0
    assert "User file: /dev/null (read)" in capsys.readouterr().out
    assert main(["config", "check"]) == 0
    assert "(not there, defaults apply)" in capsys.readouterr().out
