"""Figures as text, as tiles, as a legend and as a table that a screen reader reads: what several panels share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QColor, QPixmap
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QLabel, QSizePolicy, QTableView, QVBoxLayout, QWidget

UNKNOWN = "—"
_VALUE_SCALE = 1.5
_ROW_SCALE = 1.35
_Index = QModelIndex | QPersistentModelIndex
_ROOT = QModelIndex()


def size_text(size_bytes: int) -> str:
    """As `1.62 GB` or `245 MB` (decimal, as everywhere in the program)."""
    if size_bytes >= 10**9:
        return f"{size_bytes / 1e9:.2f} GB"
    if size_bytes >= 10**7 or size_bytes == 0:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e6:.1f} MB"


def milliseconds_text(value_ms: float) -> str:
    """As `1,410 ms`; a dash where there is none (NaN)."""
    return UNKNOWN if value_ms != value_ms else f"{value_ms:,.0f} ms"


def legend_text(filled: Sequence[tuple[QColor, str]], hollow: Sequence[tuple[QColor, str]] = ()) -> str:
    """Rich text for a label that wraps: a square of each colour and what it stands for, never parted."""
    marked = [("■", *entry) for entry in filled] + [("□", *entry) for entry in hollow]
    return " &nbsp; ".join(
        f'<span style="color:{colour.name()}">{mark}</span>&nbsp;{name.replace(" ", "&nbsp;")}'
        for mark, colour, name in marked
    )


class Tile(QWidget):
    """A large figure over a few words that say what it is. `set_color` for one that is good or bad."""

    def __init__(self) -> None:
        super().__init__()
        self._value, self._name = QLabel(UNKNOWN), QLabel()
        font = self._value.font()
        font.setPointSizeF(font.pointSizeF() * _VALUE_SCALE)
        self._value.setFont(font)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._value)
        layout.addWidget(self._name)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Maximum)

    @property
    def value(self) -> str:
        """What it shows."""
        return self._value.text()

    def set_name(self, name: str, tip: str) -> None:
        """What it is, shortly and at length."""
        self._name.setText(name)
        self.setToolTip(tip)
        self._tell()

    def set_value(self, value: str) -> None:
        """The figure with its unit."""
        if value != self._value.text():
            self._value.setText(value)
            self._tell()

    def set_colours(self, value: QColor, name: QColor) -> None:
        """Of both texts."""
        self._value.setStyleSheet(f"color: {value.name()}")
        self._name.setStyleSheet(f"color: {name.name()}")

    def _tell(self) -> None:
        self.setAccessibleName(f"{self._name.text()}: {self._value.text()}")


class FiguresModel(QAbstractTableModel):
    """Texts in rows, the first column to the left and figures to the right; a row may have a colour's mark."""

    def __init__(self) -> None:
        super().__init__()
        self._columns: list[str] = []
        self._rows: list[list[str]] = []
        self._marks: list[QColor | None] = []

    def show(self, columns: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[QColor | None] = ()) -> None:
        """Show these; a row that is current stays so while others come and go at the end."""
        new, had = [list(row) for row in rows], len(self._rows)
        if list(columns) != self._columns:
            self.beginResetModel()
            self._columns, self._rows, self._marks = list(columns), new, list(marks)
            self.endResetModel()
            return
        if len(new) > had:
            self.beginInsertRows(_ROOT, had, len(new) - 1)
        elif len(new) < had:
            self.beginRemoveRows(_ROOT, len(new), had - 1)
        is_other = new != self._rows or list(marks) != self._marks
        self._rows, self._marks = new, list(marks)
        if len(new) > had:
            self.endInsertRows()
        elif len(new) < had:
            self.endRemoveRows()
        if is_other and new:
            self.dataChanged.emit(self.index(0, 0), self.index(len(new) - 1, len(self._columns) - 1))

    def rowCount(self, parent: _Index = _ROOT) -> int:
        """See Qt."""
        return 0 if parent.isValid() else len(self._rows)

    def columnCount(self, parent: _Index = _ROOT) -> int:
        """See Qt."""
        return 0 if parent.isValid() else len(self._columns)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """See Qt."""
        row, column = index.row(), index.column()
        if role == Qt.ItemDataRole.DisplayRole:
            return self._rows[row][column]
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{self._columns[column]}: {self._rows[row][column]}"
        if role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if column else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        if role == Qt.ItemDataRole.DecorationRole and column == 0 and row < len(self._marks):
            return _swatch(self._marks[row])
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        """See Qt."""
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self._columns[section]
        if orientation is Qt.Orientation.Horizontal and role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if section else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        return None


class FiguresTable(QTableView):
    """A table for reading: one row is current, Tab leaves it.

    `is_whole`: as high as its rows and as wide as its place, without scroll bars.
    """

    def __init__(self, *, is_whole: bool = False) -> None:
        super().__init__()
        self.figures = FiguresModel()
        self.setModel(self.figures)
        self._is_whole = is_whole
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setTabKeyNavigation(False)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.verticalHeader().hide()
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        self.verticalHeader().setMinimumSectionSize(1)
        self.horizontalHeader().setHighlightSections(False)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        if is_whole:
            self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
            self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
            self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def show_figures(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], marks: Sequence[QColor | None] = ()
    ) -> None:
        """See `FiguresModel.show`."""
        self.verticalHeader().setDefaultSectionSize(round(self.fontMetrics().lineSpacing() * _ROW_SCALE))
        self.figures.show(columns, rows, marks)
        if self._is_whole:
            self.horizontalHeader().setSectionResizeMode(0, QHeaderView.ResizeMode.Stretch)
            inner = len(rows) * self.verticalHeader().defaultSectionSize() + self.horizontalHeader().sizeHint().height()
            margins = self.contentsMargins()
            self.setFixedHeight(inner + margins.top() + margins.bottom() + 2 * self.frameWidth() + 2)


def _swatch(colour: QColor | None) -> QPixmap | None:
    if colour is None:
        return None
    made = QPixmap(12, 12)
    made.fill(colour)
    return made
