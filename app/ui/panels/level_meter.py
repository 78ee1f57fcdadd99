"""A level in dBFS as a bar with its peak."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui.theme import Theme
from audio.block import SILENCE_DB

_RANGE_DB = 66.0
"""The left end is so far below full scale."""
_LOUD_DB, _CLIPPING_DB = -9.0, -1.0
_GRID_DB = (-60.0, -40.0, -20.0)


class LevelMeter(QWidget):
    """`show_level` as often as one likes: it paints only what has moved by a pixel."""

    def __init__(self, theme: Theme, role: str) -> None:
        """`role`: the bar's colour while nothing is too loud."""
        super().__init__()
        self._theme = theme
        self._role = role
        self._level_db, self._peak_db = SILENCE_DB, SILENCE_DB
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        """As high as small letters."""
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance("x") * 24, max(8, round(metrics.height() * 0.75)))

    def minimumSizeHint(self) -> QSize:
        """A third of that is enough to see it move."""
        hint = self.sizeHint()
        return QSize(hint.width() // 3, hint.height())

    def show_level(self, level_db: float, peak_db: float) -> None:
        """Both in dBFS."""
        before = (self._place(self._level_db), self._place(self._peak_db))
        self._level_db, self._peak_db = level_db, peak_db
        if before != (self._place(level_db), self._place(peak_db)):
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Track, bar, grid and peak."""
        painter = QPainter(self)
        theme, height = self._theme, float(self.height())
        painter.fillRect(self.rect(), theme.colour("line"))
        end = self._place(self._level_db)
        for start_db, role in ((-_RANGE_DB, self._role), (_LOUD_DB, "warning"), (_CLIPPING_DB, "bad")):
            start = self._place(start_db)
            if end > start:
                painter.fillRect(QRectF(start, 0, end - start, height), theme.colour(role))
        for level_db in _GRID_DB:
            painter.fillRect(QRectF(self._place(level_db), 0, 1, height), theme.colour("ground"))
        peak = self._place(self._peak_db)
        if peak > 0:
            role = "bad" if self._peak_db >= _CLIPPING_DB else "text"
            painter.fillRect(QRectF(min(peak, self.width() - 2), 0, 2, height), theme.colour(role))

    def _place(self, level_db: float) -> int:
        share = (level_db + _RANGE_DB) / _RANGE_DB
        return round(self.width() * min(1.0, max(0.0, share)))
