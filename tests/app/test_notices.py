"""What one function writes its neighbour reads."""

from __future__ import annotations

import pytest

from app.notices import NO_SIGNAL, SIGNAL_BACK, sound_lost, sound_lost_ms


@pytest.mark.parametrize("lost_ms", [10, 1230])
def test_lost_sound_is_read_from_its_sentence(lost_ms: int) -> None:
    assert sound_lost_ms(sound_lost(lost_ms)) == lost_ms


@pytest.mark.parametrize("message", ["", NO_SIGNAL, SIGNAL_BACK, "the sound device lost 40 ms of audio", "40 ms"])
def test_other_sentences_tell_of_no_loss(message: str) -> None:
    assert sound_lost_ms(message) == 0
