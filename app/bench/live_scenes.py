"""Live sessions in real time, in real processes, on a simulated device whose user asks one thing after another."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from app import events
from app.config.schema import Config
from app.engine.live import LiveSession, SessionOver
from app.engine.process import StubSpec
from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ, samples_to_ms
from audio.io.device import RoomSpec, ScriptSpec, SimulatedSpec, Utterance
from audio.ring import RingReader

RATE_HZ = 48_000
OUTPUT_LATENCY_MS = 30.0
"""What PortAudio reports for a low-latency stream on a sound server; the simulated device has none of its own."""
STUB = StubSpec(first_token_ms=100.0, tts_ms=50.0)
_POLL_S = 0.05


@dataclass(slots=True)
class Watched:
    """A finished live session: its events, and every block and hop with its times."""

    log: list[events.Event]
    over: SessionOver
    hops: np.ndarray[Any, Any]
    blocks: np.ndarray[Any, Any]

    def of(self, kind: type[Any]) -> list[Any]:
        """Events of one type."""
        return [event for event in self.log if isinstance(event, kind)]


class _Watcher:
    """Reads two rings in a thread of its own and keeps the fields that are timed."""

    def __init__(self, hops: RingReader, blocks: RingReader) -> None:
        self._readers = (hops, blocks)
        self._kept: tuple[list[Any], list[Any]] = ([], [])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    def close(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """(hops: block, late_ms, backlog) and (blocks: index, time_ns)."""
        self._stop.set()
        self._thread.join()
        if any(reader.lost for reader in self._readers):
            raise AssertionError("the watcher itself was too slow to see every record")
        hops, blocks = (np.concatenate(kept) for kept in self._kept)
        return hops, blocks

    def _run(self) -> None:
        fields = (["block", "late_ms", "backlog"], ["index", "time_ns"])
        is_over = False
        while not is_over:
            is_over = self._stop.wait(0.3)
            for reader, kept, names in zip(self._readers, self._kept, fields, strict=True):
                records = reader.read()
                if len(records):
                    kept.append(np.stack([records[name].astype(np.float64) for name in names], axis=1))


def talk_live(config: Config, questions: Sequence[str], turns: int, *, stub: StubSpec | None = None) -> Watched:
    """`turns` questions to a live agent, each asked 1.5 s after the answer before it was over."""
    script = ScriptSpec(tuple(Utterance(questions[turn % len(questions)]) for turn in range(turns)), lead_s=2.0)
    device = SimulatedSpec(
        input=script, room=RoomSpec(erl_db=15.0), rate_hz=RATE_HZ, output_latency_ms=OUTPUT_LATENCY_MS
    )
    log: list[events.Event] = []
    session = LiveSession(config, device, log.append, stub=stub)
    try:
        session.start()
        watcher = _Watcher(session.hop_ring.reader(first=0), session.mic_ring.reader(first=0))
        while (over := session.poll(_POLL_S)) is None:
            pass
        hops, blocks = watcher.close()
        return Watched(log, over, hops, blocks)
    finally:
        session.stop()


def voice_rows(watched: Watched) -> list[dict[str, Any]]:
    """One row a question: end of its sound to the callback's copy of the answer, plus output latency."""
    rows = []
    transcripts = {event.turn: event.text for event in watched.of(events.UserTranscript) if event.final}
    latencies = watched.of(events.TurnLatency)
    for number, spoken in enumerate(watched.over.spoken):
        end = spoken.end_frames * SAMPLE_RATE_HZ // RATE_HZ
        answer = next((event for event in latencies if event.at_samples > end), None)
        if answer is None:
            rows.append({"scene": "voice", "question": number, "voice_to_voice_ms": None})
            continue
        rows.append(
            {
                "scene": "voice",
                "question": number,
                "heard_as": transcripts.get(answer.turn, ""),
                "voice_to_voice_ms": samples_to_ms(answer.at_samples - end) + answer.output_ms,
                **{
                    stage: getattr(answer, stage)
                    for stage in (
                        "endpoint_ms",
                        "asr_ms",
                        "first_token_ms",
                        "first_clause_ms",
                        "tts_ms",
                        "playback_ms",
                        "output_ms",
                    )
                },
            }
        )
    return rows


def framework_rows(watched: Watched, stub: StubSpec) -> list[dict[str, Any]]:
    """One row a turn on stub engines: end-of-turn decision to first copied sample, and the stubs' own time."""
    rows = []
    for event in watched.of(events.TurnLatency):
        since_decision_ms = (
            event.asr_ms + event.first_token_ms + event.first_clause_ms + event.tts_ms + event.playback_ms
        )
        rows.append(
            {
                "scene": "framework",
                "turn": event.turn,
                "since_decision_ms": since_decision_ms,
                "stub_ms": stub.first_token_ms + stub.tts_ms,
            }
        )
    return rows


def hop_rows(watched: Watched) -> list[dict[str, Any]]:
    """Lateness of every hop and callback, and how many hops had been behind at most.

    A hop's lateness counts from its block's callback, which is when its last sample was there. Busy hops lie
    between the end of the user's speech and the last clause handed to the voice: recogniser, model and voice
    work then.
    """
    spans = []
    for ended in watched.of(events.UserSpeechEnded):
        clauses = [e.at_samples for e in watched.of(events.AgentText) if e.turn == ended.turn]
        if clauses:
            spans.append((ended.at_samples // HOP_SAMPLES, max(clauses) // HOP_SAMPLES + 30))
    hops = watched.hops[:, 0]
    busy = np.zeros(len(hops), bool)
    for begin, end in spans:
        busy |= (hops >= begin) & (hops < end)
    late_ms = watched.hops[:, 1]
    times_ms = watched.blocks[:, 1] / 1e6 - watched.blocks[:, 0] * 10.0
    # The earliest callback of each second is the clock; what is later than it, is late.
    second = (watched.blocks[:, 0] // 100).astype(int)
    earliest = np.array([times_ms[second == s].min() for s in range(second.max() + 1)])
    return [
        {
            "scene": "hops",
            "late_ms": [round(float(value), 2) for value in late_ms],
            "backlog_max": int(watched.hops[:, 2].max()),
            "is_busy": [int(value) for value in busy],
            "callback_late_ms": [round(float(value), 3) for value in times_ms - earliest[second]],
        }
    ]
