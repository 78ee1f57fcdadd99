"""Broken speech recognition files are refused with their name and the fix, and never end this process."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

import numpy as np
import pytest

from audio.asr import moonshine as moonshine_module
from audio.asr import validate as validate_module
from audio.asr.validate import KnownClip, read_clip, validate
from audio.errors import AudioFileError, ModelFileError, NoMemoryError


@pytest.fixture
def clip(samples_dir: Path) -> KnownClip:
    return KnownClip(samples_dir / "question_capital.wav", "What is the capital of France?")


def _with(files: dict[str, Path], role: str, path: Path) -> dict[str, Path]:
    return {**files, role: path}


def test_good_files_are_proved_once(moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path) -> None:
    assert validate("moonshine", moonshine_files, clip, cache_dir=tmp_path) is True
    assert validate("moonshine", moonshine_files, clip, cache_dir=tmp_path) is False


def test_truncated_encoder(moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path) -> None:
    broken = tmp_path / "encoder_model.ort"
    broken.write_bytes(moonshine_files["encoder"].read_bytes()[:1_000_000])
    with pytest.raises(ModelFileError, match=r"encoder_model\.ort.*vivavoce models fetch"):
        validate("moonshine", _with(moonshine_files, "encoder", broken), clip, cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("asr-valid-*"))


def test_garbage_tokens(moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path) -> None:
    """A well-formed tokenizer with wrong words loads without complaint; only the clip shows it."""
    tokens = moonshine_module.read_tokenizer(moonshine_files["tokenizer"])
    broken = tmp_path / "tokenizer.bin"
    words = tokens[:3] + tokens[:2:-1]
    broken.write_bytes(b"".join(bytes([len(w)]) + w if len(w) < 128 else b"\x01?" for w in words))
    with pytest.raises(ModelFileError, match=r"hears .* for 'What is.*vivavoce models fetch"):
        validate("moonshine", _with(moonshine_files, "tokenizer", broken), clip, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("role", ["encoder", "decoder", "tokenizer"])
def test_missing_file(moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path, role: str) -> None:
    with pytest.raises(ModelFileError, match=rf"{role}.*gone\.bin"):
        validate("moonshine", _with(moonshine_files, role, tmp_path / "gone.bin"), clip, cache_dir=tmp_path)


def test_malformed_token_line_ends_only_the_child(
    moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sherpa-onnx calls exit() on such a line: whatever a library does to the child, this process goes on."""
    monkeypatch.setattr(validate_module, "_decode_in_child", _write_malformed_tokens)
    with pytest.raises(ModelFileError, match=r"ended with code .*vivavoce models fetch"):
        validate("moonshine", moonshine_files, clip, cache_dir=tmp_path)


def _write_malformed_tokens(_answer: object, _name: str, files: dict[str, Path], _samples: object) -> None:
    import sherpa_onnx

    with tempfile.NamedTemporaryFile(suffix=".txt") as tokens:
        tokens.write(b"a\tb\tc d e\n")
        tokens.flush()
        sherpa_onnx.OfflineRecognizer.from_moonshine_v2(
            encoder=str(files["encoder"]), decoder=str(files["decoder"]), tokens=tokens.name
        )


@pytest.mark.parametrize("kind", ["a file", "a link to nowhere"])
def test_without_a_place_for_the_proof_the_child_runs_every_time(
    moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A read-only or full home must not keep the program from starting."""
    place = tmp_path / "place"
    if kind == "a file":
        place.write_text("in the way")
    else:
        place.symlink_to("/proc/nowhere")
    monkeypatch.setattr(validate_module, "_transcribe_clip", lambda *_: clip.text)
    for _ in range(2):
        assert validate("moonshine", moonshine_files, clip, cache_dir=place / "cache") is True


def test_a_child_that_hangs_is_ended(
    moonshine_files: dict[str, Path], clip: KnownClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate_module, "_TIMEOUT_S", 0.0)
    with pytest.raises(ModelFileError, match="does not answer"):
        validate("moonshine", moonshine_files, clip, cache_dir=tmp_path)


@pytest.mark.parametrize("content", [b"", b"no audio at all"])
def test_a_broken_clip_is_no_model_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "clip.wav"
    path.write_bytes(content)
    with pytest.raises(AudioFileError, match=r"clip\.wav"):
        read_clip(path)


def _short_of_memory(*_: object, **__: object) -> None:
    raise RuntimeError("Exception during initialization: std::bad_alloc")


def test_want_of_memory_is_no_damaged_model(moonshine_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sherpa_onnx = pytest.importorskip("sherpa_onnx")
    monkeypatch.setattr(sherpa_onnx.OfflineRecognizer, "from_moonshine_v2", _short_of_memory)
    with pytest.raises(NoMemoryError, match=r"not enough memory for encoder_model\.ort") as caught:
        moonshine_module.MoonshineAsr(**moonshine_files)
    assert caught.value.exit_code == 3
    assert "fetch" not in str(caught.value)


@pytest.mark.parametrize(
    "error", [NoMemoryError("not enough memory"), MemoryError(), RuntimeError("std::bad_alloc"),
              RuntimeError("Failed to allocate memory for requested buffer of size 7")]
)  # fmt: skip
def test_want_of_memory_reaches_the_parent_as_such(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(validate_module, "create", fail)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    with receiver, sender:
        validate_module._decode_in_child(sender, "moonshine", {}, np.zeros(1, np.float32))
        kind, message = receiver.recv()
    assert kind is NoMemoryError
    assert message.startswith("not enough memory")
