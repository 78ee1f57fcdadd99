"""The doctor in the window: lines with their fixes, a verdict, a report to copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from app.cli.checks.check import Check
from app.config.load import load_config
from app.ui.panel import Context
from app.ui.panels.doctor import DoctorPanel, make_model
from app.viewmodel.doctor import DoctorModel

_FINDINGS = (
    Check("cpu", "ok", "2"),
    Check("gpu", "warning", "none", "Buy one"),
    Check("model", "problem", "gone", "Get it"),
)


def _panel(context: Context, qtbot: Any, *findings: Check, asked: list[bool] | None = None) -> DoctorPanel:
    def checks(is_quick: bool) -> Iterator[Check]:
        if asked is not None:
            asked.append(is_quick)
        yield from findings

    made = DoctorPanel(DoctorModel(checks), context)
    qtbot.addWidget(made)
    made.resize(700, 300)
    made.show()
    return made


def _idle(panel: DoctorPanel, qtbot: Any, timeout_ms: int = 20_000) -> None:
    def idle() -> bool:
        panel.poll()
        panel.refresh_if_changed()
        return not panel.view_model.is_running

    qtbot.waitUntil(idle, timeout=timeout_ms)


def _cells(panel: DoctorPanel) -> list[list[str]]:
    return [[panel.table.item(row, column).text() for column in range(3)] for row in range(panel.table.rowCount())]


def test_lines_with_state_and_fix(context: Context, qtbot: Any) -> None:
    panel = _panel(context, qtbot, *_FINDINGS)
    _idle(panel, qtbot)
    assert _cells(panel) == [
        ["ok", "cpu", "2"],
        ["note", "gpu", "none\n→ Buy one"],
        ["problem", "model", "gone\n→ Get it"],
    ]
    assert all(panel.table.item(row, 3).text().endswith("ms") for row in range(3))
    assert panel.table.rowHeight(1) > panel.table.rowHeight(0)  # two lines
    assert panel.verdict.text() == "Not ready: mend what is marked as a problem."
    panel.copy_button.click()
    assert QGuiApplication.clipboard().text() == panel.report()
    assert panel.report().splitlines()[-2:] == ["PROBLEM  model                gone", f"{'':<30}Get it"]


def test_run_again_with_or_without_measuring(context: Context, qtbot: Any) -> None:
    asked: list[bool] = []
    panel = _panel(context, qtbot, _FINDINGS[0], asked=asked)
    _idle(panel, qtbot)
    assert panel.verdict.text() == "Ready to talk."
    panel.measures.setFocus()
    qtbot.keyClick(panel.measures, Qt.Key.Key_Space)
    panel.run_button.setFocus()
    qtbot.keyClick(panel.run_button, Qt.Key.Key_Space)
    assert panel.run_button.text() == "&Stop"
    _idle(panel, qtbot)
    assert asked == [True, False]
    assert len(_cells(panel)) == 1


def test_both_themes(context: Context, qtbot: Any, both_themes: Callable[[str], None]) -> None:
    panel = _panel(context, qtbot, *_FINDINGS)
    _idle(panel, qtbot)
    colours = set()
    for name in ("light", "dark"):
        both_themes(name)
        panel.restyle()
        colours.add(panel.table.item(2, 0).foreground().color().name())
    assert len(colours) == 2
    assert len(_cells(panel)) == 3


def test_hidden_nothing_is_checked(context: Context, qtbot: Any) -> None:
    asked: list[bool] = []
    panel = _panel(context, qtbot, _FINDINGS[0], asked=asked)
    panel.hide()
    _idle(panel, qtbot)
    assert not panel.refresh_if_changed()
    made = DoctorPanel(make_model(context), context)
    qtbot.addWidget(made)
    assert not made.view_model.is_running


def test_the_checks_of_the_command(
    context: Context, tmp_path: Path, qtbot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_STORE", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    context.loaded = load_config(file=None, env=os.environ)
    panel = DoctorPanel(make_model(context), context)
    qtbot.addWidget(panel)
    panel.show()
    _idle(panel, qtbot, 100_000)
    rows = {row[1]: row for row in _cells(panel)}
    assert rows["model llm"][0] == "problem"
    assert "vivavoce models fetch smollm2-135m" in rows["model llm"][2]
    assert rows["real time"][2].startswith("not measured")
    assert panel.view_model.is_complete
