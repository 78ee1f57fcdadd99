"""Log: what the processes of the conversation noted, as it is written."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QPersistentModelIndex, Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QComboBox,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QLineEdit,
    QPushButton,
    QTableView,
    QVBoxLayout,
)

from app.ui.panel import Context, Panel
from app.ui.panels.figures import size_text
from app.ui.roles import role_sheet, set_role
from app.ui.theme import Theme
from app.viewmodel.log import LEVELS, LogModel, LogRecord

_COLOURS = {"DEBUG": "faint", "WARNING": "warning", "ERROR": "bad", "CRITICAL": "bad"}
_MESSAGE = 3
_Index = QModelIndex | QPersistentModelIndex


def make_model(context: Context) -> LogModel:
    """Of the log beside the journal."""
    return LogModel(context.data / "logs")


class _Records(QAbstractTableModel):
    """The records as rows. Only what is seen is asked for, so that thousands cost nothing."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self._theme = theme
        self.records: list[LogRecord] = []
        self.headers = [""] * (_MESSAGE + 1)

    def show(self, records: list[LogRecord]) -> None:
        """Other rows. Where the oldest went and new ones came, the others and the selection stay."""
        gone = self._gone(records)
        if gone is None:
            self.beginResetModel()
            self.records = records
            self.endResetModel()
            return
        if gone:
            self.beginRemoveRows(QModelIndex(), 0, gone - 1)
            self.records = self.records[gone:]
            self.endRemoveRows()
        if len(records) > len(self.records):
            self.beginInsertRows(QModelIndex(), len(self.records), len(records) - 1)
            self.records = records
            self.endInsertRows()

    def _gone(self, records: list[LogRecord]) -> int | None:
        """How many rows are missing from the start of `records`; None where more than that is different."""
        old = self.records
        if not old or not records:
            return None
        gone = next((row for row, record in enumerate(old) if record is records[0]), None)
        if gone is None or len(old) - gone > len(records) or records[len(old) - gone - 1] is not old[-1]:
            return None
        return gone

    def rowCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.records)

    def columnCount(self, parent: _Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else _MESSAGE + 1

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation == Qt.Orientation.Horizontal and role == Qt.ItemDataRole.DisplayRole:
            return self.headers[section]
        return None

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        record, column = self.records[index.row()], index.column()
        if role == Qt.ItemDataRole.DisplayRole:
            message = record.message.replace("\n", "  ↵  ")
            return (record.time[11:23], f"{record.process} {record.pid}", record.level, message)[column]
        if role == Qt.ItemDataRole.ToolTipRole and column == _MESSAGE:
            return record.message
        if role == Qt.ItemDataRole.ForegroundRole:
            if column < _MESSAGE - 1:
                return self._theme.colour("faint")
            return self._theme.colour(_COLOURS.get(record.level, "text"))
        return None


class LogPanel(Panel):
    """A table that follows its end until the user scrolls away from it."""

    fps = 4.0
    view_model: LogModel

    def __init__(self, model: LogModel, context: Context) -> None:
        super().__init__(model, context)
        self._records = _Records(context.theme)
        self.process_box, self.level_box, self.text_box = QComboBox(), QComboBox(), QLineEdit()
        self._process_label, self._level_label = QLabel(), QLabel()
        self._process_label.setBuddy(self.process_box)
        self._level_label.setBuddy(self.level_box)
        self.copy_button, self.remark = QPushButton(), QLabel()
        self.remark.setWordWrap(True)
        self.remark.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.process_box.addItem("")
        self.level_box.addItems(LEVELS)
        self.level_box.setCurrentText(model.least_level)
        self.text_box.setClearButtonEnabled(True)
        self.table = QTableView()
        self._set_up_table()
        self._lay_out()
        self._follows = True
        bar = self.table.verticalScrollBar()
        bar.valueChanged.connect(self._note_place)
        bar.rangeChanged.connect(self._follow)
        self.process_box.currentIndexChanged.connect(self._filter)
        self.level_box.currentIndexChanged.connect(self._filter)
        self.text_box.textChanged.connect(self._filter)
        self.copy_button.clicked.connect(self._copy)
        for keys, call in (
            (QKeySequence.StandardKey.Copy, self._copy),
            (QKeySequence.StandardKey.Find, self.text_box.setFocus),
        ):
            shortcut = QShortcut(QKeySequence(keys), self.table if call == self._copy else self)
            shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            shortcut.activated.connect(call)
        self.retranslate()
        self.restyle()

    def _set_up_table(self) -> None:
        table = self.table
        table.setModel(self._records)
        table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        table.setTabKeyNavigation(False)
        table.setWordWrap(False)
        table.setShowGrid(False)
        table.verticalHeader().hide()
        table.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Fixed)
        table.verticalHeader().setDefaultSectionSize(self.fontMetrics().height() + 6)
        table.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        header = table.horizontalHeader()
        header.setStretchLastSection(True)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft)
        for column, sample in enumerate(("00:00:00.000 (UTC)", "engine 1234567", "CRITICAL ")):
            table.setColumnWidth(column, self.fontMetrics().horizontalAdvance(sample) + 16)

    def _lay_out(self) -> None:
        bar = QHBoxLayout()
        for widget in (self._process_label, self.process_box, self._level_label, self.level_box):
            bar.addWidget(widget)
        bar.addWidget(self.text_box, 1)
        bar.addWidget(self.copy_button)
        layout = QVBoxLayout(self)
        layout.addLayout(bar)
        layout.addWidget(self.table, 1)
        layout.addWidget(self.remark)

    def poll(self) -> None:
        """See `Panel`."""
        self.view_model.poll()

    def refresh(self) -> None:
        """See `Panel`."""
        for name in self.view_model.processes:
            if self.process_box.findText(name) < 0:
                self.process_box.addItem(name)
        self._records.show(self.view_model.shown)
        self._show_remark()

    def retranslate(self) -> None:
        """See `Panel`."""
        self.setAccessibleName(self.tr("Log"))
        self.table.setAccessibleName(self.tr("Records of the log, newest last"))
        self._records.headers = [self.tr("Time (UTC)"), self.tr("Process"), self.tr("Level"), self.tr("Message")]
        self._records.headerDataChanged.emit(Qt.Orientation.Horizontal, 0, _MESSAGE)
        self.process_box.setItemText(0, self.tr("all"))
        self._process_label.setText(self.tr("&Process"))
        self.process_box.setAccessibleName(self.tr("Process"))
        self.process_box.setToolTip(self.tr("Show the records of one process only"))
        self._level_label.setText(self.tr("&From level"))
        self.level_box.setAccessibleName(self.tr("From level"))
        self.level_box.setToolTip(self.tr("Show only what is at least this severe"))
        self.text_box.setPlaceholderText(self.tr("Filter by text (Ctrl+F)"))
        self.text_box.setAccessibleName(self.tr("Filter by text"))
        self.text_box.setToolTip(self.tr("Show the records whose message has this text"))
        self.copy_button.setText(self.tr("&Copy"))
        self.copy_button.setAccessibleName(self.tr("Copy"))
        self.copy_button.setToolTip(self.tr("Copy the selected records, or all that are shown"))
        self._show_remark()

    def restyle(self) -> None:
        """See `Panel`."""
        self.setStyleSheet(role_sheet(self.context.theme.colours))

    def _filter(self) -> None:
        process = self.process_box.currentText() if self.process_box.currentIndex() > 0 else ""
        self.view_model.set_filter(
            process=process, least_level=self.level_box.currentText(), text=self.text_box.text().strip()
        )
        self._follows = True

    def _note_place(self, value: int) -> None:
        self._follows = value >= self.table.verticalScrollBar().maximum()

    def _follow(self, _: int, end: int) -> None:
        if self._follows:
            self.table.verticalScrollBar().setValue(end)

    def _copy(self) -> None:
        rows = sorted(index.row() for index in self.table.selectionModel().selectedRows())
        records = [self._records.records[row] for row in rows] if rows else self._records.records
        QGuiApplication.clipboard().setText("\n".join(map(str, records)))

    def _show_remark(self) -> None:
        model, texts = self.view_model, []
        if model.problem:
            texts.append(model.problem)
        texts += [self.tr("Crash report: {0}").format(path) for path in model.crashes]
        is_bad = bool(texts)
        if model.skipped_bytes:
            texts.append(self.tr("Older records ({0}) are in the file only.").format(size_text(model.skipped_bytes)))
        texts.append(self.tr("File: {0}").format(model.path))
        self.remark.setText("\n".join(texts))
        set_role(self.remark, "bad" if is_bad else "faint")
