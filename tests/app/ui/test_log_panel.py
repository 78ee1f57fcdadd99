"""The log in the window: follows, filters, copies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from app.log import LOG_FILE
from app.ui.panel import Context
from app.ui.panels.log import LogPanel, make_model


def _line(number: int, process: str = "ear", level: str = "INFO") -> str:
    return f"2026-12-01T00:00:00.{number % 1000:03d}Z s {process}[7] {level} line {number}\n"


@pytest.fixture
def path(context: Context) -> Path:
    found = context.data / "logs" / LOG_FILE
    found.parent.mkdir()
    return found


@pytest.fixture
def panel(context: Context, path: Path, qtbot: Any) -> LogPanel:
    made = LogPanel(make_model(context), context)
    qtbot.addWidget(made)
    made.resize(700, 300)
    made.show()
    qtbot.waitExposed(made)
    return made


def _append(panel: LogPanel, path: Path, text: str, qtbot: Any) -> None:
    with path.open("a") as file:
        file.write(text)
    panel.poll()
    panel.refresh_if_changed()
    qtbot.wait(1)


def _rows(panel: LogPanel) -> list[tuple[str, ...]]:
    model = panel.table.model()
    return [tuple(model.index(row, column).data() for column in range(4)) for row in range(model.rowCount())]


def test_records_as_rows(panel: LogPanel, path: Path, qtbot: Any) -> None:
    _append(panel, path, _line(1) + _line(2, "face", "ERROR") + "    and more\n", qtbot)
    assert _rows(panel) == [
        ("00:00:00.001", "ear 7", "INFO", "line 1"),
        ("00:00:00.002", "face 7", "ERROR", "line 2  ↵  and more"),
    ]
    bad = panel.table.model().index(1, 3).data(Qt.ItemDataRole.ForegroundRole)
    assert bad == panel.context.theme.colour("bad")
    _append(panel, path, _line(3), qtbot)
    assert len(_rows(panel)) == 3


def test_it_follows_its_end_until_the_user_scrolls_away(panel: LogPanel, path: Path, qtbot: Any) -> None:
    bar = panel.table.verticalScrollBar()
    _append(panel, path, "".join(map(_line, range(100))), qtbot)
    qtbot.waitUntil(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())
    _append(panel, path, "".join(map(_line, range(100, 200))), qtbot)
    qtbot.waitUntil(lambda: bar.value() == bar.maximum())
    bar.setValue(10)
    panel.table.selectRow(12)
    _append(panel, path, "".join(map(_line, range(200, 250))), qtbot)
    assert bar.value() == 10
    assert [index.row() for index in panel.table.selectionModel().selectedRows()] == [12]


def test_the_oldest_go_and_the_selection_stays(panel: LogPanel, path: Path, qtbot: Any) -> None:
    for start in range(0, 4000, 250):
        _append(panel, path, "".join(map(_line, range(start, start + 250))), qtbot)
    panel.table.selectRow(100)
    _append(panel, path, "".join(map(_line, range(4000, 4050))), qtbot)
    assert len(_rows(panel)) == 4000
    (index,) = panel.table.selectionModel().selectedRows(3)
    assert index.data() == "line 100"
    assert _rows(panel)[-1][3] == "line 4049"


def test_filter_and_copy(panel: LogPanel, path: Path, qtbot: Any) -> None:
    _append(panel, path, _line(1) + _line(2, "face", "WARNING") + _line(3, "face"), qtbot)
    assert [panel.process_box.itemText(index) for index in range(panel.process_box.count())] == ["all", "ear", "face"]
    panel.process_box.setCurrentText("face")
    panel.refresh_if_changed()
    assert [row[3] for row in _rows(panel)] == ["line 2", "line 3"]
    panel.level_box.setCurrentText("WARNING")
    panel.refresh_if_changed()
    panel.copy_button.click()
    assert QGuiApplication.clipboard().text() == _line(2, "face", "WARNING").rstrip("\n")
    panel.level_box.setCurrentText("DEBUG")
    panel.process_box.setCurrentIndex(0)
    qtbot.keyClicks(panel.text_box, "LINE 1")
    panel.refresh_if_changed()
    assert [row[3] for row in _rows(panel)] == ["line 1"]
    panel.text_box.clear()
    panel.refresh_if_changed()
    panel.table.selectRow(2)
    panel.table.setFocus()
    qtbot.keyClick(panel.table, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == _line(3, "face").rstrip("\n")


def test_a_crash_report_is_named(panel: LogPanel, path: Path, qtbot: Any) -> None:
    crash = path.with_name("crash-s-ear-7.txt")
    crash.write_text("Fatal Python error")
    _append(panel, path, _line(1), qtbot)
    assert f"Crash report: {crash}" in panel.remark.text()


def test_hidden_it_does_nothing_and_dark_has_other_colours(
    panel: LogPanel, path: Path, both_themes: Callable[[str], None], qtbot: Any
) -> None:
    _append(panel, path, _line(1), qtbot)
    light = panel.table.model().index(0, 3).data(Qt.ItemDataRole.ForegroundRole)
    both_themes("dark")
    panel.restyle()
    assert panel.table.model().index(0, 3).data(Qt.ItemDataRole.ForegroundRole) != light
    panel.hide()
    _append(panel, path, _line(2), qtbot)
    assert len(_rows(panel)) == 1
