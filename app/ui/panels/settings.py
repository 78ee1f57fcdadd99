"""Settings: every key of the configuration, by section or by a word; applied when all of them may be saved."""

from __future__ import annotations

import os

from PySide6.QtCore import QSignalBlocker, Qt, QTimer
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QHBoxLayout,
    QInputDialog,
    QLabel,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.models.catalog import load_catalog
from app.ui.panel import Context, Panel
from app.ui.panels.setting_row import SettingRow
from app.ui.roles import role_sheet, set_role
from app.viewmodel.settings import Setting, SettingsModel

_PERSONA = "personas."
_SECTIONS_CHARS = 26
"""The list of sections is no wider; a longer name is cut short."""
_NEW_ROWS_AT_ONCE = 5
"""A row takes some milliseconds to make; the rest comes between other events."""


def make_model(context: Context) -> SettingsModel:
    """Over the configuration of the program; applying begins the conversation anew."""
    return SettingsModel(context.loaded, load_catalog(), env=os.environ, restart=lambda loaded: context.restart(loaded))


class SettingsPanel(Panel):
    """Sections at the left, the keys of one of them (or those that match the filter) at the right."""

    fps = 8.0
    view_model: SettingsModel

    def __init__(self, model: SettingsModel, context: Context) -> None:
        super().__init__(model, context)
        self._loaded = context.loaded
        self.rows: dict[str, SettingRow] = {}
        self._shown: list[str] = []
        self.filter_box, self.sections = QLineEdit(), QListWidget()
        self.filter_box.setClearButtonEnabled(True)
        self.sections.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.sections.setSpacing(2)
        self._more = QTimer(self)
        self._more.setSingleShot(True)
        self._more.timeout.connect(self._show_rows)
        self.add_button, self.rename_button, self.remove_button = QPushButton(), QPushButton(), QPushButton()
        self.undo_button, self.discard_button, self.apply_button = QPushButton(), QPushButton(), QPushButton()
        self.apply_button.setProperty("primary", True)
        self.remark, self._nothing = QLabel(), QLabel()
        self.remark.setWordWrap(True)
        self._inside = QWidget()
        self._column = QVBoxLayout(self._inside)
        self._column.setContentsMargins(0, 0, 4, 0)
        self._column.addWidget(self._nothing)
        self._column.addStretch(1)
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setWidget(self._inside)
        self._area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._lay_out()
        self._connect()
        self.retranslate()
        self.restyle()
        self.sections.setCurrentRow(0)

    def _lay_out(self) -> None:
        left = QVBoxLayout()
        left.addWidget(self.sections, 1)
        for button in (self.add_button, self.rename_button, self.remove_button):
            left.addWidget(button)
        right = QVBoxLayout()
        right.addWidget(self.filter_box)
        right.addWidget(self._area, 1)
        middle = QHBoxLayout()
        middle.addLayout(left)
        middle.addLayout(right, 1)
        foot = QHBoxLayout()
        foot.addWidget(self.remark, 1)
        for button in (self.undo_button, self.discard_button, self.apply_button):
            foot.addWidget(button)
        layout = QVBoxLayout(self)
        layout.addLayout(middle, 1)
        layout.addLayout(foot)

    def _connect(self) -> None:
        model = self.view_model
        self.filter_box.textChanged.connect(self._show_rows)
        self.sections.currentRowChanged.connect(self._choose_section)
        self.add_button.clicked.connect(self._add_persona)
        self.rename_button.clicked.connect(self._rename_persona)
        self.remove_button.clicked.connect(self._remove_persona)
        for button, call in (
            (self.undo_button, model.undo),
            (self.discard_button, model.discard),
            (self.apply_button, model.apply),
        ):
            button.clicked.connect(lambda _=False, call=call: self._do(call))
        for keys, call in (
            (QKeySequence.StandardKey.Find, self.filter_box.setFocus),
            (QKeySequence.StandardKey.Save, self.apply_button.click),
        ):
            shortcut = QShortcut(QKeySequence(keys), self)
            shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            shortcut.activated.connect(call)

    def poll(self) -> None:
        """See `Panel`."""
        if self.context.loaded is not self._loaded:
            self._loaded = self.context.loaded
            self.view_model.use(self._loaded)
        self.view_model.poll()

    def refresh(self) -> None:
        """See `Panel`."""
        self._show_sections()
        self._show_rows()
        self._show_foot()

    def retranslate(self) -> None:
        """See `Panel`."""
        self.setAccessibleName(self.tr("Settings"))
        self.sections.setAccessibleName(self.tr("Sections"))
        self.filter_box.setPlaceholderText(self.tr("Filter all settings (Ctrl+F)"))
        self.filter_box.setAccessibleName(self.tr("Filter all settings"))
        self.filter_box.setToolTip(self.tr("Words of a key, of its help or of its value"))
        self._area.setAccessibleName(self.tr("Settings of the section"))
        self._nothing.setText(self.tr("No setting has these words."))
        for button, text, help_text in (
            (self.add_button, self.tr("Add &persona…"), self.tr("A persona that begins like the default one")),
            (self.rename_button, self.tr("Re&name…"), self.tr("Give this persona another name")),
            (self.remove_button, self.tr("Re&move"), self.tr("Take this persona out of your file")),
            (self.undo_button, self.tr("&Undo"), self.tr("Take the last change back")),
            (self.discard_button, self.tr("&Discard"), self.tr("Take all changes back that are not saved")),
            (self.apply_button, self.tr("&Apply"), self.tr("Save, and begin the conversation anew (Ctrl+S)")),
        ):
            button.setText(text)
            button.setToolTip(help_text)
            button.setAccessibleName(help_text)
        for row in self.rows.values():
            row.retranslate()
        self._show_sections()
        self._show_foot()

    def restyle(self) -> None:
        """See `Panel`."""
        self.setStyleSheet(role_sheet(self.context.theme.colours))

    # --- what is shown

    def _section_title(self, section: str) -> str:
        titles = {
            "": self.tr("General"),
            "audio": self.tr("Microphone, loudspeaker"),
            "ear": self.tr("Hearing"),
            "turn": self.tr("Taking turns"),
            "asr": self.tr("Speech recognition"),
            "llm": self.tr("Language model"),
            "memory": self.tr("Memory"),
            "tts": self.tr("Voice"),
            "recovery": self.tr("Recovery"),
            "paths": self.tr("Folders"),
            "ui": self.tr("Window"),
        }
        if section.startswith(_PERSONA):
            return self.tr("Persona: {0}").format(section.removeprefix(_PERSONA))
        return titles.get(section, section)

    def _show_sections(self) -> None:
        """All of them, the chosen one kept where it is still there."""
        with QSignalBlocker(self.sections):
            names = list(self.view_model.sections)
            here = [self.sections.item(row).data(Qt.ItemDataRole.UserRole) for row in range(self.sections.count())]
            chosen = self._section()
            if names != here:
                self.sections.clear()
                for name in names:
                    item = QListWidgetItem()
                    item.setData(Qt.ItemDataRole.UserRole, name)
                    self.sections.addItem(item)
                self.sections.setCurrentRow(names.index(chosen) if chosen in names else 0)
            for row, name in enumerate(names):
                self.sections.item(row).setText(self._section_title(name))
        width = min(self.sections.sizeHintForColumn(0), self.fontMetrics().horizontalAdvance("x") * _SECTIONS_CHARS)
        self.sections.setFixedWidth(width + 4 * self.sections.frameWidth() + 12)

    def _section(self) -> str:
        item = self.sections.currentItem()
        return "" if item is None else item.data(Qt.ItemDataRole.UserRole)

    def _persona(self) -> str:
        """The chosen one; "" where another section is chosen."""
        section = self._section()
        return section.removeprefix(_PERSONA) if section.startswith(_PERSONA) else ""

    def _choose_section(self) -> None:
        self.filter_box.clear()
        self._show_rows()
        self._show_foot()
        self._area.verticalScrollBar().setValue(0)

    def _show_rows(self) -> None:
        words = self.filter_box.text().strip()
        settings = self.view_model.matching(words) if words else self.view_model.settings(self._section())
        is_new = [setting for setting in settings if setting.name not in self.rows]
        if len(is_new) > _NEW_ROWS_AT_ONCE:
            settings = settings[: settings.index(is_new[_NEW_ROWS_AT_ONCE])]
            self._more.start()
        for setting in settings:
            self._row(setting).show_setting(setting)
        names = [setting.name for setting in settings]
        if names != self._shown:
            for name in self._shown:
                if name not in names:
                    self.rows[name].hide()
                    self._column.removeWidget(self.rows[name])
            for place, name in enumerate(names):
                if self._column.indexOf(self.rows[name]) != place:
                    self._column.insertWidget(place, self.rows[name])
                    self.rows[name].show()
            self._shown = names
        self._nothing.setVisible(not names)

    def _row(self, setting: Setting) -> SettingRow:
        """Made when it is first shown."""
        if setting.name not in self.rows:
            row = self.rows[setting.name] = SettingRow(setting)
            row.setParent(self._inside)
            row.edited.connect(self._edit)
            row.default_asked.connect(self._set_default)
        return self.rows[setting.name]

    def _show_foot(self) -> None:
        model, persona = self.view_model, self._persona()
        is_own = bool(persona) and model.can_remove(persona)
        self.rename_button.setVisible(bool(persona))
        self.remove_button.setVisible(bool(persona))
        self.rename_button.setEnabled(is_own)
        self.remove_button.setEnabled(is_own)
        self.undo_button.setEnabled(model.can_undo)
        self.discard_button.setEnabled(model.has_changes)
        self.apply_button.setEnabled(model.can_apply)
        wrong = model.trouble or next(iter(model.problems.values()), "")
        if model.has_changes and not wrong:
            text = self.tr("Not saved yet. Applying begins the conversation anew.")
        else:
            text = self.tr("File: {0}").format(model.user_file)
        self.remark.setText(wrong or text)
        set_role(self.remark, "bad" if wrong else "faint")

    # --- what the user does

    def _edit(self, name: str, value: object) -> None:
        if self.view_model.has(name):  # a field of a persona that was taken out loses the focus, and says so
            self.view_model.set_value(name, value)
            self.refresh()

    def _set_default(self, name: str) -> None:
        self.view_model.set_default(name)
        self.refresh()

    def _do(self, call: object) -> None:
        """Undo, discard, apply: with what stands in a field that was not left yet."""
        for name in self._shown:
            self.rows[name].commit()
        call()  # type: ignore[operator]
        self.refresh()

    def _add_persona(self) -> None:
        name = self.ask_name(self.tr("Add a persona"), "")
        if name:
            self.view_model.add_persona(name)
            self._go_to(name)

    def _rename_persona(self) -> None:
        old_name = self._persona()
        name = self.ask_name(self.tr("Rename the persona"), old_name)
        if name:
            self.view_model.rename_persona(old_name, name)
            self._go_to(name)

    def _remove_persona(self) -> None:
        self.view_model.remove_persona(self._persona())
        self.refresh()
        self._choose_section()

    def _go_to(self, persona: str) -> None:
        self._show_sections()
        self.sections.setCurrentRow(self.view_model.sections.index(f"{_PERSONA}{persona}"))
        self.refresh()

    def ask_name(self, title: str, present: str) -> str:
        """A name that a persona may have; "" where the user thought better of it."""
        name, is_given = QInputDialog.getText(self, title, self.tr("Name"), QLineEdit.EchoMode.Normal, present)
        name = name.strip()
        if not is_given or not name or name == present:
            return ""
        if not self.view_model.can_name(name):
            text = self.tr("{0} is taken, or has a dot, a quote or a backslash in it.").format(name)
            QMessageBox.warning(self, title, text)
            return ""
        return name
