"""A line to search with: what, how many, the one before, the next one."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QLineEdit, QPushButton, QWidget


class FindBar(QWidget):
    """Says what is wanted; the panel searches and calls `show_place`."""

    changed = Signal(str)
    moved = Signal(int)
    """-1: to the one before; 1: to the next."""
    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.input = QLineEdit()
        self.place = QLabel()
        self.previous_button, self.next_button, self.close_button = QPushButton(), QPushButton(), QPushButton()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.addWidget(self.input, 1)
        for widget in (self.place, self.previous_button, self.next_button, self.close_button):
            row.addWidget(widget)
        self.input.textChanged.connect(self.changed)
        self.input.installEventFilter(self)
        self.previous_button.clicked.connect(lambda: self.moved.emit(-1))
        self.next_button.clicked.connect(lambda: self.moved.emit(1))
        self.close_button.clicked.connect(self.closed)
        self.retranslate()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Enter: the next one; with Shift the one before."""
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                is_back = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
                self.moved.emit(-1 if is_back else 1)
                return True
        return super().eventFilter(watched, event)

    def open(self) -> None:
        """Show it, ready for typing."""
        self.show()
        self.input.setFocus()
        self.input.selectAll()

    def show_place(self, current: int, count: int) -> None:
        """`current` counts from 0."""
        text = self.tr("{0} of {1}").format(current + 1, count) if count else self.tr("none")
        self.place.setText(text if self.input.text() else "")
        for button in (self.previous_button, self.next_button):
            button.setEnabled(count > 0)

    def retranslate(self) -> None:
        """Set every text again."""
        self.input.setPlaceholderText(self.tr("Search the conversation"))
        self.input.setAccessibleName(self.tr("Search the conversation"))
        self.place.setAccessibleName(self.tr("Place among the matches"))
        for button, text, tip in (
            (self.previous_button, self.tr("Previous"), self.tr("The match before (Shift+Enter, Shift+F3)")),
            (self.next_button, self.tr("Next"), self.tr("The next match (Enter, F3)")),
            (self.close_button, self.tr("Close"), self.tr("End the search (Esc)")),
        ):
            button.setText(text)
            button.setToolTip(tip)
            button.setAccessibleName(tip)
