"""What `vivavoce` starts: the command line, with a window where there is a screen for it."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.cli import main as cli

if TYPE_CHECKING:
    from app.config.load import Loaded
    from app.config.schema import Config


def main() -> int:
    """As `app.cli.main.main`; it alone decides what is imported."""
    multiprocessing.freeze_support()
    return cli.main(talk=_talk, window=_talk_in_window)


def _talk(args: argparse.Namespace, loaded: Loaded) -> int:
    if wants_window(args, os.environ):
        from app.ui.screen import opens_window

        if opens_window(os.environ):
            from app.ui.application import run

            return run(args, loaded)
        sys.stderr.write("note: no window opens on this screen; Vivavoce talks in the terminal\n")
    return cli.talk_in_terminal(args, loaded)


def _talk_in_window(config: Config, questions: Sequence[str], turns: int) -> list[dict[str, Any]]:
    """As `app.bench.ui.WindowArm`."""
    from app.ui.bench import window_arm

    return window_arm(config, questions, turns)


def wants_window(args: argparse.Namespace, environ: Mapping[str, str]) -> bool:
    """Whether there is a screen, Qt, and nothing that asks for the terminal. Imports no Qt."""
    if args.no_ui or args.input is not None or args.in_process or args.output is not None:
        return False
    has_screen = sys.platform == "win32" or any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return (has_screen or environ.get("QT_QPA_PLATFORM") == "offscreen") and bool(importlib.util.find_spec("PySide6"))
