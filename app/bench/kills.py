"""`kill -9` of every process at random moments of live conversations; a part of `vivavoce bench soak`.

A recorded user asks a question every ten seconds whatever happens, as a clock would. In each period one process
is killed at a random moment: engine, ear and audio process in turn in one session, the face in sessions of its
own. What must not happen: a question without its turn, a word that left the loudspeaker and is not in the
journal, a long silence. The processes, models and rings are the real ones; the device is simulated, and its world
goes on while no process listens to it.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from app import events
from app.bench.document import Metrics, Row
from app.bench.playback import PlaybackWatcher
from app.config.schema import Config
from app.engine.live import LiveSession
from app.histogram import Rolling
from app.journal import Journal
from app.samples import Sample, sample_questions
from audio.block import AudioBlock
from audio.files import read_audio
from audio.io.device import SimulatedSpec
from audio.wer import normalize

RATE_HZ = 48_000
PERIOD_S = 10.0
_LEAD_S = 2.0
_POLL_S = 0.02
_FOUND_SHARE = 0.5
"""A question counts as heard when half of its words came through: what is asked here is whether it was lost."""
_VICTIMS = ("engine", "ear", "audio")


@dataclass(slots=True)
class Kill:
    """One kill and what followed; times are monotonic, in ns."""

    process: str
    at_ns: int
    state: str
    back_ns: int = 0
    word_ns: int = 0
    """First block of the spoken "one moment"."""


@dataclass(slots=True)
class _Run:
    """One session under fire."""

    session: LiveSession
    journal: Journal
    log: list[events.Event] = field(default_factory=list)
    state: str = "listening"
    kills: list[Kill] = field(default_factory=list)

    def emit(self, event: events.Event) -> None:
        self.log.append(event)
        self.journal.take(event)
        match event:
            case events.StateChanged(state=state):
                self.state = state
            case events.ProcessBack(process=process):
                self._is_back(process)
            case events.DeviceBack():
                self._is_back("audio")

    def _is_back(self, process: str) -> None:
        kill = next((kill for kill in reversed(self.kills) if kill.process == process), None)
        if kill is not None and not kill.back_ns:
            kill.back_ns = time.monotonic_ns()


def kill_rows(config: Config, *, seed: int, kills: int) -> Iterator[Row]:
    """Rows of every kill (`kills` of each process), every question and every reply, all of scene `kills`."""
    if not kills:
        return
    chance = random.Random(seed)
    for row in chain(_fire_at_children(config, chance, kills * len(_VICTIMS)), _fire_at_faces(config, chance, kills)):
        yield {"scene": "kills", **row}


def kill_metrics(rows: Sequence[Row]) -> Metrics:
    """What the rows of scene `kills` say."""
    rows = [row for row in rows if row["scene"] == "kills"]
    turns = [row for row in rows if row["kind"] == "question"]
    replies = [row for row in rows if row["kind"] == "reply"]
    found: dict[str, float] = {
        "kills": float(sum(row["kind"] in ("kill", "face") for row in rows)),
        "kill_lost_turns": float(sum(not row["is_heard"] and not row["is_cut"] for row in turns)),
        "kill_questions": float(len(turns)),
        "kill_lost_words": float(sum(row["missing_words"] for row in replies)),
        "kill_invented_words": float(sum(row["unheard_words"] for row in replies)),
        "kill_replies": float(len(replies)),
    }
    for process in _VICTIMS:
        kills = [row for row in rows if row["kind"] == "kill" and row["process"] == process]
        back = Rolling()
        for row in kills:
            back.add(row["back_ms"] if row["back_ms"] is not None else math.inf)
        found[f"{process}_back_p50_ms"] = back.summary().p50
        found[f"{process}_back_p95_ms"] = back.summary().p95
        found[f"{process}_back_max_ms"] = max((row["back_ms"] or math.inf for row in kills), default=math.nan)
    words = [row["word_ms"] for row in rows if row["kind"] == "kill" and row["word_ms"] is not None]
    found["one_moment_max_ms"] = max(words, default=math.nan)
    found["engine_restart_p95_s"] = found["engine_back_p95_ms"] / 1000
    return found


# -- engine, ear, audio process ---------------------------------------------------------------------------------


def _fire_at_children(config: Config, chance: random.Random, kills: int) -> list[Row]:
    samples = sample_questions()
    device = SimulatedSpec(input=_recording(samples, kills), tail_s=PERIOD_S, rate_hz=RATE_HZ)
    with tempfile.TemporaryDirectory() as folder, _session(config, device, Path(folder)) as run:
        watcher = PlaybackWatcher(run.session.mic_ring)
        begun_ns = time.monotonic_ns()
        for number in range(kills):
            at_ns = begun_ns + int((_LEAD_S + (number + chance.random()) * PERIOD_S) * 1e9)
            _poll_until(run, at_ns)
            process = _VICTIMS[number % len(_VICTIMS)]
            run.kills.append(Kill(process, time.monotonic_ns(), run.state))
            os.kill(run.session.pids[process], signal.SIGKILL)
        while run.session.poll(_POLL_S) is None:
            pass
        run.session.stop()
        watcher.close()
        rows = [_kill_row(kill, watcher) for kill in run.kills]
        rows += _question_rows(samples, kills, run, begun_ns)
        return rows + _reply_rows(run.log, watcher.frames, run.journal)


def _poll_until(run: _Run, at_ns: int) -> None:
    while (left_s := (at_ns - time.monotonic_ns()) / 1e9) > 0:
        if run.session.poll(min(_POLL_S, left_s)) is not None:
            raise AssertionError("the session ended before its kills were done")


@contextmanager
def _session(config: Config, device: SimulatedSpec, folder: Path) -> Iterator[_Run]:
    journal = Journal(folder / "journal.jsonl")
    run: _Run
    session = LiveSession(config, device, lambda event: run.emit(event))
    run = _Run(session, journal)
    try:
        session.start()
        yield run
    finally:
        session.stop()
        journal.close()


def _recording(samples: Sequence[Sample], count: int) -> AudioBlock:
    """A question every period."""
    track = np.zeros(round((_LEAD_S + count * PERIOD_S) * RATE_HZ), np.float32)
    for number in range(count):
        sound, rate_hz = read_audio(samples[number % len(samples)].path)
        if rate_hz != RATE_HZ:
            import soxr

            sound = soxr.resample(sound, rate_hz, RATE_HZ)
        at = round((_LEAD_S + number * PERIOD_S) * RATE_HZ)
        track[at : at + len(sound)] += sound
    return AudioBlock(track, 0, RATE_HZ)


def _kill_row(kill: Kill, watcher: PlaybackWatcher) -> Row:
    word_ns = watcher.first_reply_after(kill.at_ns, within_ns=1_500_000_000) if kill.process == "engine" else None
    return {
        "kind": "kill",
        "process": kill.process,
        "state": kill.state,
        "back_ms": round((kill.back_ns - kill.at_ns) / 1e6, 1) if kill.back_ns else None,
        "word_ms": None if word_ns is None else round((word_ns - kill.at_ns) / 1e6, 1),
    }


def _question_rows(samples: Sequence[Sample], count: int, run: _Run, begun_ns: int) -> list[Row]:
    """Which questions came through, by their words in order; those that lost sound to a dead audio process apart."""
    finals: dict[int, str] = {}
    for event in run.log:
        if isinstance(event, events.UserTranscript) and event.final:
            finals[event.turn] = event.text
    heard = [word for text in finals.values() for word in normalize(text)]
    asked = [(number, word) for number in range(count) for word in normalize(samples[number % len(samples)].text)]
    found = dict.fromkeys(range(count), 0)
    for position in common_places([word for _, word in asked], heard):
        found[asked[position][0]] += 1
    rows: list[Row] = []
    for number in range(count):
        text = samples[number % len(samples)].text
        begin_ns = begun_ns + int((_LEAD_S + number * PERIOD_S) * 1e9)
        end_ns = begin_ns + int(PERIOD_S / 3 * 1e9)
        is_cut = any(
            kill.process == "audio" and kill.at_ns < end_ns and (kill.back_ns or kill.at_ns) > begin_ns
            for kill in run.kills
        )
        is_heard = found[number] >= _FOUND_SHARE * len(normalize(text))
        rows.append({"kind": "question", "text": text, "is_heard": is_heard, "is_cut": is_cut})
    return rows


def common_places(asked: Sequence[str], heard: Sequence[str]) -> list[int]:
    """Which words of `asked` belong to a longest common subsequence with `heard`.

    The longest of all, because the questions come round again: a search for long blocks would settle for a wrong round.
    """
    lengths = np.zeros((len(asked) + 1, len(heard) + 1), np.int32)
    for i, word in enumerate(asked):
        same = np.fromiter((word == other for other in heard), bool, len(heard))
        diagonal = lengths[i, :-1] + same
        lengths[i + 1, 1:] = np.maximum.accumulate(np.maximum(diagonal, lengths[i, 1:]))
    places: list[int] = []
    i, j = len(asked), len(heard)
    while i and j:
        if lengths[i, j] == lengths[i - 1, j]:
            i -= 1
        elif lengths[i, j] == lengths[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            places.append(i)
    return places[::-1]


# -- the face ---------------------------------------------------------------------------------------------------


def _fire_at_faces(config: Config, chance: random.Random, kills: int) -> Iterator[Row]:
    for _ in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            yield from _fire_at_face(config, Path(folder), chance.uniform(0.0, 8.0))


def _fire_at_face(config: Config, folder: Path, after_s: float) -> list[Row]:
    """The command line's own session is killed so long after its device opened; then its journal is read."""
    log_path, journal_path = folder / "events.jsonl", folder / "journal.jsonl"
    command = [sys.executable, "-m", "app.cli.main", "--no-ui", "--simulate", "--events", str(log_path)]
    command += ["--journal", str(journal_path), "--set", f"llm.model={config.llm.model}"]
    face = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while "device.opened" not in _text_of(log_path):
            if face.poll() is not None:
                raise AssertionError("the session ended by itself")
            time.sleep(_POLL_S)
        watcher = PlaybackWatcher.attach_to(face.pid, RATE_HZ)
        time.sleep(after_s)
        face.kill()
        face.wait()
        time.sleep(1.0)  # the orphans settle what was heard, and end
        watcher.close()
        log = [events.from_json(line) for line in _text_of(log_path).splitlines() if line.endswith("}")]
        journal = Journal(journal_path)
        try:
            return [{"kind": "face", "after_s": round(after_s, 2)}, *_reply_rows(log, watcher.frames, journal)]
        finally:
            journal.close()
    finally:
        if face.poll() is None:
            os.killpg(face.pid, signal.SIGKILL)
            face.wait()


def _text_of(path: Path) -> str:
    """ "" while it is not there: a starting session makes its file anew."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _reply_rows(log: Sequence[events.Event], frames: Mapping[int, int], journal: Journal) -> list[Row]:
    """For every reply: words that left the loudspeaker, by the device's own count, against the journal."""
    texts: dict[int, str] = {}
    heard_chars: dict[int, int] = {}
    for event in log:
        match event:
            case events.AgentText(turn=turn, text=text, start_chars=start):
                texts[turn] = texts.get(turn, "")[:start].ljust(start) + text
            case events.AgentVoiced(turn=turn, generation=generation, words=words):
                for chars, middle_frames in words:
                    if middle_frames < frames.get(generation, 0):
                        heard_chars[turn] = max(heard_chars.get(turn, 0), chars)
    kept = journal.heard_by_turn()
    rows: list[Row] = []
    for turn, text in texts.items():
        truth, written = text[: heard_chars.get(turn, 0)].split(), kept.get(turn, "").split()
        rows.append(
            {
                "kind": "reply",
                "heard_words": len(truth),
                "missing_words": max(0, len(truth) - len(written)),
                "unheard_words": max(0, len(written) - len(truth)),
            }
        )
    return rows
