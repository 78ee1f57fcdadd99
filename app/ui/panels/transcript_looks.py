"""How each part of a transcript looks: colours by role, sizes by the font."""

from __future__ import annotations

from PySide6.QtGui import QColor, QFont, QFontInfo, QTextCharFormat

from app.ui.theme import Theme

_GAP_SHARE = 0.6
_SMALL_SHARE = 0.9
"""Sizes of the gap between two lines, and of names and notices, of the text's own."""


def make_formats(theme: Theme, font: QFont) -> dict[str, QTextCharFormat]:
    """By the roles of `app.viewmodel.conversation`, the names, the gap, the severities and the marks of a search."""
    colour = theme.colour
    size = QFontInfo(font).pointSizeF()
    names = ("said", "unstable", "heard", "coming", "unheard", "gap")
    made = {name: QTextCharFormat() for name in names}
    for name in ("said", "unstable", "heard"):
        made[name].setForeground(colour("text"))
    made["unstable"].setBackground(_mixed(colour("user"), colour("surface"), 0.25))
    for name in ("coming", "unheard"):
        made[name].setForeground(colour("faint"))
    made["unheard"].setFontStrikeOut(True)
    made["gap"].setFontPointSize(size * _GAP_SHARE)
    for side, role in (("user", "user"), ("agent", "accent")):
        form = made[f"{side} name"] = QTextCharFormat()
        form.setForeground(colour(role))
        form.setFontWeight(QFont.Weight.Bold)
        form.setFontPointSize(size * _SMALL_SHARE)
    for severity, role in (("info", "faint"), ("warning", "warning"), ("error", "bad")):
        form = made[f"notice {severity}"] = QTextCharFormat()
        form.setForeground(colour(role))
        form.setFontPointSize(size * _SMALL_SHARE)
    made["match"], made["current match"] = QTextCharFormat(), QTextCharFormat()
    made["match"].setBackground(_mixed(colour("warning"), colour("surface"), 0.3))
    made["current match"].setBackground(colour("warning"))
    made["current match"].setForeground(colour("surface"))
    return made


def _mixed(colour: QColor, ground: QColor, share: float) -> QColor:
    """`share` of `colour` over `ground`."""
    parts = zip(colour.getRgbF()[:3], ground.getRgbF()[:3], strict=True)
    return QColor.fromRgbF(*(share * a + (1 - share) * b for a, b in parts))
