"""Smart Turn on real clips: right more often than not, the same every time, refuses other files."""

from __future__ import annotations

import numpy as np
import pytest

from audio.errors import ModelFileError
from audio.turn.smart_turn import WINDOW_SAMPLES, SmartTurn

pytest.importorskip("onnxruntime")

_COMPLETE = ["p287/p287_001_clean", "p287/p287_002_clean", "p287/p287_003_clean", "p287/p287_005_clean",
             "aew/cmu_arctic_us_aew_a0001", "aew/cmu_arctic_us_aew_a0003", "axb/cmu_arctic_us_axb_a0005",
             "lj/LJ001-0002", "lj/LJ001-0008", "jfk/jfk"]  # fmt: skip


@pytest.fixture(scope="module")
def model(model_path) -> SmartTurn:
    return SmartTurn(model_path("smart-turn-v3", "smart-turn-v3.2-cpu.onnx"))


def test_whole_sentences_score_above_sentences_cut_in_a_word(model: SmartTurn, speech) -> None:
    whole, cut = [], []
    for name in _COMPLETE:
        samples = speech(name)
        whole.append(model.predict(samples))
        cut.append(model.predict(samples[: int(0.75 * len(samples))]))
    assert sum(p >= 0.5 for p in whole) >= 9
    assert sum(p < 0.5 for p in cut) >= 7
    assert all(0 <= p <= 1 for p in whole + cut)


def test_same_samples_same_probability(model: SmartTurn, speech) -> None:
    samples = speech("jfk/jfk")
    first = model.predict(samples)
    model.predict(speech("lj/LJ001-0002"))
    assert model.predict(samples) == first


def test_silence_belongs_in_front_and_only_the_last_8_s_count(model: SmartTurn, speech) -> None:
    samples = speech("lj/LJ001-0002")
    padded = np.concatenate([np.zeros(WINDOW_SAMPLES - len(samples), np.float32), samples])
    assert model.predict(padded) == model.predict(samples)
    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    assert model.predict(np.concatenate([noise, padded])) == model.predict(samples)


def test_other_files_are_refused(model_path, tmp_path) -> None:
    with pytest.raises(ModelFileError, match="inputs"):
        SmartTurn(model_path("silero-vad", "silero_vad.onnx"))
    with pytest.raises(ModelFileError, match="models fetch"):
        SmartTurn(tmp_path / "none.onnx")


def test_says_what_it_holds(model: SmartTurn) -> None:
    assert model.memory_bytes() > 8_000_000
