"""Chinese is whole: every text of the window is translated, and the window speaks it at once."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PySide6.QtCore import QSettings, Qt, QTranslator
from PySide6.QtWidgets import QAbstractButton, QDialogButtonBox, QDockWidget

from app.ui.language import Language
from app.ui.panel import Context
from app.ui.registry import panel_specs
from app.ui.window import Window
from app.viewmodel.status import Status

_ROOT = Path(__file__).resolve().parents[3]
_TS, _QM = (_ROOT / "assets" / "i18n" / name for name in ("zh.ts", "zh.qm"))
_PLACEHOLDER = re.compile(r"\{\d*[^}]*\}")
_MNEMONIC = re.compile(r"&(\w)")
_HAN = re.compile("[\u4e00-\u9fff]")
_SAME_IN_BOTH = {"ERLE", "p95", "p99", "Markdown (*.md)", "{0} of {1}", "{0}: {1}"}


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_translations", _ROOT / "tools" / "update_translations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def language() -> Iterator[Language]:
    language = Language()
    yield language
    language.use("en")


def test_every_text_of_the_sources_is_translated(tool: ModuleType) -> None:
    assert tool.problems() == []
    assert len(tool.read(_TS)) > 300


def test_placeholders_and_mnemonics_agree(tool: ModuleType) -> None:
    for (context, source), text in tool.read(_TS).items():
        said = f"{context}: {source!r} and {text!r}"
        assert sorted(_PLACEHOLDER.findall(source)) == sorted(_PLACEHOLDER.findall(text)), said
        keys = [key.upper() for key in _MNEMONIC.findall(source)]
        assert keys == _MNEMONIC.findall(text), said
        assert all(f"(&{key})" in text for key in keys), said
        assert source in _SAME_IN_BOTH or _HAN.search(text), said


def test_what_the_program_loads_is_what_was_translated(tool: ModuleType, qapp: Any) -> None:
    translator = QTranslator()
    assert translator.load(str(_QM))
    for (context, source), text in tool.read(_TS).items():
        assert translator.translate(context, source) == text


def test_the_window_changes_its_language_at_once_and_back(
    context: Context, language: Language, tmp_path: Path, qtbot: Any
) -> None:
    language.use("en")
    settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
    window = Window(panel_specs(), context, Status(), language, settings, lambda: None, lambda: True)
    qtbot.addWidget(window)
    window.show()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    docks = [dock for dock in window.findChildren(QDockWidget) if dock.objectName().startswith("dock.")]
    buttons = [
        button
        for panel in (window.centralWidget(), *(dock.widget() for dock in docks))
        for button in panel.findChildren(QAbstractButton)
        if button.text()
    ]
    english = [dock.windowTitle() for dock in docks], [button.text() for button in buttons]
    assert "Latency" in english[0]
    assert "&Stop" in english[1]
    qtbot.keyClick(window, Qt.Key.Key_L, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: all(_HAN.search(dock.windowTitle()) for dock in docks))
    assert [button.text() for button in buttons if "&" in button.text() and not _HAN.search(button.text())] == []
    assert "停止(&S)" in [button.text() for button in buttons]
    assert settings.value("language") == "zh"
    qtbot.keyClick(window, Qt.Key.Key_L, Qt.KeyboardModifier.ControlModifier)
    qtbot.waitUntil(lambda: [dock.windowTitle() for dock in docks] == english[0])
    assert [button.text() for button in buttons] == english[1]


def test_the_buttons_of_qts_own_dialogs_are_chinese_too(language: Language, qtbot: Any) -> None:
    language.use("zh")
    assert language.name == "zh"
    box = QDialogButtonBox(QDialogButtonBox.StandardButton.Cancel)
    qtbot.addWidget(box)
    assert _HAN.search(box.button(QDialogButtonBox.StandardButton.Cancel).text())
