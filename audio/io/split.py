"""Microphone and loudspeaker as two streams on clocks of their own, made into one device.

The microphone's stream is the device's clock: each of its blocks calls back, as on a duplex device. What the
callback wrote goes to the loudspeaker through a `DriftMapper`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from audio.block import Float32Array
from audio.io.device import BlockCallback, Finished, SpokenUtterance, StreamFormat
from audio.io.drift_mapper import DriftMapper, SplitStats

HalfCallback = Callable[[Float32Array, int], None]
"""((B,) block, monotonic time in ns at entry): take the microphone's, or fill the loudspeaker's."""

_SILENT_LIMIT_NS = 500_000_000
_FIRST_LIMIT_NS = 3_000_000_000


@dataclass(frozen=True, slots=True)
class HalfFormat:
    """What an opened half turned out to be. Its blocks are 10 ms."""

    rate_hz: int
    name: str
    latency_ms: float
    """Between the callback and the air, as the driver reports it."""


class DeviceHalf(Protocol):
    """One stream, in or out; see `AudioDevice` for the order of calls and the errors."""

    def open(self) -> HalfFormat:
        """Claim the device."""
        ...

    def start(self, callback: HalfCallback) -> None:
        """Call back every 10 ms from a thread of the half's own."""
        ...

    def stop(self) -> None:
        """No callback after this returns. Harmless where nothing runs."""
        ...

    @property
    def active(self) -> bool:
        """Whether callbacks are to be expected."""
        ...

    @property
    def finished(self) -> Finished | None:
        """Set once the half has stopped by itself."""
        ...


class SplitDevice:
    """Two halves as one `AudioDevice`. It ends when either of them does, or the loudspeaker stops asking."""

    def __init__(self, microphone: DeviceHalf, loudspeaker: DeviceHalf) -> None:
        self._microphone = microphone
        self._loudspeaker = loudspeaker
        self._mapper: DriftMapper | None = None
        self._callback: BlockCallback | None = None
        self._finished: Finished | None = None

    def open(self) -> StreamFormat:
        """See `AudioDevice`."""
        near = self._microphone.open()
        try:
            far = self._loudspeaker.open()
        except BaseException:
            self._microphone.stop()
            raise
        self._mapper = DriftMapper(near.rate_hz, far.rate_hz)
        self._out = np.zeros(near.rate_hz // 100, np.float32)
        self._finished = None
        latency_ms = far.latency_ms + self._mapper.depth_ms
        return StreamFormat(near.rate_hz, len(self._out), near.name, far.name, "split", latency_ms)

    def start(self, callback: BlockCallback) -> None:
        """See `AudioDevice`."""
        if self._mapper is None:
            raise RuntimeError("open() comes before start()")
        self._callback = callback
        self._asked_ns = 0
        self._first_ns = 0
        self._loudspeaker.start(self._on_far)
        self._microphone.start(self._on_near)

    def stop(self) -> None:
        """See `AudioDevice`."""
        self._microphone.stop()
        self._loudspeaker.stop()
        self._callback = None

    @property
    def active(self) -> bool:
        """See `AudioDevice`."""
        return self._microphone.active and self._loudspeaker.active and self._finished is None

    @property
    def finished(self) -> Finished | None:
        """See `AudioDevice`."""
        return self._finished or self._microphone.finished or self._loudspeaker.finished

    @property
    def stats(self) -> SplitStats | None:
        """How the two clocks get on; None before the first `open`."""
        return None if self._mapper is None else self._mapper.stats

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`: nobody's script is known here."""
        return ()

    def _on_near(self, near: Float32Array, time_ns: int) -> None:
        """The microphone's thread."""
        callback, mapper = self._callback, self._mapper
        if callback is None or mapper is None:  # being stopped
            return
        try:
            callback(near, self._out, time_ns)
        except Exception as error:
            self._finished = Finished(f"the audio callback failed: {error!r}", is_lost=True)
            raise
        mapper.write(self._out, time_ns)
        self._watch(time_ns)

    def _on_far(self, out: Float32Array, time_ns: int) -> None:
        """The loudspeaker's thread."""
        self._asked_ns = time_ns
        assert self._mapper is not None
        self._mapper.read(out, time_ns)

    def _watch(self, time_ns: int) -> None:
        """The owner sees when the microphone ceases; only here can be seen that the loudspeaker does."""
        if self._first_ns == 0:
            self._first_ns = time_ns
        since_ns, limit_ns = self._asked_ns, _SILENT_LIMIT_NS
        if since_ns == 0:
            since_ns, limit_ns = self._first_ns, _FIRST_LIMIT_NS
        if time_ns - since_ns > limit_ns and self._finished is None:
            silent_s = (time_ns - since_ns) / 1e9
            self._finished = Finished(f"the loudspeaker asked for no audio for {silent_s:.1f} s", is_lost=True)
