"""Stands where a panel raised: it says so, and the rest of the window goes on."""

from __future__ import annotations

import logging

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QVBoxLayout

from app.crash import describe_crash
from app.ui.panel import Context, Panel
from app.viewmodel.base import ViewModel


class FailedPanel(Panel):
    """One sentence."""

    def __init__(self, model: ViewModel, context: Context, error: Exception) -> None:
        super().__init__(model, context)
        logging.getLogger("vivavoce.face").error("a panel failed", exc_info=error)
        self._why = describe_crash(error)
        self._label = QLabel()
        self._label.setWordWrap(True)
        self._label.setAlignment(Qt.AlignmentFlag.AlignCenter)
        QVBoxLayout(self).addWidget(self._label)
        self.retranslate()

    def retranslate(self) -> None:
        """See `Panel`."""
        self._label.setText(self.tr("This panel failed and is closed: {0}").format(self._why))
