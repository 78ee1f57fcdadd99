"""Models that cannot keep up for a minute: what piles up, what is shown, and what is left of it afterwards.

The costs of one model are charged as those of a slow machine for a minute, then as usual. Two users: one who waits
for each answer, and one who goes on talking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.bench.reciting import RecitingModel, RememberingTts
from app.bench.scenes import Voices
from app.bench.soak_ledger import Ledger, Said, placed, utterance_rows
from app.bench.soak_plan import RATE_HZ, SLOW, Clip
from app.conversation.costs import CostTable
from app.engine.files import open_session
from app.engine.local import LocalSession
from audio.block import HOPS_PER_SECOND, SAMPLE_RATE_HZ, AudioBlock
from audio.files import read_audio
from audio.io.device import ScriptSpec, SimulatedSpec, Utterance
from audio.resample import resample
from audio.wer import word_errors

ARMS = (("asr", "asks"), ("asr", "talks"), ("llm", "asks"), ("tts", "asks"))
SLOW_S = 60.0
_USUAL_S = 30.0
"""The user goes on for so long when the model is quick again."""
_AFTER_S = 30.0
_LIMIT_S = 300.0
_QUESTIONS = 12
"""More than are answered in the slow minute."""
_LEAD_S = 1.0
_PAUSES_S = (0.4, 0.9, 0.6)
"""Between the sentences of the user who talks."""
_CAUGHT_UP_MS = 500.0
_SENTENCES = 2


@dataclass(slots=True)
class _Watch:
    """Queues, looked at every block."""

    behind_ms: float = 0.0
    jobs: int = 0
    caught_up_s: float | None = None
    """When nothing was owed any more, after the model was quick again."""

    def look(self, session: LocalSession, now_s: float) -> None:
        behind_ms = session.conversation.behind_ms
        self.behind_ms = max(self.behind_ms, behind_ms)
        self.jobs = max(self.jobs, session.desk.outstanding)
        if now_s < SLOW_S:
            self.caught_up_s = None
        elif self.caught_up_s is None and behind_ms < _CAUGHT_UP_MS:
            self.caught_up_s = now_s - SLOW_S


def slow_rows(voices: Voices, clips: Sequence[Clip], arms: Sequence[tuple[str, str]] = ARMS) -> list[dict[str, Any]]:
    """For each (slow model, kind of user): a row for every utterance, and one for the arm."""
    rows = []
    for model, user in arms:
        found = _run(voices, clips, model, user)
        rows += [{**row, "scene": "slow", "model": model, "user": user} for row in found]
    return rows


def _run(voices: Voices, clips: Sequence[Clip], model: str, user: str) -> list[dict[str, Any]]:
    costs = dict(voices.costs.rows)
    costs[model] = SLOW[model]
    tts = RememberingTts(voices.engines.tts)
    engines = replace(voices.engines, llm=RecitingModel(sentences=_SENTENCES), tts=tts)
    ledger, watch = Ledger(), _Watch()
    device, texts, said = _asking(clips) if user == "asks" else _talking(clips)
    table = CostTable("slow", costs)
    session = open_session(voices.config, engines, voices.ear, device, ledger.take, costs=table, is_paced=False)
    try:
        session.start()
        for block in range(round(_LIMIT_S * HOPS_PER_SECOND)):
            if block == SLOW_S * HOPS_PER_SECOND:
                costs[model] = voices.costs.rows[model]
            if session.step():
                break
            watch.look(session, block / HOPS_PER_SECOND)
            ledger.watch(session.conversation.now_samples, is_slow=True)
        end_block = session.link.mic_ring.written
        underruns = int(session.link.control.underruns)
        is_idle = session.conversation.is_idle
        if user == "asks":
            spoken = session.device.spoken()
            said = placed(spoken, texts, rate_hz=RATE_HZ, first_block=0, end_block=end_block, stalls=())
    finally:
        session.close()
    rows = utterance_rows(ledger, said, [(0.0, _LIMIT_S)], [final.text for final in ledger.finals])
    finals = [final.text for final in ledger.finals if final.fate != "went on"]
    errors, words = word_errors(" ".join(one.text for one in said), " ".join(finals))
    summary = {
        "kind": "arm",
        "at_s": 0.0,
        "slow_s": SLOW_S,
        "behind_max_s": round(watch.behind_ms / 1000, 2),
        "caught_up_s": watch.caught_up_s,
        "jobs_max": watch.jobs,
        "is_idle_at_end": is_idle,
        "underruns": underruns,
        "hangs": len(ledger.hangs),
        "notices": ledger.notices,
        "words": words,
        "word_errors": errors,
    }
    return [*rows, summary]


def _asking(clips: Sequence[Clip]) -> tuple[SimulatedSpec, list[str], list[Said]]:
    """One question after another, each when the answer before is over."""
    chosen = [clips[number % len(clips)] for number in range(_QUESTIONS)]
    script = ScriptSpec(tuple(Utterance(clip.source) for clip in chosen), lead_s=_LEAD_S)
    return SimulatedSpec(input=script, rate_hz=RATE_HZ), [clip.text for clip in chosen], []


def _talking(clips: Sequence[Clip]) -> tuple[SimulatedSpec, list[str], list[Said]]:
    """Sentence after sentence whatever the agent does, then silence."""
    parts = [np.zeros(round(_LEAD_S * RATE_HZ), np.float32)]
    said, at = [], len(parts[0])
    number = 0
    while at < (SLOW_S + _USUAL_S) * RATE_HZ:
        clip = clips[number % len(clips)]
        block = clip.source
        samples, rate_hz = (block.samples, block.rate_hz) if isinstance(block, AudioBlock) else read_audio(block)
        sound = resample(samples, rate_hz, RATE_HZ)
        onset, end = (place * SAMPLE_RATE_HZ // RATE_HZ for place in (at, at + len(sound)))
        said.append(Said(clip.text, onset, end, True))
        pause = np.zeros(round(_PAUSES_S[number % len(_PAUSES_S)] * RATE_HZ), np.float32)
        parts += [sound, pause]
        at += len(sound) + len(pause)
        number += 1
    recording = AudioBlock(np.concatenate(parts), 0, RATE_HZ)
    return SimulatedSpec(input=recording, tail_s=_AFTER_S, rate_hz=RATE_HZ), [one.text for one in said], said
