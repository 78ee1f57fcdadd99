"""Colours for light and dark: one table, a palette for Qt's own widgets, and names for those that paint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication

ThemeName = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Colours:
    """Every colour by what it means, as #rrggbb. Text on its ground has a contrast of at least 4.5 (WCAG 2.1 AA)."""

    ground: str
    """Behind everything."""
    surface: str
    """Behind text fields, lists and plots."""
    line: str
    """Borders and grids."""
    text: str
    faint: str
    """Text of less weight; still 4.5 on `surface`."""
    accent: str
    """The agent's side, selections, the primary action."""
    user: str
    """The user's side."""
    good: str
    warning: str
    bad: str
    series: tuple[str, ...]
    """Neighbouring parts of one bar, told apart by lightness too."""


LIGHT = Colours(
    ground="#f3f4f6",
    surface="#ffffff",
    line="#d3d7de",
    text="#1b1f27",
    faint="#5b6472",
    accent="#1f5fc4",
    user="#0c6b58",
    good="#1a7340",
    warning="#8f5700",
    bad="#b3261e",
    series=("#1f5fc4", "#5a92e6", "#0c6b58", "#57ab97", "#7a4bb0", "#b08fd8", "#8f5700"),
)
DARK = Colours(
    ground="#16181d",
    surface="#1e2128",
    line="#363b46",
    text="#e8eaef",
    faint="#a2abba",
    accent="#7fb0ff",
    user="#62cfb5",
    good="#6fce93",
    warning="#f0b455",
    bad="#ff8a80",
    series=("#7fb0ff", "#4679c9", "#62cfb5", "#348a77", "#c3a2f0", "#8861bd", "#f0b455"),
)


class Theme:
    """The colours in use; `apply` makes another set everybody's."""

    def __init__(self, name: ThemeName) -> None:
        self.name = name

    @property
    def colours(self) -> Colours:
        """Present ones."""
        return DARK if self.name == "dark" else LIGHT

    def colour(self, role: str) -> QColor:
        """By the name of a field of `Colours`."""
        return QColor(getattr(self.colours, role))

    def apply(self, application: QApplication, name: ThemeName) -> None:
        """Qt's widgets follow at once; panels are told by the window."""
        self.name = name
        application.setStyle("Fusion")
        application.setPalette(palette(self.colours))
        application.setStyleSheet(style_sheet(self.colours))


def palette(colours: Colours) -> QPalette:
    """For Qt's Fusion style. The platform's own scheme is not asked: offscreen and bare X11 have none."""
    made = QPalette()
    role = QPalette.ColorRole
    for names, value in (
        ((role.Window, role.Button, role.AlternateBase), colours.ground),
        ((role.Base, role.ToolTipBase), colours.surface),
        ((role.WindowText, role.Text, role.ButtonText, role.ToolTipText), colours.text),
        ((role.Highlight, role.Link), colours.accent),
        ((role.HighlightedText, role.BrightText), colours.surface),
        ((role.PlaceholderText,), colours.faint),
        ((role.Mid, role.Dark), colours.line),
        ((role.Light, role.Midlight), colours.surface),
    ):
        for name in names:
            made.setColor(name, QColor(value))
    for name in (role.WindowText, role.Text, role.ButtonText):
        made.setColor(QPalette.ColorGroup.Disabled, name, QColor(colours.faint))
    return made


def style_sheet(colours: Colours) -> str:
    """What the palette cannot say: spacing, borders and the focus ring."""
    return f"""
    QDockWidget::title {{ background: {colours.ground}; padding: 6px 8px; }}
    QLineEdit, QPlainTextEdit, QTextEdit, QListView, QTreeView, QTableView {{
        border: 1px solid {colours.line}; border-radius: 4px; padding: 3px; background: {colours.surface}; }}
    QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QListView:focus, QTreeView:focus,
    QTableView:focus {{ border: 1px solid {colours.accent}; }}
    QPushButton {{ border: 1px solid {colours.line}; border-radius: 4px; padding: 5px 12px;
        background: {colours.surface}; }}
    QPushButton:hover {{ border-color: {colours.faint}; }}
    QPushButton:focus {{ border: 1px solid {colours.accent}; }}
    QPushButton:checked {{ background: {colours.accent}; color: {colours.surface}; }}
    QPushButton[primary="true"] {{ background: {colours.accent}; color: {colours.surface}; border: none; }}
    QPushButton:disabled {{ color: {colours.faint}; }}
    QPushButton[primary="true"]:disabled {{ background: {colours.line}; color: {colours.faint}; }}
    QLabel[heading="true"] {{ font-weight: bold; }}
    QCheckBox::indicator {{ width: 12px; height: 12px; border: 1px solid {colours.faint}; border-radius: 3px;
        background: {colours.surface}; }}
    QCheckBox::indicator:checked {{ background: {colours.accent}; border-color: {colours.accent}; }}
    QCheckBox::indicator:focus {{ border: 2px solid {colours.accent}; }}
    QHeaderView::section {{ background: {colours.ground}; border: none; border-bottom: 1px solid {colours.line};
        padding: 4px; }}
    QStatusBar {{ border-top: 1px solid {colours.line}; }}
    """
