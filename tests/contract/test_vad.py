"""Every voice detector keeps the contract of `audio.protocols.Vad`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from audio.block import HOP_SAMPLES
from audio.protocols import Vad
from audio.vad.silero import SileroVad
from audio.vad.webrtc import WebRtcVad

pytest.importorskip("webrtcvad")
pytest.importorskip("onnxruntime")


@pytest.fixture(params=["webrtc-2", "webrtc-3", "silero"])
def make_vad(request: pytest.FixtureRequest, model_path) -> Callable[[], Vad]:
    if request.param == "silero":
        path = model_path("silero-vad", "silero_vad.onnx")
        return lambda: SileroVad(path)
    return lambda: WebRtcVad(int(request.param[-1]))


def _run(vad: Vad, samples: np.ndarray) -> np.ndarray:
    ends = range(HOP_SAMPLES, len(samples) + 1, HOP_SAMPLES)
    return np.array([vad.process(samples[end - HOP_SAMPLES : end]) for end in ends])


def test_answers_probabilities_and_hears_speech(make_vad, speech) -> None:
    answers = _run(make_vad(), speech("jfk/jfk"))
    assert ((answers >= 0) & (answers <= 1)).all()
    assert 0.5 < (answers >= 0.5).mean() < 0.9


def test_silence_is_never_speech(make_vad) -> None:
    assert (_run(make_vad(), np.zeros(3 * 16000, np.float32)) < 0.5).all()


def test_reset_equals_new(make_vad, speech) -> None:
    samples = speech("lj/LJ001-0002")
    vad = make_vad()
    first = _run(vad, samples)
    vad.reset()
    assert (_run(vad, samples) == first).all()
    assert (_run(make_vad(), samples) == first).all()


def test_streams_do_not_share_state(make_vad, speech) -> None:
    samples, other_samples = speech("lj/LJ001-0002"), speech("jfk/jfk")
    alone = _run(make_vad(), samples)
    vad, other = make_vad(), make_vad()
    beside = []
    for start in range(0, len(samples) - HOP_SAMPLES + 1, HOP_SAMPLES):
        beside.append(vad.process(samples[start : start + HOP_SAMPLES]))
        other.process(other_samples[start : start + HOP_SAMPLES])
    assert (np.array(beside) == alone).all()


@pytest.mark.parametrize("length", [0, 80, 320])
def test_refuses_other_lengths(make_vad, length: int) -> None:
    with pytest.raises(ValueError, match="160 samples"):
        make_vad().process(np.zeros(length, np.float32))


def test_hears_a_word_within_its_latency_and_60_ms(make_vad, speech) -> None:
    vad = make_vad()
    word = speech("lj/LJ001-0002")  # speech from its first hop on
    begin = 8000
    answers = _run(vad, np.concatenate([np.zeros(begin, np.float32), word]))
    first_heard = (int(np.argmax(answers >= 0.5)) + 1) * HOP_SAMPLES
    assert begin < first_heard <= begin + vad.latency_samples + 960


def test_says_what_it_holds(make_vad) -> None:
    assert make_vad().memory_bytes() > 0
