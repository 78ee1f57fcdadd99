"""What every speech recogniser must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audio.asr.registry import ENGINES, create
from audio.asr.validate import read_clip
from audio.errors import ModelFileError
from audio.protocols import Asr
from audio.wer import word_errors

# Engine to role to (model, file) of the store; a new engine adds a line.
_FILES = {
    "moonshine": {
        "encoder": ("moonshine-tiny-en", "encoder_model.ort"),
        "decoder": ("moonshine-tiny-en", "decoder_model_merged.ort"),
        "tokenizer": ("moonshine-tiny-en", "tokenizer.bin"),
    }
}
_SAMPLES = Path(__file__).resolve().parents[2] / "assets" / "samples"


@pytest.fixture(scope="module", params=sorted(ENGINES))
def asr(request: pytest.FixtureRequest, model_path: Callable[[str, str], Path]) -> Asr:
    pytest.importorskip("sherpa_onnx")
    files = {role: model_path(*where) for role, where in _FILES[request.param].items()}
    return create(request.param, files)


def test_hears_the_known_clip(asr: Asr) -> None:
    heard = asr.transcribe(read_clip(_SAMPLES / "question_capital.wav"))
    assert word_errors("What is the capital of France?", heard)[0] == 0


@pytest.mark.parametrize("count", [0, 1, 160, 16_000])
def test_silence_of_any_length_is_no_text(asr: Asr, count: int) -> None:
    assert asr.transcribe(np.zeros(count, dtype=np.float32)) == ""


def test_depends_on_the_samples_alone(asr: Asr) -> None:
    one, other = (read_clip(_SAMPLES / f"question_{name}.wav") for name in ("week", "healthy"))
    first = asr.transcribe(one)
    asr.transcribe(other)
    kept = one.copy()
    assert asr.transcribe(one) == first
    np.testing.assert_array_equal(one, kept)


def test_counts_its_weights(asr: Asr) -> None:
    assert asr.memory_bytes() > 1_000_000


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_missing_role_is_named(name: str) -> None:
    with pytest.raises(ModelFileError, match=ENGINES[name].required_files[0]):
        create(name, {})


def test_an_unknown_engine_names_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match="moonshine"):
        create("nonesuch", {})
