"""A scripted user speaks when its rules say so, and knows to the frame when it did."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from audio.block import AudioBlock, Float32Array
from audio.io.device import ScriptSpec, Utterance
from audio.io.scripted import ScriptedUser

_RATE_HZ = 16_000
_FRAMES = 160


def _sound(duration_s: float, silence_s: float = 0.0) -> AudioBlock:
    silence = np.zeros(round(silence_s * _RATE_HZ), np.float32)
    tone = 0.3 * np.sin(np.arange(round(duration_s * _RATE_HZ)) * 0.3).astype(np.float32)
    return AudioBlock(np.concatenate((silence, tone, silence)), 0, _RATE_HZ)


def _talk(
    spec: ScriptSpec, agent: Callable[[float, float], bool], limit_s: float = 60.0
) -> tuple[ScriptedUser, Float32Array]:
    """Run until the user has finished; `agent(now_s, since_user_spoke_s)` says whether the agent sounds."""
    user = ScriptedUser(spec, _RATE_HZ)
    heard, quiet_since_s, block = [], 0.0, 0
    while not user.finished and block * 0.01 < limit_s:
        near = np.empty(_FRAMES, np.float32)
        user.speak(near)
        heard.append(near)
        if near.any():
            quiet_since_s = (block + 1) * 0.01
        sounds = agent(block * 0.01, block * 0.01 - quiet_since_s)
        user.hear(np.full(_FRAMES, 0.1 if sounds else 0.0, np.float32))
        block += 1
    assert user.finished
    return user, np.concatenate(heard)


def _answers_for_2_s(_: float, since_s: float) -> bool:
    return 0.5 <= since_s < 2.5


def test_the_next_utterance_waits_for_the_answer_and_a_pause() -> None:
    spec = ScriptSpec((Utterance(_sound(1.0)), Utterance(_sound(0.7))), lead_s=1.0, pause_s=1.5, last_pause_s=4.0)
    user, near = _talk(spec, _answers_for_2_s)
    first, second = user.spoken()
    assert first.onset_frames == first.start_frames == 16_000
    assert first.end_frames == 32_000
    assert second.start_frames == round((2.0 + 2.5 + 1.5) * _RATE_HZ)
    assert not second.is_interruption
    assert len(near) == round((6.0 + 0.7 + 2.5 + 4.0) * _RATE_HZ) + _FRAMES
    for utterance in (first, second):
        assert np.abs(near[utterance.start_frames : utterance.start_frames + 20]).max() > 0
        assert not near[utterance.end_frames : utterance.end_frames + 100].any()


def test_a_pause_between_two_clauses_of_the_last_answer_is_not_its_end() -> None:
    def pauses_for_5_s(_: float, since_s: float) -> bool:
        return 0.5 <= since_s < 2.5 or 7.5 <= since_s < 9.0

    _, near = _talk(ScriptSpec((Utterance(_sound(1.0)),), lead_s=0.0), pauses_for_5_s)
    assert len(near) == round((1.0 + 9.0 + ScriptSpec(()).last_pause_s) * _RATE_HZ) + _FRAMES


def test_silence_around_a_recording_is_not_speech() -> None:
    spec = ScriptSpec((Utterance(_sound(1.0, silence_s=0.4)),), lead_s=0.5)
    (only,) = _talk(spec, _answers_for_2_s)[0].spoken()
    assert only.start_frames == 8_000
    assert only.onset_frames == 8_000 + 6_400
    assert only.end_frames == 8_000 + 6_400 + 16_000


def test_an_interruption_starts_so_long_after_the_answer_became_audible() -> None:
    spec = ScriptSpec((Utterance(_sound(1.0)), Utterance(_sound(1.0), interrupt_after_s=1.2)))
    user, _ = _talk(spec, _answers_for_2_s)
    first, second = user.spoken()
    assert second.start_frames - first.end_frames == round((0.5 + 1.2) * _RATE_HZ)
    assert second.is_interruption


def test_an_answer_shorter_than_the_interruption_is_just_followed() -> None:
    spec = ScriptSpec((Utterance(_sound(1.0)), Utterance(_sound(1.0), interrupt_after_s=30.0)), pause_s=1.0)
    second = _talk(spec, _answers_for_2_s)[0].spoken()[1]
    assert not second.is_interruption


def test_without_an_answer_the_user_goes_on_after_the_timeout() -> None:
    spec = ScriptSpec((Utterance(_sound(1.0)), Utterance(_sound(1.0))), lead_s=0.0, timeout_s=4.0)
    user, near = _talk(spec, lambda *_: False)
    assert user.spoken()[1].start_frames / _RATE_HZ == 5.0
    assert len(near) == 10 * _RATE_HZ + _FRAMES


def test_gain_is_applied_and_an_empty_script_is_over() -> None:
    _, near = _talk(ScriptSpec((Utterance(_sound(0.5), gain_db=-20.0),), timeout_s=0.1), lambda *_: False)
    assert np.isclose(np.abs(near).max(), 0.03, rtol=0.01)
    assert ScriptedUser(ScriptSpec(()), _RATE_HZ).finished
