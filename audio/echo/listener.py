"""What the speech judge should hear while the loudspeaker talks.

AEC3 silences echo from the first second on, and a user who talks over it: through it one interruption in
four goes unnoticed. A linear filter leaves the user whole but needs seconds to learn the room. So the judge
hears AEC3 first and the linear residual once that has proved itself, and what the filter explains almost
wholly is never speech of the user.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from audio.block import HOP_SAMPLES, Float32Array
from audio.echo.delay import RoundTrip
from audio.echo.kalman import KalmanEchoFilter

_HEAD_ROOM_SAMPLES = 80
"""The filter starts so long before the first arrival: 5 ms."""
_FAR_HISTORY = 8000 + HOP_SAMPLES
_PROOF_HOPS = 100
_AUDIBLE_POWER = 160 * 10**-4.5
"""A loudspeaker hop above -45 dBFS counts as talking."""
_PROOF_RATIO = 10**-1.2
_LOST_RATIO = 1.0
_SHARE_HOPS = 15
_SHARE_RATIO = 10**-0.9
"""The user's share of the microphone below which everything in it is echo: -9 dB."""
_INAUDIBLE = HOP_SAMPLES * 10**-6.2
"""A residual below -62 dBFS is the room's late tail, which the filter is too short for: no voice is so faint."""
_EARLY_SHARE_RATIO = 10**-0.5
"""The same while the filter still learns: -5 dB, and a user as loud as the echo has -3."""


class EchoListener:
    """Push every hop; it answers which signal to judge, and `is_echo` whether the verdict counts.

    `lag_samples`: by how much `cancelled` lags `near`; the residual is delayed as much.
    """

    def __init__(self, lag_samples: int) -> None:
        self._lag = lag_samples
        self._filter = KalmanEchoFilter()
        self.reset()

    @property
    def is_proved(self) -> bool:
        """The residual is in use."""
        return self._proved

    @property
    def is_echo(self) -> bool:
        """The last 150 ms of microphone are echo, all but a small share or a faint tail."""
        recent = list(self._energies)[-_SHARE_HOPS:]
        near, residual = (sum(entry[k] for entry in recent) for k in (1, 2))
        is_explained = residual < (_SHARE_RATIO if self._proved else _EARLY_SHARE_RATIO) * near
        return is_explained or max((entry[2] for entry in recent), default=_INAUDIBLE) < _INAUDIBLE

    def reset(self) -> None:
        """Forget the room and the stream."""
        self._filter.reset()
        self._delay: int | None = None
        self._far: Float32Array = np.zeros(_FAR_HISTORY, np.float32)
        self._late: Float32Array = np.zeros(self._lag + HOP_SAMPLES, np.float32)
        self._energies: deque[tuple[bool, float, float]] = deque(maxlen=_PROOF_HOPS)
        self._proved = False

    def align(self, trip: RoundTrip) -> None:
        """The round trip is known: start to learn the room."""
        self._delay = max(0, trip.onset_samples - _HEAD_ROOM_SAMPLES)

    def push(self, near: Float32Array, far: Float32Array, cancelled: Float32Array) -> Float32Array:
        """(HOP_SAMPLES,) microphone, loudspeaker and AEC3's output to the (HOP_SAMPLES,) to judge."""
        self._far = np.concatenate((self._far[HOP_SAMPLES:], far))
        residual = near
        if self._delay is not None:
            end = len(self._far) - self._delay
            aligned = self._far[end - HOP_SAMPLES : end]
            residual = self._filter.process(near, aligned)
            self._note(float(aligned @ aligned) > _AUDIBLE_POWER, float(near @ near), float(residual @ residual))
        self._late = np.concatenate((self._late[HOP_SAMPLES:], residual))
        return self._late[:HOP_SAMPLES] if self._proved else cancelled

    def memory_bytes(self) -> int:
        """Bytes of the filter and the histories."""
        return self._filter.memory_bytes() + int(self._far.nbytes + self._late.nbytes)

    def _note(self, is_audible: bool, near: float, residual: float) -> None:
        """Proved: 12 dB less echo over a second of talking. Lost: no less than nothing, the room has changed."""
        self._energies.append((is_audible, near, residual))
        talking = [entry for entry in self._energies if entry[0]]
        if len(talking) < _PROOF_HOPS // 2:
            return
        ratio = sum(entry[2] for entry in talking) / (sum(entry[1] for entry in talking) + 1e-9)
        if ratio >= _LOST_RATIO and self._proved:  # the filter trusts what it knows too much to unlearn it
            self._filter.reset()
            self._energies.clear()
            self._proved = False
        elif ratio < _PROOF_RATIO:
            self._proved = True
