"""What a panel is: a widget over one view model that paints when it is seen and something has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QWidget

from app.commands import Command
from app.config.load import Loaded
from app.viewmodel.base import ViewModel

if TYPE_CHECKING:
    from app.ui.theme import Theme


@dataclass(slots=True)
class Context:
    """What a panel may use of the program around it."""

    loaded: Loaded
    """Configuration of the conversation that runs, where each value came from, and the user's own file."""
    data: Path
    """Folder of the journal and the logs."""
    send: Callable[[Command], None]
    """To the conversation; lost where none runs."""
    restart: Callable[[Loaded], None]
    """Begin the conversation anew with another configuration."""
    theme: Theme
    """Present colours; panels ask it while they paint."""


class Panel(QWidget):
    """Base of all panels. `refresh` is called at most `fps` times a second, when visible and changed."""

    fps = 15.0

    def __init__(self, model: ViewModel, context: Context) -> None:
        super().__init__()
        self.view_model = model
        self.context = context
        self._shown_revision = -1

    def refresh_if_changed(self) -> bool:
        """Show what is new; whether there was anything. Hidden panels do nothing."""
        if self._shown_revision == self.view_model.revision or not self.isVisible():
            return False
        self._shown_revision = self.view_model.revision
        self.refresh()
        return True

    def refresh(self) -> None:
        """Show the view model as it is now. The default paints the whole panel anew."""
        self.update()

    def retranslate(self) -> None:
        """The language was changed: set every text again."""

    def restyle(self) -> None:
        """The theme was changed. The default paints anew."""
        self.update()

    def poll(self) -> None:
        """Called about twice a second while visible, for what no event tells (devices, memory). Must be brief."""
