"""A conversation on rings in memory with a scripted ear: what the user's voice is, hop by hop, is typed here."""

from __future__ import annotations

from collections import deque

import numpy as np

from app import events
from app.commands import Command
from app.conversation.agent import Conversation, ConversationSettings, Engines
from app.conversation.costs import CostTable, KindCost
from app.conversation.desk import ChargedRelease, Desk, Release
from app.conversation.history import Exchange, History
from app.conversation.output import PlayedFrom, ReplayOutput, RingOutput
from app.conversation.speaker import SpeakerSettings
from app.conversation.turn import TurnSettings
from audio.asr.growing import GrowingConfig
from audio.block import HOP_SAMPLES, Float32Array
from audio.control import ControlWords
from audio.ear import HOP_DTYPE
from audio.io.callback import DuplexCallback
from audio.io.records import MIC_CAPACITY, PLAYBACK_CAPACITY, block_dtype, playback_dtype
from audio.ring import RecordRing
from gpu.llm.protocol import SamplingParams

RATE_HZ = 16_000
COSTS = CostTable(
    "test",
    {
        "turn": KindCost(70, 0),
        "asr": KindCost(30, 20),
        "llm": KindCost(80, 0, each_ms=20),
        "tts": KindCost(60, 2),
    },
)
TURN = TurnSettings(
    min_silence_ms=200,
    max_silence_ms=900,
    complete_threshold=0.5,
    barge_in_ms=200,
    cold_barge_in_ms=320,
    barge_in_threshold=0.5,
    resume_ms=120,
    echo_tail_ms=300,
)


class Talk:
    """Drives one conversation; `log` has its events, `out` what the loudspeaker played."""

    def __init__(
        self,
        engines: Engines,
        *,
        costs: CostTable = COSTS,
        release: Release | None = None,
        played: list[PlayedFrom] | None = None,
        exchanges: list[Exchange] | None = None,
        max_reply_tokens: int = 100,
        first_generation: int = 0,
        last_turn: int = 0,
        lag_hops: int = 0,
    ) -> None:
        """`lag_hops`: so far behind the loudspeaker is the ear."""
        block = RATE_HZ // 100
        self._late: deque[np.void] = deque()
        self._lag_hops = lag_hops
        self.mic = RecordRing(block_dtype(block), MIC_CAPACITY)
        self.playback = RecordRing(playback_dtype(block), PLAYBACK_CAPACITY)
        self.control = ControlWords()
        self.callback = DuplexCallback(self.mic, self.playback, self.control, RATE_HZ)
        self.reader = self.mic.reader(first=0)
        self.log: list[events.Event] = []
        self.history = History("", exchanges or [])
        self.desk = Desk(release or ChargedRelease(costs, is_paced=False), costs)
        self.output = (
            RingOutput(self.playback, self.control, RATE_HZ)
            if played is None
            else ReplayOutput(self.playback, self.control, RATE_HZ, played)
        )
        speaker = SpeakerSettings(SamplingParams(), max_reply_tokens, 1000, output_latency_ms=0.0)
        settings = ConversationSettings(TURN, speaker, GrowingConfig(), preroll_ms=300)
        self.control.generation = first_generation
        self.conversation = Conversation(
            engines,
            settings,
            self.desk,
            self.output,
            self.history,
            self.log.append,
            first_generation=first_generation,
            last_turn=last_turn,
        )
        self.block = 0
        self._onset = -1
        self._out = np.zeros(block, np.float32)
        self.out: list[Float32Array] = []

    def hop(self, voiced: bool = False, command: Command | None = None) -> None:
        near = np.full(HOP_SAMPLES, 0.1 if voiced else 0.0, np.float32)
        self.output.before_block(self.block)
        self.callback(near, self._out, self.block * 10_000_000)
        self.out.append(self._out.copy())
        (record,) = self.reader.read()
        hop = np.zeros((), HOP_DTYPE)
        if voiced and self._onset < 0:
            self._onset = self.block * HOP_SAMPLES
        if not voiced:
            self._onset = -1
        hop["block"] = self.block
        hop["index_samples"] = self.block * HOP_SAMPLES
        hop["onset_samples"] = self._onset
        for name in ("generation", "reply_frames", "flags"):
            hop[name] = record[name]
        hop["voiced"] = voiced
        hop["room_known"] = True
        hop["speech_probability"] = 0.9 if voiced else 0.05
        hop["clean"] = near
        self.block += 1
        self._late.append(hop)
        if len(self._late) > self._lag_hops:
            self.conversation.hear(self._late.popleft())
        if command is not None:
            self.conversation.command(command)
        self.conversation.poll()

    def say(self, ms: int) -> None:
        for _ in range(ms // 10):
            self.hop(voiced=True)

    def silence(self, ms: int) -> None:
        for _ in range(ms // 10):
            self.hop()

    def until(self, wanted: type[events.Event], limit_ms: int = 20_000) -> events.Event:
        """Silence until an event of this type has newly come."""
        seen = len(self.log)
        for _ in range(limit_ms // 10):
            self.hop()
            for event in self.log[seen:]:
                if isinstance(event, wanted):
                    return event
        raise AssertionError(f"no {wanted.type} within {limit_ms} ms; log: {self.log[-8:]}")

    def of(self, kind: type[events.Event]) -> list[events.Event]:
        return [event for event in self.log if isinstance(event, kind)]

    def lines(self) -> list[str]:
        return [event.to_json() for event in self.log if event.is_logged]

    def sound(self) -> Float32Array:
        return np.concatenate(self.out)

    def close(self) -> None:
        assert self.desk.close()
