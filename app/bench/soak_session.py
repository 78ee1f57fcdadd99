"""A session in one process whose device, ear and engine can be lost and replaced, and the face that sees to it.

What in the product dies with a process dies here with its object: the mind with its desk, the ear with its filters.
What outlives a process does too: rings and control words, the last 40 s of hops, the progress, the journal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app import events
from app.config.schema import Config
from app.conversation.agent import Conversation, Engines
from app.conversation.costs import CostTable
from app.conversation.desk import Desk
from app.conversation.output import RingOutput
from app.conversation.resume import Progress
from app.engine.builder import open_conversation, open_desk
from app.engine.local import LocalLink, LocalSession
from app.engine.process import HOP_CAPACITY
from app.engine.recovery import Outage
from audio.block import HOPS_PER_SECOND
from audio.ear import HOP_DTYPE, Ear
from audio.hop_loop import HopLoop
from audio.io.callback import DuplexCallback
from audio.io.device import SimulatedSpec, SteppedDevice, StreamFormat, make_simulated
from audio.protocols import Speech
from audio.ring import RecordRing, RingReader

_ALWAYS_NS = 2**62
"""Heartbeat of an engine that lives: simulated time has no thread that could renew it during a stall."""


@dataclass(slots=True)
class MortalSession(LocalSession):
    """Hears nothing while its ear is dead, and understands nothing while its engine is."""

    has_ear: bool = True
    has_engine: bool = True
    _hop_ring: RecordRing = field(init=False)
    _hops: RingReader = field(init=False)
    _loop: HopLoop = field(init=False)

    def __post_init__(self) -> None:
        self._hop_ring = RecordRing(HOP_DTYPE, HOP_CAPACITY)
        self._hops = self._hop_ring.reader(first=0)
        self.hear_with(self.ear)

    def hear_with(self, ear: Ear) -> None:
        """It goes on behind the last hop, as a new ear process does."""
        last = (self._hop_ring.position - 1) % self._hop_ring.capacity
        first = int(self._hop_ring.columns["block"][last]) + 1 if self._hop_ring.written else 0
        self.ear, self.has_ear = ear, True
        self._reader = self.link.mic_ring.reader(first=first)
        self._loop = HopLoop(ear, self._reader, self._hop_ring, self.link.control)

    def understand_with(self, conversation: Conversation, desk: Desk, output: RingOutput, first_block: int) -> None:
        """It hears the hops from this block on, as a new engine process does."""
        self.conversation, self.desk, self.output, self.has_engine = conversation, desk, output, True
        self._hops = self._hop_ring.reader(first=0)
        hops = self._hops.read()
        for hop in hops[hops["block"] >= first_block]:
            self._take(hop)

    def _hear(self) -> bool:
        if self.has_ear:
            self._loop.step(lambda _: None)
        return not self.has_engine or all(self._take(hop) for hop in self._hops.read())

    @property
    def waiting_blocks(self) -> int:
        """Of the microphone, for the ear."""
        return self._reader.available

    @property
    def lost_blocks(self) -> int:
        """That this ear came too late for."""
        return self._reader.lost


class Face:
    """What `app.engine.live` does for processes, on the sample clock: notice, replace, tell what was heard."""

    def __init__(
        self,
        config: Config,
        engines: Engines,
        make_ear: Callable[[int], Ear],
        costs: CostTable,
        spec: SimulatedSpec,
        emit: Callable[[events.Event], None],
        one_moment: Speech,
    ) -> None:
        self._config, self._engines, self._make_ear, self._costs = config, engines, make_ear, costs
        self._tell, self._one_moment = emit, one_moment
        self.progress = Progress(())
        device, self._stream = _open(spec)
        self.link = LocalLink.open(self._stream)
        self.link.control.heartbeat_ns = _ALWAYS_NS
        desk = open_desk(costs, is_paced=False)
        output = self._new_output()
        conversation = open_conversation(
            config,
            engines,
            desk,
            output,
            self._emit,
            output_latency_ms=self._stream.output_latency_ms,
            resume=self.progress.point(),
        )
        ear = make_ear(self._stream.rate_hz)
        self.session = MortalSession(device, self.link, ear, conversation, desk, output, self._emit, is_paced=False)
        self.session.start()
        self._voice: RingOutput | None = None
        self._outage: Outage | None = None

    @property
    def blocks(self) -> int:
        """Of the microphone, so far: the sample clock."""
        return self.link.mic_ring.written

    @property
    def now_s(self) -> float:
        """The sample clock in seconds."""
        return self.blocks / HOPS_PER_SECOND

    def step(self) -> bool:
        """One block. False when the device has stopped."""
        over = self.session.step()
        self._follow_playback()
        return not over

    def replace_device(self, spec: SimulatedSpec, away_ms: float) -> None:
        """Another device on the same rings, so long after the one before."""
        session, link = self.session, self.link
        session.device.stop()
        ring = link.mic_ring
        last_ns = int(ring.columns["time_ns"][(ring.position - 1) % ring.capacity])
        begin_ns = last_ns + round(away_ms * 1e6)  # a new device counts its time from 0
        session.device, _ = _open(spec)
        callback = DuplexCallback(ring, link.playback_ring, link.control, self._stream.rate_hz)
        session.device.start(lambda near, out, time_ns: callback(near, out, begin_ns + time_ns))

    def kill_ear(self) -> None:
        """It hears nothing more; blocks wait in the ring."""
        self.session.has_ear = False

    def replace_ear(self) -> None:
        """A new one hears what waited."""
        self.session.hear_with(self._make_ear(self._stream.rate_hz))

    def kill_engine(self) -> None:
        """Nothing is settled, and what it knew is gone. The loudspeaker plays what is in the ring, then fades."""
        self.session.has_engine = False
        self.session.desk.close()
        self.link.control.heartbeat_ns = self._last_ns()
        self._outage = Outage(self.now_s)

    def replace_engine(self) -> None:
        """A new one goes on from the progress: hears again what was not dealt with, gives the answer that is owed."""
        session, control = self.session, self.link.control
        self._voice, self._outage = None, None
        control.muted = 0
        control.heartbeat_ns = _ALWAYS_NS
        point = self.progress.point()
        desk, output = open_desk(self._costs, is_paced=False), self._new_output()
        conversation = open_conversation(
            self._config,
            self._engines,
            desk,
            output,
            self._emit,
            output_latency_ms=self._stream.output_latency_ms,
            resume=point,
            first_generation=control.generation,
        )
        session.understand_with(conversation, desk, output, point.first_block)
        if point.pending is not None:
            session.conversation.go_on(point.pending)

    def silence(self) -> None:
        """What the stop key does at once, engine or not."""
        self.link.control.muted = 1
        self.progress.give_up()
        self._voice = None

    def close(self) -> None:
        """Settle what is being heard; stop device and workers."""
        if self.session.has_engine:
            self.session.close()
        else:
            self.session.device.stop()

    def _emit(self, event: events.Event) -> None:
        self.progress.take(event)
        if isinstance(event, events.CommandTaken) and event.name == "stop":
            self.link.control.muted = 0
        self._tell(event)

    def _follow_playback(self) -> None:
        ring = self.link.mic_ring
        if ring.written:
            last = (ring.position - 1) % ring.capacity
            generation, frames = int(ring.columns["generation"][last]), int(ring.columns["reply_frames"][last])
            word = self.progress.played(generation, frames, is_alone=not self.session.has_engine)
            if word is not None:
                self._tell(word)
        if self._outage is not None and self._outage.wants_word(self.now_s):
            self._voice = self._new_output()
            self._voice.begin(self.link.control.generation + 1, self._one_moment.rate_hz)
            self._voice.add(self._one_moment.samples)
            self._voice.end()
            self.link.control.muted = 0
        if self._voice is not None:
            self.link.control.heartbeat_ns = self._last_ns()
            self._voice.pump()

    def _new_output(self) -> RingOutput:
        return RingOutput(self.link.playback_ring, self.link.control, self._stream.rate_hz)

    def _last_ns(self) -> int:
        ring = self.link.mic_ring
        return int(ring.columns["time_ns"][(ring.position - 1) % ring.capacity])


def _open(spec: SimulatedSpec) -> tuple[SteppedDevice, StreamFormat]:
    device = make_simulated(spec)
    return device, device.open()
