"""Models: the catalog, what is installed, what fits; download and remove."""

from __future__ import annotations

import os
from functools import partial

from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QMessageBox, QPushButton, QScrollArea, QVBoxLayout, QWidget

from app.cli.models import is_offline
from app.cli.probe import ask_in_child
from app.engine.builder import places
from app.models.catalog import load_catalog
from app.ui.panel import Context, Panel
from app.ui.panels.figures import size_text
from app.ui.panels.model_card import ModelCard
from app.ui.roles import role_sheet, set_role
from app.viewmodel.models import ModelsModel
from gpu.memory.places import cuda_memory

_CHILD_LIMIT_S = 60.0


def make_model(context: Context) -> ModelsModel:
    """Over the shipped catalog and the configured store."""
    config = context.loaded.config
    return ModelsModel(
        config,
        places(config, os.environ),
        load_catalog(),
        env=os.environ,
        is_offline=is_offline(os.environ),
        ask_cuda=partial(ask_in_child, cuda_memory, timeout_s=_CHILD_LIMIT_S),
    )


class ModelsPanel(Panel):
    """A card for each model."""

    fps = 4.0
    view_model: ModelsModel

    def __init__(self, model: ModelsModel, context: Context) -> None:
        super().__init__(model, context)
        self._store = QLabel()
        self._store.setWordWrap(True)
        set_role(self._store, "faint")
        self._look = QPushButton()
        self._look.clicked.connect(model.look)
        self.cards = {row.model.name: ModelCard(row.model.name) for row in model.rows}
        self._has_looked = False
        head = QHBoxLayout()
        head.addWidget(self._store, 1)
        head.addWidget(self._look)
        inside = QWidget()
        column = QVBoxLayout(inside)
        column.setContentsMargins(0, 0, 0, 0)
        for card in self.cards.values():
            card.asked.connect(self._act)
            column.addWidget(card)
        column.addStretch(1)
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setWidget(inside)
        layout = QVBoxLayout(self)
        layout.addLayout(head)
        layout.addWidget(self._area, 1)
        self.retranslate()
        self.restyle()

    def showEvent(self, event: QShowEvent) -> None:
        """The first time, look what is there."""
        super().showEvent(event)
        if not self._has_looked:
            self._has_looked = True
            self.view_model.look()

    def poll(self) -> None:
        """See `Panel`."""
        self.view_model.use(self.context.loaded.config)
        self.view_model.poll()

    def refresh(self) -> None:
        """See `Panel`."""
        for row in self.view_model.rows:
            self.cards[row.model.name].show_row(row)

    def retranslate(self) -> None:
        """See `Panel`."""
        self.setAccessibleName(self.tr("Models"))
        self._area.setAccessibleName(self.tr("The models of the catalog"))
        self._store.setText(self.tr("Store: {0}").format(self.view_model.store.root))
        self._look.setText(self.tr("&Look again"))
        self._look.setToolTip(self.tr("Look at the store and at the free memory again"))
        self._look.setAccessibleName(self._look.toolTip())
        for card in self.cards.values():
            card.retranslate()

    def restyle(self) -> None:
        """See `Panel`."""
        self.setStyleSheet(role_sheet(self.context.theme.colours))

    def _act(self, action: str, name: str) -> None:
        model = self.view_model
        calls = {
            "fetch": model.fetch,
            "resume": model.fetch,
            "refetch": model.fetch,
            "pause": model.pause,
            "cancel": model.cancel,
            "discard": model.cancel,
            "verify": model.verify,
        }
        if action == "remove":
            if self.is_sure(self._question(name)):
                model.remove(name)
        else:
            calls[action](name)

    def _question(self, name: str) -> str:
        row = self.view_model.row(name)
        size = size_text(row.model.size_bytes)
        question = self.tr("Delete {0} ({1}) from the store?").format(name, size)
        if not row.used_for:
            return question
        warning = self.tr("The configuration uses it ({0}): the next conversation will not start without it.")
        return f"{question}\n\n{warning.format(', '.join(row.used_for))}"

    def is_sure(self, question: str) -> bool:
        """Ask the user."""
        buttons = QMessageBox.StandardButton
        answer = QMessageBox.question(self, self.tr("Remove a model"), question, buttons.Yes | buttons.No, buttons.No)
        return answer == buttons.Yes
