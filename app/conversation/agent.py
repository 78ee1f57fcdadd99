"""The conversation itself: hops, results and commands in; speech, events and history out.

Single-threaded towards its caller, and a function of what it is given: the same hops, the same releases
at the same indices and the same commands lead to the same decisions, text and audio. It composes the turn
machine (who has the floor), the growing transcript (what the user says) and the speaker (what we say).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from app import events
from app.commands import Command, Quit, SayText, SetMuted, StopSpeaking
from app.conversation import turn as turns
from app.conversation.desk import Cancelled, Delivery, Desk, Done, Failure
from app.conversation.history import History, LeftOut
from app.conversation.lag import Lag
from app.conversation.output import ReplyOutput
from app.conversation.reply import Marks
from app.conversation.resume import Pending
from app.conversation.speaker import Speaker, SpeakerSettings
from audio.asr.filter import spoken_text
from audio.asr.growing import DecodeRequest, GrowingConfig, GrowingTranscript
from audio.block import HOP_MS, HOP_SAMPLES, SAMPLE_RATE_HZ, Float32Array, ms_to_samples
from audio.io.records import FLAG_FADED, FLAG_REPLY, FLAG_UNDERRUN
from audio.protocols import Asr, Speech, Tts, TurnModel
from gpu.llm.protocol import LanguageModel

Emit = Callable[[events.Event], None]
_METER_HOPS = 10
_PAUSE_MS = 1000.0
"""A reply that has not sounded for so long is shown as one that is being thought about."""
_TURN_MODEL_HOPS = 8 * 1000 // HOP_MS


@dataclass(frozen=True, slots=True)
class Engines:
    """The models of a conversation, behind their protocols."""

    asr: Asr
    turn: TurnModel
    llm: LanguageModel
    tts: Tts


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """What the configuration says about a conversation."""

    turn: turns.TurnSettings
    speaker: SpeakerSettings
    growing: GrowingConfig
    preroll_ms: float
    """Audio before the onset that belongs to the turn; at least 250."""


class Conversation:
    """See the module's text. The caller feeds `hear` once a hop, `command` and `poll` behind it."""

    def __init__(
        self,
        engines: Engines,
        settings: ConversationSettings,
        desk: Desk,
        output: ReplyOutput,
        history: History,
        emit: Emit,
        *,
        first_generation: int = 0,
        last_turn: int = 0,
    ) -> None:
        """`first_generation` and `last_turn`: what a new engine finds, where it takes over from a dead one."""
        self._engines = engines
        self._settings = settings
        self._desk = desk
        self._emit = emit
        self._machine = turns.TurnMachine(settings.turn, last_turn=last_turn)
        self._history = history
        self._speaker = Speaker(
            engines.llm,
            engines.tts,
            settings.speaker,
            desk,
            output,
            history,
            emit,
            first_generation=first_generation,
        )
        self._now = 0
        self._state = turns.State.LISTENING
        held = ms_to_samples(settings.preroll_ms + 2 * settings.turn.barge_in_ms) // HOP_SAMPLES + 10
        self._recent: deque[tuple[int, Float32Array, bool]] = deque(maxlen=held)
        self._growing: GrowingTranscript | None = None
        self._turn_hops: deque[Float32Array] = deque(maxlen=_TURN_MODEL_HOPS)
        self._pause: turns.ExaminePause | None = None
        self._jobs: dict[int, tuple[str, object]] = {}
        self._shown_partial = ""
        self._onset = 0
        self._playback = (0, False)
        self._sounded = 0
        self._lag = Lag(emit)

    @property
    def is_idle(self) -> bool:
        """Nothing is being heard, thought or said."""
        return self._machine.state is turns.State.LISTENING and self._desk.is_idle() and self._speaker.is_idle

    @property
    def now_samples(self) -> int:
        """End of the last hop."""
        return self._now

    @property
    def behind_ms(self) -> float:
        """How long the recogniser has owed a text of the turn that is being heard."""
        return 0.0 if self._growing is None else self._growing.behind_ms

    # -- inputs -----------------------------------------------------------------------------------------

    def hear(self, hop: np.void) -> None:
        """One hop of the ear (`audio.ear.HOP_DTYPE`)."""
        start = int(hop["block"]) * HOP_SAMPLES
        self._now = start + HOP_SAMPLES
        is_playing = bool(hop["flags"] & FLAG_REPLY)
        if self._machine.state is turns.State.THINKING and hop["generation"] != self._speaker.generation:
            is_playing = False  # an aside that fades: the answer has not begun
        if is_playing:
            self._sounded = self._now
        is_voiced = bool(hop["voiced"])
        self._note_playback(hop, start)
        if self._speaker.played(int(hop["generation"]), int(hop["reply_frames"]), is_playing, self._now):
            self._observe(turns.ReplyOver())
        if is_voiced:
            self._onset = int(hop["onset_samples"])
        clean = np.array(hop["clean"], dtype=np.float32)
        self._recent.append((int(hop["index_samples"]), clean, is_voiced))
        if self._growing is not None:
            self._growing.feed(clean, is_voiced)
            self._cancel_void()
            self._turn_hops.append(clean)
        probability = float(hop["speech_probability"])
        is_room_known = bool(hop["room_known"])
        self._observe(
            turns.HopHeard(self._now, is_voiced, self._onset, probability, is_playing, is_room_known, bool(hop["gate"]))
        )
        self._ask_partial()
        self._speaker.pump()
        self._lag.observe(self._now, self.behind_ms, bool(hop["flags"] & FLAG_UNDERRUN))
        if (start // HOP_SAMPLES) % _METER_HOPS == 0:
            self._show_meters(hop)

    def command(self, command: Command) -> None:
        """A user command; the caller passes it directly behind a hop, so that a replay can do the same."""
        match command:
            case SayText(text):
                self._emit(events.CommandTaken(self._now, "say", text))
                if self._machine.state is turns.State.HEARING:
                    message = "what was being said gives way to what was typed"
                    self._emit(events.Notice(self._now, "warning", message))
                self._drop_transcript()  # typed words are a turn of their own
                self._observe(turns.TextTyped(text))
            case StopSpeaking():
                self._emit(events.CommandTaken(self._now, "stop", ""))
                self._observe(turns.StopWanted())
            case SetMuted(muted):
                self._emit(events.CommandTaken(self._now, "mute", "on" if muted else "off"))
                self._observe(turns.MuteSet(muted))
            case Quit():
                self._emit(events.CommandTaken(self._now, "quit", ""))

    def poll(self) -> None:
        """Take every result that is due now."""
        while (delivery := self._desk.next_due(self._now)) is not None:
            self._emit(
                events.Arrival(self._now, delivery.job, delivery.kind, delivery.sequence, round(delivery.late_ms, 1))
            )
            if isinstance(delivery.value, LeftOut):
                self._emit(events.Notice(self._now, "warning", str(delivery.value)))
            elif self._speaker.owns(delivery.job):
                if self._speaker.deliver(delivery, self._now):
                    self._observe(turns.ReplyOver())
            else:
                self._deliver(delivery)
        self._speaker.pump()

    def go_on(self, pending: Pending) -> None:
        """Answer what a dead engine owed, after the hops that it had not dealt with.

        Where the user has begun to speak meanwhile, they have the floor, and the question stays in the history.
        """
        if self._machine.owe(pending.turn):
            marks = Marks(self._now, self._now, self._now)
            self._speaker.answer(pending.turn, pending.user, marks, self._now, begun=pending.heard)
            self._show_state()
        else:
            self._history.add(pending.user, pending.heard)

    def say_aside(self, speech: Speech) -> None:
        """Say something that belongs to no turn, unless a reply is under way."""
        self._speaker.say_aside(speech)

    def close(self) -> None:
        """The session ends now: what was heard of a reply is kept."""
        self._speaker.close(self._now)

    # -- the turn machine -------------------------------------------------------------------------------

    def _observe(self, observation: turns.Observation) -> None:
        for decision in self._machine.step(observation):
            self._carry_out(decision)
        self._show_state()

    def _show_state(self) -> None:
        state = self._machine.state
        if state is turns.State.SPEAKING and self._now - self._sounded >= ms_to_samples(_PAUSE_MS):
            state = turns.State.THINKING
        if state is not self._state:
            self._state = state
            self._emit(events.StateChanged(self._now, self._state.value))
            if self._state in (turns.State.SPEAKING, turns.State.LISTENING):
                self._drop_transcript()

    def _carry_out(self, decision: turns.Decision) -> None:
        match decision:
            case turns.OpenTurn(turn, onset):
                self._begin_transcript(onset)
                self._emit(events.UserSpeechStarted(self._now, turn, onset))
            case turns.ExaminePause():
                self._examine(decision)
            case turns.Answer(turn, text, reason, speech_end, endpoint):
                self._emit(events.TurnEnded(self._now, turn, reason, speech_end))
                self._emit(events.UserTranscript(self._now, turn, text, True, len(text)))
                self._speaker.answer(turn, text, Marks(speech_end, endpoint, self._now), self._now)
            case turns.DropTurn(turn):
                self._emit(events.TurnDropped(self._now, turn))
            case turns.WithdrawReply(turn):
                self._speaker.withdraw(self._now, keep_question=turn is None)
            case turns.InterruptReply(onset):
                self._speaker.interrupt(onset, self._now)

    # -- the user's words -------------------------------------------------------------------------------

    def _drop_transcript(self) -> None:
        """Nobody wants its text any more; what was asked for must not keep the next turn's waiting."""
        self._growing = None
        self._cancel_void()

    def _cancel_void(self) -> None:
        """A slow recogniser would decode for minutes what longer requests and cuts have made void."""
        for job, (kind, context) in list(self._jobs.items()):
            if kind != "asr":
                continue
            growing, request_id, _ = context  # type: ignore[misc]
            if growing is not self._growing or not growing.is_awaited(request_id):
                del self._jobs[job]
                self._desk.cancel(job, self._now)

    def _begin_transcript(self, onset_samples: int) -> None:
        self._drop_transcript()
        self._growing = GrowingTranscript(self._settings.growing)
        self._turn_hops.clear()
        self._pause = None
        self._shown_partial = ""
        first = onset_samples - ms_to_samples(self._settings.preroll_ms)
        for start, clean, is_voiced in self._recent:
            if start + HOP_SAMPLES > first:
                self._growing.feed(clean, is_voiced)
                self._turn_hops.append(clean)

    def _ask_partial(self) -> None:
        if self._growing is not None and self._machine.state is turns.State.HEARING:
            request = self._growing.next_decode(self._now)
            if request is not None:
                self._decode(request)

    def _decode(self, request: DecodeRequest) -> None:
        asr = self._engines.asr

        def work(cancelled: Cancelled) -> Iterable[object]:
            yield spoken_text(asr.transcribe(request.samples), request.voiced_ms)

        seconds = len(request.samples) / SAMPLE_RATE_HZ
        job = self._desk.submit("asr", work, size=seconds, now_samples=self._now)
        self._jobs[job] = ("asr", (self._growing, request.id, self._now))

    def _examine(self, pause: turns.ExaminePause) -> None:
        self._pause = pause
        self._emit(events.UserSpeechEnded(self._now, pause.turn, pause.speech_end_samples))
        model, heard = self._engines.turn, np.concatenate(list(self._turn_hops))

        def work(cancelled: Cancelled) -> Iterable[object]:
            yield model.predict(heard)

        job = self._desk.submit("turn", work, size=0.0, now_samples=self._now)
        self._jobs[job] = ("turn", pause)
        self._finish_transcript()

    def _finish_transcript(self) -> None:
        """Ask for what the pause's text still lacks; report it when nothing is lacking."""
        if self._growing is None or self._pause is None:
            return
        requests = self._growing.final_requests(self._now)
        self._cancel_void()
        for request in requests:
            self._decode(request)
        if self._growing.is_settled:
            self._observe(turns.PauseTranscribed(self._pause.pause, self._growing.text))

    def _deliver(self, delivery: Delivery) -> None:
        kind, context = self._jobs[delivery.job]
        if isinstance(delivery.value, Done):
            del self._jobs[delivery.job]
            return
        if isinstance(delivery.value, Failure):
            del self._jobs[delivery.job]
            message = f"{kind} failed: {delivery.value.error}"
            self._emit(events.Notice(self._now, "error", message))
        if kind == "turn":
            assert isinstance(context, turns.ExaminePause)
            if not isinstance(delivery.value, Failure):
                probability = float(delivery.value)  # type: ignore[arg-type]
                self._emit(events.TurnChecked(self._now, context.turn, round(probability, 4)))
                self._observe(turns.PauseScored(context.pause, probability))
        else:
            growing, request_id, requested = context  # type: ignore[misc]
            text = "" if isinstance(delivery.value, Failure) else str(delivery.value)
            if growing is self._growing and growing.on_result(request_id, text, requested, self._now):
                self._show_partial()
            if growing is self._growing and growing.is_settled:
                self._finish_transcript()

    def _show_partial(self) -> None:
        assert self._growing is not None
        text = self._growing.text
        if text and text != self._shown_partial and self._machine.state is turns.State.HEARING:
            self._shown_partial = text
            self._emit(events.UserTranscript(self._now, self._machine.turn, text, False, self._growing.stable_chars))

    # -- showing ----------------------------------------------------------------------------------------

    def _note_playback(self, hop: np.void, start: int) -> None:
        """Log when the loudspeaker starts, stops or fades, for replays."""
        flags = int(hop["flags"]) & (FLAG_REPLY | FLAG_FADED)
        state = (flags, int(hop["generation"]) if flags else 0)
        if state != self._playback:
            self._playback = state
            self._emit(
                events.Playback(
                    start,
                    int(hop["generation"]),
                    int(hop["reply_frames"]),
                    bool(flags & FLAG_REPLY),
                    bool(flags & FLAG_FADED),
                )
            )

    def _show_meters(self, hop: np.void) -> None:
        self._emit(
            events.Meters(
                self._now,
                float(hop["level_db"]),
                float(hop["far_level_db"]),
                float(hop["clean_level_db"]),
                float(hop["speech_probability"]),
                float(hop["late_ms"]),
                0,
            )
        )
