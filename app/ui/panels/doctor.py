"""Doctor: the checks of `vivavoce doctor`, each with its fix and how long it took."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QCheckBox,
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
)

from app.ui.panel import Context, Panel
from app.ui.roles import role_sheet, set_role
from app.viewmodel.doctor import DoctorModel, Finding, Line

_COLOURS = {"ok": "good", "warning": "warning", "problem": "bad"}
_STATE, _NAME, _FOUND, _TIME = range(4)
_ROW_SPACE = 8


def make_model(context: Context) -> DoctorModel:
    """With the checks of the command."""

    def checks(is_quick: bool) -> Iterator[Finding]:
        from app.cli.checks import all_checks  # slow to import; this runs in the thread

        return all_checks(context.loaded, quick=is_quick)

    return DoctorModel(checks)


class DoctorPanel(Panel):
    """A table that grows as the checks answer."""

    fps = 4.0
    view_model: DoctorModel

    def __init__(self, model: DoctorModel, context: Context) -> None:
        super().__init__(model, context)
        self.verdict = QLabel()
        self.measures = QCheckBox()
        self.run_button, self.copy_button = QPushButton(), QPushButton()
        self.run_button.clicked.connect(self._run_or_stop)
        self.copy_button.clicked.connect(self._copy)
        self.table = QTableWidget(0, 4)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setTabKeyNavigation(False)
        self.table.setWordWrap(True)
        self.table.setShowGrid(False)
        self.table.verticalHeader().hide()
        header = self.table.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(_FOUND, QHeaderView.ResizeMode.Stretch)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft)
        header.sectionResized.connect(self._fit_rows)
        bar = QHBoxLayout()
        bar.addWidget(self.verdict, 1)
        for widget in (self.measures, self.run_button, self.copy_button):
            bar.addWidget(widget)
        layout = QVBoxLayout(self)
        layout.addLayout(bar)
        layout.addWidget(self.table, 1)
        self._has_run = False
        self.retranslate()
        self.restyle()

    def showEvent(self, event: QShowEvent) -> None:
        """The first time, check what takes no long."""
        super().showEvent(event)
        if not self._has_run:
            self._run_or_stop()

    def poll(self) -> None:
        """See `Panel`."""
        self.view_model.poll()

    def refresh(self) -> None:
        """See `Panel`. Only lines that are new are added."""
        lines = self.view_model.lines
        if self.table.rowCount() > len(lines):
            self.table.setRowCount(0)
        for line in lines[self.table.rowCount() :]:
            self._add(line)
        self._show_verdict()

    def retranslate(self) -> None:
        """See `Panel`."""
        self.setAccessibleName(self.tr("Doctor"))
        self.table.setAccessibleName(self.tr("What was checked"))
        self.table.setHorizontalHeaderLabels(
            [self.tr("State"), self.tr("Check"), self.tr("Found, and what to do"), self.tr("Time")]
        )
        self.measures.setText(self.tr("&Measure the models too"))
        self.measures.setToolTip(self.tr("Runs each model once: about a minute, and a conversation may stutter"))
        self.measures.setAccessibleName(self.tr("Measure the models too"))
        self.copy_button.setText(self.tr("&Copy report"))
        self.copy_button.setToolTip(self.tr("Copy all lines as text, as the command vivavoce doctor prints them"))
        self.copy_button.setAccessibleName(self.tr("Copy report"))
        self.table.setRowCount(0)
        self.refresh()

    def restyle(self) -> None:
        """See `Panel`."""
        self.setStyleSheet(role_sheet(self.context.theme.colours))
        self.table.setRowCount(0)
        self.refresh()

    def report(self) -> str:
        """All lines as the command prints them."""
        from app.cli.doctor import report_line  # with the checks, see `make_model`

        return "\n".join(report_line(line.finding) for line in self.view_model.lines)

    def _run_or_stop(self) -> None:
        self._has_run = True
        if self.view_model.is_running:
            self.view_model.stop()
        else:
            self.view_model.run(is_quick=not self.measures.isChecked())
        self._show_verdict()

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.report())

    def _add(self, line: Line) -> None:
        finding, row = line.finding, self.table.rowCount()
        states = {"ok": self.tr("ok"), "warning": self.tr("note"), "problem": self.tr("problem")}
        found = f"{finding.found}\n→ {finding.fix}" if finding.fix else finding.found
        took = f"{line.took_ms / 1000:.1f} s" if line.took_ms >= 100 else f"{line.took_ms:.0f} ms"
        self.table.insertRow(row)
        for column, text in ((_STATE, states[finding.status]), (_NAME, finding.name), (_FOUND, found), (_TIME, took)):
            self.table.setItem(row, column, QTableWidgetItem(text))
        self.table.item(row, _STATE).setForeground(self.context.theme.colour(_COLOURS[finding.status]))
        self.table.item(row, _TIME).setForeground(self.context.theme.colour("faint"))
        self._fit_row(row)

    def _fit_rows(self, column: int) -> None:
        """Other room for the text, other heights."""
        if column == _FOUND:
            for row in range(self.table.rowCount()):
                self._fit_row(row)

    def _fit_row(self, row: int) -> None:
        self.table.setRowHeight(row, self.table.sizeHintForRow(row) + _ROW_SPACE)

    def _show_verdict(self) -> None:
        model = self.view_model
        is_running, counts = model.is_running, model.counts
        self.run_button.setText(self.tr("&Stop") if is_running else self.tr("&Run again"))
        self.run_button.setToolTip(
            self.tr("End after the check that is under way") if is_running else self.tr("Check everything again")
        )
        self.run_button.setAccessibleName(self.run_button.toolTip())
        self.measures.setEnabled(not is_running)
        self.copy_button.setEnabled(bool(model.lines))
        if is_running:
            text, role = self.tr("Checking… {0} lines so far").format(len(model.lines)), "faint"
        elif counts["problem"]:
            text, role = self.tr("Not ready: mend what is marked as a problem."), "bad"
        elif not model.is_complete:
            text, role = self.tr("Not everything was checked."), "warning"
        else:
            text, role = self.tr("Ready to talk."), "good"
        self.verdict.setText(text)
        set_role(self.verdict, role)
