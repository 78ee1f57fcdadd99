"""Widgets are tested on a screen that nobody sees."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip("PySide6.QtWidgets", reason="Qt or one of its system libraries is missing", exc_type=ImportError)

from app.commands import Command
from app.config.load import Loaded, load_config
from app.ui.panel import Context
from app.ui.theme import Theme


class Recorded:
    """What panels asked the program for."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.restarted: list[Loaded] = []


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
def context(recorded: Recorded, tmp_path: Path, qapp: Any) -> Context:
    loaded = load_config(file=None, env={"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")})
    theme = Theme("light")
    theme.apply(qapp, "light")
    return Context(loaded, tmp_path, recorded.sent.append, recorded.restarted.append, theme)


@pytest.fixture
def both_themes(context: Context, qapp: Any) -> Callable[[str], None]:
    return lambda name: context.theme.apply(qapp, name)
