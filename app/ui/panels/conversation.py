"""The *Conversation* panel: captions of both sides, who has the floor, and what one can say without speaking."""

from __future__ import annotations

import queue
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from itertools import pairwise
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, QStandardPaths, Qt, QTimer
from PySide6.QtGui import QColor, QGuiApplication, QHideEvent, QKeyEvent, QKeySequence, QPalette, QShortcut, QShowEvent
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QLabel, QLineEdit, QPushButton, QVBoxLayout, QWidget

from app.commands import SayText, SetMuted, StopSpeaking
from app.ui.panel import Context, Panel
from app.ui.panels.find_bar import FindBar
from app.ui.panels.transcript import Transcript
from app.ui.panels.transcript_words import TranscriptWords
from app.viewmodel.conversation import ConversationView, Line, Match
from app.viewmodel.conversation_export import ExportWords, as_markdown, as_text, write_private
from app.viewmodel.push_to_talk import PushToTalk

TALK_KEY = Qt.Key.Key_F8
_TALK_POLL_MS = 100
_REMARK_S = 8.0
_STATE_ROLES = {"hearing": "user", "thinking": "warning", "speaking": "accent", "ended": "bad"}


def make_model(context: Context) -> ConversationView:
    """Of an empty page."""
    return ConversationView()


