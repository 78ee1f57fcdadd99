"""The lines of a conversation, as events make them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app import events
from app.viewmodel.conversation import ConversationView, Line, Match
from app.viewmodel.conversation_export import ExportWords, as_markdown, as_text, write_private
from app.viewmodel.push_to_talk import PushToTalk

WORDS = ExportWords("You", "Agent", "not heard", lambda line: f"{line.event.message} x{line.count}")  # type: ignore[union-attr]


def view(*taken: events.Event) -> ConversationView:
    model = ConversationView()
    for event in taken:
        model.take(event)
    return model


def started(*resumed: tuple[str, str]) -> events.SessionStarted:
    return events.SessionStarted(0, "0", 0, "live", 48000, 0.0, "default", "", [list(pair) for pair in resumed])


def asked(turn: int, text: str) -> list[events.Event]:
    return [
        events.UserSpeechStarted(0, turn, 0),
        events.StateChanged(0, "hearing"),
        events.TurnEnded(0, turn, "complete", 0),
        events.UserTranscript(0, turn, text, True, len(text)),
        events.StateChanged(0, "thinking"),
    ]


def texts(model: ConversationView) -> list[tuple[str, str]]:
    return [(line.kind, line.text) for line in model.lines]


def test_words_that_may_change_are_told_apart_from_those_that_will_not() -> None:
    model = view(events.UserTranscript(0, 1, "What is the ken?", False, 7))
    (line,) = model.lines
    assert line.runs() == [(8, "said"), (8, "unstable")]
    model.take(events.UserTranscript(0, 1, "What is the capital?", True, 20))
    assert model.lines == [line]
    assert line.runs() == [(20, "said")]


def test_a_reply_comes_clause_by_clause_and_is_heard_word_by_word() -> None:
    model = view(*asked(1, "Why?"), events.AgentText(0, 1, 1, "A day,", 0), events.AgentText(0, 1, 2, "a week.", 7))
    reply = model.lines[1]
    assert reply.text == "A day, a week."
    assert reply.runs() == [(14, "coming")]
    model.take(events.AgentWord(0, 1, 6))
    assert reply.runs() == [(7, "heard"), (7, "coming")]
    model.take(events.AgentSaid(0, 1, "A day, a week.", "A day, a week.", False))
    assert reply.runs() == [(14, "heard")]
    assert not reply.is_cut_off


def test_what_was_not_heard_is_known_to_the_character() -> None:
    model = view(
        *asked(1, "Why?"),
        events.AgentText(0, 1, 1, "The story of a dog is long", 0),
        events.StateChanged(0, "speaking"),
        events.AgentWord(0, 1, 3),
        events.UserSpeechStarted(0, 2, 0),
        events.StateChanged(0, "hearing"),
    )
    assert model.lines[1].runs() == [(4, "heard"), (22, "unheard")]
    model.take(events.UserTranscript(0, 2, "Stop it", False, 0))
    model.take(events.AgentSaid(0, 1, "The story of a dog is long. It", "The story", True))
    assert texts(model) == [("user", "Why?"), ("agent", "The story of a dog is long. It"), ("user", "Stop it")]
    assert model.lines[1].runs() == [(10, "heard"), (20, "unheard")]


def test_a_reply_that_was_withdrawn_before_it_was_heard_was_never_said() -> None:
    model = view(
        *asked(1, "What is"),
        events.AgentText(0, 1, 1, "Is what?", 0),
        events.StateChanged(0, "hearing"),
        events.UserTranscript(0, 1, "What is the time", False, 4),
    )
    assert texts(model) == [("user", "What is the time")]
    assert not model.lines[0].is_over


def test_a_question_that_is_typed_into_a_reply_comes_before_the_reply_has_fallen_silent() -> None:
    model = view(
        *asked(1, "Why?"),
        events.AgentText(0, 1, 1, "One two three", 0),
        events.AgentWord(0, 1, 3),
        events.TurnEnded(0, 2, "text", 0),
        events.UserTranscript(0, 2, "How?", True, 4),
        events.StateChanged(0, "thinking"),
        events.AgentWord(0, 1, 7),
        events.AgentSaid(0, 1, "One two three", "One two", True),
        events.AgentText(0, 2, 1, "So.", 0),
    )
    assert texts(model) == [("user", "Why?"), ("agent", "One two three"), ("user", "How?"), ("agent", "So.")]
    assert model.lines[1].runs() == [(8, "heard"), (5, "unheard")]


def test_a_turn_that_went_on_and_came_to_nothing_leaves_no_line() -> None:
    model = view(*asked(1, "What is"), events.StateChanged(0, "hearing"), events.TurnDropped(0, 1))
    assert not model.lines


def test_a_reply_that_was_stopped_before_it_was_heard_is_struck_through_as_a_whole() -> None:
    model = view(*asked(1, "Why?"), events.AgentText(0, 1, 1, "Because.", 0), events.StateChanged(0, "listening"))
    assert model.lines[1].runs() == [(8, "unheard")]


def test_a_reply_that_goes_on_after_the_engine_was_lost_stays_one_line() -> None:
    model = view(
        *asked(1, "Why?"),
        events.AgentText(0, 1, 1, "One two three", 0),
        events.AgentWord(0, 1, 7),
        events.ProcessLost(0, "engine", "killed"),
        events.ProcessBack(0, "engine", 900.0),
        events.AgentText(0, 1, 1, "and four.", 8),
        events.AgentSaid(0, 1, "One two and four.", "One two and four.", False),
    )
    kinds = [line.kind for line in model.lines]
    assert kinds == ["user", "agent", "notice", "notice"]
    assert model.lines[1].text == "One two and four."
    assert not model.lines[1].is_cut_off


def test_sound_without_words_leaves_no_line() -> None:
    model = view(events.UserTranscript(0, 1, "Hm", False, 0), events.TurnDropped(0, 1))
    assert not model.lines


def test_a_typed_question_is_known_as_one() -> None:
    model = view(events.TurnEnded(0, 1, "text", 0), events.UserTranscript(0, 1, "Why?", True, 4))
    assert model.lines[0].is_typed
    model.take(events.TurnEnded(0, 2, "silence", 0))
    model.take(events.UserTranscript(0, 2, "How?", True, 4))
    assert not model.lines[1].is_typed


def test_the_same_notice_again_only_counts() -> None:
    model = view(*[events.Notice(at, "warning", "slow") for at in (1, 2, 3)], events.DeviceLost(4, "mic", "gone"))
    assert [(line.kind, line.count) for line in model.lines] == [("notice", 3), ("notice", 1)]


@pytest.mark.parametrize("argument", ["on", "off"])
def test_the_microphone_is_muted_when_the_conversation_says_so(argument: str) -> None:
    model = view(events.CommandTaken(0, "mute", "on"), events.CommandTaken(0, "mute", argument))
    assert model.is_muted == (argument == "on")


def test_a_session_runs_from_its_start_to_its_end() -> None:
    model = view()
    assert model.session_state == "loading"
    model.take(started())
    assert model.session_state == "running"
    model.take(events.StateChanged(0, "speaking"))
    model.take(events.SessionEnded(0, "quit"))
    assert (model.session_state, model.state) == ("ended", "listening")
    model.set_session_state("loading")
    assert model.session_state == "loading"


def test_a_session_that_ends_leaves_nothing_half_said() -> None:
    model = view(
        started(),
        *asked(1, "Why?"),
        events.AgentText(0, 1, 1, "Because of it.", 0),
        events.AgentWord(0, 1, 7),
        events.UserTranscript(0, 2, "And", False, 0),
        events.SessionEnded(0, "the microphone is gone"),
    )
    assert texts(model) == [("user", "Why?"), ("agent", "Because of it."), ("notice", "")]
    assert model.lines[1].is_cut_off


class TestResuming:
    def test_earlier_exchanges_come_before_what_was_told_while_loading(self) -> None:
        model = view(events.Notice(0, "info", "hello"), started(("Why?", "Because."), ("How?", "")))
        assert texts(model) == [("user", "Why?"), ("agent", "Because."), ("user", "How?"), ("notice", "")]
        assert all(line.is_over for line in model.lines)

    def test_what_is_shown_already_is_not_shown_twice(self) -> None:
        model = view(
            started(),
            *asked(1, "Why?"),
            events.AgentSaid(0, 1, "Because of it.", "Because", True),
            started(("Earlier?", "Yes."), ("Why?", "Because")),
        )
        assert texts(model) == [
            ("user", "Earlier?"),
            ("agent", "Yes."),
            ("user", "Why?"),
            ("agent", "Because of it."),
        ]
        model.take(events.UserTranscript(0, 1, "Turns count from one again", True, 26))
        assert len(model.lines) == 5

    def test_a_session_that_broke_off_without_a_word_is_tidied_up(self) -> None:
        model = view(
            started(),
            *asked(1, "Why?"),
            events.AgentText(0, 1, 1, "Because", 0),
            events.UserTranscript(0, 2, "And", False, 0),
            started(("Why?", "")),
        )
        assert texts(model) == [("user", "Why?"), ("agent", "Because")]
        assert model.lines[1].is_cut_off

    def test_a_new_conversation_begins_with_an_empty_page(self) -> None:
        model = view(started(), *asked(1, "Why?"), events.Notice(0, "info", "no microphone"), started())
        assert texts(model) == [("notice", "")]


class TestChanges:
    """`changed_since` against the plain way: compare every line with what it was."""

    def test_it_names_the_first_line_that_differs(self) -> None:
        model = view()
        taken = [
            started(("a", "b")),
            *asked(1, "Why?"),
            events.AgentText(0, 1, 1, "Because it", 0),
            events.Notice(0, "warning", "slow"),
            events.AgentWord(0, 1, 4),
            events.UserSpeechStarted(0, 2, 0),
            events.StateChanged(0, "hearing"),
            events.UserTranscript(0, 2, "Hm", False, 0),
            events.AgentSaid(0, 1, "Because it is", "Because", True),
            events.TurnDropped(0, 2),
            *asked(2, "How?"),
            events.AgentText(0, 2, 1, "So", 0),
            events.StateChanged(0, "hearing"),
            events.Notice(0, "warning", "slow"),
        ]
        history: list[tuple[int, list[str]]] = [(model.revision, [])]
        for event in taken:
            model.take(event)
            now = [repr(line) for line in model.lines]
            for revision, before in history:
                same = next((i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), None)
                expected = min(len(before), len(now)) if same is None else same
                assert model.changed_since(revision) <= expected, event
            assert model.changed_since(model.revision) == len(model.lines)
            history.append((model.revision, now))

    def test_a_word_that_was_heard_concerns_its_line_only(self) -> None:
        model = view(started(*[("a", "b")] * 50), *asked(1, "Why?"), events.AgentText(0, 1, 1, "Because it", 0))
        before = model.revision
        model.take(events.AgentWord(0, 1, 7))
        assert model.changed_since(before) == len(model.lines) - 1


def test_searching_finds_words_of_both_sides_in_any_case() -> None:
    model = view(started(("What is straße (x)?", "A STRASSE, a Straße."), ("x", ""), ("İİ Rome rome", "")))
    assert model.find("straße") == [Match(0, 8, 14), Match(1, 13, 19)]
    assert model.find("ROME") == [Match(3, 3, 7), Match(3, 8, 12)]
    assert model.find("(X)") == [Match(0, 15, 18)]
    assert model.find("x", first=1) == [Match(2, 0, 1)]
    assert model.find("") == []


class TestExport:
    LINES = (
        Line("user", text="Is 1 * 2 = 2?", is_over=True),
        Line("agent", text="Yes,\nit is.", is_over=True, heard_chars=4),
        Line("notice", event=events.Notice(0, "warning", "slow"), count=2),
        Line("agent", text="1. One", is_over=True, heard_chars=6),
        Line("agent", text="Never", is_over=True),
    )

    def test_as_text(self) -> None:
        assert as_text(self.LINES, WORDS).split("\n\n") == [
            "You: Is 1 * 2 = 2?",
            "Agent: Yes, [not heard: it is.]",
            "(slow x2)",
            "Agent: 1. One",
            "Agent: [not heard: Never]",
            "",
        ]

    def test_as_markdown_words_are_no_markup(self) -> None:
        assert as_markdown(self.LINES, WORDS).split("\n\n") == [
            r"**You:** Is 1 \* 2 = 2?",
            "**Agent:** Yes, ~~it is.~~",
            "> slow x2",
            r"**Agent:** 1\. One",
            "**Agent:** ~~Never~~",
            "",
        ]

    def test_only_the_owner_may_read_it_whoever_could_before(self, tmp_path: Path) -> None:
        path = tmp_path / "talk.md"
        path.write_text("old")
        path.chmod(0o644)
        write_private(path, "né\n")
        assert path.read_text(encoding="utf-8") == "né\n"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(tmp_path) == ["talk.md"]

    def test_a_failure_leaves_what_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "talk.md").mkdir()
        with pytest.raises(OSError):
            write_private(tmp_path / "talk.md", "text")
        assert os.listdir(tmp_path) == ["talk.md"]


class TestPushToTalk:
    def test_a_microphone_that_is_open_stays_so(self) -> None:
        talk = PushToTalk()
        assert not talk.press(is_muted=False)
        talk.release(1.0)
        assert not talk.must_mute(9.0, is_hearing=False)

    def test_the_turn_is_heard_to_its_end(self) -> None:
        talk = PushToTalk()
        assert talk.press(is_muted=True)
        assert not talk.must_mute(5.0, is_hearing=False)
        talk.release(10.0)
        assert not talk.must_mute(10.1, is_hearing=False)
        assert not talk.must_mute(12.0, is_hearing=True)
        assert talk.is_open
        assert talk.must_mute(12.1, is_hearing=False)
        assert not talk.is_open
        assert not talk.must_mute(20.0, is_hearing=False)

    def test_but_not_for_ever(self) -> None:
        talk = PushToTalk()
        talk.press(is_muted=True)
        talk.release(10.0)
        assert talk.must_mute(14.0, is_hearing=True)

    def test_pressing_again_goes_on(self) -> None:
        talk = PushToTalk()
        talk.press(is_muted=True)
        talk.release(10.0)
        assert not talk.press(is_muted=False)
        assert talk.is_held
        talk.release(11.0)
        assert talk.must_mute(11.6, is_hearing=False)

    def test_the_mute_button_has_the_last_word(self) -> None:
        talk = PushToTalk()
        talk.press(is_muted=True)
        talk.give_up()
        talk.release(10.0)
        assert not talk.must_mute(20.0, is_hearing=False)
