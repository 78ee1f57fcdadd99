"""The agent's side: asks the model, cuts its text into clauses, has them voiced, follows what is heard.

Clause n+1 is voiced while n plays. A reply ends in one of three ways: heard out, interrupted (what was
heard is kept), or withdrawn before anybody heard it (as if it had never been).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from app import events
from app.conversation.desk import Cancelled, Delivery, Desk, Done, Failure
from app.conversation.history import History
from app.conversation.output import ReplyOutput
from app.conversation.reply import Marks, Reply, VoicedClause
from audio.block import samples_to_ms
from audio.protocols import Speech, Tts
from audio.text.clauses import Clause, ClauseSplitter
from audio.text.sanitise import sanitise
from gpu.llm.protocol import LanguageModel, SamplingParams

_STOP_LIMIT_HOPS = 1200
"""A stopped reply is taken as silent after so many hops even if the device never confirms it: more than the microphone
ring holds, because a new ear, which is behind, has all of those to hear before the loudspeaker falls silent for it."""


@dataclass(frozen=True, slots=True)
class SpeakerSettings:
    """How the agent answers."""

    sampling: SamplingParams
    max_reply_tokens: int
    max_prompt_tokens: int
    output_latency_ms: float
    """From the callback's copy to the loudspeaker, as the stream reports it."""


@runtime_checkable
class SharedModel(Protocol):
    """A language model on which somebody else works between two uses."""

    def in_use(self) -> AbstractContextManager[None]:
        """It stays as it is meanwhile: what a prompt was made for holds until its reply is over."""
        ...


def _in_use(llm: LanguageModel) -> AbstractContextManager[None]:
    return llm.in_use() if isinstance(llm, SharedModel) else nullcontext()


@dataclass(slots=True)
class _Stopping:
    """A reply that was told to stop, until the loudspeaker is silent."""

    reply: Reply
    onset_samples: int | None
    decided_samples: int
    hops: int = 0


