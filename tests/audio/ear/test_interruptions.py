"""The gate against echo, on whole scenes: what the agent says is not heard, who talks over it is."""

from __future__ import annotations

import numpy as np
import pytest

from audio.ear import HOP_DTYPE, Ear, EarSpec
from audio.io.records import block_dtype

pytest.importorskip("livekit")
pytest.importorskip("onnxruntime")

_EVIDENCE_HOPS = 10


@pytest.fixture
def spec(model_path) -> EarSpec:
    return EarSpec(str(model_path("silero-vad", "silero_vad.onnx")), chain=("echo",))


def _listen(ear: Ear, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    records = np.zeros(len(near) // 160, block_dtype(160))
    records["index"] = np.arange(len(records))
    records["near"] = near[: len(records) * 160].reshape(-1, 160)
    records["far"] = far[: len(records) * 160].reshape(-1, 160)
    return np.array([ear.process(record) for record in records], HOP_DTYPE)


def _interrupts(hops: np.ndarray) -> int | None:
    """First hop at which 100 ms of evidence has come together: one up for speech, one down for none."""
    evidence = 0
    for k, probability in enumerate(hops["speech_probability"]):
        evidence = evidence + 1 if probability >= 0.5 else max(0, evidence - 1)
        if evidence >= _EVIDENCE_HOPS:
            return k
    return None


def _agent(scenes) -> np.ndarray:
    """A first reply, a pause, a second reply."""
    first = scenes.read("speech/lj/LJ001-0001.flac")[: 6 * 16000]
    second = scenes.read("speech/lj/LJ001-0003.flac")[: 5 * 16000]
    return scenes.at_level(np.concatenate([first, np.zeros(16000, np.float32), second]), -20)


@pytest.mark.parametrize("rir", ["rir2", "rir3", "rir4"])
def test_the_agent_alone_never_interrupts_itself(spec: EarSpec, scenes, rir: str) -> None:
    far = _agent(scenes)
    ear = Ear(spec)
    hops = _listen(ear, scenes.room_echo(far, rir, 12) + scenes.hiss(len(far), -70), far)
    assert _interrupts(hops) is None
    assert hops["room_known"][-1]


@pytest.mark.parametrize("rir", ["rir2", "rir3", "rir4"])
def test_a_user_as_loud_as_the_echo_stops_the_second_reply(spec: EarSpec, scenes, rir: str) -> None:
    far = _agent(scenes)
    echo = scenes.room_echo(far, rir, 12)
    user = scenes.read("speech/aew/cmu_arctic_us_aew_a0001.flac")
    user = scenes.at_level(user[scenes.onset(user) :], scenes.active_db(echo))
    begin = 8 * 16000 + 8000
    near = echo + scenes.hiss(len(far), -70)
    near[begin : begin + len(user)] += user[: len(near) - begin]
    hop = _interrupts(_listen(Ear(spec), near, far))
    assert hop is not None
    assert 0 <= hop * 160 - begin <= 8000  # half a second
