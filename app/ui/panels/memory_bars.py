"""Two pictures of memory: a bar of its parts, and the arena's pages, one bar for each who holds some."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRectF, QSize
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui.theme import Theme
from app.viewmodel.memory import Holder

_BAR_EMS = 1.4
_ROW_EMS = 1.7
_BAR_SHARE = 0.62
_MOST_ROWS = 8
_LEAST_CELL_PX = 4.0


class PartsBar(QWidget):
    """Parts of a whole, in order, each in its colour."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._parts: list[tuple[QColor, int]] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_parts(self, parts: Sequence[tuple[QColor, int]]) -> None:
        """(colour, size) in any unit; together they are the whole."""
        self._parts = list(parts)
        self.update()

    def sizeHint(self) -> QSize:
        """A line of text high."""
        return QSize(120, round(QFontMetricsF(self.font()).height() * _BAR_EMS))

    def paintEvent(self, event: QPaintEvent) -> None:
        """A handful of rectangles."""
        painter = QPainter(self)
        frame = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        painter.fillRect(frame, self._theme.colour("surface"))
        whole = sum(size for _, size in self._parts)
        x = frame.left()
        for colour, size in self._parts:
            width = frame.width() * size / whole if whole else 0.0
            if width > 0:
                painter.fillRect(QRectF(x, frame.top(), max(width - 0.5, 0.5), frame.height()), colour)
            x += width
        painter.setPen(self._theme.colour("line"))
        painter.drawRect(frame)


class ArenaMap(QWidget):
    """Pages to scale: shared ones, own ones, and those that may still come. `show_holders` has the texts beside."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._rows: list[tuple[str, Holder, str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_holders(self, rows: Sequence[tuple[str, Holder, str]]) -> None:
        """(name, pages, figures in words) of each; the first ones are shown."""
        shown = list(rows)[:_MOST_ROWS]
        if len(shown) != len(self._rows):
            self.updateGeometry()
        self._rows = shown
        self.update()

    def sizeHint(self) -> QSize:
        """A line for each."""
        return QSize(160, round(max(1, len(self._rows)) * self._row_height()))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Some hundred rectangles at most: pages that would be too narrow are drawn as one."""
        painter, metrics = QPainter(self), QFontMetricsF(self.font())
        if not self._rows:
            painter.setPen(self._theme.colour("faint"))
            painter.drawText(QPointF(2, metrics.ascent() + 2), "—")
            return
        left = max(metrics.horizontalAdvance(name) for name, _, _ in self._rows) + 10
        right = self.width() - max(metrics.horizontalAdvance(words) for _, _, words in self._rows) - 10
        page = (right - left) / max(1, *(max(holder.room_pages, holder.pages) for _, holder, _ in self._rows))
        for row, (name, holder, words) in enumerate(self._rows):
            top, height = row * self._row_height(), self._row_height()
            baseline = top + (height + metrics.ascent() - metrics.descent()) / 2
            painter.setPen(self._theme.colour("text"))
            painter.drawText(QPointF(2, baseline), name)
            bar = QRectF(left, top + height * (1 - _BAR_SHARE) / 2, right - left, height * _BAR_SHARE)
            self._paint_pages(painter, holder, bar, page)
            painter.setPen(self._theme.colour("faint"))
            painter.drawText(QPointF(right + 8, baseline), words)

    def _paint_pages(self, painter: QPainter, holder: Holder, bar: QRectF, page: float) -> None:
        shared, own = page_colours(self._theme)
        runs = ((holder.shared_pages, shared), (holder.pages - holder.shared_pages, own))
        x, gap = bar.left(), 1.0 if page >= _LEAST_CELL_PX else 0.0
        for count, colour in runs:
            if gap:
                for number in range(count):
                    painter.fillRect(QRectF(x + number * page, bar.top(), page - gap, bar.height()), colour)
            elif count:
                painter.fillRect(QRectF(x, bar.top(), max(1.0, count * page), bar.height()), colour)
            x += count * page
        painter.setPen(self._theme.colour("line"))
        free = max(0, holder.room_pages - holder.pages)
        if gap:
            for number in range(free):
                painter.drawRect(QRectF(x + number * page + 0.5, bar.top() + 0.5, page - gap - 1, bar.height() - 1))
        elif free:
            painter.drawRect(QRectF(x, bar.top() + 0.5, free * page - 1, bar.height() - 1))

    def _row_height(self) -> float:
        return QFontMetricsF(self.font()).height() * _ROW_EMS


def page_colours(theme: Theme) -> tuple[QColor, QColor]:
    """(of shared pages, of those of one holder)."""
    return QColor(theme.colours.series[2]), QColor(theme.colours.series[0])
