"""The user's own files by path: what is taken, and one sentence for what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.config.load import load_config
from app.engine.builder import engine_names, model_files, places
from app.errors import ModelStoreError
from app.models.catalog import load_catalog
from app.models.own import Choice, choose, engine_of, is_path
from app.models.store import Store

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
ASR_FILES = ("encoder_model.ort", "decoder_model_merged.ort", "tokenizer.bin")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store with the shipped catalog."""
    return Store(tmp_path / "store", load_catalog())


def _put(path: Path, data: bytes | dict[str, object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    return path


def _hugging_face(folder: Path) -> Path:
    _put(folder / "config.json", {"model_type": "llama"})
    _put(folder / "tokenizer.json", {})
    return _put(folder / "model.safetensors", b"weights")


def _voice(folder: Path, name: str = "en.onnx") -> Path:
    _put(folder / f"{name}.json", {"phoneme_id_map": {}})
    return _put(folder / name, b"\x08\x08model")


def _refused(configured: Path | str, role: str, store: Store, part: str) -> None:
    with pytest.raises(ModelStoreError, match=part) as caught:
        choose(str(configured), role, store)
    assert caught.value.fix
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, store: Store) -> None:
    for name, role in (("a.gguf", "llm"), ("a.onnx", "tts"), ("a.onnx", "vad")):
        pipe = tmp_path / role / name
        pipe.parent.mkdir()
        os.mkfifo(pipe)
        for configured in (pipe, pipe.parent):
            _refused(configured, role, store, "no regular file|holds neither|not one|it is no .onnx file")
    folder = _hugging_face(tmp_path / "m").parent
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    _refused(folder, "llm", store, "no regular file")


def test_gguf(tmp_path: Path, store: Store) -> None:
    path = _put(tmp_path / "m" / "own.gguf", b"GGUF\x03rest")
    assert choose(str(path), "llm", store) == Choice("llama", {"model": path})
    assert choose(str(path.parent), "llm", store) == Choice("llama", {"model": path}), "the only one in its folder"


def test_safetensors_file_and_folder(tmp_path: Path, store: Store) -> None:
    path = _hugging_face(tmp_path / "m")
    expected = Choice("llama", {"model": path.parent})
    assert choose(str(path), "llm", store) == expected
    assert choose(str(path.parent), "llm", store) == expected


def test_piper_voice(tmp_path: Path, store: Store) -> None:
    path = _voice(tmp_path / "v")
    expected = Choice("piper", {"model": path, "config": path.with_name("en.onnx.json")})
    assert choose(str(path), "tts", store) == expected
    assert choose(str(path.parent), "tts", store) == expected


@pytest.mark.parametrize(("role", "engine"), [("vad", "silero"), ("turn", "smart-turn")])
def test_onnx(tmp_path: Path, store: Store, role: str, engine: str) -> None:
    path = _put(tmp_path / "x.onnx", b"\x08\x07model")
    assert choose(str(path), role, store) == Choice(engine, {"model": path})


def test_recogniser_folder(tmp_path: Path, store: Store) -> None:
    paths = [_put(tmp_path / "a" / name, b"x") for name in ASR_FILES]
    expected = Choice("moonshine", dict(zip(("encoder", "decoder", "tokenizer"), paths, strict=True)))
    assert choose(str(tmp_path / "a"), "asr", store) == expected
    assert choose(str(paths[0]), "asr", store) == expected


def test_home_and_relative_paths(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _put(tmp_path / "own.gguf", b"GGUF")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for configured in ("~/own.gguf", "own.gguf", "./own.gguf"):
        assert choose(configured, "llm", store).parts == {"model": path}


def test_name_of_the_catalog_is_no_path(store: Store) -> None:
    catalog = store.catalog
    assert not is_path("silero-vad", catalog)
    assert not is_path("silero", catalog), "a misspelt name gets the nearest one"
    _refused("smollm2-135", "llm", store, r"Did you mean smollm2-135m\?")
    _refused("silero-vad", "vad", store, "vivavoce models fetch silero-vad")


def test_model_of_another_role_is_refused(store: Store) -> None:
    _refused("silero-vad", "asr", store, "is a model for vad, not for asr. Use one of: moonshine-tiny-en")
    with pytest.raises(ModelStoreError, match="not for tts"):
        engine_of("smollm2-135m", "tts", store.catalog)


def test_engine_is_known_without_the_files(store: Store) -> None:
    names = {"llm": "/none/own.gguf", "tts": "~/voice.onnx", "asr": "moonshine-tiny-en", "vad": "./x.onnx"}
    assert {role: engine_of(name, role, store.catalog) for role, name in names.items()} == {
        "llm": "llama", "tts": "piper", "asr": "moonshine", "vad": "silero"}  # fmt: skip


def test_language_models_that_cannot_be_used(tmp_path: Path, store: Store) -> None:
    _refused(tmp_path / "none.gguf", "llm", store, "there is no such file or folder")
    _refused(_put(tmp_path / "html.gguf", b"<html>"), "llm", store, "it is no GGUF file")
    _refused(_put(tmp_path / "pointer.gguf", LFS_POINTER), "llm", store, "is a Git LFS pointer")
    _refused(_put(tmp_path / "empty.gguf", b""), "llm", store, "it is empty")
    _refused(_put(tmp_path / "b" / "model.bin", b"x"), "llm", store, "neither GGUF nor safetensors")
    _refused(tmp_path / "b", "llm", store, r"neither \.safetensors nor \.gguf files")
    for name in ("one", "two"):
        _put(tmp_path / "two" / f"{name}.gguf", b"GGUF")
    _refused(tmp_path / "two", "llm", store, r"it holds 2 \.gguf files, not one")


def test_safetensors_that_cannot_be_used(tmp_path: Path, store: Store) -> None:
    alone = _put(tmp_path / "alone" / "model.safetensors", b"x")
    _refused(alone, "llm", store, r"config\.json is not beside the weights")
    path = _hugging_face(tmp_path / "m")
    (path.parent / "tokenizer.json").unlink()
    _refused(path.parent, "llm", store, r"tokenizer\.json is not beside the weights")
    path = _hugging_face(tmp_path / "pointer")
    path.write_bytes(LFS_POINTER)
    _refused(path, "llm", store, "is a Git LFS pointer")


def test_voices_that_cannot_be_used(tmp_path: Path, store: Store) -> None:
    path = _voice(tmp_path / "v")
    config = path.with_name("en.onnx.json")
    config.write_text('{"sample_rate": 1}')
    _refused(path, "tts", store, r"en\.onnx\.json is not that of a Piper voice")
    config.write_text("{")
    _refused(path, "tts", store, "it is no readable JSON")
    config.unlink()
    _refused(path, "tts", store, r"en\.onnx\.json is not beside it")
    path.write_bytes(b"<html>")
    _refused(path, "tts", store, "it is no ONNX file")
    _refused(_put(tmp_path / "voice.pt", b"x"), "tts", store, r"it is no \.onnx file")
    _refused(_put(tmp_path / "e" / "x.txt", b"x").parent, "tts", store, r"it holds 0 \.onnx files")


def test_recognisers_that_cannot_be_used(tmp_path: Path, store: Store) -> None:
    for name in ASR_FILES[:2]:
        _put(tmp_path / "a" / name, b"x")
    _refused(
        tmp_path / "a", "asr", store, "Give a folder with encoder_model.ort, decoder_model_merged.ort, tokenizer.bin"
    )
    _put(tmp_path / "a" / ASR_FILES[2], b"")
    _refused(tmp_path / "a", "asr", store, "it is empty")


def test_real_models_by_path(model_store: Store, store: Store) -> None:
    """The starter models as if they were the user's own: the same engine and the same parts."""
    for model in model_store.catalog:
        state = model_store.state(model)
        if state != "in place":
            pytest.skip(f"{model.name} is {state} in the store")
        choice = choose(str(model_store.folder(model.name)), model.role, store)
        assert choice.engine == model.engine
        assert {part: path.resolve() for part, path in choice.parts.items()} == {
            part: path.resolve() for part, path in model_store.parts(model.name).items()}  # fmt: skip


def test_configured_paths_reach_the_engines(tmp_path: Path) -> None:
    """Every role at once, through the configuration, with nothing in the store."""
    language_model, voice = _put(tmp_path / "own.gguf", b"GGUF"), _voice(tmp_path / "v")
    vad, turn = _put(tmp_path / "vad.onnx", b"\x08"), _put(tmp_path / "turn.onnx", b"\x08")
    asr = {name: _put(tmp_path / "a" / name, b"x") for name in ASR_FILES}
    overrides = [f"llm.model={language_model}", f"personas.default.voice={voice}", f"ear.vad_model={vad}",
                 f"turn.model={turn}", f"asr.model={tmp_path / 'a'}"]  # fmt: skip
    config = load_config(file=None, env={"HOME": str(tmp_path)}, overrides=overrides).config
    files = model_files(config, places(config, {"HOME": str(tmp_path)}))
    assert files == {
        "llm": {"model": language_model},
        "tts": {"model": voice, "config": voice.with_name("en.onnx.json")},
        "vad": {"model": vad},
        "turn": {"model": turn},
        "asr": {"encoder": asr[ASR_FILES[0]], "decoder": asr[ASR_FILES[1]], "tokenizer": asr[ASR_FILES[2]]},
    }
    assert engine_names(config) == {
        "llm": "llama", "tts": "piper", "vad": "silero", "turn": "smart-turn", "asr": "moonshine"}  # fmt: skip
