"""The way to the loudspeaker: what the voice said is what the device is given."""

from __future__ import annotations

import numpy as np
import pytest

from app.conversation.output import RingOutput
from audio.control import ControlWords
from audio.io.callback import DuplexCallback
from audio.io.records import block_dtype, playback_dtype
from audio.ring import RecordRing

_TONE_HZ = 440


@pytest.mark.parametrize("rate_hz", [44_100, 48_000])
@pytest.mark.parametrize("voice_hz", [16_000, 22_050, 24_000])
def test_voice_is_neither_garbled_nor_a_chipmunk_on_a_device_of_another_rate(rate_hz: int, voice_hz: int) -> None:
    """A tone through cutter, ring and callback: its pitch, its level and nothing else."""
    block = rate_hz // 100
    mic, playback = RecordRing(block_dtype(block), 64), RecordRing(playback_dtype(block), 30)
    control = ControlWords()
    output, callback = RingOutput(playback, control, rate_hz), DuplexCallback(mic, playback, control, rate_hz)
    output.begin(1, voice_hz)
    output.add((0.5 * np.sin(2 * np.pi * _TONE_HZ * np.arange(2 * voice_hz) / voice_hz)).astype(np.float32))
    assert output.end() == 2 * rate_hz
    played = np.zeros((200, block), np.float32)
    for number, out in enumerate(played):
        output.pump()
        callback(np.zeros(block, np.float32), out, number * 10_000_000)
    margin = rate_hz // 10
    middle = played.ravel()[margin:-margin].astype(np.float64)
    phase = 2 * np.pi * _TONE_HZ * (np.arange(len(middle)) + margin) / rate_hz
    basis = np.stack((np.sin(phase), np.cos(phase)), axis=1)
    rest = middle - basis @ np.linalg.lstsq(basis, middle, rcond=None)[0]
    assert np.sqrt(2 * np.mean(middle**2)) == pytest.approx(0.5, rel=1e-3)
    assert 10 * np.log10(np.mean(middle**2) / np.mean(rest**2)) >= 80
