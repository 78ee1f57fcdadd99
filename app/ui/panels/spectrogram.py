"""The last seconds of the microphone: frequencies over time, and beneath them who spoke."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QImage, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui.theme import Theme
from app.viewmodel.signal import HISTORY_S, History
from app.viewmodel.spectrum import place_of_hz

_LABELLED_HZ = (8000, 100, 1000, 300, 3000)
"""The first ones are written where there is no room for all."""
_GRID_HZ = (300, 1000, 3000)
_PROBABILITY_ROWS = 24
_GAP_PX = 3
_EMPTY, _SPEECH, _REPLY, _BOTH = range(4)


class Spectrogram(QWidget):
    """Paints a `History`; call `update` when it has a new column."""

    def __init__(self, theme: Theme, history: History) -> None:
        super().__init__()
        self._theme = theme
        self._history = history
        self._ramp: list[int] = []
        self._ramp_of = ""
        self.placeholder = ""
        """Said while nothing was heard."""
        self.speech_label, self.reply_label = "", ""
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)

    def sizeHint(self) -> QSize:
        """Wide rather than high."""
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance("x") * 60, metrics.height() * 12)

    def minimumSizeHint(self) -> QSize:
        """Its labels fit."""
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance("x") * 30, metrics.height() * 7)

    def paintEvent(self, event: QPaintEvent) -> None:
        """The picture, the two lanes, the axes."""
        painter = QPainter(self)
        metrics = self.fontMetrics()
        line, left = metrics.height(), self._left(metrics)
        width = self.width() - left
        lanes = line
        picture = QRect(left, 0, width, self.height() - 2 * lanes - 2 * _GAP_PX - line)
        speech = QRect(left, picture.bottom() + 1 + _GAP_PX, width, lanes)
        reply = QRect(left, speech.bottom() + 1 + _GAP_PX, width, lanes)
        if self._history.written:
            self._paint_picture(painter, picture)
            self._paint_lanes(painter, speech, reply)
        else:
            for rect in (picture, speech, reply):
                painter.fillRect(rect, self._theme.colour("surface"))
            painter.setPen(self._theme.colour("faint"))
            painter.drawText(picture, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, self.placeholder)
        self._paint_axes(painter, picture, (speech, reply))

    # -- pictures -----------------------------------------------------------------------------------------------

    def _paint_picture(self, painter: QPainter, rect: QRect) -> None:
        rows = np.ascontiguousarray(self._history.in_order(self._history.spectra)[::-1])
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, True)
        _draw(painter, rect, rows, self._colours())
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, False)

    def _paint_lanes(self, painter: QPainter, speech: QRect, reply: QRect) -> None:
        history = self._history
        is_speech, is_reply = history.in_order(history.is_speech), history.in_order(history.is_reply)
        kind = np.where(is_speech & is_reply, _BOTH, _SPEECH)
        heights = history.in_order(history.probability) * _PROBABILITY_ROWS
        rows = np.arange(_PROBABILITY_ROWS, 0, -1)[:, None] <= np.maximum(heights, 0.0)[None, :]
        colours = [self._theme.colour(role).rgb() for role in ("surface", "user", "accent", "warning")]
        _draw(painter, speech, np.where(rows, kind, _EMPTY).astype(np.uint8), colours)
        _draw(painter, reply, np.where(is_reply, np.where(is_speech, _BOTH, _REPLY), _EMPTY)[None, :], colours)

    def _colours(self) -> list[int]:
        """256 steps from the ground of plots over the accent to the colour of text."""
        theme = self._theme
        if self._ramp_of != theme.name:
            self._ramp_of = theme.name
            stops = [_rgb(theme.colour(role)) for role in ("surface", "accent", "text")]
            places = np.linspace(0.0, 1.0, 256)
            steps = [np.interp(places, (0.0, 0.6, 1.0), [stop[channel] for stop in stops]) for channel in range(3)]
            self._ramp = [QColor(*(round(float(value)) for value in step)).rgb() for step in zip(*steps, strict=True)]
        return self._ramp

    # -- axes ---------------------------------------------------------------------------------------------------

    def _left(self, metrics: QFontMetrics) -> int:
        texts = [*(_hz_text(hz) for hz in _LABELLED_HZ), self.speech_label, self.reply_label]
        return max(metrics.horizontalAdvance(text) for text in texts) + metrics.horizontalAdvance("x")

    def _paint_axes(self, painter: QPainter, picture: QRect, lanes: tuple[QRect, QRect]) -> None:
        metrics, theme = self.fontMetrics(), self._theme
        grid = theme.colour("faint")
        grid.setAlpha(70)
        width = picture.left() - metrics.horizontalAdvance("x") // 2 - 1
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.setPen(theme.colour("faint"))
        for hz, top in label_tops(picture.height(), metrics.height()).items():
            painter.drawText(QRect(0, picture.top() + top, width, metrics.height()), right, _hz_text(hz))
        for hz in _GRID_HZ:
            y = picture.bottom() - round(place_of_hz(hz) * picture.height())
            painter.fillRect(QRect(picture.left(), y, picture.width(), 1), grid)
        for rect, text in zip(lanes, (self.speech_label, self.reply_label), strict=True):
            painter.drawText(QRect(0, rect.top(), width, rect.height()), right, text)
        below = QRect(picture.left(), lanes[1].bottom() + 1, picture.width(), metrics.height())
        is_narrow = picture.width() < 8 * metrics.horizontalAdvance(_time_text(HISTORY_S))
        for back_s in range(0, HISTORY_S + 1, 10 if is_narrow else 5):
            x = picture.right() - round(back_s / HISTORY_S * (picture.width() - 1))
            self._paint_time(painter, below, x, back_s)
            if 0 < back_s < HISTORY_S:
                painter.fillRect(QRect(x, picture.top(), 1, picture.height()), grid)

    def _paint_time(self, painter: QPainter, below: QRect, x: int, back_s: int) -> None:
        text = _time_text(back_s)
        width = self.fontMetrics().horizontalAdvance(text)
        left = min(max(below.left(), x - width // 2), below.right() + 1 - width)
        painter.drawText(QRect(left, below.top(), width + 1, below.height()), Qt.AlignmentFlag.AlignLeft, text)


def label_tops(height: int, line: int) -> dict[int, int]:
    """Where the label of each frequency in Hz begins on a picture so high, in px; none that would overlap another."""
    tops: dict[int, int] = {}
    for hz in _LABELLED_HZ:
        y = height - 1 - round(place_of_hz(hz) * height)
        top = min(max(0, y - line // 2), height - line)
        if all(abs(top - other) >= line for other in tops.values()):
            tops[hz] = top
    return tops


def _draw(painter: QPainter, rect: QRect, values: npt.NDArray[np.integer], colours: list[int]) -> None:
    """(rows, columns) of indices into a colour table, stretched over `rect`."""
    pixels = np.ascontiguousarray(values, np.uint8)
    rows, columns = pixels.shape
    image = QImage(pixels.data, columns, rows, columns, QImage.Format.Format_Indexed8)
    image.setColorTable(colours)
    painter.drawImage(rect, image)


def _rgb(colour: QColor) -> tuple[int, int, int]:
    return colour.red(), colour.green(), colour.blue()


def _time_text(back_s: int) -> str:
    return f"−{back_s} s" if back_s else "0"


def _hz_text(hz: int) -> str:
    return f"{hz // 1000} kHz" if hz >= 1000 else f"{hz} Hz"
