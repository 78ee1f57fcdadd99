"""The *Conversation* panel on a screen that nobody sees."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QGuiApplication, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QApplication, QMainWindow
from pytestqt.qtbot import QtBot

from app import events
from app.commands import Command, SayText, SetMuted, StopSpeaking
from app.config.load import load_config
from app.ui.panel import Context
from app.ui.panels.conversation import ConversationPanel
from app.ui.theme import Theme
from app.viewmodel.conversation import ConversationView

REFRESH_LIMIT_S = 0.005


class Scene:
    """A panel in a window, and what it sends."""

    def __init__(self, qtbot: QtBot, folder: Path) -> None:
        self.sent: list[Command] = []
        self.theme = Theme("light")
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        self.application = application
        self.theme.apply(application, "light")
        loaded = load_config(file=None, env={"HOME": str(folder)})
        self.model = ConversationView()
        context = Context(loaded, folder, self.sent.append, lambda _loaded: None, self.theme)
        self.panel = ConversationPanel(self.model, context)
        self.window = QMainWindow()
        self.window.setCentralWidget(self.panel)
        self.window.resize(640, 480)
        qtbot.addWidget(self.window)
        self.window.show()
        qtbot.waitExposed(self.window)

    @property
    def text(self) -> str:
        return self.panel.transcript.toPlainText()

    def take(self, *taken: events.Event) -> None:
        for event in taken:
            self.model.take(event)
        self.panel.refresh_if_changed()

    def begin(self, *resumed: tuple[str, str]) -> None:
        self.take(events.SessionStarted(0, "0", 0, "live", 48000, 0.0, "default", "", [list(pair) for pair in resumed]))

    def mute(self, is_muted: bool) -> None:
        """What the engine does when it is told to."""
        self.take(events.CommandTaken(0, "mute", "on" if is_muted else "off"))

    def exchange(self, turn: int, question: str, answer: str, heard: str | None = None) -> None:
        self.take(
            events.UserTranscript(0, turn, question, True, len(question)),
            events.AgentSaid(0, turn, answer, answer if heard is None else heard, heard is not None),
        )

    def format_at(self, words: str) -> QTextCharFormat:
        """How these words look in the document; they must look alike."""
        cursor = self.panel.transcript.document().find(words)
        assert not cursor.isNull(), f"{words!r} is not in {self.text!r}"
        end, start = cursor.selectionEnd(), cursor.selectionStart()
        cursor.setPosition(start + 1)
        look = cursor.charFormat()
        for position in range(start + 1, end + 1):
            cursor.setPosition(position)
            assert cursor.charFormat() == look, f"at {position - start} of {words!r}"
        return look


@pytest.fixture
def scene(qtbot: QtBot, tmp_path: Path) -> Scene:
    return Scene(qtbot, tmp_path)


class TestCaptions:
    def test_words_that_may_change_are_shaded(self, scene: Scene) -> None:
        scene.take(events.UserTranscript(0, 1, "What is the ken", False, 8))
        assert scene.format_at("the ken").background().style() != Qt.BrushStyle.NoBrush
        assert scene.format_at("What is ").background().style() == Qt.BrushStyle.NoBrush
        scene.take(events.UserTranscript(0, 1, "What is the capital?", True, 20))
        assert scene.format_at("What is the capital?").background().style() == Qt.BrushStyle.NoBrush
        assert "ken" not in scene.text

    def test_the_cursor_of_what_was_heard_moves_through_the_reply(self, scene: Scene) -> None:
        scene.take(events.AgentText(0, 1, 1, "One two three", 0), events.AgentWord(0, 1, 7))
        faint, full = scene.theme.colour("faint"), scene.theme.colour("text")
        assert scene.format_at("One two").foreground().color() == full
        assert scene.format_at("three").foreground().color() == faint
        scene.take(events.AgentText(0, 1, 2, "four", 14), events.AgentWord(0, 1, 13))
        assert scene.format_at("One two three").foreground().color() == full
        assert scene.format_at("four").foreground().color() == faint

    def test_what_was_not_heard_is_struck_through_at_the_word_even_behind_an_emoji(self, scene: Scene) -> None:
        scene.exchange(1, "Why?", "😀 one two three", "😀 one two")
        assert not scene.format_at("one two").fontStrikeOut()
        assert scene.format_at("three").fontStrikeOut()

    def test_only_the_end_of_a_line_is_written_again(self, scene: Scene) -> None:
        scene.take(events.UserTranscript(0, 1, "😀 one two", False, 5))
        scene.take(events.UserTranscript(0, 1, "😀 one too many", False, 5))
        scene.take(events.UserTranscript(0, 1, "😀 one", True, 5))
        assert scene.text == "You\n😀 one\n"

    def test_a_removed_line_goes_and_the_rest_stays(self, scene: Scene) -> None:
        scene.exchange(1, "Why?", "Because.")
        scene.take(events.UserTranscript(0, 2, "Hm", False, 0))
        scene.take(events.Notice(0, "warning", "slow"))
        scene.take(events.TurnDropped(0, 2))
        assert scene.text.split() == ["You", "Why?", "Agent", "Because.", "Warning:", "slow"]

    def test_notices_stand_between_the_turns(self, scene: Scene) -> None:
        scene.exchange(1, "Why?", "Because.")
        scene.take(
            events.ProcessLost(0, "engine", "killed"),
            events.ProcessBack(0, "engine", 1200.0),
            events.MemoryDegraded(0, "tight", "window", 5_000_000),
            events.DeviceLost(0, "USB mic", "unplugged"),
            events.DeviceLost(0, "USB mic", "unplugged"),
            events.Notice(0, "error", "no words"),
        )
        lines = [line for line in scene.text.splitlines() if line][4:]
        assert lines == [
            "Lost the engine (killed); another one is being started.",
            "The engine is back after 1.2 s.",
            "Memory is short: half of the conversation's window was given up; 5 MB came free.",
            "Lost USB mic: unplugged (2 times)",
            "Error: no words",
        ]
        assert scene.format_at("Error: no words").foreground().color() == scene.theme.colour("bad")

    def test_earlier_exchanges_come_first(self, scene: Scene) -> None:
        scene.take(events.Notice(0, "info", "hello"))
        scene.begin(("Why?", "Because."))
        assert scene.text.split() == ["You", "Why?", "Agent", "Because.", "hello"]

    def test_breaks_stay_and_what_steers_a_terminal_does_not(self, scene: Scene) -> None:
        scene.exchange(1, "Why?", "One\ntwo \x1b[31mthree\u2029four", "One\ntwo")
        assert scene.text.splitlines()[4:] == ["One", "two  [31mthree", "four"]
        assert scene.format_at("three").fontStrikeOut()

    def test_each_paragraph_runs_the_way_its_script_does(self, scene: Scene) -> None:
        scene.exchange(1, "מה שלומך היום?", "Fine.")
        document = scene.panel.transcript.document()
        hebrew, english = (document.find(word).block() for word in ("שלומך", "Fine"))
        scene.panel.grab()  # lays out what is seen
        middle = scene.panel.transcript.viewport().width() / 2
        assert hebrew.layout().lineAt(0).naturalTextRect().left() > middle
        assert english.layout().lineAt(0).naturalTextRect().right() < middle

    @pytest.mark.parametrize("width", [400, 640, 1280, 2000])
    def test_text_without_spaces_wraps_within_the_window(self, scene: Scene, width: int) -> None:
        scene.window.hide()
        scene.window.resize(width, 480)
        scene.window.show()
        scene.exchange(1, "为什么" * 60, "x" * 400)
        document, view = scene.panel.transcript.document(), scene.panel.transcript
        for word in ("为什么", "xxxx"):
            block = document.find(word).block()
            view.blockBoundingGeometry(block)
            layout = block.layout()
            assert layout.lineCount() > 2
            widest = max(layout.lineAt(i).naturalTextRect().right() for i in range(layout.lineCount()))
            assert 0.8 * view.viewport().width() < widest <= view.viewport().width() < 1000


class TestCommands:
    def test_nothing_is_sent_before_a_conversation_runs(self, scene: Scene, qtbot: QtBot) -> None:
        qtbot.keyClicks(scene.panel.input, "Why?")
        qtbot.keyClick(scene.panel.input, Qt.Key.Key_Return)
        qtbot.keyClick(scene.panel.input, Qt.Key.Key_Escape)
        assert not scene.panel.mute_button.isEnabled()
        assert (scene.sent, scene.panel.input.text()) == ([], "Why?")
        scene.begin()
        qtbot.keyClick(scene.panel.input, Qt.Key.Key_Return)
        assert (scene.sent, scene.panel.input.text()) == ([SayText("Why?")], "")

    def test_the_mute_button_follows_what_the_conversation_says(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin()
        button = scene.panel.mute_button
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        assert scene.sent == [SetMuted(True)]
        assert button.accessibleName() == "Mute"
        scene.mute(True)
        assert button.accessibleName() == "Talk"
        assert "muted" in scene.panel.state_label.text()
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
        assert scene.sent[1:] == [SetMuted(False)]

    def test_escape_stops_the_answer_wherever_the_focus_is(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin()
        for widget in (scene.panel.input, scene.panel.transcript, scene.panel.copy_button):
            widget.setFocus()
            qtbot.keyClick(widget, Qt.Key.Key_Escape)
        assert scene.sent == [StopSpeaking()] * 3

    @pytest.mark.parametrize("state", ["listening", "hearing", "thinking", "speaking"])
    def test_the_state_is_told_in_words(self, scene: Scene, state: str) -> None:
        assert "Loading" in scene.panel.state_label.text()
        scene.begin()
        scene.take(events.StateChanged(0, state))
        assert state in scene.panel.state_label.accessibleName().lower()
        scene.take(events.SessionEnded(0, "quit"))
        assert scene.panel.state_label.accessibleName() == "State: Ended"


class TestPushToTalk:
    def test_the_microphone_is_open_while_the_key_is_held(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin()
        scene.mute(True)
        scene.panel.input.setFocus()
        qtbot.keyPress(scene.panel.input, Qt.Key.Key_F8)
        assert scene.sent == [SetMuted(False)]
        scene.mute(False)
        qtbot.keyRelease(scene.panel.input, Qt.Key.Key_F8)
        assert scene.sent == [SetMuted(False)]
        qtbot.waitUntil(lambda: scene.sent == [SetMuted(False), SetMuted(True)], timeout=10_000)

    @pytest.mark.parametrize("is_hidden", [True, False])
    def test_a_key_whose_end_is_not_seen_does_not_leave_it_open(
        self, scene: Scene, qtbot: QtBot, is_hidden: bool
    ) -> None:
        scene.begin()
        scene.mute(True)
        qtbot.keyPress(scene.panel.transcript, Qt.Key.Key_F8)
        scene.mute(False)
        if is_hidden:
            scene.panel.hide()
        else:
            QApplication.sendEvent(scene.window, QEvent(QEvent.Type.WindowDeactivate))
        qtbot.waitUntil(lambda: scene.sent == [SetMuted(False), SetMuted(True)], timeout=10_000)

    def test_a_microphone_that_is_open_is_left_alone(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin()
        qtbot.keyClick(scene.panel.input, Qt.Key.Key_F8)
        assert not scene.sent


class TestSearching:
    def test_matches_are_marked_counted_and_walked_through(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(*[("What is rain?", "Rain is water.")] * 40)
        qtbot.waitUntil(lambda: scene.panel.transcript.is_complete)
        bar, transcript = scene.panel.find_bar, scene.panel.transcript
        qtbot.keyClick(scene.panel.input, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
        assert bar.isVisible()
        qtbot.keyClicks(bar.input, "rain")
        assert bar.place.text() == "80 of 80"
        marks = transcript.extraSelections()
        assert 2 < len(marks) < 80
        assert {mark.cursor.selectedText().lower() for mark in marks} == {"rain"}
        qtbot.keyClick(bar.input, Qt.Key.Key_Return)
        assert bar.place.text() == "1 of 80"
        assert transcript.verticalScrollBar().value() < transcript.verticalScrollBar().maximum() / 2
        assert not transcript.is_following
        qtbot.keyClick(bar.input, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        assert bar.place.text() == "80 of 80"

    def test_it_goes_on_with_the_conversation_and_ends_with_escape(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(("Rain?", "Yes."))
        scene.panel.find_button.click()
        qtbot.keyClicks(scene.panel.find_bar.input, "rain")
        scene.exchange(1, "More rain?", "Rain, rain.")
        assert scene.panel.find_bar.place.text() == "1 of 4"
        qtbot.keyClick(scene.panel.find_bar.input, Qt.Key.Key_Escape)
        assert not scene.panel.find_bar.isVisible()
        assert not scene.panel.transcript.extraSelections()
        assert not scene.sent

    def test_a_match_that_was_taken_back_is_gone(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(*[("Rain?", "Yes.")] * 20)
        scene.panel.find_button.click()
        qtbot.keyClicks(scene.panel.find_bar.input, "rain")
        scene.take(events.UserTranscript(0, 1, "Rain and rain", False, 0))
        assert scene.panel.find_bar.place.text() == "20 of 22"
        qtbot.keyClick(scene.panel.find_bar.input, Qt.Key.Key_F3)
        scene.take(events.TurnDropped(0, 1))
        assert scene.panel.find_bar.place.text() == "20 of 20"

    def test_a_mark_behind_an_emoji_lies_on_the_word(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(("😀😀 rain", "No."))
        scene.panel.find_bar.open()
        qtbot.keyClicks(scene.panel.find_bar.input, "rain")
        (mark,) = scene.panel.transcript.extraSelections()
        assert mark.cursor.selectedText() == "rain"


class TestCopyAndExport:
    def test_the_selection_is_copied_else_everything(self, scene: Scene) -> None:
        scene.exchange(1, "Why?", "Because of it.", "Because")
        scene.panel.copy_button.click()
        assert QGuiApplication.clipboard().text() == "You: Why?\n\nAgent: Because [not heard: of it.]\n\n"
        scene.panel.transcript.setTextCursor(scene.panel.transcript.document().find("of it"))
        scene.panel.copy_button.click()
        assert QGuiApplication.clipboard().text() == "of it"

    def test_a_selection_holds_while_the_conversation_goes_on(self, scene: Scene) -> None:
        scene.exchange(1, "Why?", "Because.")
        scene.panel.transcript.setTextCursor(scene.panel.transcript.document().find("Because"))
        scene.take(events.AgentText(0, 2, 1, "One two", 0))
        scene.take(events.AgentWord(0, 2, 3))
        scene.take(events.AgentText(0, 2, 2, "three", 8))
        assert scene.panel.transcript.textCursor().selectedText() == "Because"

    @pytest.mark.parametrize(("name", "beginning"), [("talk.md", "**You:** Why?"), ("talk.txt", "You: Why?")])
    def test_the_file_is_private(self, scene: Scene, qtbot: QtBot, tmp_path: Path, name: str, beginning: str) -> None:
        scene.exchange(1, "Why?", "Because.")
        path = tmp_path / name
        scene.panel.export(path)
        qtbot.waitUntil(lambda: (scene.panel.poll(), scene.panel.remark_label.isVisible())[1])
        assert path.read_text(encoding="utf-8").startswith(beginning)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert str(path) in scene.panel.remark_label.text()

    def test_a_folder_that_is_not_there_is_told(self, scene: Scene, qtbot: QtBot, tmp_path: Path) -> None:
        scene.panel.export(tmp_path / "none" / "talk.md")
        qtbot.waitUntil(lambda: (scene.panel.poll(), scene.panel.remark_label.isVisible())[1])
        assert "No such file or directory" in scene.panel.remark_label.text()


class TestScrolling:
    def test_the_end_is_followed_until_the_user_scrolls_up(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(*[("Why?", "Because.")] * 60)
        transcript, bar = scene.panel.transcript, scene.panel.transcript.verticalScrollBar()
        qtbot.waitUntil(lambda: transcript.is_complete)
        assert bar.value() == bar.maximum() > 0
        transcript.setFocus()
        qtbot.keyClick(transcript, Qt.Key.Key_PageUp)
        place = bar.value()
        assert place < bar.maximum()
        assert transcript.end_button.isVisible()
        scene.exchange(1, "New?", "New.")
        scene.window.resize(600, 440)
        assert bar.value() == place
        qtbot.mouseClick(transcript.end_button, Qt.MouseButton.LeftButton)
        assert bar.value() == bar.maximum()
        scene.exchange(2, "Newer?", "Newer.")
        assert bar.value() == bar.maximum()
        assert not transcript.end_button.isVisible()

    def test_another_theme_keeps_the_place(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(*[(f"Question {number}?", "Because.") for number in range(60)])
        transcript = scene.panel.transcript
        qtbot.waitUntil(lambda: transcript.is_complete)
        transcript.setFocus()
        for _ in range(3):
            qtbot.keyClick(transcript, Qt.Key.Key_PageUp)
        before = transcript.firstVisibleBlock().blockNumber()
        scene.theme.apply(scene.application, "dark")
        scene.panel.restyle()
        qtbot.waitUntil(lambda: transcript.is_complete)
        assert abs(transcript.firstVisibleBlock().blockNumber() - before) <= 3
        assert scene.format_at("Question 3?").foreground().color() == scene.theme.colour("text")


class TestCost:
    def test_five_thousand_turns_stay_fluid(self, scene: Scene, qtbot: QtBot) -> None:
        scene.begin(*[("What is the tallest mountain in the world?", "It is Mount Everest, " * 4)] * 5000)
        transcript = scene.panel.transcript
        qtbot.waitUntil(lambda: transcript.is_complete, timeout=60_000)
        assert transcript.document().blockCount() == 30_000
        scene.take(events.UserTranscript(0, 1, "How high?", True, 9))
        text = "It is rather high, as mountains go. " * 5
        scene.take(events.AgentText(0, 1, 1, text, 0))
        took_s = []
        for chars in range(10, 170, 4):
            scene.model.take(events.AgentWord(0, 1, chars))
            begin_s = time.perf_counter()
            scene.panel.refresh_if_changed()
            scene.application.processEvents()
            took_s.append(time.perf_counter() - begin_s)
        print(f"refresh and paint: median {sorted(took_s)[20] * 1e3:.2f} ms, longest {max(took_s) * 1e3:.2f} ms")
        assert sorted(took_s)[20] < REFRESH_LIMIT_S

    def test_a_hidden_panel_does_nothing(self, scene: Scene) -> None:
        scene.panel.hide()
        scene.exchange(1, "Why?", "Because.")
        assert scene.text == ""
        scene.panel.show()
        assert scene.panel.refresh_if_changed()
        assert "Because." in scene.text
        assert not scene.panel.refresh_if_changed()


def test_everything_can_be_reached_with_the_keyboard_and_has_a_name(scene: Scene, qtbot: QtBot) -> None:
    scene.begin()
    panel = scene.panel
    assert scene.window.focusWidget() is panel.input
    buttons = (panel.send_button, panel.mute_button, panel.stop_button)
    for widget in (*buttons, panel.transcript, panel.find_button, panel.copy_button, panel.export_button):
        qtbot.keyClick(scene.window.focusWidget(), Qt.Key.Key_Tab)
        assert scene.window.focusWidget() is widget
        assert widget.accessibleName()
    assert all(
        button.toolTip() for button in panel.findChildren(type(panel.send_button)) if button.text() != "Newest ↓"
    )
    assert panel.transcript.textInteractionFlags() & Qt.TextInteractionFlag.TextSelectableByKeyboard
    cursor = panel.transcript.textCursor()
    cursor.movePosition(QTextCursor.MoveOperation.End)
    panel.transcript.setTextCursor(cursor)
    qtbot.keyClicks(panel.transcript, "typed into the transcript")
    assert scene.text == ""
