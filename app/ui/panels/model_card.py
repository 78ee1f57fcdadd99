"""One model of the catalog: what it is, its state, and the buttons that make sense in that state."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QProgressBar, QPushButton, QVBoxLayout

from app.ui.panels.figures import size_text
from app.ui.roles import CARD, set_bold, set_role
from app.viewmodel.models import Fit, ModelRow

_STEPS = 1000
_ACTIONS = {
    "in place": ("verify", "remove"),
    "missing": ("fetch",),
    "partial": ("resume", "discard"),
    "damaged": ("refetch", "remove"),
    "fetching": ("pause", "cancel"),
    "waiting": ("cancel",),
}
"""Buttons by activity or, without one, by state; none where something is about to end."""
_ACTION_NAMES = ("fetch", "resume", "refetch", "pause", "cancel", "discard", "verify", "remove")


class ModelCard(QFrame):
    """`asked(action, name)`: a button was pressed; actions as in `_ACTION_NAMES`."""

    asked = Signal(str, str)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(CARD)
        self._name = name
        self._row: ModelRow | None = None
        self._title, self._uses, self._facts = QLabel(name), QLabel(), QLabel()
        self._state, self._fit, self._problem = QLabel(), QLabel(), QLabel()
        self._bar, self._progress = QProgressBar(), QLabel()
        self.buttons = {action: QPushButton() for action in _ACTION_NAMES}
        set_bold(self._title)
        set_role(self._uses, "accent")
        set_role(self._facts, "faint")
        set_role(self._progress, "faint")
        set_role(self._problem, "bad")
        for label in (self._facts, self._fit, self._problem, self._progress):
            label.setWordWrap(True)
        self._problem.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._bar.setRange(0, _STEPS)
        self._bar.setTextVisible(False)
        self._bar.setMaximumHeight(self.fontMetrics().height() // 2)
        self._lay_out()
        for action, button in self.buttons.items():
            button.clicked.connect(lambda _=False, action=action: self.asked.emit(action, self._name))

    def _lay_out(self) -> None:
        head = QHBoxLayout()
        head.addWidget(self._title)
        head.addWidget(self._uses)
        head.addStretch(1)
        head.addWidget(self._state)
        foot = QHBoxLayout()
        foot.addStretch(1)
        for button in self.buttons.values():
            foot.addWidget(button)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 10, 12, 10)
        layout.addLayout(head)
        for widget in (self._facts, self._fit, self._bar, self._progress, self._problem):
            layout.addWidget(widget)
        layout.addLayout(foot)

    def show_row(self, row: ModelRow) -> None:
        """Bring everything up to date."""
        if row != self._row:
            self._row = row
            self.retranslate()

    def retranslate(self) -> None:
        """Set every text, in the present language."""
        row = self._row
        if row is None:
            return
        self._facts.setText(self._facts_text(row))
        self._facts.setToolTip(row.model.licence_note)
        others = [use for use in row.used_for if use != row.model.role]
        uses = self.tr("in use: {0}").format(", ".join(others)) if others else self.tr("in use")
        self._uses.setText(uses if row.used_for else "")
        self._show_state(row)
        self._show_fit(row.fit)
        self._show_progress(row)
        self._problem.setText(row.problem)
        self._problem.setVisible(bool(row.problem))
        self._show_buttons(row)
        self.setAccessibleName(f"{row.model.name}, {self._state.text()}")

    def _facts_text(self, row: ModelRow) -> str:
        model = row.model
        roles = {
            "asr": self.tr("Speech recognition"),
            "vad": self.tr("Voice detection"),
            "turn": self.tr("End of turn"),
            "tts": self.tr("Voice"),
            "llm": self.tr("Language model"),
        }
        languages = ", ".join(model.languages) or self.tr("any language")
        words = [self.tr("tells the time of each word")] if model.word_times else []
        licence = self.tr("Licence {0}").format(model.licence)
        return "  ·  ".join([roles[model.role], size_text(model.size_bytes), licence, languages, *words])

    def _show_state(self, row: ModelRow) -> None:
        states = {
            "": "…",
            "in place": self.tr("Installed and verified"),
            "missing": self.tr("Not installed"),
            "partial": self.tr("Partly downloaded"),
            "damaged": self.tr("Damaged"),
            "waiting": self.tr("Waiting for its turn"),
            "fetching": self.tr("Downloading"),
            "pausing": self.tr("Pausing…"),
            "cancelling": self.tr("Cancelling…"),
            "removing": self.tr("Removing…"),
            "verifying": self.tr("Reading every byte…"),
        }
        self._state.setText(states[row.activity or row.state])
        roles = {"in place": "good", "damaged": "bad", "partial": "warning"}
        is_lacking = row.state == "missing" and bool(row.used_for)
        set_role(self._state, "" if row.activity else "bad" if is_lacking else roles.get(row.state, "faint"))

    def _show_fit(self, fit: Fit | None) -> None:
        self._fit.setVisible(fit is not None)
        if fit is None:
            return
        if fit.problem:
            text, role = self.tr("Whether it fits is not known: {0}").format(fit.problem), "warning"
        else:
            place = self.tr("main memory") if fit.place == "memory" else fit.place
            values = (size_text(fit.needs_bytes), size_text(fit.free_bytes), place)
            if fit.fits:
                text, role = self.tr("Fits: needs {0}, free now {1} ({2})").format(*values), "good"
            else:
                text, role = self.tr("Does not fit: needs {0}, free now {1} ({2})").format(*values), "bad"
        self._fit.setText(text)
        set_role(self._fit, role)
        self._fit.setToolTip(
            self.tr("The whole conversation with this model, as an engine would plan that starts now beside all else")
        )

    def _show_progress(self, row: ModelRow) -> None:
        is_shown = row.activity in ("fetching", "pausing", "cancelling")
        self._bar.setVisible(is_shown)
        self._progress.setVisible(is_shown)
        figures = row.figures
        if not figures.total_bytes:
            self._bar.setValue(0)
            self._progress.setText(figures.remark)
            return
        self._bar.setValue(_STEPS * figures.done_bytes // figures.total_bytes)
        text = self.tr("{0} of {1}").format(size_text(figures.done_bytes), size_text(figures.total_bytes))
        if figures.bytes_per_s > 0:
            left_s = round((figures.total_bytes - figures.done_bytes) / figures.bytes_per_s)
            more = self.tr("{0}/s, {1} left").format(
                size_text(int(figures.bytes_per_s)), f"{left_s // 60}:{left_s % 60:02d}"
            )
            text = f"{text}, {more}"
        self._progress.setText(text)

    def _show_buttons(self, row: ModelRow) -> None:
        texts = {
            "fetch": (self.tr("Download"), self.tr("Download this model into the store")),
            "resume": (self.tr("Resume"), self.tr("Go on with the download")),
            "refetch": (self.tr("Download again"), self.tr("Replace the damaged files")),
            "pause": (self.tr("Pause"), self.tr("Stop; what was received is kept")),
            "cancel": (self.tr("Cancel"), self.tr("Stop, and delete what was received")),
            "discard": (self.tr("Discard"), self.tr("Delete what was received")),
            "verify": (self.tr("Verify"), self.tr("Read every byte again and compare it with the catalog")),
            "remove": (self.tr("Remove…"), self.tr("Delete this model from the store")),
        }
        shown = _ACTIONS.get(row.activity or row.state, ())
        for action, button in self.buttons.items():
            text, help_text = texts[action]
            button.setText(text)
            button.setToolTip(help_text)
            button.setAccessibleName(f"{text}: {row.model.name}")
            button.setVisible(action in shown)
