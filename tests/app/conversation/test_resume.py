"""What a new engine is told of the conversation that its predecessor left."""

from __future__ import annotations

from app import events
from app.conversation.history import Exchange
from app.conversation.resume import Pending, Progress
from audio.block import SAMPLE_RATE_HZ

S = SAMPLE_RATE_HZ


def progress(*happened: events.Event, before: list[Exchange] | None = None) -> Progress:
    one = Progress(before or [])
    for event in happened:
        one.take(event)
    return one


def asked(turn: int, text: str, at_s: float) -> list[events.Event]:
    at = int(at_s * S)
    return [
        events.UserSpeechStarted(at - 2 * S, turn, at - 2 * S - 1600),
        events.StateChanged(at - 2 * S, "hearing"),
        events.TurnEnded(at, turn, "complete", at - 3200),
        events.UserTranscript(at, turn, text, True, len(text)),
        events.StateChanged(at, "thinking"),
    ]


ANSWER = [
    events.AgentText(11 * S, 1, 1, "One two,", 0),
    events.AgentVoiced(11 * S, 1, 4, [[3, 1000], [8, 2000]]),
    events.StateChanged(11 * S, "speaking"),
    events.AgentText(11 * S, 1, 2, "three.", 9),
    events.AgentVoiced(11 * S, 1, 4, [[15, 3000]]),
]


def test_in_silence_the_last_second_is_heard_again() -> None:
    point = progress(events.Meters(50 * S, 0, 0, 0, 0, 0, 0), before=[Exchange("a", "b")]).point()
    assert (point.exchanges, point.last_turn, point.first_block, point.pending) == ([Exchange("a", "b")], 0, 4900, None)


def test_an_unfinished_utterance_is_heard_again_from_before_its_beginning_under_its_own_number() -> None:
    point = progress(*asked(1, "x", 10)[:2], events.Meters(30 * S, 0, 0, 0, 0, 0, 0)).point()
    assert point.first_block == (8 * S - 1600 - S) // 160
    assert point.last_turn == 0
    assert point.pending is None


def test_a_finished_turn_is_not_heard_again_but_answered() -> None:
    point = progress(*asked(1, "one?", 10)).point()
    assert (point.last_turn, point.first_block, point.pending) == (1, 1000, Pending(1, "one?", ""))
    assert point.exchanges == []


def test_what_left_the_loudspeaker_is_known_to_the_word_without_the_engine() -> None:
    one = progress(*asked(1, "one?", 10), *ANSWER)
    assert one.played(3, 99_999, is_alone=True) is None  # another reply
    assert one.played(4, 1000, is_alone=True) is None  # half of the first word, not more
    word = one.played(4, 2001, is_alone=True)
    assert word is not None
    assert word.chars == 8
    assert one.played(4, 2500, is_alone=True) is None
    assert one.point().pending == Pending(1, "one?", "One two,")
    one.take(events.AgentWord(12 * S, 1, 3))  # an event that was on its way
    assert one.point().pending == Pending(1, "one?", "One two,")


def test_a_word_that_was_heard_before_the_death_was_noticed_is_told_when_it_is() -> None:
    one = progress(*asked(1, "one?", 10), *ANSWER, events.AgentWord(12 * S, 1, 3))
    assert one.played(4, 2001, is_alone=False) is None  # the engine would tell; but it is dead
    word = one.played(4, 2001, is_alone=True)
    assert word is not None
    assert word.chars == 8
    assert one.played(4, 2001, is_alone=True) is None  # told once


def test_what_the_engine_has_told_is_not_told_again() -> None:
    one = progress(*asked(1, "one?", 10), *ANSWER, events.AgentWord(12 * S, 1, 8))
    assert one.played(4, 2001, is_alone=True) is None


def test_a_settled_reply_is_an_exchange() -> None:
    said = events.AgentSaid(13 * S, 1, "One two, three.", "One two, three.", False)
    one = progress(*asked(1, "one?", 10), *ANSWER, said)
    assert one.point().exchanges == [Exchange("one?", "One two, three.")]
    assert one.point().pending is None


def test_an_interrupted_reply_is_not_owed_and_keeps_its_heard_words() -> None:
    one = progress(
        *asked(1, "one?", 10),
        *ANSWER,
        events.AgentWord(12 * S, 1, 3),
        events.UserSpeechStarted(12 * S, 2, 12 * S - 3200),
        events.StateChanged(12 * S, "hearing"),
    )
    point = one.point()
    assert (point.exchanges, point.pending, point.last_turn) == ([Exchange("one?", "One")], None, 1)
    assert point.first_block == (11 * S - 3200) // 160


def test_a_question_that_the_user_goes_on_with_is_open_again() -> None:
    point = progress(*asked(1, "one", 10), events.StateChanged(10 * S + 800, "hearing")).point()
    assert (point.exchanges, point.pending, point.last_turn) == ([], None, 0)
    assert point.first_block == (8 * S - 1600 - S) // 160


def test_a_stopped_reply_is_not_owed() -> None:
    for stopped in (events.StateChanged(12 * S, "listening"), None):
        one = progress(*asked(1, "one?", 10), *ANSWER)
        if stopped is not None:
            one.take(stopped)
        else:
            one.give_up()  # the engine hung and never said so
        assert one.point().pending is None
        assert one.point().exchanges == [Exchange("one?", "")]


def test_an_answer_that_went_on_in_a_second_engine_goes_on_in_a_third() -> None:
    one = progress(*asked(1, "one?", 10), *ANSWER)
    assert one.played(4, 1500, is_alone=True) is not None
    begun = one.point().pending
    assert begun == Pending(1, "one?", "One")
    one.take(events.AgentText(20 * S, 1, 1, "two or", 4))
    one.take(events.AgentVoiced(20 * S, 1, 6, [[7, 500], [10, 900]]))
    assert one.played(4, 99_999, is_alone=True) is None
    word = one.played(6, 600, is_alone=True)
    assert word is not None
    assert word.chars == 7
    assert one.point().pending == Pending(1, "one?", "One two")


def test_two_questions_without_an_answer_are_both_kept() -> None:
    one = progress(*asked(1, "one?", 10), *asked(2, "two?", 20))
    assert one.point().exchanges == [Exchange("one?", "")]
    assert one.point().pending == Pending(2, "two?", "")
