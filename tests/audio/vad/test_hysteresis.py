"""The run machine, against a slow description of what a run is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.vad.hysteresis import Hysteresis, HysteresisSpec

_FRAME = 512
_probabilities = st.lists(st.floats(0, 1), max_size=60)


def _follow(spec: HysteresisSpec, probabilities: list[float]) -> list[int | None]:
    """Onset of the run after each frame, None outside."""
    machine = Hysteresis(spec)
    onsets = []
    for k, probability in enumerate(probabilities):
        voiced = machine.push(probability, k * _FRAME, (k + 1) * _FRAME)
        assert voiced is (machine.onset_samples is not None)
        onsets.append(machine.onset_samples)
    return onsets


@given(_probabilities, st.integers(0, 4000))
def test_runs_are_what_they_are_said_to_be(probabilities: list[float], minimum: int) -> None:
    spec = HysteresisSpec(on=0.5, off=0.35, minimum_on_samples=minimum)
    onsets = _follow(spec, probabilities)
    for k, onset in enumerate(onsets):
        before = onsets[k - 1] if k else None
        if onset is None:
            assert probabilities[k] < 0.5
            if before is not None:  # a run ended here: quiet, and old enough
                assert probabilities[k] < 0.35
                assert (k + 1) * _FRAME - before > minimum
        elif before is None:
            assert probabilities[k] >= 0.5
            assert onset == k * _FRAME
        else:
            assert onset == before  # a run's onset never moves
            assert probabilities[k] >= 0.35 or (k + 1) * _FRAME - before <= minimum


@given(_probabilities)
def test_a_probability_between_the_thresholds_changes_nothing(probabilities: list[float]) -> None:
    spec = HysteresisSpec()
    machine = Hysteresis(spec)
    for k, probability in enumerate(probabilities):
        machine.push(probability, 2 * k * _FRAME, (2 * k + 1) * _FRAME)
        before = machine.onset_samples
        machine.push(0.42, (2 * k + 1) * _FRAME, (2 * k + 2) * _FRAME)
        assert machine.onset_samples == before


def test_reset_forgets_the_run() -> None:
    machine = Hysteresis(HysteresisSpec())
    assert machine.push(0.9, 0, _FRAME)
    machine.reset()
    assert not machine.push(0.4, _FRAME, 2 * _FRAME)


@pytest.mark.parametrize("bad", [{"on": 0.3, "off": 0.5}, {"off": 0.0}, {"on": 1.2}, {"minimum_on_samples": -1}])
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"off|minimum"):
        HysteresisSpec(**bad)
