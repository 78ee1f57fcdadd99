"""Simulated conversations with an interrupting user: real ear, real recogniser, real voice, charged costs.

The loudspeaker reaches the microphone through a simulated room. What is scored is audio: the loudspeaker
signal and the true onset of the user's voice, not what the program says of itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from app import events
from app.bench.listening import transcribe_recording
from app.bench.reciting import RecitingModel, RememberingTts
from app.config.schema import Config
from app.conversation.agent import Engines
from app.conversation.costs import CostTable
from app.engine.files import open_session
from audio.block import HOP_SAMPLES, AudioBlock, Float32Array
from audio.ear import EarSpec
from audio.files import read_audio
from audio.io.device import RoomSpec, ScriptSpec, SimulatedSpec, SpokenUtterance, Utterance
from audio.protocols import Asr
from audio.wer import word_errors

RATE_HZ = 48_000
ERL_DB = (6.0, 12.0, 20.0, 30.0)
INTERRUPT_AFTER_S = (0.5, 1.5, 5.0)
ROOMS = 5
_LIMIT_S = 150.0
_FRAME = RATE_HZ // 100


@dataclass(frozen=True, slots=True)
class Voices:
    """What a scene is cast with."""

    config: Config
    ear: EarSpec
    engines: Engines
    costs: CostTable
    questions: Sequence[str]
    """Files of the user's voice."""