class Speaker:
    """One reply at a time."""

    def __init__(
        self,
        llm: LanguageModel,
        tts: Tts,
        settings: SpeakerSettings,
        desk: Desk,
        output: ReplyOutput,
        history: History,
        emit: Callable[[events.Event], None],
        *,
        first_generation: int = 0,
    ) -> None:
        """`first_generation`: of the last reply that this loudspeaker knows."""
        self._llm = llm
        self._tts = tts
        self._settings = settings
        self._desk = desk
        self._output = output
        self._history = history
        self._emit = emit
        self._generation = first_generation
        self._reply: Reply | None = None
        self._stopping: _Stopping | None = None
        self._waiting: tuple[int, str, Marks] | None = None
        self._warming: set[int] = set()
        self._splitter = ClauseSplitter()
        self._tokens = 0
        self._shown_chars = 0

    @property
    def is_idle(self) -> bool:
        """No reply is being made, played or stopped."""
        return self._reply is None and self._stopping is None and self._waiting is None

    @property
    def generation(self) -> int:
        """Of what may sound now."""
        return self._generation

    def owns(self, job: int) -> bool:
        """Whether this job's results are ours."""
        return job in self._warming or (self._reply is not None and job in self._reply.jobs)

    # -- decisions of the turn machine --------------------------------------------------------------------

    def answer(self, turn: int, text: str, marks: Marks, now: int, *, begun: str = "") -> None:
        """Begin the reply to `text`, as soon as the one before has fallen silent and its heard words are known.

        Of a reply that was cut off by an accident, `begun` is what the user has heard; it goes on from there.
        """
        if self._stopping is not None:
            self._waiting = (turn, text, marks)
            return
        self._generation += 1
        reply = self._reply = Reply(turn, text, self._generation, marks, raw=begun, begun_chars=len(begun))
        self._splitter = ClauseSplitter(start_chars=len(begun))
        self._tokens, self._shown_chars = 0, len(begun)
        self._output.begin(self._generation, self._tts.rate_hz)
        settings, history, llm = self._settings, self._history, self._llm
        exchanges = History(history.system_prompt, history.exchanges)

        def work(cancelled: Cancelled) -> Iterable[object]:
            reply_tokens = settings.max_reply_tokens
            with _in_use(llm):
                messages = exchanges.fit(
                    text, llm, reserve_tokens=reply_tokens, limit_tokens=settings.max_prompt_tokens, begun=begun
                )
                yield from exchanges.left_out  # for the conversation to tell
                yield from llm.generate(messages, settings.sampling, max_tokens=reply_tokens, cancelled=cancelled)

        reply.jobs.add(self._desk.submit("llm", work, size=float(len(text)), now_samples=now))

    def withdraw(self, now: int, *, keep_question: bool) -> None:
        """Nobody has heard any of it here: forget the reply, and the question too unless `keep_question`."""
        self._waiting = None
        reply = self._reply
        if reply is None:
            return
        self._cancel_jobs(reply, now)
        if keep_question:
            self._history.add(reply.user_text, reply.heard_text())  # of what an engine before this one began
        self._reply = None
        self._generation += 1
        self._output.stop(self._generation)

    def interrupt(self, onset_samples: int | None, now: int) -> None:
        """Stop at once; what was heard is settled when the loudspeaker is silent."""
        reply = self._reply
        if reply is None:
            return
        self._cancel_jobs(reply, now)
        self._reply = None
        self._generation += 1
        self._output.stop(self._generation)
        self._stopping = _Stopping(reply, onset_samples, now)

    # -- the loudspeaker ------------------------------------------------------------------------------------

    def played(self, generation: int, reply_frames: int, is_playing: bool, now: int) -> bool:
        """Playback state of one hop. Returns whether a reply was heard to its end with this hop."""
        if self._stopping is not None:
            self._follow_stop(self._stopping, generation, reply_frames, is_playing, now)
        reply = self._reply
        if reply is None or generation != reply.generation:
            return False
        if is_playing:
            if reply.marks.first_played is None:
                reply.marks.first_played = now
                self._report_latency(reply)
            reply.last_played_samples = now
        reply.heard_frames = reply_frames
        self._show_heard(reply)
        if not reply.is_heard_out():
            return False
        self._finish(reply, now, interrupted=False)
        self._reply = None
        return True

    def close(self, now: int) -> None:
        """Settle a reply that is being heard or stopped; one that nobody has heard leaves its question."""
        reply = self._stopping.reply if self._stopping is not None else self._reply
        if reply is None:
            return
        self._cancel_jobs(reply, now)
        self._stopping = self._reply = None
        heard = reply.heard_text()
        self._history.add(reply.user_text, heard)
        self._emit(events.AgentSaid(now, reply.turn, reply.raw.strip(), heard, True))

    def say_aside(self, speech: Speech) -> None:
        """Say something that belongs to no turn and no history; nothing where a reply is under way."""
        if not self.is_idle:
            return
        self._generation += 1
        self._output.begin(self._generation, speech.rate_hz)
        self._output.add(speech.samples)
        self._output.end()

    def pump(self) -> None:
        """Hand audio on."""
        self._output.pump()

    def _follow_stop(self, stop: _Stopping, generation: int, reply_frames: int, is_playing: bool, now: int) -> None:
        reply = stop.reply
        stop.hops += 1
        if generation == reply.generation:
            reply.heard_frames = max(reply.heard_frames, reply_frames)
            if is_playing:
                reply.last_played_samples = now
        if is_playing and stop.hops < _STOP_LIMIT_HOPS:
            return
        self._stopping = None
        self._finish(reply, now, interrupted=True)
        if stop.onset_samples is not None:
            stop_ms = samples_to_ms(reply.last_played_samples - stop.onset_samples)
            self._emit(
                events.BargeIn(now, reply.turn, reply.generation, stop.onset_samples, stop.decided_samples, stop_ms)
            )
        if self._waiting is not None:
            turn, text, marks = self._waiting
            self._waiting = None
            self.answer(turn, text, marks, now)

    def _finish(self, reply: Reply, now: int, *, interrupted: bool) -> None:
        is_whole = not interrupted and not reply.has_gaps and reply.total_frames > 0
        heard = reply.raw.strip() if is_whole else reply.heard_text()
        self._history.add(reply.user_text, heard)
        self._emit(events.AgentSaid(now, reply.turn, reply.raw.strip(), heard, interrupted))
        self._warm(heard, now)

    def _warm(self, heard: str, now: int) -> None:
        """While nobody waits, let the model read what it was heard to say."""
        llm, settings = self._llm, self._settings
        exchanges = History(self._history.system_prompt, self._history.exchanges)

        def work(cancelled: Cancelled) -> Iterable[object]:
            limits = {"reserve_tokens": settings.max_reply_tokens, "limit_tokens": settings.max_prompt_tokens}
            with _in_use(llm):
                llm.warm(exchanges.fit("", llm, **limits)[:-1])
            return ()

        self._warming.add(self._desk.submit("llm", work, size=float(len(heard)), now_samples=now))

    def _show_heard(self, reply: Reply) -> None:
        chars = reply.heard_chars()
        if chars > self._shown_chars:
            self._shown_chars = chars
            self._emit(events.AgentWord(reply.last_played_samples, reply.turn, chars))

    # -- results ----------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery, now: int) -> bool:
        """A result of one of our jobs. Returns whether the reply is over because nothing of it can be heard."""
        if delivery.job in self._warming:
            self._warming.discard(delivery.job)  # a prompt that does not fit will fail again, and then be told
            return False
        reply = self._reply
        assert reply is not None
        if isinstance(delivery.value, Failure):
            self._emit(events.Notice(now, "error", f"{delivery.kind} failed: {delivery.value.error}"))
        if isinstance(delivery.value, Done | Failure):
            reply.jobs.discard(delivery.job)
        if delivery.kind == "llm":
            self._take_text(reply, delivery, now)
        else:
            self._take_speech(reply, delivery, now)
        return self._close_if_complete(reply, now)

    def _take_text(self, reply: Reply, delivery: Delivery, now: int) -> None:
        if isinstance(delivery.value, Done | Failure):
            reply.is_text_complete = True
            is_cut = self._tokens >= self._settings.max_reply_tokens
            for clause in self._splitter.flush():
                if is_cut and reply.clause_count and not clause.ends_sentence:
                    # The token limit fell into this sentence; half a sentence is worse than none.
                    reply.raw = reply.raw[: clause.start_chars]
                    break
                self._voice(reply, clause, now)
            return
        self._tokens += 1
        reply.marks.first_token = reply.marks.first_token or now
        piece = str(delivery.value)
        if 0 < len(reply.raw) == reply.begun_chars and piece[:1].isascii() and piece[:1].isalnum():
            piece = " " + piece  # some tokenizers drop the space before the first word that they decode
        reply.raw += piece
        for clause in self._splitter.push(piece):
            self._voice(reply, clause, now)

    def _voice(self, reply: Reply, clause: Clause, now: int) -> None:
        clean = sanitise(clause.text)
        if not clean.text.strip():
            return
        reply.clause_count += 1
        reply.marks.first_clause = reply.marks.first_clause or now
        self._emit(events.AgentText(now, reply.turn, reply.clause_count, clause.text, clause.start_chars))
        tts, spoken = self._tts, clean.text

        def work(cancelled: Cancelled) -> Iterable[object]:
            yield tts.synthesize(spoken)

        job = self._desk.submit("tts", work, size=float(len(spoken)), now_samples=now)
        reply.jobs.add(job)
        reply.clauses[job] = VoicedClause(clause, clean)

    def _take_speech(self, reply: Reply, delivery: Delivery, now: int) -> None:
        if not isinstance(delivery.value, Speech):
            reply.has_gaps = reply.has_gaps or isinstance(delivery.value, Failure)
            return
        speech = delivery.value
        clause = reply.clauses.pop(delivery.job)
        frames_per_sample = self._output.rate_hz / speech.rate_hz
        reply.marks.first_audio = reply.marks.first_audio or now
        words = [[mark.raw_end, int(mark.middle_frames)] for mark in reply.place(clause, speech, frames_per_sample)]
        self._emit(events.AgentVoiced(now, reply.turn, reply.generation, words))
        self._output.add(speech.samples)

    def _close_if_complete(self, reply: Reply, now: int) -> bool:
        """When text and voice are done, end the audio. A reply without any sound is over at once."""
        if not reply.is_text_complete or reply.jobs or reply.is_audio_complete:
            return False
        reply.is_audio_complete = True
        reply.total_frames = self._output.end()
        if reply.total_frames:
            return False
        self._emit(events.Notice(now, "warning", "the model gave no answer that can be spoken"))
        self._finish(reply, now, interrupted=False)
        self._reply = None
        return True

    def _cancel_jobs(self, reply: Reply, now: int) -> None:
        for job in sorted(reply.jobs):
            self._desk.cancel(job, now)
        reply.jobs.clear()

    # -- latency ------------------------------------------------------------------------------------------------

    def _report_latency(self, reply: Reply) -> None:
        """One `turn.latency` event; see its docstring for the marks."""
        marks = reply.marks
        assert marks.first_played is not None
        row = [
            marks.speech_end,
            marks.endpoint,
            marks.answered,
            marks.first_token or marks.answered,
            marks.first_clause or marks.answered,
            marks.first_audio or marks.answered,
            marks.first_played,
        ]
        spans = [round(samples_to_ms(b - a), 2) for a, b in pairwise(row)]
        output_ms = round(self._settings.output_latency_ms, 2)
        total_ms = round(samples_to_ms(marks.first_played - marks.speech_end) + output_ms, 2)
        self._emit(events.TurnLatency(marks.first_played, reply.turn, *spans, output_ms, total_ms))
