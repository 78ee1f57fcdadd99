"""The starter recogniser on real recordings, silence and noise; its tokenizer reader on broken files."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audio.asr.filter import spoken_text
from audio.asr.moonshine import MoonshineAsr, read_tokenizer, tokens_file
from audio.asr.validate import read_clip
from audio.block import Float32Array
from audio.errors import ModelFileError
from audio.wer import word_error_rate, word_errors

_HEAD = b"\x05<unk>\x03<s>\x04</s>"


def test_recordings_are_heard_with_few_errors(
    moonshine: MoonshineAsr, speech: Callable[[str], Float32Array], transcript: Callable[[str], str]
) -> None:
    """The issue's bound is 10 % for these clips."""
    names = ["jfk/jfk", "lj/LJ001-0001", "lj/LJ001-0005", "lj/LJ001-0007"]
    rate = word_error_rate((transcript(name), moonshine.transcribe(speech(name))) for name in names)
    assert rate <= 0.10


def test_shipped_questions_are_heard_exactly(moonshine: MoonshineAsr, samples_dir: Path) -> None:
    index = tomllib.loads((samples_dir / "index.toml").read_text(encoding="utf-8"))["sample"]
    heard = {sample["file"]: moonshine.transcribe(read_clip(samples_dir / sample["file"])) for sample in index}
    assert len(index) >= 5
    assert {sample["file"]: word_errors(sample["text"], heard[sample["file"]])[0] for sample in index} == dict.fromkeys(
        heard, 0
    )


def test_same_samples_same_text_whatever_came_before(moonshine: MoonshineAsr, samples_dir: Path) -> None:
    a, b = read_clip(samples_dir / "question_week.wav"), read_clip(samples_dir / "question_advice.wav")
    first = moonshine.transcribe(a)
    assert moonshine.transcribe(b) != first
    assert moonshine.transcribe(a) == first


@pytest.mark.parametrize("count", [0, 1, 100, 1600, 48_000])
def test_silence_is_no_words(moonshine: MoonshineAsr, count: int) -> None:
    assert moonshine.transcribe(np.zeros(count, dtype=np.float32)) == ""


@pytest.mark.parametrize("duration_s", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("kind", ["white", "hum", "clicks"])
def test_noise_makes_no_turn(moonshine: MoonshineAsr, kind: str, duration_s: float) -> None:
    """Even if the voice activity detector took all of it for speech."""
    count = int(16_000 * duration_s)
    time_s = np.arange(count) / 16_000
    samples = {
        "white": 0.05 * np.random.default_rng(1).standard_normal(count),
        "hum": 0.1 * np.sin(2 * np.pi * 50 * time_s),
        "clicks": np.where(np.arange(count) % 4000 == 0, 0.8, 0.0),
    }[kind]
    assert spoken_text(moonshine.transcribe(samples.astype(np.float32)), duration_s * 1000) == ""


def test_speech_at_the_very_first_sample(moonshine: MoonshineAsr, samples_dir: Path) -> None:
    clip = read_clip(samples_dir / "question_capital.wav")
    start = int(np.argmax(np.abs(clip) > 0.05))
    assert word_errors("What is the capital of France?", moonshine.transcribe(clip[start:]))[0] <= 1


def test_reads_long_token_lengths(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(_HEAD + bytes([128 + 44, 1]) + b"x" * 172 + b"\x00")
    assert read_tokenizer(path) == [b"<unk>", b"<s>", b"</s>", b"x" * 172, b""]


@pytest.mark.parametrize("content", [b"", b"RIFF....", _HEAD + b"\x09abc", _HEAD[:-2], _HEAD + b"\xff"])
def test_broken_tokenizers_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.bin"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"tokenizer\.bin.*vivavoce models fetch"):
        read_tokenizer(path)


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.bin"):
        read_tokenizer(tmp_path / "tokenizer.bin")


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_tokens_are_written_anew_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory_files: bool
) -> None:
    """There is no copy that could be damaged; a folder is used where the system has no files in memory."""
    source, folder = tmp_path / "tokenizer.bin", tmp_path / "temporary"
    source.write_bytes(_HEAD + b"\x02hi")
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    if not has_memory_files:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("this system has no files in memory")
    with tokens_file(source) as name:
        assert Path(name).read_text(encoding="utf-8").splitlines()[3] == "aGk=\t3"
        assert len(list(folder.iterdir())) == (0 if has_memory_files else 1)
    assert not list(folder.iterdir())


def test_no_place_for_a_temporary_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "tokenizer.bin"
    source.write_bytes(_HEAD)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with pytest.raises(ModelFileError, match=r"no temporary file.*TMPDIR"), tokens_file(source):
        pass
