"""Make the pictures of the window anew: `python tools/make_screenshots.py [--seconds 30]`.

Starts the real program with its models, lets the scripted user talk to it through the simulated room, types a question
and stops the answer, and then pictures every panel and the whole window, light and dark, English and Chinese: at
1280x800, and the whole window at 2560x1440 with two pixels to the point. Nothing on a picture is made up; devices,
doctor and log show the machine that this runs on. Chinese needs a font that has it, such as Noto Sans CJK.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
TARGET = ROOT / "docs" / "screenshots"
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QSettings, QTimer
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QApplication, QDockWidget, QTableView, QWidget

from app.cli.main import build_parser
from app.config.load import load_config
from app.engine.builder import places
from app.ui.application import Program
from app.ui.language import LanguageName
from app.ui.panels.conversation import ConversationPanel
from app.ui.theme import ThemeName

QUESTION = "What is a good name for a cat?"
LOAD_LIMIT_S = 60.0
TURN_LIMIT_S = 15.0
SETTLE_S = 0.35
"""Time for a panel that has just been raised to take and paint what it shows."""
SLOW_PANELS = {"doctor": 15.0, "devices": 3.0, "models": 3.0}
"""Those ask the machine, in a thread; this is how long they get before the first picture."""
THEMES: tuple[ThemeName, ...] = ("light", "dark")
LANGUAGES: tuple[LanguageName, ...] = ("en", "zh")
COLOURS_MOST = 112


class Photographer:
    """Follows a script, which is a generator of pauses in s, while the program runs."""

    def __init__(self, program: Program, seconds: float, *, is_double: bool) -> None:
        self._program, self._seconds, self._is_double = program, seconds, is_double
        self._window = program.window
        self._language = LANGUAGES[0]
        self._until_s = 0.0
        self._steps = self._script()

    def begin(self) -> None:
        """Show the window and go on from there."""
        self._program.begin()
        self._next()

    def _next(self) -> None:
        pause_s = next(self._steps, None)
        if pause_s is None:
            self._window.close()
        else:
            QTimer.singleShot(round(pause_s * 1000), self._next)

    def _script(self) -> Iterator[float]:
        docks = {dock.objectName().removeprefix("dock."): dock for dock in self._window.findChildren(QDockWidget)}
        if self._is_double:
            self._window.resize(1280, 720)
        yield from self._begin_talking()
        first = [name for name, dock in docks.items() if not dock.isHidden()]
        if not self._is_double:
            for name, dock in docks.items():
                dock.show()
                dock.raise_()
                yield SLOW_PANELS.get(name, 0.1)
            for name, dock in docks.items():
                dock.setVisible(name in first)
            yield SETTLE_S
            docks["signal"].raise_()
        yield max(0.0, self._until_s - time.monotonic())
        yield from self._type_and_stop()
        for theme, language in self._looks():
            yield SETTLE_S
            save(self._window, TARGET / f"{'window_2x' if self._is_double else 'window'}_{theme}_{language}.png")
        if self._is_double:
            return
        for dock in docks.values():
            dock.show()
        for theme, language in self._looks():
            for name, widget in {"conversation": self._conversation, **docks}.items():
                widget.raise_()
                for table in widget.findChildren(QTableView):
                    table.scrollToBottom()
                yield SETTLE_S
                save(widget, TARGET / f"{name}_{theme}_{language}.png")

    def _looks(self) -> Iterator[tuple[ThemeName, LanguageName]]:
        """All of them, each in use when it comes."""
        for language in LANGUAGES:
            if language != self._language:
                self._language = language
                self._window.toggle_language()
            for theme in THEMES:
                self._window.use_theme(theme)
                yield theme, language

    @property
    def _conversation(self) -> ConversationPanel:
        panel = self._window.panel("conversation")
        assert isinstance(panel, ConversationPanel)
        return panel

    def _begin_talking(self) -> Iterator[float]:
        """Until the models are loaded."""
        limit_s = time.monotonic() + LOAD_LIMIT_S
        while self._conversation.model.session_state != "running":
            if time.monotonic() > limit_s:
                raise SystemExit("the conversation does not begin")
            yield 0.2
        self._until_s = time.monotonic() + self._seconds

    def _type_and_stop(self) -> Iterator[float]:
        """Type a question, and stop the answer after its first words."""
        panel = self._conversation
        limit_s = time.monotonic() + TURN_LIMIT_S
        while panel.model.state != "listening" and time.monotonic() < limit_s:
            yield 0.1
        panel.input.setText(QUESTION)
        panel.say()
        while panel.model.state != "speaking" and time.monotonic() < limit_s:
            yield 0.05
        yield 1.2
        panel.stop()
        yield 1.5


def save(widget: QWidget, path: Path) -> None:
    """A picture of `widget` with few colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not indexed(widget.grab().toImage()).save(str(path), "PNG", 0):
        raise SystemExit(f"{path} cannot be written")