class ConversationPanel(Panel):
    """View and controls. Words come from the view model, commands go to the conversation."""

    def __init__(self, model: ConversationView, context: Context) -> None:
        super().__init__(model, context)
        self.model = model
        self._lines_revision = 0
        self._matches: list[Match] = []
        self._current = -1
        self._talk = PushToTalk()
        self._watched: QWidget | None = None
        self._written: queue.SimpleQueue[tuple[Path, str]] = queue.SimpleQueue()
        self._remark_until_s = 0.0
        self._words = TranscriptWords(self)
        self.transcript = Transcript(context.theme, self._words)
        self.find_bar = FindBar()
        self.find_bar.hide()
        self.state_label, self.remark_label = QLabel(), QLabel()
        self.remark_label.setWordWrap(True)
        self.remark_label.hide()
        self.input = QLineEdit()
        self.mute_button, self.stop_button, self.send_button = QPushButton(), QPushButton(), QPushButton()
        self.find_button, self.copy_button, self.export_button = QPushButton(), QPushButton(), QPushButton()
        self.send_button.setProperty("primary", True)
        self._lay_out()
        self._connect()
        self._talk_timer = QTimer(self)
        self._talk_timer.setInterval(_TALK_POLL_MS)
        self._talk_timer.timeout.connect(self._follow_talk_key)
        self.retranslate()

    def _lay_out(self) -> None:
        top, bottom, column = QHBoxLayout(), QHBoxLayout(), QVBoxLayout(self)
        top.addWidget(self.state_label, 1)
        for button in (self.find_button, self.copy_button, self.export_button):
            top.addWidget(button)
        for button in (self.mute_button, self.stop_button):
            bottom.addWidget(button)
        bottom.addWidget(self.input, 1)
        bottom.addWidget(self.send_button)
        column.addLayout(top)
        column.addWidget(self.find_bar)
        column.addWidget(self.transcript, 1)
        column.addWidget(self.remark_label)
        column.addLayout(bottom)
        order = (self.input, self.send_button, self.mute_button, self.stop_button, self.transcript, self.find_button)
        for before, after in pairwise((*order, self.copy_button, self.export_button, self.find_bar)):
            self.setTabOrder(before, after)

    def _connect(self) -> None:
        self.mute_button.clicked.connect(self.toggle_mute)
        self.stop_button.clicked.connect(self.stop)
        self.send_button.clicked.connect(self.say)
        self.input.returnPressed.connect(self.say)
        self.find_button.clicked.connect(self.find_bar.open)
        self.copy_button.clicked.connect(self.copy)
        self.export_button.clicked.connect(self.choose_export)
        self.find_bar.changed.connect(self._search)
        self.find_bar.moved.connect(self._move)
        self.find_bar.closed.connect(self._end_search)
        for keys, call, context in (
            (QKeySequence.StandardKey.Find, self.find_bar.open, Qt.ShortcutContext.WidgetWithChildrenShortcut),
            (QKeySequence("F3"), lambda: self._move(1), Qt.ShortcutContext.WidgetWithChildrenShortcut),
            (QKeySequence("Shift+F3"), lambda: self._move(-1), Qt.ShortcutContext.WidgetWithChildrenShortcut),
            (QKeySequence("Esc"), self._escape, Qt.ShortcutContext.WindowShortcut),
        ):
            shortcut = QShortcut(QKeySequence(keys), self)
            shortcut.setContext(context)
            shortcut.activated.connect(call)

    # -- showing ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """See `Panel`."""
        first = self.model.changed_since(self._lines_revision)
        self._lines_revision = self.model.revision
        self.transcript.show_lines(self.model.lines, first)
        if self.find_bar.isVisible():
            self._search_again(first)
        self._show_state()

    def poll(self) -> None:
        """See `Panel`: what became of an export, and for how long that is shown."""
        while not self._written.empty():
            path, problem = self._written.get()
            if problem:
                self._remark(self.tr("{0} cannot be written: {1}").format(path, problem), is_error=True)
            else:
                self._remark(self.tr("Saved as {0}").format(path))
        if self.remark_label.isVisible() and time.monotonic() > self._remark_until_s:
            self.remark_label.hide()

    def restyle(self) -> None:
        """See `Panel`."""
        self.transcript.rebuild()
        self._show_state()

    def retranslate(self) -> None:
        """See `Panel`."""
        self.transcript.setAccessibleName(self.tr("Conversation"))
        self.transcript.setPlaceholderText(self.tr("Speak, or type a question below."))
        self.transcript.end_button.setText(self.tr("Newest ↓"))
        self.transcript.end_button.setAccessibleName(self.tr("Go to the newest line"))
        self.transcript.place_end_button()
        self.input.setPlaceholderText(self.tr("Type a question and press Enter"))
        self.input.setAccessibleName(self.tr("Question"))
        for button, text, tip in (
            (self.stop_button, self.tr("&Stop"), self.tr("Stop the answer (Esc)")),
            (self.send_button, self.tr("S&end"), self.tr("Ask what is typed (Enter)")),
            (self.find_button, self.tr("&Find"), self.tr("Search the conversation (Ctrl+F)")),
            (self.copy_button, self.tr("Co&py"), self.tr("Copy what is selected, or everything")),
            (self.export_button, self.tr("E&xport"), self.tr("Save the conversation as text or Markdown")),
        ):
            _label(button, text, tip)
        self.find_bar.retranslate()
        self._show_state()
        self.transcript.rebuild()

    def _show_state(self) -> None:
        model = self.model
        is_running = model.session_state == "running"
        state = model.state if is_running else model.session_state
        text = {
            "loading": self.tr("Loading the models…"),
            "ended": self.tr("Ended"),
            "listening": self.tr("Listening"),
            "hearing": self.tr("Hearing you"),
            "thinking": self.tr("Thinking"),
            "speaking": self.tr("Speaking"),
        }.get(state, state)
        role = _STATE_ROLES.get(state, "good" if is_running else "faint")
        if is_running and model.is_muted:
            text = (
                self.tr("{0}, microphone muted").format(text) if state != "listening" else self.tr("Microphone muted")
            )
            role = "warning" if state == "listening" else role
        self.state_label.setText(f"● {text}")
        self.state_label.setAccessibleName(self.tr("State: {0}").format(text))
        _colour(self.state_label, self.context.theme.colour(role))
        if model.is_muted:
            _label(self.mute_button, self.tr("&Talk"), self.tr("Listen to the microphone again; F8 does it while held"))
        else:
            _label(self.mute_button, self.tr("&Mute"), self.tr("Stop listening to the microphone"))
        for button in (self.mute_button, self.stop_button, self.send_button):
            button.setEnabled(is_running)

    def _remark(self, text: str, *, is_error: bool = False) -> None:
        self._remark_until_s = time.monotonic() + _REMARK_S
        self.remark_label.setText(text)
        _colour(self.remark_label, self.context.theme.colour("bad" if is_error else "faint"))
        self.remark_label.show()

    # -- commands -------------------------------------------------------------------------------------------------

    def toggle_mute(self) -> None:
        """Stop listening to the microphone, or begin again. What is shown follows when it has happened."""
        self._talk.give_up()
        self.context.send(SetMuted(not self.model.is_muted))

    def stop(self) -> None:
        """Be quiet now."""
        if self.model.session_state == "running":
            self.context.send(StopSpeaking())

    def say(self) -> None:
        """Ask what is typed; it stays in its place while nobody is there to answer."""
        text = self.input.text().strip()
        if text and self.model.session_state == "running":
            self.context.send(SayText(text))
            self.input.clear()
            self.transcript.go_to_end()

    def _escape(self) -> None:
        focused = self.window().focusWidget()
        if focused is not None and self.find_bar.isAncestorOf(focused):
            self._end_search()
        else:
            self.stop()

    # -- push to talk -----------------------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        """Keys that nobody else wants come to the window: watch it. (It is another one when the panel is detached.)"""
        super().showEvent(event)
        if self.window().focusWidget() is None:
            self.input.setFocus()
        if self._watched is not self.window():
            self._unwatch()
            self._watched = self.window()
            self._watched.installEventFilter(self)

    def hideEvent(self, event: QHideEvent) -> None:
        """A hidden panel has no key."""
        super().hideEvent(event)
        self._unwatch()
        self._release_talk_key()

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._watched.removeEventFilter(self)
            self._watched = None

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """The key goes down or comes up, or the window loses the keyboard and will not hear of it."""
        kind = event.type()
        if kind is QEvent.Type.WindowDeactivate:
            self._release_talk_key()
        elif kind in (QEvent.Type.KeyPress, QEvent.Type.KeyRelease) and isinstance(event, QKeyEvent):
            if event.key() == TALK_KEY:
                if not event.isAutoRepeat():
                    self._press_talk_key() if kind is QEvent.Type.KeyPress else self._release_talk_key()
                return True
        return super().eventFilter(watched, event)

    def _press_talk_key(self) -> None:
        if self.model.session_state == "running" and self._talk.press(is_muted=self.model.is_muted):
            self.context.send(SetMuted(False))

    def _release_talk_key(self) -> None:
        if self._talk.is_held:
            self._talk.release(time.monotonic())
            self._talk_timer.start()

    def _follow_talk_key(self) -> None:
        if self._talk.must_mute(time.monotonic(), is_hearing=self.model.state == "hearing"):
            self.context.send(SetMuted(True))
        if not self._talk.is_open or self._talk.is_held:
            self._talk_timer.stop()

    # -- searching --------------------------------------------------------------------------------------------------

    def _search(self, needle: str) -> None:
        """What is wanted has changed: begin with the newest match."""
        self._matches = self.model.find(needle)
        self._current = len(self._matches) - 1
        self._show_match()

    def _search_again(self, first_changed: int) -> None:
        """The conversation has gone on; the place in it stays."""
        kept = self._matches[: bisect_left(self._matches, first_changed, key=lambda match: match.line)]
        self._matches = kept + self.model.find(self.find_bar.input.text(), first_changed)
        self._current = min(max(self._current, 0), len(self._matches) - 1)
        self.find_bar.show_place(self._current, len(self._matches))
        self.transcript.mark(self._matches, self._current)

    def _move(self, step: int) -> None:
        if self._matches:
            self._current = (self._current + step) % len(self._matches)
            self._show_match()

    def _show_match(self) -> None:
        if self._matches:
            self.transcript.reveal(self._matches[self._current])
        self.find_bar.show_place(self._current, len(self._matches))
        self.transcript.mark(self._matches, self._current)

    def _end_search(self) -> None:
        self.find_bar.hide()
        self.find_bar.input.clear()
        self.input.setFocus()

    # -- copy and export ------------------------------------------------------------------------------------------

    def copy(self) -> None:
        """What is selected, else everything, to the clipboard."""
        if self.transcript.textCursor().hasSelection():
            self.transcript.copy()
        else:
            QGuiApplication.clipboard().setText(as_text(self.model.lines, self._words.for_export()))

    def choose_export(self) -> None:
        """Ask where to; the conversation goes on meanwhile."""
        folder = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
        dialog = QFileDialog(self, self.tr("Export the conversation"), folder)
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setNameFilters([self.tr("Markdown (*.md)"), self.tr("Text (*.txt)")])
        dialog.setDefaultSuffix("md")
        dialog.selectFile(f"conversation-{date.today():%Y-%m-%d}.md")
        dialog.filterSelected.connect(lambda chosen: dialog.setDefaultSuffix("txt" if "txt" in chosen else "md"))
        dialog.fileSelected.connect(lambda name: self.export(Path(name)))
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.open()

    def export(self, path: Path) -> None:
        """Write it behind the window's back, as Markdown where the name ends so; `poll` tells what became of it."""
        lines = [replace(line) for line in self.model.lines]
        form = as_markdown if path.suffix.lower() == ".md" else as_text
        arguments = (path, lines, self._words.for_export(), form, self._written)
        threading.Thread(target=_write, args=arguments, name="export", daemon=True).start()


def _write(
    path: Path,
    lines: list[Line],
    words: ExportWords,
    form: Callable[[list[Line], ExportWords], str],
    written: queue.SimpleQueue[tuple[Path, str]],
) -> None:
    try:
        write_private(path, form(lines, words))
        written.put((path, ""))
    except OSError as error:
        written.put((path, error.strerror or str(error)))


def _label(button: QPushButton, text: str, tip: str) -> None:
    button.setText(text)
    button.setToolTip(tip)
    button.setAccessibleName(text.replace("&", ""))


def _colour(label: QLabel, colour: QColor) -> None:
    palette = label.palette()
    palette.setColor(QPalette.ColorRole.WindowText, colour)
    label.setPalette(palette)
