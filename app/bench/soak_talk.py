"""Hours of conversation in one process, faster than real time, while things go wrong by a seeded schedule."""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from app import events
from app.bench.reciting import RecitingModel, RememberingTts
from app.bench.scenes import Voices
from app.bench.soak_ledger import Ledger, Said, placed, utterance_rows
from app.bench.soak_plan import SLOW, Clip, Fault, Life, Lives, plan_faults
from app.bench.soak_session import Face
from app.commands import SayText, StopSpeaking
from app.conversation.costs import CostTable
from app.journal import Journal
from app.samples import sample_questions
from audio.block import HOP_SAMPLES, HOPS_PER_SECOND
from audio.ear import Ear
from audio.io.device import SimulatedSpec
from audio.io.split import SplitDevice

GAUGE_S = 30.0
_SENTENCES = 2
_STATE_WAIT_S = 60.0
_AFTER_S = 90.0
"""In the end nobody speaks; whatever is owed must have come after this."""
_SLOW_AFTER_S = 30.0
"""What was begun while a model was slow is done this long after it is quick again."""
_LEAD_S = 10.0
"""A fault before a turn counts as in it so long after its end: a filter learns anew, a queue empties."""


class Soak:
    """One run: `rows` once, then it is over."""

    def __init__(self, voices: Voices, *, seed: int, hours: float, density: float, journal: Path) -> None:
        self._end_s = hours * 3600
        self._faults = deque(plan_faults(seed, hours, density))
        clips = [Clip(str(sample.path), sample.text) for sample in sample_questions()]
        self._lives = Lives(seed, clips, density)
        self._cost_rows = dict(voices.costs.rows)
        self._usual = dict(voices.costs.rows)
        tts = RememberingTts(voices.engines.tts)
        engines = replace(voices.engines, llm=RecitingModel(sentences=_SENTENCES), tts=tts)
        self.ledger = Ledger(voices.costs)
        self._journal = Journal(journal)
        self._life: Life = self._lives.next(self._end_s)
        self._face = Face(
            voices.config,
            engines,
            lambda rate_hz: Ear(voices.ear, rate_hz),
            CostTable("soak", self._cost_rows),
            self._life.spec,
            self._take,
            tts.synthesize(voices.config.recovery.one_moment),
        )
        self._born_block = 0
        self.said: list[Said] = []
        self._disturbed: list[tuple[float, float]] = []
        self._ends: list[tuple[float, Fault]] = []
        """What goes on: (until_s, fault)."""
        self._rows: list[dict[str, Any]] = []
        self._process = psutil.Process()
        self._gauge_s = 0.0
        self._most = {"jobs": 0, "playback_blocks": 0, "mic_blocks": 0, "behind_ms": 0.0}
        self._slow_until_s = 0.0
        self._disturb(self._life.spec)

    def rows(self) -> list[dict[str, Any]]:
        """Run to the end; one row for each utterance, typed question, fault, hang and gauge reading."""
        try:
            while self._face.now_s < self._end_s:
                self._begin_due()
                self._end_due()
                if not self._face.step():
                    self._next_device()
                self._look()
            self._wind_down()
        finally:
            self._face.close()
            self._journal.close()
        kept = [exchange.user for exchange in self._journal.exchanges()]
        rows = utterance_rows(self.ledger, self.said, self._disturbed, kept)
        rows += [{"scene": "soak", "kind": "hang", **hang} for hang in self.ledger.hangs]
        return [*self._rows, *rows, self._summary()]

    # -- faults ---------------------------------------------------------------------------------------------

    def _begin_due(self) -> None:
        """The next fault, where its time and its state have come; a state that does not come is not waited for long."""
        if not self._faults or self._faults[0].at_s > self._face.now_s:
            return
        fault = self._faults[0]
        is_in_state = fault.state in ("", self.ledger.state)
        if any(other.kind == fault.kind for _, other in self._ends):
            return  # one after the other
        if not is_in_state and self._face.now_s < fault.at_s + _STATE_WAIT_S:
            return
        self._faults.popleft()
        self._begin(fault)

    def _begin(self, fault: Fault) -> None:
        now_s = self._face.now_s
        row = {"scene": "soak", "kind": "fault", "fault": fault.kind, "at_s": round(now_s, 2)}
        self._rows.append(
            row | {"state": self.ledger.state, "lasts_s": round(fault.lasts_s, 2), "detail": fault.detail}
        )
        self._disturbed.append((now_s, now_s + fault.lasts_s + _LEAD_S))
        session = self._face.session
        match fault.kind:
            case "engine":
                self._face.kill_engine()
            case "ear":
                self._face.kill_ear()
            case "slow":
                self._cost_rows[fault.detail] = SLOW[fault.detail]
            case "say":
                session.commands.append((self._face.blocks * HOP_SAMPLES, SayText(fault.detail)))
            case "stop":
                self._face.silence()
                session.commands.append((self._face.blocks * HOP_SAMPLES, StopSpeaking()))
        if fault.lasts_s:
            self._ends.append((now_s + fault.lasts_s, fault))

    def _end_due(self) -> None:
        for entry in [entry for entry in self._ends if entry[0] <= self._face.now_s]:
            self._ends.remove(entry)
            self._end(entry[1])

    def _end(self, fault: Fault) -> None:
        match fault.kind:
            case "engine":
                self._face.replace_engine()
                self.ledger.moved(self._face.blocks * HOP_SAMPLES)
            case "ear":
                self._face.replace_ear()
            case "slow":
                self._cost_rows[fault.detail] = self._usual[fault.detail]
                now_s = self._face.now_s
                self._disturbed.append((now_s - fault.lasts_s, now_s + 2 * _LEAD_S))

    def _next_device(self) -> None:
        self._note_said()
        finished = self._face.session.device.finished
        assert finished is not None
        self._life = self._lives.next(self._end_s - self._face.now_s)
        self._begin_life(self._life.spec, self._life.away_ms, finished.reason)

    def _begin_life(self, spec: SimulatedSpec, away_ms: float, reason: str) -> None:
        now_s = self._face.now_s
        self._rows.append(
            {"scene": "soak", "kind": "device", "at_s": round(now_s, 2), "reason": reason, "away_ms": round(away_ms)}
            | {"is_split": spec.is_split, "drift_ppm": round(spec.drift_ppm), "stalls": len(spec.stalls)}
        )
        self._disturb(spec)
        self._face.replace_device(spec, away_ms)
        self._born_block = self._face.blocks

    def _disturb(self, spec: SimulatedSpec) -> None:
        """A device that begins, stalls or jumps; the time of its stalls is not on the sample clock, so roughly."""
        now_s = self._face.now_s
        self._disturbed.append((now_s - 1, now_s + _LEAD_S))
        self._disturbed += [(now_s + at_s - _LEAD_S, now_s + at_s + _LEAD_S) for at_s, _ in spec.stalls]
        self._disturbed += [(now_s + at_s - _LEAD_S, now_s + at_s + _LEAD_S) for at_s, _ in spec.output_jumps]

    def _note_said(self) -> None:
        self.said += placed(
            self._face.session.device.spoken(),
            self._life.texts,
            rate_hz=self._life.spec.rate_hz,
            first_block=self._born_block,
            end_block=self._face.blocks,
            stalls=self._life.spec.stalls,
        )

    def _wind_down(self) -> None:
        """Nobody speaks any more: everything that is owed comes, and then there is peace."""
        self._note_said()
        self._begin_life(replace(self._life.spec, input=None, stalls=(), disappears_at_s=None), 300.0, "wound down")
        until_s, calm_s = self._face.now_s + _AFTER_S, 0.0
        while self._ends or (self._face.now_s < until_s and calm_s < _LEAD_S):
            self._end_due()
            self._face.step()
            self._look()
            calm_s = calm_s + 1 / HOPS_PER_SECOND if self._face.session.conversation.is_idle else 0.0
        if calm_s < _LEAD_S:
            self.ledger.hangs.append({"at_s": self._face.now_s, "state": self.ledger.state, "limit_s": _AFTER_S})

    # -- watching -------------------------------------------------------------------------------------------

    def _take(self, event: events.Event) -> None:
        self._journal.take(event)
        self.ledger.take(event, self._output_ms() if isinstance(event, events.TurnLatency) else 0.0)

    def _output_ms(self) -> float:
        """From the callback to the loudspeaker now: what lies in the jitter buffer of a split device."""
        device = self._face.session.device
        stats = device.stats if isinstance(device, SplitDevice) else None
        return 0.0 if stats is None else stats.fill_ms

    def _look(self) -> None:
        face, session = self._face, self._face.session
        if face.blocks % (HOPS_PER_SECOND // 10):
            return
        if session.has_engine and session.has_ear:
            if any(fault.kind == "slow" for _, fault in self._ends):
                self._slow_until_s = face.now_s + _SLOW_AFTER_S
            self.ledger.watch(face.blocks * HOP_SAMPLES, is_slow=face.now_s < self._slow_until_s)
        ring = face.link.playback_ring
        for name, value in (
            ("jobs", session.desk.outstanding),
            ("playback_blocks", ring.capacity - ring.free()),
            ("mic_blocks", session.waiting_blocks),
            ("behind_ms", session.conversation.behind_ms if session.has_engine else 0.0),
        ):
            self._most[name] = max(self._most[name], value)
        if face.now_s >= self._gauge_s:
            self._gauge_s += GAUGE_S
            rss_kb = self._process.memory_info().rss // 1024
            row = {"scene": "soak", "kind": "gauge", "at_s": round(face.now_s, 2), "rss_kb": rss_kb}
            is_settled = face.blocks - self._born_block > _LEAD_S * HOPS_PER_SECOND
            self._rows.append(row | self._most | {"split_ms": round(self._output_ms(), 1) if is_settled else 0.0})
            self._most = dict.fromkeys(self._most, 0)

    def _summary(self) -> dict[str, Any]:
        control = self._face.link.control
        typed = sum(final.is_typed for final in self.ledger.finals)
        return {
            "scene": "soak",
            "kind": "summary",
            "hours": round(self._face.now_s / 3600, 4),
            "turns": len(self.ledger.finals),
            "typed": typed,
            "underruns": int(control.underruns),
            "lost_blocks": self._face.session.lost_blocks,
            "notices": dict(sorted(self.ledger.notices.items())),
        }


def soak_rows(voices: Voices, *, seed: int, hours: float, density: float = 1.0) -> list[dict[str, Any]]:
    """See `Soak`. The language model recites; ear, recogniser, end-of-turn model and voice are the real ones."""
    with tempfile.TemporaryDirectory(prefix="vivavoce-soak-") as folder:
        return Soak(voices, seed=seed, hours=hours, density=density, journal=Path(folder) / "journal.jsonl").rows()
