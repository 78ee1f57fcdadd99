"""The round trip on delays that are known."""

from __future__ import annotations

import numpy as np
import pytest

from audio.echo.delay import MAX_DELAY_SAMPLES, RoundTrip, RoundTripEstimator


def _push_all(estimator: RoundTripEstimator, near: np.ndarray, far: np.ndarray) -> tuple[RoundTrip | None, int]:
    """(answer, hops until it)."""
    for k in range(len(far) // 160):
        part = slice(k * 160, k * 160 + 160)
        trip = estimator.push(near[part], far[part])
        if trip is not None:
            return trip, k + 1
    return None, len(far) // 160


def _delayed(far: np.ndarray, delay: int) -> np.ndarray:
    return np.concatenate([np.zeros(delay, np.float32), far])[: len(far)]


@pytest.fixture
def far(speech) -> np.ndarray:
    return speech("lj/LJ001-0001")


@pytest.mark.parametrize("delay", [0, 1, 640, 3333, MAX_DELAY_SAMPLES - 1])
@pytest.mark.parametrize("sign", [1, -1])
def test_exact_to_the_sample_within_two_seconds(far: np.ndarray, delay: int, sign: int) -> None:
    rng = np.random.default_rng(delay)
    near = sign * 0.1 * _delayed(far, delay) + 1e-3 * rng.standard_normal(len(far)).astype(np.float32)
    trip, hops = _push_all(RoundTripEstimator(), near, far)
    assert trip is not None
    assert trip.delay_samples == delay
    assert trip.delay_ms == delay / 16
    assert hops <= 200


def test_a_user_who_talks_over_it_only_slows_it_down(far: np.ndarray, speech) -> None:
    user = np.resize(speech("jfk/jfk"), len(far))
    near = 0.3 * _delayed(far, 900) + 0.3 * user
    trip, _ = _push_all(RoundTripEstimator(), near, far)
    assert trip is not None
    assert trip.delay_samples == 900


def test_no_answer_without_an_echo(far: np.ndarray, speech) -> None:
    user = np.resize(speech("jfk/jfk"), len(far))
    assert _push_all(RoundTripEstimator(), user, far)[0] is None
    assert _push_all(RoundTripEstimator(), user, np.zeros_like(user))[0] is None
    quiet = np.zeros_like(far)
    assert _push_all(RoundTripEstimator(), quiet, far)[0] is None
    noise = np.random.default_rng(3).standard_normal((2, 20 * 16000)).astype(np.float32) * 0.1
    assert _push_all(RoundTripEstimator(), noise[0], noise[1])[0] is None


def test_answers_once_and_starts_again_after_reset(far: np.ndarray) -> None:
    estimator = RoundTripEstimator()
    first, hops = _push_all(estimator, _delayed(far, 500), far)
    assert first is not None
    rest = slice(hops * 160, None)
    assert _push_all(estimator, _delayed(far, 500)[rest], far[rest])[0] is None
    estimator.reset()
    assert _push_all(estimator, _delayed(far, 500), far) == (first, hops)
    assert estimator.memory_bytes() > 100_000
