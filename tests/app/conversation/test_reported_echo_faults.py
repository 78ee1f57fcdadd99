"""What users complain of about loudspeakers and first words, with the real ear in a simulated room.

Recogniser, model and voice are stubs, and the voice is a recording, so that a scene costs about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ear_scenes
import numpy as np
import pytest

from app import events
from app.bench.scenes import active_level_db
from app.bench.stubs import StubAsr, StubLanguageModel, StubTurnModel
from app.config.load import load_config
from app.conversation.agent import Engines
from app.engine.files import cost_table, open_session
from audio.block import SAMPLE_RATE_HZ, AudioBlock, Float32Array, ms_to_samples
from audio.ear import EarSpec
from audio.io.device import RoomSpec, ScriptSpec, SimulatedSpec, SpokenUtterance, Utterance
from audio.protocols import Speech, SpokenWord

pytest.importorskip("livekit")
pytest.importorskip("onnxruntime")

_WORD_SAMPLES = SAMPLE_RATE_HZ
Speech16 = Callable[[str], Float32Array]


class RecordedVoice:
    """A second of a recording for every word of the text."""

    rate_hz = SAMPLE_RATE_HZ

    def __init__(self, speech: Speech16) -> None:
        clips = [speech(f"lj/LJ001-000{number}") for number in range(1, 9)]
        self.sound = np.float32(0.7) * np.concatenate(clips)
        self._at = 0

    def synthesize(self, text: str) -> Speech:
        words, place, begin = [], 0, self._at
        for number, word in enumerate(text.split()):
            start = text.index(word, place)
            place = start + len(word)
            words.append(SpokenWord(word, start, place, number * _WORD_SAMPLES, (number + 1) * _WORD_SAMPLES))
        self._at += len(words) * _WORD_SAMPLES
        return Speech(self.sound.take(range(begin, self._at), mode="wrap"), self.rate_hz, tuple(words))

    def memory_bytes(self) -> int:
        return self.sound.nbytes


@dataclass(frozen=True)
class ListeningAsr(StubAsr):
    """Keeps what it was given."""

    heard: list[Float32Array] = field(default_factory=list)

    def transcribe(self, samples: Float32Array) -> str:
        self.heard.append(samples)
        return self.text


@dataclass(frozen=True)
class Played:
    log: Sequence[events.Event]
    output: Float32Array
    spoken: Sequence[SpokenUtterance]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.log if isinstance(event, kind)]


Play = Callable[..., Played]


@pytest.fixture
def play(speech: Speech16, model_path: Callable[[str, str], Path]) -> Play:
    """A scripted user, a reply of so many seconds to whatever they say, and a room between."""
    config = load_config(file=None, env={}, overrides=[]).config
    ear = EarSpec(str(model_path("silero-vad", "silero_vad.onnx")))

    def run(utterances: Sequence[Utterance], reply_s: int, room: RoomSpec | None, asr: StubAsr | None = None) -> Played:
        text = " ".join(f"word{'.' if number % 8 == 7 else ''}" for number in range(reply_s))
        voice = RecordedVoice(speech)
        engines = Engines(asr or StubAsr(), StubTurnModel(), StubLanguageModel(text, first_token_ms=0), voice)
        device = SimulatedSpec(
            input=ScriptSpec(tuple(utterances), lead_s=0.5), room=room, rate_hz=SAMPLE_RATE_HZ, keep_output=True
        )
        log: list[events.Event] = []
        session = open_session(config, engines, ear, device, log.append, costs=cost_table("fixed"), is_paced=False)
        try:
            assert session.run(limit_s=200) == "end of input"
            return Played(log, session.device.output, session.device.spoken())
        finally:
            session.close()

    return run


def _at_level(samples: Float32Array, level_db: float) -> AudioBlock:
    gain = np.float32(10 ** ((level_db - active_level_db(samples)) / 20))
    return AudioBlock(samples * gain, 0, SAMPLE_RATE_HZ)


def _room(number: int, erl_db: float) -> RoomSpec:
    return RoomSpec(
        rt60_ms=150.0 + 75.0 * number,
        seed=number,
        erl_db=erl_db,
        delay_ms=30.0 + 40.0 * number,
        soft_clip=0.5 * number,
        noise_db=-70.0,
    )


@pytest.mark.parametrize("erl_db", [0.0, 6.0, 12.0, 20.0, 30.0])
def test_it_does_not_answer_its_own_voice_at_any_volume(play: Play, speech: Speech16, erl_db: float) -> None:
    """From the first sample of the first reply on, when no canceller can have learnt the room."""
    question = Utterance(_at_level(speech("aew/cmu_arctic_us_aew_a0001"), -26))
    scene = play([question], 8, _room(int(erl_db) // 6 % 2, erl_db))
    assert len(scene.of(events.UserSpeechStarted)) == 1
    assert not scene.of(events.BargeIn)
    (said,) = scene.of(events.AgentSaid)
    assert said.heard == said.text


@pytest.mark.slow
def test_it_does_not_talk_to_itself_in_an_endless_loop(play: Play, speech: Speech16) -> None:
    """A minute of monologue in a reverberant room, and the echo behind its end."""
    question = Utterance(_at_level(speech("aew/cmu_arctic_us_aew_a0001"), -26))
    scene = play([question], 60, _room(1, 6.0))
    assert np.count_nonzero(scene.output) > 55 * SAMPLE_RATE_HZ
    assert len(scene.of(events.UserSpeechStarted)) == len(scene.of(events.TurnEnded)) == 1
    (said,) = scene.of(events.AgentSaid)
    assert not said.interrupted


@pytest.mark.parametrize(("room", "erl_db"), [(0, 6.0), (1, 12.0), (0, 30.0)])
def test_at_the_start_of_a_call_a_user_interrupts_through_the_echo(
    play: Play, speech: Speech16, room: int, erl_db: float
) -> None:
    """A user as loud as the echo, half a second into the very first reply."""
    reply_db = active_level_db(RecordedVoice(speech).synthesize("word " * 8).samples)
    question = Utterance(_at_level(speech("aew/cmu_arctic_us_aew_a0001"), -26))
    user = _at_level(speech("aew/cmu_arctic_us_aew_a0002"), reply_db - erl_db)
    scene = play([question, Utterance(user, interrupt_after_s=0.5)], 8, _room(room, erl_db))
    onset = scene.spoken[1].onset_frames
    (barge_in,) = scene.of(events.BargeIn)
    until = barge_in.onset_samples + ms_to_samples(barge_in.stop_ms)
    print(f"ERL {erl_db} dB: silent {(until - onset) / 16:.0f} ms after the onset")
    assert onset <= until <= onset + ms_to_samples(1000)
    assert [said.interrupted for said in scene.of(events.AgentSaid)] == [True, False]


@pytest.mark.parametrize(
    "clip", ["aew/cmu_arctic_us_aew_a0001", "aew/cmu_arctic_us_aew_a0003", "axb/cmu_arctic_us_axb_a0004", "jfk/jfk"]
)
def test_first_syllables_of_a_recording_are_not_lost(play: Play, speech: Speech16, clip: str) -> None:
    """A voice that begins without a breath: what the recogniser gets starts 250 ms before it."""
    voice = speech(clip)
    voice = voice[ear_scenes.onset(voice) :][: 2 * SAMPLE_RATE_HZ]
    silence = np.zeros(SAMPLE_RATE_HZ, np.float32)
    asr = ListeningAsr()
    whole = np.concatenate((silence, _at_level(voice, -26).samples))
    play([Utterance(AudioBlock(whole, 0, SAMPLE_RATE_HZ))], 1, RoomSpec(erl_db=60, noise_db=-75), asr)
    assert asr.heard
    for samples in asr.heard:
        assert ear_scenes.onset(samples) >= ms_to_samples(250)
