"""The main window: panels as docks around the conversation, one timer that feeds them, and what the program can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, QCoreApplication, QEvent, QSettings, Qt, QTimer
from PySide6.QtGui import QAction, QCloseEvent, QKeySequence
from PySide6.QtWidgets import QApplication, QDockWidget, QLabel, QMainWindow, QMenu

from app.ui.failed_panel import FailedPanel
from app.ui.language import Language
from app.ui.panel import Context, Panel
from app.ui.registry import PanelSpec
from app.ui.theme import ThemeName
from app.viewmodel.base import ViewModel
from app.viewmodel.status import Status

TICK_MS = 33
"""30 frames a second: what meters need; slower panels take every second or third."""
_POLL_TICKS = 15
_DOCK_AREAS = {
    "left": Qt.DockWidgetArea.LeftDockWidgetArea,
    "right": Qt.DockWidgetArea.RightDockWidgetArea,
    "bottom": Qt.DockWidgetArea.BottomDockWidgetArea,
}
_STATE_VERSION = 1


@dataclass(slots=True)
class _Shown:
    """A panel in its place."""

    spec: PanelSpec
    panel: Panel
    dock: QDockWidget | None
    due_s: float = 0.0


class Window(QMainWindow):
    """Fed by `feed` once a tick, which hands new events to the view models."""

    def __init__(
        self,
        specs: Sequence[PanelSpec],
        context: Context,
        status: Status,
        language: Language,
        settings: QSettings,
        feed: Callable[[], None],
        on_close: Callable[[], bool],
    ) -> None:
        """`on_close`: whether the window may go at once; else it is closed again later, when all has ended."""
        super().__init__()
        self.models: list[ViewModel] = []
        self._context = context
        self._status = status
        self._language = language
        self._settings = settings
        self._feed = feed
        self._on_close = on_close
        self._tick = 0
        self._status_revision = -1
        self._is_leaving = False
        self._shown = [self._open(spec) for spec in specs]
        self._place()
        self._state_label, self._device_label = QLabel(), QLabel()
        self._latency_label, self._problem_label = QLabel(), QLabel()
        self._make_status_bar()
        self._make_menus()
        self.retranslate()
        self._restore()
        self._timer = QTimer(self)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._timer.timeout.connect(self._on_tick)
        self._timer.start(TICK_MS)

    # -- panels -----------------------------------------------------------------------------------------------

    def panel(self, name: str) -> Panel:
        """By the name in its spec."""
        return next(shown.panel for shown in self._shown if shown.spec.name == name)

    def _open(self, spec: PanelSpec) -> _Shown:
        """A panel that raises is replaced by one that says so; the others and the conversation go on."""
        try:
            model = spec.make_model(self._context)
            panel = spec.make_widget(model, self._context)
        except Exception as error:
            model = ViewModel()
            panel = FailedPanel(model, self._context, error)
        self.models.append(model)
        panel.setObjectName(f"panel.{spec.name}")
        return _Shown(spec, panel, None)

    def _place(self) -> None:
        self.setDockNestingEnabled(True)
        first: dict[str, QDockWidget] = {}
        for shown in self._shown:
            place = shown.spec.place
            if place == "center":
                self.setCentralWidget(shown.panel)
                continue
            dock = QDockWidget(self)
            dock.setObjectName(f"dock.{shown.spec.name}")
            dock.setWidget(shown.panel)
            self.addDockWidget(_DOCK_AREAS[place], dock)
            if place in first:
                self.tabifyDockWidget(first[place], dock)
            first.setdefault(place, dock)
            dock.setVisible(shown.spec.is_open)
            shown.dock = dock
        for dock in first.values():
            dock.raise_()
        self.setCorner(Qt.Corner.BottomRightCorner, Qt.DockWidgetArea.RightDockWidgetArea)
        self.setCorner(Qt.Corner.BottomLeftCorner, Qt.DockWidgetArea.LeftDockWidgetArea)

    def _share_out(self) -> None:
        """Before the user has moved anything: two fifths for the docks at the side, a third for those below."""
        docks = [(shown.spec.place, shown.dock) for shown in self._shown if shown.dock is not None]
        side = [dock for place, dock in docks if place in ("left", "right")]
        below = [dock for place, dock in docks if place == "bottom"]
        self.resizeDocks(side, [self.width() * 2 // 5] * len(side), Qt.Orientation.Horizontal)
        self.resizeDocks(below, [self.height() // 3] * len(below), Qt.Orientation.Vertical)

    def fail(self, model: ViewModel, error: Exception) -> None:
        """What a view model raised closes its panel."""
        for shown in self._shown:
            if shown.panel.view_model is model:
                self._fail(shown, error)

    def _fail(self, shown: _Shown, error: Exception) -> None:
        failed = FailedPanel(ViewModel(), self._context, error)
        shown.panel.hide()
        if shown.dock is not None:
            shown.dock.setWidget(failed)
        else:
            self.setCentralWidget(failed)
        shown.panel = failed

    # -- the tick ---------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        self._tick += 1
        self._feed()
        now_s = time.monotonic()
        for number, shown in enumerate(self._shown):
            try:
                if now_s >= shown.due_s and shown.panel.refresh_if_changed():
                    shown.due_s = now_s + 1 / shown.panel.fps - TICK_MS / 2000
                if (self._tick + number) % _POLL_TICKS == 0 and shown.panel.isVisible():
                    shown.panel.poll()
            except Exception as error:  # a bug of one panel's must not take the conversation with it
                self._fail(shown, error)
        if self._status.revision != self._status_revision:
            self._status_revision = self._status.revision
            self._show_status()

    # -- status bar, menus ------------------------------------------------------------------------------------

    def _make_status_bar(self) -> None:
        bar = self.statusBar()
        for label, stretch in (
            (self._state_label, 0),
            (self._device_label, 0),
            (self._latency_label, 0),
            (self._problem_label, 1),
        ):
            label.setContentsMargins(8, 2, 8, 2)
            bar.addWidget(label, stretch)

    def _show_status(self) -> None:
        status, colours = self._status, self._context.theme.colours
        states = {
            "loading": self.tr("Loading the models…"),
            "listening": self.tr("Listening"),
            "hearing": self.tr("Hearing you"),
            "thinking": self.tr("Thinking"),
            "speaking": self.tr("Speaking"),
            "ended": self.tr("Ended"),
        }
        self._state_label.setText(states.get(status.state, status.state))
        names = " → ".join(dict.fromkeys(name for name in (status.input_name, status.output_name) if name))
        self._device_label.setText(names or "—")
        latency_ms = status.latency_p50_ms
        self._latency_label.setText(
            "—" if latency_ms is None else self.tr("{0} ms to the first sound").format(latency_ms)
        )
        self._problem_label.setText(status.problem)
        self._problem_label.setToolTip(status.problem)
        self._problem_label.setStyleSheet(f"color: {colours.bad}" if status.problem else "")

    def _make_menus(self) -> None:
        bar = self.menuBar()
        self._program_menu, self._view_menu = QMenu(self), QMenu(self)
        bar.addMenu(self._program_menu)
        bar.addMenu(self._view_menu)
        self._restart_action = self._action(self._program_menu, self.restart_wanted, "Ctrl+R")
        self._quit_action = self._action(self._program_menu, self.close, "Ctrl+Q")
        docks = [shown for shown in self._shown if shown.dock is not None]
        for number, shown in enumerate(docks, 1):
            assert shown.dock is not None
            action = shown.dock.toggleViewAction()
            if number < 10:
                action.setShortcut(QKeySequence(f"Alt+{number}"))
            self._view_menu.addAction(action)
        self._view_menu.addSeparator()
        self._theme_action = self._action(self._view_menu, self.toggle_theme, "Ctrl+D")
        self._language_action = self._action(self._view_menu, self.toggle_language, "Ctrl+L")

    def _action(self, menu: QMenu, call: Callable[[], object], keys: str) -> QAction:
        action = QAction(self)
        action.setShortcut(QKeySequence(keys))
        action.triggered.connect(lambda _checked=False: call())
        menu.addAction(action)
        return action

    def restart_wanted(self) -> None:
        """Begin the conversation anew."""
        self._context.restart(self._context.loaded)

    def toggle_theme(self) -> None:
        """Light to dark and back; remembered."""
        self.use_theme("light" if self._context.theme.name == "dark" else "dark")

    def use_theme(self, name: ThemeName) -> None:
        """At once, everywhere."""
        application = QApplication.instance()
        assert isinstance(application, QApplication)
        self._context.theme.apply(application, name)
        self._settings.setValue("theme", name)
        for shown in self._shown:
            shown.panel.restyle()
        self._show_status()

    def toggle_language(self) -> None:
        """English to Chinese and back; remembered."""
        self._language.use("en" if self._language.name == "zh" else "zh")
        self._settings.setValue("language", self._language.name)

    def changeEvent(self, event: QEvent) -> None:
        """Qt says here that another language is in use."""
        if event.type() is QEvent.Type.LanguageChange and hasattr(self, "_timer"):
            self.retranslate()
        super().changeEvent(event)

    def retranslate(self) -> None:
        """Set every text again."""
        self.setWindowTitle("Vivavoce")
        self._program_menu.setTitle(self.tr("&Conversation"))
        self._view_menu.setTitle(self.tr("&View"))
        self._restart_action.setText(self.tr("&Begin anew"))
        self._quit_action.setText(self.tr("&Quit"))
        self._theme_action.setText(self.tr("&Dark or light"))
        self._language_action.setText(self.tr("&English or Chinese"))
        for shown in self._shown:
            title = QCoreApplication.translate("Panel", shown.spec.title)
            if shown.dock is not None:
                shown.dock.setWindowTitle(title)
            shown.panel.setAccessibleName(title)
            shown.panel.retranslate()
        self._show_status()

    # -- remembered -------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        geometry, state = self._settings.value("geometry"), self._settings.value("state")
        if not isinstance(geometry, QByteArray) or not self.restoreGeometry(geometry):
            self.resize(1280, 800)
            self._share_out()
        if isinstance(state, QByteArray):
            self.restoreState(state, _STATE_VERSION)

    def come_to_front(self) -> None:
        """Above all others, also where it was minimised or about to go."""
        self._is_leaving = False
        self.setWindowState(self.windowState() & ~Qt.WindowState.WindowMinimized)
        self.show()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:
        """Remember how it looked and go out of sight at once; the conversation ends first."""
        if not self._is_leaving:
            self._settings.setValue("geometry", self.saveGeometry())
            self._settings.setValue("state", self.saveState(_STATE_VERSION))
        self._is_leaving = True
        if self._on_close():
            self._timer.stop()
            event.accept()
        else:
            event.ignore()
            self.hide()
