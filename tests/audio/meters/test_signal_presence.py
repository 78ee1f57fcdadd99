"""A microphone that delivers nothing is noticed; a quiet room is not nothing."""

from __future__ import annotations

import numpy as np
import pytest

from audio.block import HOP_SAMPLES, SILENCE_DB
from audio.meters.level import level_db
from audio.meters.signal_presence import SignalPresence


def _changes(presence: SignalPresence, levels_db: list[float]) -> list[tuple[int, bool]]:
    pushed = [(hop, presence.push(level)) for hop, level in enumerate(levels_db)]
    return [(hop, change) for hop, change in pushed if change is not None]


@pytest.mark.parametrize("still_db", [SILENCE_DB, level_db(np.full(HOP_SAMPLES, 0.125, np.float32))])
def test_records_nothing_and_no_error_is_told_once_after_five_seconds_and_once_when_it_is_back(still_db: float) -> None:
    presence = SignalPresence()
    live = [-60.0 - 0.01 * (hop % 7) for hop in range(50)]
    still = [still_db] * 1200
    changes = _changes(presence, [*live, *still, *live, *still])
    first = 50 + 500 - (still_db == SILENCE_DB)  # a constant is known only from its second hop
    assert changes == [(first, False), (1250, True), (1250 + first, False)]
    assert presence.is_absent
    presence.reset()
    assert not presence.is_absent


def test_a_very_quiet_room_is_a_signal() -> None:
    noise = np.random.default_rng(4).standard_normal((2000, HOP_SAMPLES)).astype(np.float32) * 10 ** (-95 / 20)
    assert _changes(SignalPresence(), [level_db(hop) for hop in noise]) == []


def test_shorter_gaps_are_not_told() -> None:
    levels = ([SILENCE_DB] * 499 + [-50.0]) * 4
    assert _changes(SignalPresence(), levels) == []
