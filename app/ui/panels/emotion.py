"""The *Emotion* panel: the place of what is not measured yet."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QLabel, QVBoxLayout

from app.ui.panel import Context, Panel
from app.viewmodel.base import ViewModel
from app.viewmodel.emotion import Emotion


def make_model(context: Context) -> ViewModel:
    """See `PanelSpec`."""
    return Emotion()


def make_widget(model: ViewModel, context: Context) -> Panel:
    """See `PanelSpec`."""
    return EmotionPanel(model, context)


class EmotionPanel(Panel):
    """A dash, and why."""

    def __init__(self, model: ViewModel, context: Context) -> None:
        super().__init__(model, context)
        self._value, self._reason = QLabel("—"), QLabel()
        self._reason.setWordWrap(True)
        layout = QVBoxLayout(self)
        layout.addStretch(1)
        for label in (self._value, self._reason):
            label.setAlignment(Qt.AlignmentFlag.AlignCenter)
            layout.addWidget(label)
        layout.addStretch(2)
        self.retranslate()
        self.restyle()

    def restyle(self) -> None:
        """See `Panel`. A change of the theme takes a label's own font away."""
        font = QFont(self.font())
        font.setPointSizeF(font.pointSizeF() * 2)
        self._value.setFont(font)

    def retranslate(self) -> None:
        """See `Panel`."""
        self._value.setAccessibleName(self.tr("Emotion"))
        self._reason.setText(self.tr("Nothing measures the emotion in a voice yet."))
