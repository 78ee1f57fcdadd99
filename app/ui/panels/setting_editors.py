"""An editor for each kind of value of the configuration. `edited` tells a new value, which need not be allowed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtGui import QFocusEvent, QWheelEvent
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QSpinBox,
    QWidget,
)

from app.viewmodel.settings import Setting

_SYMBOLS = {"ms": "ms", "s": "s", "hz": "Hz", "mb": "MB"}
_DECIMALS = 3
_PROMPT_LINES = 4
_TYPING_PAUSE_MS = 400


class Editor(QWidget):
    """One widget for the value. `show_value` does not tell `edited`."""

    edited = Signal(object)

    def __init__(self, widget: QWidget) -> None:
        super().__init__()
        self.widget = widget
        self.setFocusProxy(widget)
        self.row = QHBoxLayout(self)
        self.row.setContentsMargins(0, 0, 0, 0)
        self.row.addWidget(widget)
        if isinstance(widget, QComboBox | QAbstractSpinBox):
            widget.setMinimumHeight(QLineEdit().sizeHint().height())
            widget.installEventFilter(_NoWheel(self))

    def value(self) -> Any:
        """What stands there now."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Show it; signals are blocked meanwhile."""
        raise NotImplementedError

    def show_value(self, value: Any) -> None:
        """Show a value, unless it stands there already: the cursor stays where it is."""
        if self.value() != value:
            self.widget.blockSignals(True)
            self.set_value(value)
            self.widget.blockSignals(False)

    def set_suggestions(self, values: Sequence[str]) -> None:
        """Values to choose from; most editors have none."""

    def commit(self) -> None:
        """Tell what stands there, also where the user has not left the field."""
        self.edited.emit(self.value())

    def retranslate(self) -> None:
        """Set every text again."""


class ChoiceEditor(Editor):
    """One of a closed set."""

    def __init__(self, choices: Sequence[Any]) -> None:
        self._box = QComboBox()
        super().__init__(self._box)
        self._choices: tuple[Any, ...] = ()
        self.set_suggestions(choices)
        self._box.currentIndexChanged.connect(self.commit)

    def value(self) -> Any:
        return self._box.currentData()

    def set_value(self, value: Any) -> None:
        if self._box.findData(value) < 0:
            self._box.addItem(str(value), value)
        self._box.setCurrentIndex(self._box.findData(value))

    def set_suggestions(self, values: Sequence[Any]) -> None:
        if tuple(values) == self._choices:
            return
        present = self.value()
        self._choices = tuple(values)
        self._box.blockSignals(True)
        self._box.clear()
        for value in values:
            self._box.addItem("", value)
        self.retranslate()
        if present is not None:
            self.set_value(present)
        self._box.blockSignals(False)

    def retranslate(self) -> None:
        for index in range(self._box.count()):
            self._box.setItemText(index, str(self._box.itemData(index)) or self.tr("(empty)"))


class SuggestionsEditor(Editor):
    """Text, with likely values to pick."""

    def __init__(self, suggestions: Sequence[str]) -> None:
        self._box = QComboBox()
        self._box.setEditable(True)
        self._box.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        super().__init__(self._box)
        self.set_suggestions(suggestions)
        self._box.activated.connect(self.commit)
        self._box.lineEdit().editingFinished.connect(self.commit)

    def value(self) -> str:
        return self._box.currentText().strip()

    def set_value(self, value: Any) -> None:
        self._box.setEditText(value)

    def set_suggestions(self, values: Sequence[str]) -> None:
        if [self._box.itemText(index) for index in range(self._box.count())] != list(values):
            present = self._box.currentText()
            self._box.clear()
            self._box.addItems(list(values))
            self._box.setEditText(present)

    def retranslate(self) -> None:
        self._box.lineEdit().setPlaceholderText(self.tr("(empty)"))


class SwitchEditor(Editor):
    """On or off."""

    def __init__(self) -> None:
        self._box = QCheckBox()
        super().__init__(self._box)
        self._box.toggled.connect(self.commit)
        self._box.toggled.connect(self.retranslate)

    def value(self) -> bool:
        return self._box.isChecked()

    def set_value(self, value: Any) -> None:
        self._box.setChecked(value)
        self.retranslate()

    def retranslate(self) -> None:
        self._box.setText(self.tr("on") if self._box.isChecked() else self.tr("off"))


