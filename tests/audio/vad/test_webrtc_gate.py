"""The gate's modes."""

from __future__ import annotations

import numpy as np
import pytest

from audio.vad.webrtc import WebRtcVad

pytest.importorskip("webrtcvad")


@pytest.mark.parametrize("mode", [-1, 4])
def test_unknown_modes_are_refused(mode: int) -> None:
    with pytest.raises(ValueError, match="0, 1, 2 or 3"):
        WebRtcVad(mode)


def test_mode_3_passes_less_speech_than_mode_0_and_both_open_on_words(speech) -> None:
    samples = speech("jfk/jfk")
    hops = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    shares = [np.mean([gate.process(hop) for hop in hops]) for gate in (WebRtcVad(0), WebRtcVad(3))]
    assert 0.5 < shares[1] < shares[0] < 0.95
