"""The painted conversation: one text document that grows at its end, so that any part can be selected and read out.

A `QPlainTextEdit` lays out only what is seen; five thousand turns cost as much as five. Each line of the view model
is a run of blocks: who speaks, the words, a gap. A line that changes is changed where it differs, so a selection
elsewhere holds. What is left to write when the time of one refresh is over is written in the next ones.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import (
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QTextBlock,
    QTextCursor,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QPushButton, QTextEdit

from app.ui.panels.transcript_looks import make_formats
from app.ui.panels.transcript_words import TranscriptWords
from app.ui.theme import Theme
from app.viewmodel.conversation import Line, Match

_REFRESH_LIMIT_S = 0.003
_MEASURE_EMS = 44
"""Longer lines are hard to read; a wide window gets margins instead."""
_BAR_EMS = 0.2
_SHOWN_AS = {ordinal: " " for ordinal in (*range(0x20), *range(0x7F, 0xA0))} | {0x0A: "\u2028", 0x2029: "\u2028"}
"""Breaks stay within one block; what else steers a terminal or a layout is only a space. No length changes."""


_Pieces = list[tuple[str, str]]
"""(text, name of a format)"""


@dataclass(slots=True)
class _Shown:
    """A line as it is in the document."""

    line: Line
    first_block: int
    pieces: _Pieces


class Transcript(QPlainTextEdit):
    """See the module's text. It stays at the end until the user scrolls up, and again when they come back."""

    def __init__(self, theme: Theme, words: TranscriptWords) -> None:
        super().__init__()
        self.is_following = True
        """The newest line is kept in sight."""
        self._theme = theme
        self._words = words
        self._lines: Sequence[Line] = ()
        self._shown: list[_Shown] = []
        self._first_blocks: list[int] = []
        self._matches: Sequence[Match] = ()
        self._current_match = -1
        self._is_selecting = False
        self._return_to: int | None = None
        self._formats = make_formats(theme, self.font())
        self.setReadOnly(True)
        self.setUndoRedoEnabled(False)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        option = QTextOption()
        option.setWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        option.setTextDirection(Qt.LayoutDirection.LayoutDirectionAuto)  # each paragraph by its own script
        self.document().setDefaultTextOption(option)
        self.end_button = QPushButton(self)
        """Goes back to the newest line; seen while that is out of sight."""
        self.end_button.clicked.connect(self.go_to_end)
        self.end_button.hide()
        self._rest = QTimer(self)
        self._rest.setSingleShot(True)
        self._rest.timeout.connect(self._go_on)
        bar = self.verticalScrollBar()
        bar.actionTriggered.connect(self._note_scrolling)
        bar.valueChanged.connect(self._show_matches)

    # -- writing ----------------------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Everything that was given is in the document."""
        return len(self._shown) == len(self._lines)

    def show_lines(self, lines: Sequence[Line], first_changed: int) -> None:
        """`lines` as they are now; those before `first_changed` are as they were."""
        self._lines = lines
        self._write(first_changed)
        self._go_on()

    def rebuild(self) -> None:
        """Write everything anew: other colours, another font or another language."""
        self._formats = make_formats(self._theme, self.font())
        if not self.is_following and self._return_to is None:
            self._return_to = self._first_visible()
        self._drop_from(0)
        self._go_on()

    def _write(self, first: int) -> None:
        """Bring what is in the document up to date, from line `first` on."""
        for index in range(first, len(self._shown)):
            shown = self._shown[index]
            if index >= len(self._lines) or shown.line is not self._lines[index]:
                self._drop_from(index)
                return
            self._update(shown)

    def _go_on(self) -> None:
        """Append what is missing, but not for longer than a frame can bear."""
        until_s = time.perf_counter() + _REFRESH_LIMIT_S
        if not self.is_complete:
            cursor = QTextCursor(self.document())
            cursor.beginEditBlock()
            while not self.is_complete and time.perf_counter() < until_s:
                self._append(cursor, self._lines[len(self._shown)])
            cursor.endEditBlock()
        if self._return_to is not None and self._return_to < len(self._shown):
            self.verticalScrollBar().setValue(self._text_block(self._shown[self._return_to]).firstLineNumber())
            self._return_to = None
        self._stay()
        self._show_matches()
        if not self.is_complete:
            self._rest.start(0)

    def _append(self, cursor: QTextCursor, line: Line) -> None:
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if self._shown:
            cursor.insertBlock()
        shown = _Shown(line, cursor.blockNumber(), self._look(line))
        if line.kind != "notice":
            cursor.insertText(self._words.speaker(line), self._formats[f"{line.kind} name"])
            cursor.insertBlock()
        for text, name in shown.pieces:
            cursor.insertText(text, self._formats[name])
        cursor.insertBlock()
        cursor.setBlockCharFormat(self._formats["gap"])
        self._shown.append(shown)
        self._first_blocks.append(shown.first_block)

    def _update(self, shown: _Shown) -> None:
        """Put in what differs, and set the looks."""
        pieces = self._look(shown.line)
        if pieces == shown.pieces:
            return
        before, after = _joined(shown.pieces), _joined(pieces)
        block = self._text_block(shown)
        cursor = QTextCursor(block)
        cursor.beginEditBlock()
        if before != after:
            same = _common_length(before, after)
            cursor.setPosition(block.position() + _units(after[:same]))
            cursor.movePosition(QTextCursor.MoveOperation.EndOfBlock, QTextCursor.MoveMode.KeepAnchor)
            cursor.insertText(after[same:])
        position = block.position()
        for text, name in pieces:
            cursor.setPosition(position)
            position += _units(text)
            cursor.setPosition(position, QTextCursor.MoveMode.KeepAnchor)
            cursor.setCharFormat(self._formats[name])
        cursor.endEditBlock()
        shown.pieces = pieces

    def _drop_from(self, index: int) -> None:
        """Take line `index` and all behind it out of the document."""
        if index >= len(self._shown):
            return
        first_block = self._first_blocks[index]
        del self._shown[index:]
        del self._first_blocks[index:]
        if index == 0:
            self.document().clear()
        else:
            cursor = QTextCursor(self._block(first_block))
            cursor.movePosition(QTextCursor.MoveOperation.PreviousCharacter)
            cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()

    def _look(self, line: Line) -> _Pieces:
        if line.kind == "notice":
            return [(self._words.describe(line).translate(_SHOWN_AS), f"notice {self._words.severity(line)}")]
        text, pieces, start = line.text.translate(_SHOWN_AS), [], 0
        for chars, role in line.runs():
            pieces.append((text[start : start + chars], role))
            start += chars
        return pieces

    def _text_block(self, shown: _Shown) -> QTextBlock:
        return self._block(shown.first_block if shown.line.kind == "notice" else shown.first_block + 1)

    # -- looks ------------------------------------------------------------------------------------------------

    def changeEvent(self, event: QEvent) -> None:
        """Sizes come from the font."""
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange:
            self._set_margins()
            self.rebuild()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keep lines readable, and the end in sight."""
        super().resizeEvent(event)
        self._set_margins()
        if self.viewport().size() != event.size():  # while a window is first shown, Qt does not tell
            super().resizeEvent(QResizeEvent(self.viewport().size(), QSize()))
        self.place_end_button()
        self._stay()

    def _set_margins(self) -> None:
        em = QFontMetricsF(self.font()).height()
        if self.document().documentMargin() != em:
            self.document().setDocumentMargin(em)
        spare = self.contentsRect().width() - self.verticalScrollBar().sizeHint().width() - _MEASURE_EMS * em
        side = max(0, round(spare / 2))
        if self.viewportMargins().left() != side:
            self.setViewportMargins(side, 0, side, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        """The text, and beside each line a bar in the colour of who speaks."""
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        width = _BAR_EMS * QFontMetricsF(self.font()).height()
        for shown in self._visible():
            if shown.line.kind == "notice":
                continue
            top = self._block_rect(self._block(shown.first_block)).top()
            bottom = self._block_rect(self._text_block(shown)).bottom()
            self._align(self._text_block(shown))
            painter.setBrush(self._theme.colour("user" if shown.line.kind == "user" else "accent"))
            painter.drawRoundedRect(QRectF(width, top, width, bottom - top), width / 2, width / 2)
        painter.end()
        super().paintEvent(event)

    def _align(self, block: QTextBlock) -> None:
        """Where words run from right to left, lines begin at the right; a plain text layout does not see to that."""
        if block.textDirection() is not Qt.LayoutDirection.RightToLeft:
            return
        right = self.viewport().width() - self.document().documentMargin()
        layout = block.layout()
        for number in range(layout.lineCount()):
            line = layout.lineAt(number)
            line.setPosition(QPointF(right - line.naturalTextWidth(), line.y()))

    def _block(self, number: int) -> QTextBlock:
        return self.document().findBlockByNumber(number)

    def _block_rect(self, block: QTextBlock) -> QRectF:
        return self.blockBoundingGeometry(block).translated(self.contentOffset())

    def _first_visible(self) -> int:
        return max(0, bisect_right(self._first_blocks, self.firstVisibleBlock().blockNumber()) - 1)

    def _visible(self) -> list[_Shown]:
        """Lines of which something is seen."""
        bottom, seen = self.viewport().height(), []
        for shown in islice(self._shown, self._first_visible(), None):
            if self._block_rect(self._block(shown.first_block)).top() > bottom:
                break
            seen.append(shown)
        return seen

    # -- the end of it ------------------------------------------------------------------------------------------

    def go_to_end(self) -> None:
        """Show the newest line, and stay there."""
        self._set_following(True)
        self._stay()

    def _stay(self) -> None:
        if self.is_following and not self._is_selecting:
            bar = self.verticalScrollBar()
            bar.setValue(bar.maximum())

    def _note_scrolling(self) -> None:
        """The user moved the text: follow the end if, and only if, that is where they went."""
        bar = self.verticalScrollBar()
        self._set_following(bar.sliderPosition() >= bar.maximum())

    def _set_following(self, is_following: bool) -> None:
        if is_following != self.is_following:
            self.is_following = is_following
            self.end_button.setVisible(not is_following)
            self.place_end_button()

    def place_end_button(self) -> None:
        """At the bottom, in the middle; its size comes from its text."""
        button, area = self.end_button, self.viewport().geometry()
        button.adjustSize()
        button.move(area.center().x() - button.width() // 2, area.bottom() - button.height() - 8)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """See `_note_scrolling`."""
        super().wheelEvent(event)
        self._note_scrolling()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """See `_note_scrolling`."""
        super().keyPressEvent(event)
        self._note_scrolling()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """While words are being selected, nothing moves by itself."""
        self._is_selecting = True
        super().mousePressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """See `mousePressEvent`; dragging may have scrolled."""
        super().mouseReleaseEvent(event)
        self._is_selecting = False
        self._note_scrolling()

    # -- searching ------------------------------------------------------------------------------------------------

    def mark(self, matches: Sequence[Match], current: int) -> None:
        """Show where a search found something; `current` is an index of `matches`, or -1."""
        self._matches, self._current_match = matches, current
        self._show_matches()

    def reveal(self, match: Match) -> None:
        """Scroll to it, and put the text cursor there."""
        if match.line >= len(self._shown):
            return
        cursor = self._selection(match)
        cursor.setPosition(cursor.selectionStart())
        self.setTextCursor(cursor)
        self.ensureCursorVisible()
        self._note_scrolling()

    def _show_matches(self) -> None:
        """Only those that are seen get a mark: Qt looks at every mark for every block that it paints."""
        marks: list[QTextEdit.ExtraSelection] = []
        seen = self._visible() if self._matches else []
        if seen:
            first = self._first_visible()
            start = bisect_left(self._matches, first, key=lambda match: match.line)
            for index, match in enumerate(islice(self._matches, start, None), start):
                if match.line >= first + len(seen):
                    break
                mark = QTextEdit.ExtraSelection()
                mark.cursor = self._selection(match)
                mark.format = self._formats["current match" if index == self._current_match else "match"]
                marks.append(mark)
        if marks or self.extraSelections():
            self.setExtraSelections(marks)

    def _selection(self, match: Match) -> QTextCursor:
        shown = self._shown[match.line]
        text, start = _joined(shown.pieces), self._text_block(shown).position()
        cursor = QTextCursor(self.document())
        cursor.setPosition(start + _units(text[: match.start_chars]))
        cursor.setPosition(start + _units(text[: match.end_chars]), QTextCursor.MoveMode.KeepAnchor)
        return cursor


def _joined(pieces: _Pieces) -> str:
    return "".join(text for text, _ in pieces)


def _units(text: str) -> int:
    """Length in UTF-16 units, which is how Qt counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
