"""One key of the configuration: its help, its editor, where its value came from, and why it cannot be what it is."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QPushButton

from app.ui.panels.setting_editors import make_editor
from app.ui.roles import CARD, set_role
from app.ui.schema_texts import schema_text
from app.viewmodel.settings import Setting

_EDITOR_SHARE, _TEXT_SHARE = 2, 3
_WIDE = ("long_text",)


class SettingRow(QFrame):
    """`edited(name, value)` and `default_asked(name)` tell what the user did; nothing changes by itself."""

    edited = Signal(str, object)
    default_asked = Signal(str)

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setObjectName(CARD)
        self.setting = setting
        self.editor = make_editor(setting)
        self.default_button = QPushButton("↺")
        self.problem = QLabel()
        self._help, self._facts = QLabel(), QLabel()
        self._help.setBuddy(self.editor.widget)
        for label in (self._help, self._facts, self.problem):
            label.setWordWrap(True)
        self.problem.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        set_role(self._facts, "faint")
        set_role(self.problem, "bad")
        self._lay_out(is_wide=setting.editor in _WIDE)
        self.editor.edited.connect(self._tell)
        self.default_button.clicked.connect(lambda: self.default_asked.emit(self.setting.name))
        self.retranslate()

    def _lay_out(self, *, is_wide: bool) -> None:
        grid = QGridLayout(self)
        grid.setContentsMargins(12, 8, 8, 8)
        grid.setColumnStretch(0, _TEXT_SHARE)
        grid.setColumnStretch(1, _EDITOR_SHARE)
        grid.addWidget(self._help, 0, 0, 1, 2 if is_wide else 1)
        grid.addWidget(self._facts, 1, 0, 1, 2 if is_wide else 1)
        if is_wide:
            grid.addWidget(self.editor, 2, 0, 1, 2)
        else:
            grid.addWidget(self.editor, 0, 1, 2, 1)
        grid.addWidget(self.default_button, 0, 2, 2, 1, Qt.AlignmentFlag.AlignVCenter)
        grid.addWidget(self.problem, 3, 0, 1, 3)

    def show_setting(self, setting: Setting) -> None:
        """Bring everything up to date."""
        if setting != self.setting:
            if setting.suggestions != self.setting.suggestions:
                self.editor.set_suggestions(setting.suggestions)
            self.setting = setting
            self.editor.show_value(setting.value)
            self.retranslate()

    def commit(self) -> None:
        """Tell what stands in the editor, though the user may not have left it."""
        if not self.setting.is_locked:
            self.editor.commit()

    def retranslate(self) -> None:
        """Set every text, in the present language."""
        setting = self.setting
        self._help.setText(schema_text(setting.key.help))
        self._facts.setText("  ·  ".join(filter(None, (setting.name, self._allowed_text(), self._origin_text()))))
        self.problem.setText(setting.problem)
        self.problem.setVisible(bool(setting.problem))
        self.editor.retranslate()
        self.editor.setEnabled(not setting.is_locked)
        self.editor.widget.setAccessibleName(f"{setting.name}: {self._help.text()}")
        self.editor.widget.setToolTip(self._lock_text() if setting.is_locked else self._facts.text())
        self.default_button.setEnabled(setting.can_be_default)
        self.default_button.setToolTip(self.tr("Back to the default"))
        self.default_button.setAccessibleName(self.tr("Back to the default: {0}").format(setting.name))

    def _allowed_text(self) -> str:
        """The range or the choices of a list; what the editor itself shows is not said again."""
        key = self.setting.key
        if self.setting.editor == "list":
            return self.tr("any of {0}").format(", ".join(map(str, key.choices)))
        if key.low is None or key.high is None:
            return ""
        text = self.tr("more than {0}, up to {1}") if key.is_low_excluded else self.tr("{0} to {1}")
        return text.format(f"{key.low:g}", f"{key.high:.10g}")

    def _origin_text(self) -> str:
        setting = self.setting
        if setting.is_changed:
            return self.tr("changed, not saved")
        texts = {
            "default": self.tr("default"),
            "persona": self.tr("from the default persona"),
            "file": self.tr("from your file"),
            "environment": self.tr("set by {0}").format(setting.origin_text),
            "flag": self.tr("set by {0}").format(setting.origin_text),
        }
        return texts[setting.origin]

    def _lock_text(self) -> str:
        return self.tr("Read-only: it is set by {0}, which wins over the file").format(self.setting.origin_text)

    def _tell(self, value: Any) -> None:
        self.edited.emit(self.setting.name, value)
