"""Whether a window opens on the user's screen. Asked in a child: where it does not, Qt ends the process that asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from app.cli.probe import ask_in_child

_LIMIT_S = 5.0
"""A display of a machine that does not answer would hang for minutes."""
_NO_SCREEN_PLUGINS = ("offscreen", "minimal")
"""Qt's platforms that open anywhere."""


def opens_window(environ: Mapping[str, str]) -> bool:
    """Whether Qt finds its libraries and the screen. About 0.3 s, nothing where no screen is wanted."""
    if environ.get("QT_QPA_PLATFORM", "").partition(":")[0] in _NO_SCREEN_PLUGINS:
        return True
    return ask_in_child(_opens, timeout_s=_LIMIT_S) is True


def _opens() -> bool:
    """Start Qt on the screen; does not return where there is none. What Qt says to developers goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from PySide6.QtGui import QGuiApplication

    QGuiApplication(["vivavoce"])
    return True