class WholeEditor(Editor):
    """A whole number within the schema's range."""

    def __init__(self, setting: Setting) -> None:
        self._box = QSpinBox()
        super().__init__(self._box)
        self._box.setRange(int(setting.key.low or 0), int(setting.key.high or 0))
        self._box.setKeyboardTracking(False)
        self._unit = setting.unit
        self._box.setStepType(QSpinBox.StepType.AdaptiveDecimalStepType)
        self._box.valueChanged.connect(self.commit)

    def value(self) -> int:
        return self._box.value()

    def set_value(self, value: Any) -> None:
        self._box.setValue(value)

    def retranslate(self) -> None:
        unit = self.tr("tokens") if self._unit == "tokens" else _SYMBOLS.get(self._unit, "")
        self._box.setSuffix(f" {unit}" if unit else "")


class NumberEditor(Editor):
    """A number within the schema's range, to three decimals; one with more is shown rounded and kept."""

    def __init__(self, setting: Setting) -> None:
        self._box = QDoubleSpinBox()
        super().__init__(self._box)
        low, high = setting.key.low or 0.0, setting.key.high or 0.0
        self._box.setDecimals(_DECIMALS)
        self._box.setRange(low + 10**-_DECIMALS if setting.key.is_low_excluded else low, high)
        self._box.setSingleStep(0.05 if high - low <= 2 else 0.5)
        self._box.setKeyboardTracking(False)
        self._box.setSuffix(f" {_SYMBOLS[setting.unit]}" if setting.unit else "")
        self._exact: Any = None
        self._box.valueChanged.connect(self._take)

    def value(self) -> float:
        return self._exact

    def set_value(self, value: Any) -> None:
        self._exact = value
        self._box.setValue(value)

    def _take(self, shown: float) -> None:
        self._exact = round(shown, _DECIMALS)
        self.commit()


class TextEditor(Editor):
    """One line."""

    def __init__(self) -> None:
        self._line = QLineEdit()
        super().__init__(self._line)
        self._line.editingFinished.connect(self.commit)

    def value(self) -> Any:
        return self._line.text().strip()

    def set_value(self, value: Any) -> None:
        self._line.setText(value)
        self._line.setCursorPosition(0)

    def retranslate(self) -> None:
        self._line.setPlaceholderText(self.tr("(empty)"))


class ListEditor(TextEditor):
    """Words with commas between them."""

    def value(self) -> list[str]:
        return [word for part in self._line.text().split(",") if (word := part.strip())]

    def set_value(self, value: Any) -> None:
        super().set_value(", ".join(value))


class FolderEditor(TextEditor):
    """A path, typed or picked."""

    def __init__(self) -> None:
        super().__init__()
        self._button = QPushButton("…")
        self._button.clicked.connect(self._pick)
        self.row.addWidget(self._button)

    def retranslate(self) -> None:
        super().retranslate()
        self._button.setToolTip(self.tr("Choose a folder"))
        self._button.setAccessibleName(self.tr("Choose a folder"))

    def _pick(self) -> None:
        folder = QFileDialog.getExistingDirectory(self, self.tr("Choose a folder"), self.value())
        if folder:
            self.set_value(folder)
            self.commit()


class LongTextEditor(Editor):
    """Several lines; told when the user pauses or leaves."""

    def __init__(self) -> None:
        self._text = _LeavingText()
        super().__init__(self._text)
        self._text.setTabChangesFocus(True)
        self._text.setFixedHeight(self.fontMetrics().lineSpacing() * _PROMPT_LINES + 16)
        self._pause = QTimer(self)
        self._pause.setSingleShot(True)
        self._pause.setInterval(_TYPING_PAUSE_MS)
        self._pause.timeout.connect(self.commit)
        self._text.textChanged.connect(self._pause.start)
        self._text.left.connect(self.commit)

    def value(self) -> str:
        return self._text.toPlainText()

    def set_value(self, value: Any) -> None:
        self._text.setPlainText(value)

    def retranslate(self) -> None:
        self._text.setPlaceholderText(self.tr("(empty)"))


class _LeavingText(QPlainTextEdit):
    left = Signal()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.left.emit()


class _NoWheel(QObject):
    """A wheel turned over a field scrolls the page, unless the field has the focus."""

    def eventFilter(self, watched: QObject, event: Any) -> bool:
        if isinstance(event, QWheelEvent) and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return False


def make_editor(setting: Setting) -> Editor:
    """The one that fits the key, showing its value."""
    editor: Editor
    match setting.editor:
        case "choice":
            editor = ChoiceEditor(setting.key.choices or setting.suggestions)
        case "suggestions":
            editor = SuggestionsEditor(setting.suggestions)
        case "switch":
            editor = SwitchEditor()
        case "whole":
            editor = WholeEditor(setting)
        case "number":
            editor = NumberEditor(setting)
        case "list":
            editor = ListEditor()
        case "folder":
            editor = FolderEditor()
        case "long_text":
            editor = LongTextEditor()
        case "text":
            editor = TextEditor()
    editor.retranslate()
    editor.show_value(setting.value)
    return editor