@dataclass(frozen=True, slots=True)
class Played:
    """One finished scene."""

    log: Sequence[events.Event]
    output: Float32Array
    spoken: Sequence[SpokenUtterance]

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of one type."""
        return [event for event in self.log if isinstance(event, kind)]


def play(voices: Voices, script: ScriptSpec, room: RoomSpec | None) -> Played:
    """Run one scene to its end, faster than real time."""
    log: list[events.Event] = []
    engines = replace(voices.engines, llm=RecitingModel(), tts=RememberingTts(voices.engines.tts))
    device = SimulatedSpec(input=script, room=room, rate_hz=RATE_HZ, keep_output=True)
    session = open_session(voices.config, engines, voices.ear, device, log.append, costs=voices.costs, is_paced=False)
    try:
        session.run(limit_s=_LIMIT_S)
        return Played(log, session.device.output, session.device.spoken())
    finally:
        session.close()


def echo_rows(voices: Voices, *, seed: int, rooms: int = ROOMS, erls: Iterable[float] = ERL_DB) -> list[dict[str, Any]]:
    """Rooms times echo levels: one reply heard out, then one interruption at each offset. One row a reply.

    The interrupting voice is as loud as the echo at the microphone (speech level by ITU-T P.56's idea: the
    power of the frames that are within 30 dB of the loudest).
    """
    agent_db = active_level_db(voices.engines.tts.synthesize("The harbour was quiet in the early morning.").samples)
    rows = []
    for number, (room, erl_db) in enumerate(product(range(rooms), erls)):
        clips = [voices.questions[(number + k) % len(voices.questions)] for k in range(len(INTERRUPT_AFTER_S) + 1)]
        near_db = agent_db - erl_db
        interruptions = [
            Utterance(levelled(clip, near_db), interrupt_after_s=after_s)
            for clip, after_s in zip(clips[1:], INTERRUPT_AFTER_S, strict=True)
        ]
        first = Utterance(clips[0])
        script = ScriptSpec((first, Utterance(clips[1]), *interruptions), lead_s=0.5, pause_s=1.5)
        spec = RoomSpec(
            rt60_ms=150.0 + 75.0 * room,
            seed=seed * 100 + room,
            erl_db=erl_db,
            delay_ms=30.0 + 40.0 * room,
            soft_clip=0.5 if room % 2 else 0.0,
        )
        scene = play(voices, script, spec)
        rows += _score(scene, {"scene": "echo", "room": room, "erl_db": erl_db}, None)
    return rows


def barge_in_rows(voices: Voices, *, cases: int) -> list[dict[str, Any]]:
    """Interruptions at many places of a reply, without echo (a headset). One row a reply."""
    rows = []
    for case in range(cases):
        clips = [voices.questions[(case + k) % len(voices.questions)] for k in range(2)]
        after_s = 0.3 + 7.0 * ((case * 0.618034) % 1.0)
        script = ScriptSpec((Utterance(clips[0]), Utterance(clips[1], interrupt_after_s=after_s)), lead_s=0.5)
        scene = play(voices, script, None)
        rows += _score(scene, {"scene": "headset", "case": case}, voices.engines.asr)
    return rows


def _score(scene: Played, about: dict[str, Any], asr: Asr | None) -> list[dict[str, Any]]:
    """One row per reply that was heard: how long it sounded, and how it ended."""
    rows = []
    said = {event.turn: event for event in scene.of(events.AgentSaid)}
    barge_ins = {event.turn: event for event in scene.of(events.BargeIn)}
    last_begin = 0
    for turn, begin, end in _replies(scene):
        is_prompted = any(last_begin < u.end_frames <= begin for u in scene.spoken)
        last_begin = begin
        around = [u for u in scene.spoken if begin <= u.onset_frames < end + RATE_HZ // 2]
        interruption = around[0] if around else None
        row: dict[str, Any] = {
            **about,
            "turn": turn,
            "sounded_s": (end - begin) / RATE_HZ,
            "is_prompted": is_prompted,
            "was_interrupted_by_user": interruption is not None,
            "gave_way": turn in barge_ins,
            "into_reply_s": None,
            "stop_ms": None,
        }
        if interruption is not None:
            row["into_reply_s"] = (interruption.onset_frames - begin) / RATE_HZ
            row["stop_ms"] = (end - interruption.onset_frames) * 1000 / RATE_HZ
        if asr is not None and turn in said:
            row |= _heard(said[turn], scene.output[begin:end], asr)
        rows.append(row)
    return rows


def _replies(scene: Played) -> list[tuple[int, int, int]]:
    """(turn, first frame, frame behind the last that is not silent) of every reply, from the loudspeaker signal.

    The log says which blocks belong to which reply; the signal says where the sound begins and ends. A sound
    outside of every reply would be old audio that came late, and is an error.
    """
    turns: list[tuple[int, int]] = []
    for event in scene.of(events.TurnLatency):
        turns.append((event.turn, (event.at_samples // HOP_SAMPLES - 1) * _FRAME))
    loud = np.flatnonzero(scene.output)
    replies = []
    for (turn, begin), (_, until) in zip(turns, [*turns[1:], (0, len(scene.output))], strict=True):
        inside = loud[(loud >= begin) & (loud < until)]
        if len(inside):
            replies.append((turn, int(inside[0]), int(inside[-1]) + 1))
    if turns and len(loud) and loud[0] < turns[0][1]:
        raise AssertionError("the loudspeaker sounded before the first reply")
    return replies


def _heard(said: events.AgentSaid, sound: Float32Array, asr: Asr) -> dict[str, Any]:
    """Word errors between the history and a transcript of what left the loudspeaker."""
    silence = np.zeros(RATE_HZ // 5, np.float32)
    text = transcribe_recording(asr, np.concatenate((silence, sound, silence)), RATE_HZ)
    errors, words = word_errors(said.heard, text)
    return {"heard": said.heard, "transcribed": text, "heard_words": words, "heard_errors": errors}


def active_level_db(samples: Float32Array, frame: int = 400) -> float:
    """Power of the frames within 30 dB of the loudest, in dB full scale."""
    usable = samples[: len(samples) // frame * frame].reshape(-1, frame).astype(np.float64)
    power = (usable**2).mean(axis=1)
    return float(10 * np.log10(power[power > power.max() * 1e-3].mean()))


def levelled(path: str, level_db: float) -> AudioBlock:
    """A recording at an active speech level."""
    samples, rate_hz = read_audio(path)
    gain = 10 ** ((level_db - active_level_db(samples)) / 20)
    return AudioBlock((samples * np.float32(gain)).astype(np.float32), 0, rate_hz)
