"""Through real PortAudio devices: what is said is understood, and what is answered can be heard."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from rig import PulseRig

from app.bench.listening import transcribe_recording
from app.models.store import Store
from app.samples import sample_questions
from audio.asr.registry import create
from audio.block import Float32Array
from audio.protocols import Asr
from audio.wer import word_errors

pytestmark = [pytest.mark.audio_device, pytest.mark.slow, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = ("jfk/jfk", "lj/LJ001-0001", "lj/LJ001-0002", "lj/LJ001-0004")


ATTEMPTS = 3
"""On a machine that is busy with other work the virtual devices lose sound, or ALSA ends the stream after an
underrun; such a run proves nothing."""


class StreamEnded(Exception):
    """The virtual sound device ended the stream by itself."""


class Talk:
    """`vivavoce` on the rig's microphone and loudspeaker."""

    def __init__(self, rig: PulseRig, store: Store, folder: Path) -> None:
        self.rig = rig
        self.folder = folder
        self.log = folder / "events.jsonl"
        command = [sys.executable, "-m", "app.cli.main", "--no-ui", "--events", str(self.log)]
        command += ["--input-device", "test_mic", "--output-device", "test_spk"]
        command += ["--set", "personas.default.max_reply_tokens=40", "--journal", str(folder / "journal.jsonl")]
        environment = {**rig.env, "VIVAVOCE_STORE": str(store.root), "VIVAVOCE__PATHS__DATA": str(folder)}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            self.until(lambda events: any(e["type"] == "device.opened" for e in events), limit_s=90)
        except BaseException:
            self.end()
            raise
        time.sleep(1.0)

    def events(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        lines = self.log.read_text().split("\n")[:-1]  # what follows the last line break is not whole yet
        return [json.loads(line) for line in lines]

    def until(self, condition: Callable[[list[dict[str, Any]]], bool], limit_s: float = 40.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition(self.events()):
            if self.process.poll() is not None:
                out, errors = self.process.communicate()
                if any(event["type"] == "device.lost" for event in self.events()):
                    raise StreamEnded(out + errors)
                raise AssertionError(out + errors)
            assert time.monotonic() < deadline, f"waited in vain; last: {self.events()[-5:]}"
            time.sleep(0.05)

    def ask(self, wav: Path) -> tuple[list[dict[str, Any]], Float32Array, int]:
        """Play a recording into the microphone; events and loudspeaker sound until the agent is silent again."""
        before = len(self.events())
        captured = self.folder / f"{wav.stem}-answer.wav"
        recorder = self.rig.capture(captured)
        try:
            self.rig.say(wav).wait(60)
            self.until(lambda events: _is_answered(events[before:]))
            time.sleep(0.8)
        finally:
            recorder.send_signal(signal.SIGTERM)
            recorder.wait(5)
        sound, rate_hz = sf.read(captured, dtype="float32")
        return self.events()[before:], sound, rate_hz

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def _is_answered(events: list[dict[str, Any]]) -> bool:
    """A reply was heard to its end, and nobody speaks."""
    states = [event["state"] for event in events if event["type"] == "state"]
    return any(e["type"] == "agent.said" for e in events) and states[-1:] == ["listening"]


@pytest.fixture(scope="module")
def store(model_store: Store) -> Store:
    if model_store.missing():
        pytest.skip("the starter models are not in the store; run: vivavoce models fetch")
    return model_store


@pytest.fixture
def talking(store: Store, new_pulse_rig: PulseRig, tmp_path: Path) -> Callable[[Callable[[Talk], float], float], float]:
    """Error rate of a conversation on the devices; anew where the device ended it, or lost sound and it was too bad."""

    def run(conversation: Callable[[Talk], float], limit: float) -> float:
        for attempt in range(ATTEMPTS):
            folder = tmp_path / str(attempt)
            folder.mkdir()
            talk: Talk | None = None
            try:
                talk = Talk(new_pulse_rig, store, folder)
                rate = conversation(talk)
                lost = [e["message"] for e in talk.events() if e["type"] == "notice" and "lost" in e["message"]]
                print(f"attempt {attempt}: {rate:.3f} words wrong; {lost}")
                if rate <= limit or not lost:
                    return rate
            except StreamEnded as error:
                print(f"attempt {attempt}: {error}")
            finally:
                if talk is not None:
                    talk.end()
        pytest.fail(f"the virtual device lost sound or ended the stream in {ATTEMPTS} runs")

    return run


@pytest.fixture(scope="module")
def asr(store: Store) -> Asr:
    return create("moonshine", store.parts("moonshine-tiny-en"))


def heard(events: list[dict[str, Any]]) -> str:
    """Final words of all turns; a turn that went on is said again, and its last version counts."""
    finals = {e["turn"]: e["text"] for e in events if e["type"] == "user.transcript" and e["final"]}
    return " ".join(finals.values())


def test_recorded_speech_is_understood(
    talking: Callable[[Callable[[Talk], float], float], float],
    speech: Callable[[str], Float32Array],
    transcript: Callable[[str], str],
    tmp_path: Path,
) -> None:
    def conversation(talk: Talk) -> float:
        errors = words = 0
        for name in RECORDINGS:
            wav = tmp_path / f"{name.replace('/', '-')}.wav"
            sf.write(wav, np.concatenate((np.zeros(4800, np.float32), speech(name))), 16_000)
            events, _, _ = talk.ask(wav)
            wrong, count = word_errors(transcript(name), heard(events))
            print(f"{name}: {wrong}/{count} {heard(events)}")
            errors, words = errors + wrong, words + count
        return errors / words

    assert talking(conversation, 0.10) <= 0.10


def test_questions_are_answered_and_the_answers_heard_back(
    talking: Callable[[Callable[[Talk], float], float], float], asr: Asr
) -> None:
    def conversation(talk: Talk) -> float:
        errors = words = 0
        for sample in sample_questions()[:5]:
            events, sound, rate_hz = talk.ask(sample.path)
            said = next(e for e in events if e["type"] == "agent.said")
            assert said["heard"]
            assert not said["interrupted"]
            again = transcribe_recording(asr, sound, rate_hz)
            wrong, count = word_errors(said["heard"], again)
            latency = next(e for e in events if e["type"] == "turn.latency")["voice_to_voice_ms"]
            print(f"{sample.text} -> {heard(events)} -> {said['heard']} -> {again}: {wrong}/{count}, {latency} ms")
            errors, words = errors + wrong, words + count
        return errors / words

    assert talking(conversation, 0.15) <= 0.15
