"""`vivavoce` with a window: Qt's application, and one conversation after another behind it."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal

from PySide6.QtCore import QSettings, QTimer
from PySide6.QtGui import QFont, QFontInfo
from PySide6.QtWidgets import QApplication

from app import events
from app.cli.talk import check_flags, private_files
from app.commands import Command, SayText, SetMuted
from app.config.load import Loaded, unread_variables
from app.crash import describe_crash
from app.engine.builder import places
from app.errors import AgentError
from app.ui.language import CHINESE_FONTS, Language
from app.ui.panel import Context
from app.ui.registry import panel_specs
from app.ui.session import SessionRunner
from app.ui.single import SingleInstance
from app.ui.theme import Theme, ThemeName
from app.ui.window import Window
from app.viewmodel.base import Hub, ViewModel
from app.viewmodel.conversation import ConversationView
from app.viewmodel.signal import Signal
from app.viewmodel.status import Status
from audio.io.device import DeviceSpec

_EVENTS_AT_ONCE = 500
_FEED_LIMIT_S = 0.008
"""Events wait for the next tick rather than hold up a frame."""
_SIGNAL_POLL_MS = 200

_logger = logging.getLogger("vivavoce.face")


def run(
    args: argparse.Namespace,
    loaded: Loaded,
    *,
    device: DeviceSpec | None = None,
    watch: Callable[[Program], None] | None = None,
) -> int:
    """Open the window and talk; returns the exit code when the window was closed.

    A benchmark brings its own `device`, and a `watch` that gets the program before it begins.

    Raises:
        AgentError: flags or files that do not do, before there is a window; or the last conversation failed.
    """
    check_flags(args, loaded.config)
    with private_files():  # as in the terminal: what is said is nobody else's business
        return _run(args, loaded, device, watch)


def _run(
    args: argparse.Namespace,
    loaded: Loaded,
    device: DeviceSpec | None,
    watch: Callable[[Program], None] | None,
) -> int:
    application = QApplication(["vivavoce"])
    application.setApplicationName("vivavoce")
    application.setApplicationDisplayName("Vivavoce")
    application.setQuitOnLastWindowClosed(False)  # the window goes at once, the program when all has ended
    single = SingleInstance(places(loaded.config, os.environ).data)
    if single.is_second:
        sys.stdout.write("Vivavoce is open already; its window comes to the front.\n")
        return 0
    settings = QSettings(str(loaded.user_file.parent / "window.ini"), QSettings.Format.IniFormat)
    program = Program(application, args, loaded, settings, device)
    single.raised.connect(program.come_to_front)
    with _signals(program.close), _bugs_told(program.tell_bug):
        if watch is not None:
            watch(program)
        program.begin()
        application.exec()
    single.close()
    if program.problem:
        raise AgentError(program.problem)
    return 0


@contextmanager
def _signals(close: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a terminal that is closed (but not under `nohup`) close the window."""
    numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number, before in previous.items():
        if before is not signal.SIG_IGN:
            signal.signal(number, lambda *_: close())
    ticker = QTimer()  # Python's signal handlers run when Python code does
    ticker.timeout.connect(lambda: None)
    ticker.start(_SIGNAL_POLL_MS)
    try:
        yield
    finally:
        ticker.stop()
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def _bugs_told(tell: Callable[[Exception], None]) -> Iterator[None]:
    """What Qt's callbacks raise goes to the log and the status bar; Qt would print a traceback and go on."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Exception):
            tell(error)
        else:
            before(kind, error, trace)

    sys.excepthook = hook
    try:
        yield
    finally:
        sys.excepthook = before


class Program:
    """The window and the conversation behind it, one after another."""

    def __init__(
        self,
        application: QApplication,
        args: argparse.Namespace,
        loaded: Loaded,
        settings: QSettings,
        device: DeviceSpec | None = None,
    ) -> None:
        """`device`: instead of what flags and configuration ask for."""
        self._application = application
        self._args = args
        self._device = device
        self._runner: SessionRunner | None = None
        self._next: Loaded | None = None
        self._unsaid: list[SayText] = []
        """Typed while one conversation ends and before the next begins."""
        self._is_muted = False
        self._is_closing = False
        self._has_talked = False
        self.problem = ""
        """Why the last conversation ended by itself; "" where it did not, or another one runs."""
        application.setFont(_readable(application.font()))
        theme = Theme("light")
        theme.apply(application, _theme_name(settings, loaded))
        language = Language()
        language.use(str(settings.value("language", loaded.config.ui.language)))
        self._status = Status()
        data = places(loaded.config, os.environ).data
        self.context = Context(loaded, data, self.send, self.restart, theme)
        self.window = Window(panel_specs(), self.context, self._status, language, settings, self._feed, self._may_close)
        self._hub = Hub([self._status, *self.window.models], self.window.fail)

    def begin(self) -> None:
        """Show the window, and load behind it."""
        self.window.show()
        self._start(self.context.loaded)

    def send(self, command: Command) -> None:
        """To the conversation that runs or loads, or to the next one where that is about to begin."""
        if isinstance(command, SetMuted):
            self._is_muted = command.muted
        if self._next is not None and isinstance(command, SayText):
            self._unsaid.append(command)
        elif self._runner is not None:
            self._runner.send(command)

    def restart(self, loaded: Loaded) -> None:
        """End the conversation and begin another one, which knows what was said."""
        if self._runner is None:
            self._start(loaded)
        else:
            self._next = loaded
            self._runner.stop()

    def listen(self, model: ViewModel) -> None:
        """Hand every event to one more view model."""
        self._hub.add(model)

    def close(self) -> None:
        """Close the window; the program ends when the conversation has."""
        self.window.close()

    def come_to_front(self) -> None:
        """Somebody started the program a second time. A window that was being closed stays, and talks again."""
        if self._is_closing:
            self._is_closing, self._next = False, self.context.loaded
        self.window.come_to_front()

    def tell_bug(self, error: Exception) -> None:
        """Something raised that nobody expected: a sentence for the user, the rest for the log."""
        _logger.error("unexpected", exc_info=error)
        self._hub.take(events.Notice(0, "error", describe_crash(error)))

    def _start(self, loaded: Loaded) -> None:
        self.context.loaded, self.problem = loaded, ""
        self._show_state("loading", "")
        remarks = [] if self._has_talked else [f"note: {remark}" for remark in unread_variables(os.environ)]
        resume = self._has_talked or self._args.resume
        self._runner = SessionRunner(self._args, loaded, resume=resume, device=self._device, remarks=remarks)
        self._has_talked = True
        if self._is_muted:
            self._runner.send(SetMuted(True))
        for command in self._unsaid:
            self._runner.send(command)
        self._unsaid = []
        self._runner.start()

    def _feed(self) -> None:
        """Once a tick: events to the view models, the microphone's ring to its watcher; what has ended begins anew."""
        runner = self._runner
        if runner is None:
            return
        has_ended = not runner.is_alive  # asked first: what it said last is there to be taken now
        until_s = time.monotonic() + _FEED_LIMIT_S
        while batch := runner.take_events(_EVENTS_AT_ONCE):
            for event in batch:
                self._hub.take(event)
            if time.monotonic() > until_s:
                return
        for model in self.window.models:
            if isinstance(model, Signal):
                model.tap.follow(runner.mic_ring)
        if has_ended:
            self._ended(runner)

    def _ended(self, runner: SessionRunner) -> None:
        self._runner = None
        if self._next is not None:
            loaded, self._next = self._next, None
            self._start(loaded)
        elif self._is_closing:
            self.window.close()
        else:
            self.problem = runner.problem
            self._show_state("ended", runner.problem)

    def _show_state(self, state: Literal["loading", "ended"], problem: str) -> None:
        self._status.run_state(state, problem)
        for model in self.window.models:
            if isinstance(model, ConversationView):
                model.set_session_state(state)

    def _may_close(self) -> bool:
        """Whether nothing runs any more; else it is told to end, and the window goes when it has."""
        self._is_closing, self._next = True, None
        if self._runner is None:
            self._application.quit()
            return True
        self._runner.stop()
        return False


def _theme_name(settings: QSettings, loaded: Loaded) -> ThemeName:
    return "dark" if settings.value("theme", loaded.config.ui.theme) == "dark" else "light"


def _readable(font: QFont) -> QFont:
    """Chinese in a face that has it, whatever the system's default is."""
    # By the face that stands for it: an alias such as "Sans Serif" would be passed over for the next.
    font.setFamilies([QFontInfo(font).family(), *CHINESE_FONTS])
    if sys.platform != "win32" and font.pointSizeF() < 10:
        font.setPointSizeF(10)
    return font
