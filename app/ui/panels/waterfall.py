"""The last turns as bars from the user's last sound to the loudspeaker, one part for each step, the budget across."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleEvent,
    QColor,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui.panels.figures import milliseconds_text
from app.ui.theme import Theme
from app.viewmodel.latency import Turn

_ROW_EMS = 1.5
_TALLEST_ROW_EMS = 3.0
_BAR_SHARE = 0.62
_ROWS_WANTED = 8
_ROWS_LEAST = 3
_TICKS_MOST = 6


class Waterfall(QWidget):
    """The newest turn on top. The one under the mouse, or chosen by the arrow keys, is the `selected` one."""

    selected_changed = Signal()

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self._turns: Sequence[Turn] = ()
        self._budget_ms = 0.0
        self._budget_name = ""
        self._chosen: int | None = None
        self._hovered: int | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def show_turns(self, turns: Sequence[Turn], budget_ms: float, budget_name: str) -> None:
        """Paint these, newest first; `budget_name` is written at its line."""
        self._turns, self._budget_ms, self._budget_name = list(turns), budget_ms, budget_name
        self.update()

    @property
    def selected(self) -> Turn | None:
        """The turn whose numbers are wanted: the newest where none was chosen."""
        for wanted in (self._hovered, self._chosen):
            for turn in self._turns:
                if turn.turn == wanted:
                    return turn
        return self._turns[0] if self._turns else None

    def describe(self, text: str) -> None:
        """What a screen reader says of the selected turn."""
        if text != self.accessibleDescription():
            self.setAccessibleDescription(text)
            QAccessible.updateAccessibility(QAccessibleEvent(self, QAccessible.Event.DescriptionChanged))

    def sizeHint(self) -> QSize:
        """Room for some turns."""
        return self._size(_ROWS_WANTED)

    def minimumSizeHint(self) -> QSize:
        """Room for a few."""
        return self._size(_ROWS_LEAST)

    def _size(self, rows: int) -> QSize:
        metrics = QFontMetricsF(self.font())
        height = self._top() + (rows + 1) * metrics.height() * _ROW_EMS
        return QSize(round(26 * metrics.horizontalAdvance("x")), round(height))

    # -- choosing ---------------------------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """The turn under the mouse is selected as long as it is there."""
        self._hover(self._turn_at(event.position().y()))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """It stays selected."""
        found = self._turn_at(event.position().y())
        if found is not None:
            self._choose(found)

    def leaveEvent(self, event: QEvent) -> None:
        """Back to the chosen one."""
        self._hover(None)
        super().leaveEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Arrows, Home and End choose; Escape goes back to the newest."""
        shown = [turn.turn for turn in self._turns[: self._rows()]]
        selected = self.selected
        if not shown or selected is None or selected.turn not in shown:
            super().keyPressEvent(event)
            return
        place = shown.index(selected.turn)
        match event.key():
            case Qt.Key.Key_Down:
                self._choose(shown[min(place + 1, len(shown) - 1)])
            case Qt.Key.Key_Up:
                self._choose(shown[max(place - 1, 0)])
            case Qt.Key.Key_Home:
                self._choose(shown[0])
            case Qt.Key.Key_End:
                self._choose(shown[-1])
            case Qt.Key.Key_Escape if self._chosen is not None:
                self._choose(None)
            case _:
                super().keyPressEvent(event)

    def _choose(self, turn: int | None) -> None:
        self._chosen, self._hovered = turn, None
        self.update()
        self.selected_changed.emit()

    def _hover(self, turn: int | None) -> None:
        if turn != self._hovered:
            self._hovered = turn
            self.update()
            self.selected_changed.emit()

    # -- geometry ---------------------------------------------------------------------------------------------

    def _row_height(self) -> float:
        """Few turns get higher rows, more turns lower ones until no more fit."""
        em = QFontMetricsF(self.font()).height()
        fitting = self._room() / max(_ROWS_LEAST, len(self._turns))
        return min(max(fitting, em * _ROW_EMS), em * _TALLEST_ROW_EMS)

    def _room(self) -> float:
        """For rows, between the budget's name and the axis."""
        return self.height() - self._top() - QFontMetricsF(self.font()).height() - 4

    def _top(self) -> float:
        return QFontMetricsF(self.font()).height() + 6

    def _rows(self) -> int:
        return max(1, int(self._room() / self._row_height()))

    def _turn_at(self, y: float) -> int | None:
        row = math.floor((y - self._top()) / self._row_height())
        return self._turns[row].turn if 0 <= row < min(len(self._turns), self._rows()) else None

    # -- painting ---------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        """All of it: some dozens of rectangles."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        colours, metrics = self._theme.colours, QFontMetricsF(self.font())
        turns = self._turns[: self._rows()]
        left = metrics.horizontalAdvance("#8888") + 6
        right = self.width() - metrics.horizontalAdvance("88,888 ms") - 8
        longest_ms = max([self._budget_ms * 1.15, *(turn.total_ms for turn in turns)])
        scale = (right - left) / longest_ms
        bottom = self._top() + self._room()
        self._paint_axis(painter, left, right, bottom, longest_ms, scale)
        for row, turn in enumerate(turns):
            self._paint_turn(painter, turn, self._top() + row * self._row_height(), left, scale)
        x = left + self._budget_ms * scale
        painter.setPen(QPen(QColor(colours.bad), 1.5, Qt.PenStyle.DashLine))
        painter.drawLine(QPointF(x, self._top() - 2), QPointF(x, bottom))
        width = metrics.horizontalAdvance(self._budget_name)
        begin = min(max(left, x - width / 2), self.width() - width - 2)
        painter.drawText(QPointF(begin, metrics.ascent() + 1), self._budget_name)

    def _paint_axis(
        self, painter: QPainter, left: float, right: float, bottom: float, longest_ms: float, scale: float
    ) -> None:
        metrics = QFontMetricsF(self.font())
        fitting = int((right - left) / metrics.horizontalAdvance("88,888 ms"))
        step_ms = tick_ms(longest_ms, max(2, min(_TICKS_MOST, fitting)))
        for number in range(int(longest_ms / step_ms) + 1):
            x = left + number * step_ms * scale
            painter.setPen(self._theme.colour("line"))
            painter.drawLine(QPointF(x, self._top()), QPointF(x, bottom))
            painter.setPen(self._theme.colour("faint"))
            text = f"{number * step_ms:,.0f}" if number else "0 ms"
            width = metrics.horizontalAdvance(text)
            painter.drawText(QPointF(max(left, x - width / 2) if number else x, bottom + metrics.ascent() + 2), text)

    def _paint_turn(self, painter: QPainter, turn: Turn, top: float, left: float, scale: float) -> None:
        metrics, height = QFontMetricsF(self.font()), self._row_height()
        row = QRectF(0, top, self.width(), height)
        selected = self.selected
        if selected is not None and selected.turn == turn.turn and (self._chosen, self._hovered) != (None, None):
            painter.fillRect(row, self._theme.colour("line"))
        if self.hasFocus() and selected is not None and selected.turn == turn.turn:
            painter.setPen(self._theme.colour("accent"))
            painter.drawRect(row.adjusted(0.5, 0.5, -0.5, -0.5))
        baseline = top + (height + metrics.ascent() - metrics.descent()) / 2
        painter.setPen(self._theme.colour("faint"))
        painter.drawText(QPointF(4, baseline), f"#{turn.turn}")
        x, bar = left, height * _BAR_SHARE
        for colour, step_ms in zip(self._theme.colours.series, turn.steps_ms, strict=True):
            width = step_ms * scale
            if width > 0:
                painter.fillRect(QRectF(x, top + (height - bar) / 2, max(width - 0.5, 0.5), bar), QColor(colour))
            x += width
        is_over = turn.total_ms > self._budget_ms
        painter.setPen(self._theme.colour("bad" if is_over else "text"))
        text = milliseconds_text(turn.total_ms)
        painter.drawText(QPointF(self.width() - 4 - metrics.horizontalAdvance(text), baseline), text)


def tick_ms(longest_ms: float, most: int) -> float:
    """Distance of at most `most` ticks after the first: 1, 2 or 5 times a power of ten."""
    rough = longest_ms / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
