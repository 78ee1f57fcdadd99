"""The judge: what it must never call speech, and what it must refuse."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import HOP_SAMPLES
from audio.errors import ModelFileError
from audio.vad.silero import FRAME_SAMPLES, SileroVad

pytest.importorskip("onnxruntime")


@pytest.fixture
def vad(model_path) -> SileroVad:
    return SileroVad(model_path("silero-vad", "silero_vad.onnx"))


@pytest.mark.parametrize("level_db", [-60, -40, -26, -12])
def test_white_noise_is_never_voiced(vad: SileroVad, level_db: int) -> None:
    noise = np.random.default_rng(level_db + 99).standard_normal(10 * 16000) * 10 ** (level_db / 20)
    hops = noise.astype(np.float32).reshape(-1, HOP_SAMPLES)
    assert max(vad.process(hop) for hop in hops) < 0.5


def test_equals_the_model_run_frame_by_frame(vad: SileroVad, model_path, speech) -> None:
    """Hops of 160 against whole frames of 512 with 64 of context, fed to ONNX Runtime directly."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model_path("silero-vad", "silero_vad.onnx")))
    samples = speech("jfk/jfk")[: FRAME_SAMPLES * 100]
    padded = np.concatenate([np.zeros(64, np.float32), samples])
    state, expected = np.zeros((2, 1, 128), np.float32), []
    for start in range(0, len(samples), FRAME_SAMPLES):
        frame = padded[start : start + 64 + FRAME_SAMPLES][None]
        probability, state = session.run(None, {"input": frame, "state": state, "sr": np.array(16000, np.int64)})
        expected.append(float(probability[0, 0]))
    heard = {}
    for hop in samples.reshape(-1, HOP_SAMPLES):
        probability_now = vad.process(hop)
        heard[vad.frame_end_samples] = probability_now
    got = [heard[FRAME_SAMPLES * (k + 1)] for k in range(100)]
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert max(expected) > 0.9


def test_missing_and_broken_files_are_refused(tmp_path) -> None:
    with pytest.raises(ModelFileError, match="models fetch"):
        SileroVad(tmp_path / "none.onnx")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(ModelFileError, match="models fetch"):
        SileroVad(broken)


def test_another_model_is_refused(model_path) -> None:
    with pytest.raises(ModelFileError, match="inputs"):
        SileroVad(model_path("smart-turn-v3", "smart-turn-v3.2-cpu.onnx"))
