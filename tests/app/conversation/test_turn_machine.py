"""The turn machine: send these observations, expect those decisions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversation import turn as t
from audio.block import HOP_SAMPLES

SETTINGS = t.TurnSettings(
    min_silence_ms=200,
    max_silence_ms=900,
    complete_threshold=0.5,
    barge_in_ms=200,
    cold_barge_in_ms=320,
    barge_in_threshold=0.5,
    resume_ms=120,
    echo_tail_ms=300,
)


class Bench:
    """Feeds hops and keeps the decisions."""

    def __init__(self) -> None:
        self.machine = t.TurnMachine(SETTINGS)
        self.hop = 0
        self.onset = 0
        self.decisions: list[t.Decision] = []
        self._was = False

    def hops(self, ms: int, *, voiced: bool, playing: bool = False) -> list[t.Decision]:
        out: list[t.Decision] = []
        for _ in range(ms // 10):
            if voiced and not self._was:
                self.onset = self.hop * HOP_SAMPLES
            self._was = voiced
            self.hop += 1
            out += self.machine.step(
                t.HopHeard(self.hop * HOP_SAMPLES, voiced, self.onset, 0.9 if voiced else 0.1, playing)
            )
        self.decisions += out
        return out

    def step(self, observation: t.Observation) -> list[t.Decision]:
        out = self.machine.step(observation)
        self.decisions += out
        return out


def speak(bench: Bench, ms: int = 500) -> int:
    """A turn up to the examined pause; returns the pause's number."""
    bench.hops(ms, voiced=True)
    (examine,) = bench.hops(200, voiced=False)
    assert isinstance(examine, t.ExaminePause)
    return examine.pause


def answered(bench: Bench) -> None:
    pause = speak(bench)
    bench.step(t.PauseScored(pause, 0.9))
    (answer,) = bench.step(t.PauseTranscribed(pause, "hello"))
    assert isinstance(answer, t.Answer)


def test_complete_turn_is_answered_when_score_and_text_are_there() -> None:
    bench = Bench()
    pause = speak(bench)
    assert bench.step(t.PauseTranscribed(pause, "hello")) == []
    (answer,) = bench.step(t.PauseScored(pause, 0.9))
    assert answer == t.Answer(1, "hello", "complete", 50 * HOP_SAMPLES, 70 * HOP_SAMPLES)
    assert bench.machine.state is t.State.THINKING


def test_incomplete_turn_waits_for_the_long_silence() -> None:
    bench = Bench()
    pause = speak(bench)
    bench.step(t.PauseScored(pause, 0.1))
    bench.step(t.PauseTranscribed(pause, "hello"))
    assert bench.hops(690, voiced=False) == []
    (answer,) = bench.hops(10, voiced=False)
    assert isinstance(answer, t.Answer)
    assert answer.reason == "silence"


def test_a_late_transcript_is_waited_for_and_then_answered_at_once() -> None:
    """A short word whose transcript comes after the silence limit must not be lost."""
    bench = Bench()
    pause = speak(bench, 100)
    bench.hops(2000, voiced=False)
    (answer,) = bench.step(t.PauseTranscribed(pause, "no"))
    assert isinstance(answer, t.Answer)
    assert answer.text == "no"


def test_speech_after_a_pause_voids_what_was_asked_about_it() -> None:
    bench = Bench()
    pause = speak(bench)
    bench.hops(100, voiced=True)
    assert bench.step(t.PauseScored(pause, 1.0)) == []
    assert bench.step(t.PauseTranscribed(pause, "half a")) == []
    assert bench.machine.state is t.State.HEARING


def test_sound_without_words_makes_no_turn() -> None:
    bench = Bench()
    pause = speak(bench)
    bench.step(t.PauseScored(pause, 0.9))
    assert bench.step(t.PauseTranscribed(pause, "")) == [t.DropTurn(1)]
    assert bench.machine.state is t.State.LISTENING


def test_user_who_goes_on_withdraws_the_unheard_reply_and_keeps_the_turn() -> None:
    bench = Bench()
    answered(bench)
    assert bench.hops(110, voiced=True) == []
    assert bench.hops(10, voiced=True) == [t.WithdrawReply(1)]
    assert bench.machine.state is t.State.HEARING
    assert bench.machine.turn == 1


def test_barge_in_after_enough_evidence_opens_the_next_turn_at_its_onset() -> None:
    bench = Bench()
    answered(bench)
    bench.hops(500, voiced=False, playing=True)
    onset = bench.hop * HOP_SAMPLES
    assert bench.hops(190, voiced=True, playing=True) == []
    assert bench.hops(10, voiced=True, playing=True) == [t.InterruptReply(onset), t.OpenTurn(2, onset)]


def test_the_gate_moves_the_onset_back_to_where_the_sound_began() -> None:
    machine = t.TurnMachine(SETTINGS)
    for hop in range(1, 40):
        heard = t.HopHeard(
            hop * HOP_SAMPLES, hop > 30, 30 * HOP_SAMPLES, 0.9 if hop > 30 else 0.1, False, True, hop > 22
        )
        for decision in machine.step(heard):
            assert decision == t.OpenTurn(1, 22 * HOP_SAMPLES)
    assert machine.turn == 1


