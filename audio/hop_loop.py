"""The ear's loop: microphone blocks in, hop records out, in step with the sound device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from audio.block import HOP_MS, HOP_SAMPLES
from audio.control import ControlWords
from audio.ear import HOP_DTYPE, Ear
from audio.echo.delay import RoundTrip
from audio.ring import RecordRing, RingReader

_POLL_S = 0.001
_CHECK_S = 0.1
_HOP_NS = HOP_MS * 1_000_000
_REOPENED_NS = 250_000_000
"""A longer gap between two blocks is a stream that was opened anew, and its round trip is another one."""


@dataclass(frozen=True, slots=True)
class RoundTripMeasured:
    """The first reply showed how late the loudspeaker comes back."""

    at_samples: int
    round_trip: RoundTrip


class HopLoop:
    """Blocks in, hops out, on one thread. Sleeps until the next block is due, then looks every millisecond."""

    def __init__(self, ear: Ear, blocks: RingReader, hops: RecordRing, control: ControlWords) -> None:
        self._ear = ear
        self._blocks = blocks
        self._hops = hops
        self._control = control
        self._has_told_round_trip = False
        self._last_ns = 0

    def run(self, is_over: Callable[[], bool], tell: Callable[[RoundTripMeasured], None]) -> None:
        """Until shutdown or `is_over`, which is asked ten times a second."""
        last_block_ns = next_check_ns = time.monotonic_ns()
        while not self._control.shutdown:
            now_ns = time.monotonic_ns()
            if now_ns >= next_check_ns:
                if is_over():
                    return
                next_check_ns = now_ns + int(_CHECK_S * 1e9)
            if (block_ns := self.step(tell)) is not None:
                last_block_ns = block_ns
                continue
            until_due_s = (last_block_ns + _HOP_NS - time.monotonic_ns()) / 1e9
            time.sleep(min(max(until_due_s, _POLL_S), HOP_MS / 1000))

    def step(self, tell: Callable[[RoundTripMeasured], None]) -> int | None:
        """Work off what is there; the callback time of the last block, None where there was none."""
        blocks = self._blocks.read()
        for behind, block in zip(range(len(blocks) - 1, -1, -1), blocks, strict=True):
            if self._last_ns and int(block["time_ns"]) - self._last_ns > _REOPENED_NS:
                self._ear.reopened()
                self._has_told_round_trip = False
            self._last_ns = int(block["time_ns"])
            record = self._ear.process(block)
            record["backlog"] = behind
            record["late_ms"] = (time.monotonic_ns() - int(block["time_ns"])) / 1e6
            slot = self._hops.slot()
            for name in HOP_DTYPE.names or ():
                slot[name] = record[name]
            self._hops.commit()
            trip = self._ear.round_trip
            if trip is not None and not self._has_told_round_trip:
                self._has_told_round_trip = True
                tell(RoundTripMeasured(int(block["index"]) * HOP_SAMPLES, trip))
        return int(blocks[-1]["time_ns"]) if len(blocks) else None
