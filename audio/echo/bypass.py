"""Lets a voice through that cannot be echo, where a canceller would hold it back.

A canceller that has not met any echo yet cannot know that there is none: AEC3 then takes the first seconds of
a user with a headset for echo and suppresses them, and an interruption is lost. But level tells: where the
microphone stays far quieter than the loudspeaker has been, a sudden loud sound is the user.

The idea is Geigel's double-talk detector (Duttweiler, "A twelve-channel digital echo canceler", IEEE Trans.
Communications 26(5), 1978): compare the microphone with the loudest loudspeaker of the recent past. His fixed
ratio becomes a measured one.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from audio.block import HOP_SAMPLES, HOPS_PER_SECOND, Float32Array
from audio.meters.level import level_db
from audio.protocols import Stage

_FAR_WINDOW_HOPS = 50
"""Half a second: no echo that matters is later."""
_FAR_AUDIBLE_DB = -45.0
_SETTLE_HOPS = 25
"""Far-end activity before the ratio is believed: the echo must have had time to come."""
_FIRST_RATIO_HOPS = 10
_RATIO_WINDOW_HOPS = HOPS_PER_SECOND
_NO_ECHO_DB = -36.0
"""Measured in rooms, echo reaches 30 dB below the loudspeaker or more at its loudest in every second."""
_MARGIN_DB = 15.0
_DOUBT_HOPS = 3 * HOPS_PER_SECOND
"""A voice over the agent for longer than this may be an echo path that has just appeared: measure again."""

_HOLD_HOPS = 20
"""Between syllables the voice falls below the margin for up to 200 ms; it must not be chopped there."""


class CouplingTracker:
    """How loud the loudspeaker is at the microphone at most, learnt while it plays. All levels in dB full scale."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Nothing is known."""
        self._far: deque[float] = deque(maxlen=_FAR_WINDOW_HOPS)
        self._ratios: deque[float] = deque(maxlen=_RATIO_WINDOW_HOPS)
        self._audible_hops = 0
        self._user_hops = 0

    @property
    def coupling_db(self) -> float | None:
        """Largest microphone-to-loudspeaker ratio of the last second of playing; None before there is one."""
        return max(self._ratios) if self._audible_hops > _SETTLE_HOPS + _FIRST_RATIO_HOPS else None

    @property
    def has_no_echo(self) -> bool:
        """The loudspeaker plays and is not heard: a headset."""
        coupling_db = self.coupling_db
        return coupling_db is not None and coupling_db <= _NO_ECHO_DB

    def push(self, near_db: float, far_db: float) -> bool:
        """Levels of one hop to whether the microphone is louder than any echo can be."""
        self._far.append(far_db)
        far_peak_db = max(self._far)
        if far_peak_db < _FAR_AUDIBLE_DB:
            self._user_hops = 0
            return False
        ratio_db = near_db - far_peak_db
        coupling_db = self.coupling_db
        if self.has_no_echo and coupling_db is not None and ratio_db > coupling_db + _MARGIN_DB:
            self._user_hops += 1
            if self._user_hops > _DOUBT_HOPS:
                self.reset()
            return True
        self._audible_hops += 1
        if self._audible_hops > _SETTLE_HOPS:
            self._ratios.append(ratio_db)
        return False


class Canceller(Stage, Protocol):
    """A stage that removes echo and wants to know the round trip."""

    def set_delay_ms(self, delay_ms: int) -> None:
        """Time from a loudspeaker hop being shown to its echo being shown."""
        ...


class EchoBypass:
    """A canceller `Stage` that steps aside while the microphone cannot be echo. Switches fade over one hop."""

    def __init__(self, canceller: Canceller) -> None:
        self.canceller = canceller
        self.name = canceller.name
        self.backend: str = getattr(canceller, "backend", canceller.name)
        self.latency_samples = canceller.latency_samples
        self._rise = (np.arange(HOP_SAMPLES, dtype=np.float32) + 1) / HOP_SAMPLES
        self._tracker = CouplingTracker()
        self._delayed = np.zeros(self.latency_samples + HOP_SAMPLES, np.float32)
        self._hold_hops = 0
        self._was_open = False

    @property
    def has_no_echo(self) -> bool:
        """See `CouplingTracker`."""
        return self._tracker.has_no_echo

    def process(self, near: Float32Array, far: Float32Array) -> Float32Array:
        """See `Stage`: the canceller's output, or the microphone itself, equally late."""
        cancelled = self.canceller.process(near, far)
        delayed = self._delayed
        delayed[: self.latency_samples] = delayed[HOP_SAMPLES:]
        delayed[self.latency_samples :] = near
        if self._tracker.push(level_db(near), level_db(far)):
            self._hold_hops = _HOLD_HOPS
        is_open = self._hold_hops > 0
        self._hold_hops = max(0, self._hold_hops - 1)
        bare = delayed[:HOP_SAMPLES]
        if is_open != self._was_open:
            share = self._rise if is_open else 1 - self._rise
            output = (share * bare + (1 - share) * cancelled).astype(np.float32)
        else:
            output = bare.copy() if is_open else cancelled
        self._was_open = is_open
        return output

    def reset(self) -> None:
        """Forget the stream."""
        self.canceller.reset()
        self._tracker.reset()
        self._delayed.fill(0.0)
        self._hold_hops = 0
        self._was_open = False

    def memory_bytes(self) -> int:
        """The canceller's and the delay line's."""
        return self.canceller.memory_bytes() + self._delayed.nbytes + self._rise.nbytes
