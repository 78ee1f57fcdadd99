"""Sentences with a mark before each that says how bad it is; the mark is told by its shape too, not by colour alone."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QPalette
from PySide6.QtWidgets import QGridLayout, QLabel, QWidget

from app.ui.theme import Theme

_MARKS = {"ok": ("✓", "good"), "warning": ("!", "warning"), "wrong": ("✗", "bad")}


class Findings(QWidget):
    """Hidden while there is nothing to say."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._lines: list[tuple[str, str]] = []
        self._rows: list[tuple[QLabel, QLabel]] = []
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setColumnStretch(1, 1)
        self.setVisible(False)

    def show_lines(self, lines: Sequence[tuple[str, str]]) -> None:
        """(`ok`, `warning`, `wrong` or "", sentence) for each line."""
        if list(lines) == self._lines:
            return
        self._lines = list(lines)
        while len(self._rows) < len(lines):
            self._add_row()
        for (mark, text), row in zip(self._rows, [*lines, *[None] * len(self._rows)], strict=False):
            mark.setVisible(row is not None)
            text.setVisible(row is not None)
            if row is not None:
                mark.setText(_MARKS.get(row[0], ("", ""))[0])
                text.setText(row[1])
        self.restyle()
        self.setVisible(bool(lines))

    def restyle(self) -> None:
        """The theme was changed."""
        for (mark, _), (status, _) in zip(self._rows, self._lines, strict=False):
            palette = mark.palette()
            palette.setColor(QPalette.ColorRole.WindowText, self._theme.colour(_MARKS.get(status, ("", "text"))[1]))
            mark.setPalette(palette)

    def _add_row(self) -> None:
        mark, text = QLabel(), QLabel()
        text.setWordWrap(True)
        text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        mark.setProperty("heading", True)
        mark.setMinimumWidth(mark.fontMetrics().horizontalAdvance("x") * 2)
        row = len(self._rows)
        self._grid.addWidget(mark, row, 0, Qt.AlignmentFlag.AlignTop)
        self._grid.addWidget(text, row, 1)
        self._rows.append((mark, text))