def test_a_noise_that_was_there_long_before_is_not_the_onset() -> None:
    machine = t.TurnMachine(SETTINGS)
    for hop in range(1, 80):
        heard = t.HopHeard(hop * HOP_SAMPLES, hop > 60, 60 * HOP_SAMPLES, 0.9 if hop > 60 else 0.1, False, True, True)
        for decision in machine.step(heard):
            assert decision == t.OpenTurn(1, 60 * HOP_SAMPLES)
    assert machine.turn == 1


def test_before_the_room_is_known_an_interruption_takes_more_evidence() -> None:
    bench = Bench()
    answered(bench)
    bench.hops(500, voiced=False, playing=True)
    out = []
    for _ in range(32):
        bench.hop += 1
        out.append(bench.machine.step(t.HopHeard(bench.hop * HOP_SAMPLES, True, 0, 0.9, True, False)))
    assert [bool(decisions) for decisions in out] == [False] * 31 + [True]


def test_short_bursts_of_residual_echo_never_interrupt() -> None:
    bench = Bench()
    answered(bench)
    for _ in range(300):
        assert bench.hops(30, voiced=True, playing=True) == []
        assert bench.hops(40, voiced=False, playing=True) == []


def test_bot_audio_in_the_echo_tail_is_not_taken_for_the_user_who_is_heard_in_it() -> None:
    bench = Bench()
    answered(bench)
    bench.hops(500, voiced=False, playing=True)
    bench.step(t.ReplyOver())
    assert bench.hops(180, voiced=True) == []
    assert [type(d) for d in bench.hops(150, voiced=True)] == [t.OpenTurn]


def test_stop_and_typed_text() -> None:
    bench = Bench()
    answered(bench)
    bench.hops(100, voiced=False, playing=True)
    assert bench.step(t.StopWanted()) == [t.InterruptReply(None)]
    assert bench.machine.state is t.State.LISTENING
    (answer,) = bench.step(t.TextTyped("typed"))
    assert isinstance(answer, t.Answer)
    assert (answer.text, answer.reason, answer.turn) == ("typed", "text", 2)
    assert bench.step(t.StopWanted()) == [t.WithdrawReply(None)]


def test_muted_microphone_hears_nothing() -> None:
    bench = Bench()
    bench.hops(100, voiced=True)
    assert bench.step(t.MuteSet(True)) == [t.DropTurn(1)]
    assert bench.hops(2000, voiced=True) == []
    bench.step(t.MuteSet(False))
    assert [type(d) for d in bench.hops(20, voiced=True)] == [t.OpenTurn]


OBSERVATIONS = st.one_of(
    st.tuples(st.just("hops"), st.integers(1, 120), st.booleans(), st.booleans()),
    st.tuples(st.just("score"), st.floats(0, 1)),
    st.tuples(st.just("text"), st.sampled_from(["", "words"])),
    st.tuples(st.sampled_from(["over", "stop", "typed", "mute", "unmute"])),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(OBSERVATIONS, max_size=40))
def test_any_order_keeps_the_protocol(steps: list[tuple]) -> None:  # type: ignore[type-arg]
    """Answers follow opened or typed turns, an interruption needs a reply in the air, turns count up."""
    bench = Bench()
    opened, in_air = 0, False
    for step in steps:
        match step:
            case ("hops", count, voiced, playing):
                playing = playing and in_air
                out = bench.hops(count * 10, voiced=voiced, playing=playing)
            case ("score", value):
                out = bench.step(t.PauseScored(bench.machine._pauses, value))
            case ("text", text):
                out = bench.step(t.PauseTranscribed(bench.machine._pauses, text))
            case ("over",):
                out, in_air = bench.step(t.ReplyOver()), False
            case ("stop",):
                out = bench.step(t.StopWanted())
            case ("typed",):
                out = bench.step(t.TextTyped("typed"))
            case (name,):
                out = bench.step(t.MuteSet(name == "mute"))
        for decision in out:
            match decision:
                case t.OpenTurn(turn, onset):
                    assert turn == opened + 1
                    assert onset <= bench.hop * HOP_SAMPLES
                    opened = turn
                case t.Answer(turn, text, _, speech_end, endpoint):
                    assert not in_air
                    assert text
                    assert speech_end <= endpoint <= bench.hop * HOP_SAMPLES
                    opened, in_air = max(opened, turn), True
                case t.InterruptReply() | t.WithdrawReply():
                    assert in_air
                    in_air = False
                case t.DropTurn(turn):
                    assert turn == opened


@pytest.mark.parametrize("observation", [t.PauseScored(7, 1.0), t.PauseTranscribed(7, "x"), t.ReplyOver()])
def test_late_results_of_nothing_are_ignored(observation: t.Observation) -> None:
    assert t.TurnMachine(SETTINGS).step(observation) == []
