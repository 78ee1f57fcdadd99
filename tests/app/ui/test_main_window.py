"""The shell: panels in their places, one tick for all, and nothing that a broken panel could take along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QSettings, Qt

from app import events
from app.ui.failed_panel import FailedPanel
from app.ui.language import Language
from app.ui.panel import Context, Panel
from app.ui.registry import PanelSpec
from app.ui.theme import DARK, LIGHT, Colours
from app.ui.window import TICK_MS, Window
from app.viewmodel.base import ViewModel
from app.viewmodel.status import Status


class _Counted(Panel):
    def __init__(self, model: ViewModel, context: Context) -> None:
        super().__init__(model, context)
        self.refreshed = self.polled = self.restyled = 0

    def refresh(self) -> None:
        self.refreshed += 1

    def poll(self) -> None:
        self.polled += 1

    def restyle(self) -> None:
        self.restyled += 1


class _Broken(_Counted):
    def refresh(self) -> None:
        raise RuntimeError("a plug-in's bug")


def _unbuildable(model: ViewModel, context: Context) -> Panel:
    raise RuntimeError("cannot even begin")


def _spec(name: str, place: str, make: Any = _Counted, *, is_open: bool = True) -> PanelSpec:
    return PanelSpec(name, name.title(), place, lambda _: ViewModel(), make, is_open)  # type: ignore[arg-type]


@pytest.fixture
def open_window(context: Context, tmp_path: Path, qtbot: Any) -> Any:
    def make(*specs: PanelSpec) -> Window:
        settings = QSettings(str(tmp_path / "window.ini"), QSettings.Format.IniFormat)
        window = Window(specs, context, Status(), Language(), settings, lambda: None, lambda: True)
        qtbot.addWidget(window)
        window.show()
        window.activateWindow()
        qtbot.waitUntil(window.isActiveWindow)
        return window

    return make


def test_seen_panels_are_fed_and_hidden_ones_idle(open_window: Any, qtbot: Any) -> None:
    window = open_window(_spec("middle", "center"), _spec("side", "right"), _spec("shut", "bottom", is_open=False))
    side, shut = window.panel("side"), window.panel("shut")
    qtbot.waitUntil(lambda: side.refreshed > 0 and side.polled > 0)
    count = side.refreshed
    qtbot.wait(5 * TICK_MS)
    assert side.refreshed == count  # nothing new, nothing painted
    for model in window.models:
        model.changed()
    qtbot.waitUntil(lambda: side.refreshed > count)
    assert (shut.refreshed, shut.polled) == (0, 0)


def test_a_panel_that_raises_is_replaced_and_the_others_go_on(open_window: Any, qtbot: Any) -> None:
    window = open_window(
        _spec("middle", "center"), _spec("bad", "right", _Broken), _spec("worse", "left", _unbuildable)
    )
    qtbot.waitUntil(lambda: isinstance(window.panel("bad"), FailedPanel))
    assert isinstance(window.panel("worse"), FailedPanel)
    count = window.panel("middle").polled
    qtbot.waitUntil(lambda: window.panel("middle").polled > count + 1, timeout=5000)


def test_theme_and_places_are_remembered(open_window: Any, context: Context, qtbot: Any) -> None:
    first = open_window(_spec("middle", "center"), _spec("side", "right"))
    assert context.theme.name == "light"
    qtbot.keyClick(first, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
    assert context.theme.name == "dark"
    assert first.panel("side").restyled == 1
    first._shown[1].dock.hide()
    first.close()
    second = open_window(_spec("middle", "center"), _spec("side", "right"))
    assert second._shown[1].dock.isHidden()
    assert second._settings.value("theme") == "dark"


def test_the_status_bar_says_what_is(context: Context) -> None:
    status = Status()
    status.take(events.SessionStarted(0, "1", 0, "live", 48000, 20.0, "a", "b", []))
    status.take(events.DeviceOpened(0, "mic", "spk", 48000, 20.0, "normal"))
    status.take(events.TurnLatency(1, 1, 1, 1, 1, 1, 1, 1, 1, 812.0))
    assert (status.state, status.latency_p50_ms, status.problem) == ("listening", 812, "")
    status.take(events.DeviceLost(2, "mic", "it was unplugged"))
    assert status.problem == "it was unplugged"
    status.take(events.DeviceBack(3, "mic"))
    assert status.problem == ""


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("role", ["text", "faint", "accent", "user", "good", "warning", "bad"])
def test_text_has_the_contrast_of_wcag_aa(colours: Colours, role: str) -> None:
    for ground in (colours.ground, colours.surface):
        light, dark = sorted((_luminance(getattr(colours, role)), _luminance(ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
