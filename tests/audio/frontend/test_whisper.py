"""The log-mel front end against another implementation and against sines."""

from __future__ import annotations

import numpy as np
import pytest

from audio.frontend.spec import WHISPER_80, hz_of_mel, mel_matrix, mel_of_hz
from audio.frontend.whisper import WhisperFrontend


@pytest.fixture
def clip(speech) -> np.ndarray:
    return np.resize(speech("jfk/jfk"), 8 * 16000)


@pytest.mark.parametrize("normalize", [False, True])
def test_equals_transformers(clip: np.ndarray, normalize: bool) -> None:
    transformers = pytest.importorskip("transformers")
    extractor = transformers.WhisperFeatureExtractor(feature_size=80, chunk_length=8)
    found = extractor(clip, sampling_rate=16000, return_tensors="np", do_normalize=normalize)
    expected = found.input_features[0]
    np.testing.assert_allclose(WhisperFrontend(normalize=normalize).features(clip), expected, atol=1e-4)


def test_a_sine_lights_the_band_around_it() -> None:
    for hz in (300.0, 1000.0, 3500.0, 7000.0):
        sine = np.sin(2 * np.pi * hz * np.arange(16000) / 16000).astype(np.float32)
        band = int(np.argmax(WhisperFrontend().features(sine)[:, 50]))
        low, high = hz_of_mel(np.linspace(0, mel_of_hz(8000.0), 82))[[band, band + 2]]
        assert low - 40 <= hz <= high + 40


def test_scale_is_inverse_and_continuous() -> None:
    hz = np.linspace(0, 8000, 999)
    np.testing.assert_allclose(hz_of_mel(mel_of_hz(hz)), hz, atol=1e-8)
    assert mel_of_hz(1000.0) == pytest.approx(15.0)


def test_triangles_have_equal_area_and_cover_the_band() -> None:
    matrix = mel_matrix(WHISPER_80)
    assert matrix.shape == (80, 201)
    assert (matrix >= 0).all()
    wide = matrix[50:]  # narrower ones are too few 40 Hz bins wide
    np.testing.assert_allclose(wide.sum(1) * 40, 1.0, atol=0.05)


def test_shapes_and_refusals() -> None:
    frontend = WhisperFrontend()
    assert frontend.features(np.zeros(1600, np.float32)).shape == (80, 10)
    assert frontend.memory_bytes() > 80 * 201 * 8
    for bad in (np.zeros(200, np.float32), np.zeros((2, 1600), np.float32)):
        with pytest.raises(ValueError, match="one channel"):
            frontend.features(bad)
