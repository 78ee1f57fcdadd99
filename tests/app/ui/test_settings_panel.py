"""Settings in the window: type a value, see why it cannot be, take it back, save it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication, QCheckBox, QComboBox, QLineEdit, QPlainTextEdit, QSpinBox

from app.config.keys import all_keys
from app.config.load import load_config
from app.ui.panel import Context
from app.ui.panels.setting_row import SettingRow
from app.ui.panels.settings import SettingsPanel, make_model
from app.ui.schema_texts import TEXTS

_OWN = '# mine\n[llm]\nseed = 3\n[personas.pirate]\nprompt = "Arr"\n'


@pytest.fixture
def file(context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, which the context was loaded from; nothing of the environment of who runs the tests."""
    for name in [name for name in os.environ if name.startswith("VIVAVOCE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("VIVAVOCE__LLM__TEMPERATURE", "0.4")
    path = context.loaded.user_file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_OWN)
    context.loaded = load_config(file=path, env=os.environ)
    return path


@pytest.fixture
def panel(context: Context, file: Path, qtbot: Any) -> SettingsPanel:
    made = SettingsPanel(make_model(context), context)
    qtbot.addWidget(made)
    made.resize(900, 640)
    made.show()
    made.activateWindow()
    qtbot.waitUntil(made.isActiveWindow)
    made.refresh_if_changed()
    return made


def _go(panel: SettingsPanel, title: str) -> None:
    (item,) = panel.sections.findItems(title, Qt.MatchFlag.MatchExactly)
    panel.sections.setCurrentItem(item)


def _shown(panel: SettingsPanel, qtbot: Any, name: str) -> SettingRow:
    qtbot.waitUntil(lambda: name in panel.rows and panel.rows[name].isVisible())
    return panel.rows[name]


def _type(qtbot: Any, row: SettingRow, text: str) -> None:
    """As a person does: into the field, then on with Tab."""
    widget = row.editor.widget
    widget.setFocus()
    line = widget.lineEdit() if isinstance(widget, QComboBox | QSpinBox) else widget
    line.selectAll()
    qtbot.keyClicks(line, text)
    qtbot.keyClick(line, Qt.Key.Key_Tab)


def test_help_texts_for_translation_are_those_of_the_schema() -> None:
    assert list(TEXTS) == list(dict.fromkeys(key.help for key in all_keys()))


def test_a_key_is_edited_saved_and_the_conversation_begun_anew(
    panel: SettingsPanel, file: Path, recorded: Any, qtbot: Any
) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.seed")
    _type(qtbot, row, "42")
    assert (row.setting.value, row.setting.is_changed) == (42, True)
    assert file.read_text() == _OWN
    qtbot.mouseClick(panel.apply_button, Qt.MouseButton.LeftButton)
    assert file.read_text() == _OWN.replace("seed = 3", "seed = 42")
    assert [loaded.config.llm.seed for loaded in recorded.restarted] == [42]
    assert not panel.apply_button.isEnabled()


def test_what_is_not_allowed_says_why_beside_the_field_and_saves_nothing(
    panel: SettingsPanel, file: Path, recorded: Any, qtbot: Any
) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.device")
    _type(qtbot, row, "gpu")
    assert row.problem.isVisible()
    assert row.problem.text().startswith("llm.device cannot be 'gpu'. Allowed: ")
    assert panel.remark.text() == row.problem.text()
    assert not panel.apply_button.isEnabled()
    qtbot.keyClick(panel, Qt.Key.Key_S, Qt.KeyboardModifier.ControlModifier)
    assert (file.read_text(), recorded.restarted) == (_OWN, [])
    qtbot.mouseClick(panel.undo_button, Qt.MouseButton.LeftButton)
    assert not row.problem.isVisible()
    assert row.editor.value() == "auto"
    assert not panel.undo_button.isEnabled()


def test_undo_goes_back_one_change_at_a_time_and_default_is_one(panel: SettingsPanel, qtbot: Any) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.seed")
    _type(qtbot, row, "4")
    _type(qtbot, row, "5")
    qtbot.mouseClick(row.default_button, Qt.MouseButton.LeftButton)
    assert row.editor.value() == 0
    values = []
    while panel.undo_button.isEnabled():
        qtbot.mouseClick(panel.undo_button, Qt.MouseButton.LeftButton)
        values.append(row.editor.value())
    assert values == [5, 4, 3]


def test_what_the_environment_sets_is_read_only_and_says_so(panel: SettingsPanel, qtbot: Any) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.temperature")
    assert not row.editor.isEnabled()
    assert not row.default_button.isEnabled()
    assert "VIVAVOCE__LLM__TEMPERATURE" in row.editor.widget.toolTip()


def test_every_key_has_an_editor_of_its_kind_that_can_be_reached_and_is_named(panel: SettingsPanel, qtbot: Any) -> None:
    panel.filter_box.setText("e")
    qtbot.waitUntil(lambda: len(panel.rows) == len(panel.view_model.matching("e")))
    kinds = {
        "choice": QComboBox,
        "switch": QCheckBox,
        "whole": QSpinBox,
        "text": QLineEdit,
        "long_text": QPlainTextEdit,
    }
    for name, row in panel.rows.items():
        assert isinstance(row.editor.widget, kinds.get(row.setting.editor, object)), name
        assert name in row.editor.widget.accessibleName()
        assert row.editor.widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        if row.setting.editor != "list":
            assert row.editor.value() == row.setting.value, name
        row.commit()
    assert not panel.view_model.has_changes  # what is shown is what is set


def test_filter_shows_rows_of_all_sections(panel: SettingsPanel, qtbot: Any) -> None:
    qtbot.keyClick(panel, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier)
    assert panel.filter_box.hasFocus()
    qtbot.keyClicks(panel.filter_box, "barge_in threshold")
    assert [name for name, row in panel.rows.items() if row.isVisible()] == ["turn.barge_in_threshold"]
    panel.filter_box.setText("no such thing")
    assert not any(row.isVisible() for row in panel.rows.values())
    _go(panel, "Window")
    assert panel.filter_box.text() == ""
    assert _shown(panel, qtbot, "ui.theme")


def test_the_wheel_scrolls_the_page_and_not_the_values(panel: SettingsPanel, qtbot: Any) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.context_tokens")
    panel.sections.setFocus()
    point = QPointF(5, 5)
    event = QWheelEvent(
        point, row.editor.widget.mapToGlobal(point), QPoint(), QPoint(0, 120), Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    QApplication.sendEvent(row.editor.widget, event)
    assert row.editor.value() == 2048
    assert not panel.view_model.has_changes


def test_a_persona_is_added_written_renamed_and_removed(
    panel: SettingsPanel, file: Path, recorded: Any, qtbot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter(["captain", "admiral"])
    monkeypatch.setattr(panel, "ask_name", lambda title, present: next(names))
    panel.add_button.click()
    row = _shown(panel, qtbot, "personas.captain.prompt")
    text = row.editor.widget
    assert isinstance(text, QPlainTextEdit)
    text.setFocus()
    qtbot.keyClicks(text, "Aye.")
    panel.apply_button.click()  # though the field was not left
    assert recorded.restarted[0].config.personas["captain"].prompt == "Aye."
    _go(panel, "Persona: captain")
    panel.rename_button.click()
    panel.apply_button.click()
    assert recorded.restarted[1].config.personas["admiral"].prompt == "Aye."
    assert "captain" not in file.read_text()
    panel.remove_button.click()
    panel.apply_button.click()
    assert file.read_text().strip() == _OWN.strip()
    _go(panel, "Persona: default")
    assert not panel.remove_button.isEnabled()


def test_a_prompt_is_taken_when_the_user_pauses(panel: SettingsPanel, qtbot: Any) -> None:
    _go(panel, "Persona: pirate")
    row = _shown(panel, qtbot, "personas.pirate.prompt")
    row.editor.widget.setFocus()
    qtbot.keyClicks(row.editor.widget, "Ho! ")
    qtbot.waitUntil(lambda: panel.view_model.has_changes)
    assert row.setting.value == "Ho! Arr"
    assert row.editor.widget.hasFocus()
    assert row.editor.widget.textCursor().position() == 4


def test_it_follows_another_conversation_and_the_file(
    panel: SettingsPanel, context: Context, file: Path, qtbot: Any
) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.seed")
    file.write_text(_OWN.replace("seed = 3", "seed = 777"))
    panel.poll()
    panel.refresh_if_changed()
    assert row.editor.value() == 777
    context.loaded = load_config(file=file, env=os.environ, overrides=["llm.seed=5"])
    panel.poll()
    panel.refresh_if_changed()
    assert (row.editor.value(), row.editor.isEnabled()) == (5, False)


def test_both_themes_colour_the_problem(panel: SettingsPanel, both_themes: Callable[[str], None], qtbot: Any) -> None:
    _go(panel, "Language model")
    row = _shown(panel, qtbot, "llm.device")
    _type(qtbot, row, "gpu")
    seen = set()
    for name in ("light", "dark"):
        both_themes(name)
        panel.restyle()
        seen.add(row.problem.palette().windowText().color().name())
    assert len(seen) == 2


def test_hidden_it_does_nothing(panel: SettingsPanel) -> None:
    panel.hide()
    panel.view_model.set_value("llm.seed", 9)
    assert not panel.refresh_if_changed()