def indexed(image: QImage) -> QImage:
    """The same with a table of its commonest colours, each pixel the nearest of them."""
    image = image.convertToFormat(QImage.Format.Format_RGB32)
    width, height = image.width(), image.height()
    pixels = np.frombuffer(image.constBits(), np.uint32).reshape(height, -1)[:, :width]
    found, which, count = np.unique(pixels, return_inverse=True, return_counts=True)
    kept = found[_spread(found, count)]
    nearest = np.empty(len(found), np.uint8)
    for start in range(0, len(found), 4096):
        distance = _channels(found[start : start + 4096])[:, None, :] - _channels(kept)[None, :, :]
        nearest[start : start + 4096] = (distance**2).sum(axis=2).argmin(axis=1)
    table = nearest[which].reshape(height, width)
    rows = np.zeros((height, (width + 3) // 4 * 4), np.uint8)
    rows[:, :width] = table
    made = QImage(rows.data, width, height, rows.shape[1], QImage.Format.Format_Indexed8)
    made.setColorTable([int(colour) for colour in kept])
    return made.copy()


def _spread(colours: npt.NDArray[np.uint32], count: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Places of the colours to keep: the commonest of each cell of a grid, which is as fine as the table allows."""
    if len(colours) <= COLOURS_MOST:
        return np.arange(len(colours))
    order = np.argsort(-count, kind="stable")
    chosen = order[:0]
    for step in (128, 64, 48, 32, 24, 20, 16, 12, 8, 6, 4, 2, 1):
        cells = (_channels(colours[order]).astype(np.int64) // step) @ np.array([1 << 16, 1 << 8, 1])
        firsts = np.sort(np.unique(cells, return_index=True)[1])
        if len(firsts) > COLOURS_MOST // 2:
            break
        chosen = order[firsts]
    rest = order[~np.isin(order, chosen)]
    return np.concatenate([chosen, rest[: COLOURS_MOST - len(chosen)]])


def _channels(colours: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """(N,) 0xffrrggbb to (N, 3)."""
    return np.stack([(colours >> shift) & 0xFF for shift in (16, 8, 0)], axis=1).astype(np.float32)


def take(seconds: float, home: Path, *, is_double: bool) -> int:
    """One run of the program; returns its exit code."""
    args = build_parser().parse_args(["--simulate", "--journal", str(home / "journal.jsonl")])
    loaded = load_config(file=None, env=os.environ)
    application = QApplication(["vivavoce"])
    settings = QSettings(str(home / "window.ini"), QSettings.Format.IniFormat)
    settings.setValue("language", LANGUAGES[0])
    program = Program(application, args, loaded, settings)
    photographer = Photographer(program, seconds, is_double=is_double)
    photographer.begin()
    return application.exec()


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long the scripted user talks before (%(default)s)"
    )
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.home is not None:
        return take(args.seconds, args.home, is_double="QT_SCALE_FACTOR" in os.environ)
    store = places(load_config(file=None, env=os.environ).config, os.environ).store
    command = [
        str(Path(sys.executable).relative_to(sys.prefix)),
        str(Path(__file__).resolve()),
        "--seconds",
        str(args.seconds),
        "--home",
    ]
    with tempfile.TemporaryDirectory(prefix="vivavoce-") as folder:
        home = Path(folder)
        (home / "python").symlink_to(sys.prefix, target_is_directory=True)
        (home / "models").symlink_to(store, target_is_directory=True)
        clean = {**os.environ, "HOME": folder, "VIVAVOCE_STORE": str(home / "models")}
        clean = {key: value for key, value in clean.items() if not key.startswith("XDG_")}
        for scale in ({}, {"QT_SCALE_FACTOR": "2"}):
            done = subprocess.run(
                [str(home / "python" / command[0]), *command[1:], folder], cwd=ROOT, env={**clean, **scale}, check=False
            )
            if done.returncode:
                return done.returncode
            (home / "window.ini").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
