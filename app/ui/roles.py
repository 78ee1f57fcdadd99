"""Labels and cards that say by a role how they look: `faint`, `good`, `bad` … follow the theme without being told."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QWidget

from app.ui.theme import Colours

CARD = "card"
"""Object name of frames that are drawn as a card."""
_ROLES = ("faint", "accent", "good", "warning", "bad")


def role_sheet(colours: Colours) -> str:
    """For the widget around such labels and cards."""
    labels = "".join(f'QLabel[role="{role}"] {{ color: {getattr(colours, role)}; }}' for role in _ROLES)
    card = f"background: {colours.surface}; border: 1px solid {colours.line}; border-radius: 6px;"
    return f"{labels} QFrame#{CARD} {{ {card} }} QScrollArea {{ border: none; }}"


def set_role(label: QLabel, role: str) -> None:
    """One of the roles, "" for plain text."""
    if label.property("role") != role:
        label.setProperty("role", role)
        label.style().unpolish(label)
        label.style().polish(label)


def set_bold(widget: QWidget) -> None:
    """The application's font, heavier."""
    font = widget.font()
    font.setBold(True)
    widget.setFont(font)
