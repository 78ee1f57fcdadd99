"""A whole session in one process, block by block: files, the simulator, replays and debugging.

Unpaced, the clock is the block count and nothing waits for a wall clock: the fastest way to run an hour of
conversation, and a deterministic one. Paced, the same loop keeps the time of a sound device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from app import events
from app.commands import Command, Quit
from app.conversation.agent import Conversation
from app.conversation.desk import Desk
from app.conversation.output import RingOutput
from audio.block import HOP_MS, HOP_SAMPLES, HOPS_PER_SECOND
from audio.control import ControlWords
from audio.ear import Ear
from audio.io.callback import DuplexCallback
from audio.io.device import SteppedDevice, StreamFormat
from audio.io.records import MIC_CAPACITY, PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.ring import RecordRing, RingReader

_IDLE_HOPS_AT_END = HOPS_PER_SECOND


@dataclass(frozen=True, slots=True)
class LocalLink:
    """Rings and words of a session that lives in one process."""

    mic_ring: RecordRing
    playback_ring: RecordRing
    control: ControlWords
    callback: DuplexCallback

    @classmethod
    def open(cls, stream: StreamFormat) -> LocalLink:
        """Rings for a stream of this format, in local memory."""
        mic = RecordRing(block_dtype(stream.block_frames), MIC_CAPACITY)
        playback = RecordRing(playback_dtype(stream.block_frames), PLAYBACK_CAPACITY)
        control = ControlWords()
        return cls(mic, playback, control, DuplexCallback(mic, playback, control, stream.rate_hz))


@dataclass(slots=True)
class LocalSession:
    """The loop. `commands` are (at_samples, command), carried out behind the hop that reaches the index."""

    device: SteppedDevice
    link: LocalLink
    ear: Ear
    conversation: Conversation
    desk: Desk
    output: RingOutput
    emit: Callable[[events.Event], None]
    is_paced: bool
    input_end_samples: int = 0
    """When the user has nothing more to say; a scripted user ends the device instead."""
    commands: deque[tuple[int, Command]] = field(default_factory=deque)
    _reader: RingReader = field(init=False)
    _has_round_trip: bool = False

    def __post_init__(self) -> None:
        self._reader = self.link.mic_ring.reader(first=0)

    def run(self, *, limit_s: float, should_stop: Callable[[], bool] = lambda: False) -> str:
        """Until the input is over and the agent has nothing left to say, or `limit_s`; returns the reason."""
        self.start()
        begun = time.perf_counter()
        idle_hops = 0
        for block in range(round(limit_s * HOPS_PER_SECOND)):
            if should_stop():
                return "interrupted"
            if self.is_paced:
                self._wait_until(begun + (block + 1) * HOP_MS / 1000)
            if over := self.step():
                return over
            is_over = self.conversation.now_samples >= self.input_end_samples > 0 and self.conversation.is_idle
            idle_hops = idle_hops + 1 if is_over and not self.commands else 0
            if idle_hops >= _IDLE_HOPS_AT_END:
                return "end of input"
        return "time limit"

    def start(self) -> None:
        """The device begins, for a caller who moves on by `step`."""
        self.device.start(self.link.callback)

    def step(self) -> str:
        """One block of the device and all that follows from it. Why the session is over, or ""."""
        self.output.before_block(self.link.mic_ring.written)
        if not self.device.step():
            return "end of input"
        return "" if self._hear() else "quit"

    def play_on(self, end_samples: int) -> None:
        """Settle what was heard; from here to `end_samples` the loudspeaker plays what it has, and nobody listens."""
        self.conversation.close()
        while (block := self.link.mic_ring.written) * HOP_SAMPLES < end_samples:
            self.output.before_block(block)
            if not self.device.step():
                return

    def _hear(self) -> bool:
        """Take what the device delivered. False when the user quit."""
        return all(self._take(self.ear.process(record)) for record in self._reader.read())

    def _take(self, hop: np.void) -> bool:
        """One hop, what the user wants behind it, and what the models have ready. False when the user quit."""
        self.conversation.hear(hop)
        self._note_round_trip()
        while self.commands and self.commands[0][0] <= self.conversation.now_samples:
            _, command = self.commands.popleft()
            self.conversation.command(command)
            if isinstance(command, Quit):
                return False
        self.conversation.poll()
        return True

    def close(self) -> None:
        """Settle what was heard; stop device and workers."""
        self.conversation.close()
        self.device.stop()
        self.desk.close()

    def _wait_until(self, deadline: float) -> None:
        """Sleep to the block's time; results that come meanwhile are taken when they come, unless they are charged."""
        while (left_s := deadline - time.perf_counter()) > 0:
            self.desk.wait(left_s)
            if self.desk.is_live:
                self.conversation.poll()

    def _note_round_trip(self) -> None:
        trip = self.ear.round_trip
        if trip is not None and not self._has_round_trip:
            self._has_round_trip = True
            now = self.conversation.now_samples
            self.emit(events.DeviceRoundTrip(now, round(trip.delay_ms, 2), round(trip.confidence, 2)))
