"""The latency panel: what it says, by mouse, by keyboard and as a table, in both themes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PySide6", reason="the window is Qt")

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication

from app import events
from app.config.load import load_config
from app.ui.panel import Context
from app.ui.panels.latency import LatencyPanel
from app.ui.panels.waterfall import tick_ms
from app.ui.theme import Theme
from app.viewmodel.latency import Latency

STEPS_MS = (200.0, 60.0, 90.0, 200.0, 150.0, 20.0, 30.0)


@pytest.fixture
def context() -> Context:
    loaded = load_config(file=None, env={})
    return Context(loaded, Path(), lambda _: None, lambda _: None, Theme("light"))


@pytest.fixture
def panel(qtbot: Any, context: Context) -> LatencyPanel:
    made = LatencyPanel(Latency(context.loaded.config.ui.latency_budget_ms), context)
    qtbot.addWidget(made)
    made.resize(480, 420)
    with qtbot.waitExposed(made):
        made.show()
    return made


def talk(panel: LatencyPanel, turns: int) -> None:
    for number in range(1, turns + 1):
        steps_ms = (100.0 * number, *STEPS_MS[1:])
        panel.view_model.take(events.TurnLatency(number, number, *steps_ms, sum(steps_ms)))  # type: ignore[call-arg]
    panel.refresh_if_changed()


def texts(panel: LatencyPanel) -> list[str]:
    return [tile.accessibleName() for tile in panel._tiles]


def test_before_the_first_turn(panel: LatencyPanel) -> None:
    assert texts(panel) == ["median: —", "p95: —", "p99: —", "to fall silent: —"]
    assert panel.waterfall.selected is None
    assert "say something" in panel.waterfall.accessibleDescription()
    assert not panel.grab().isNull()


def test_figures_and_the_newest_turn(panel: LatencyPanel) -> None:
    talk(panel, 4)
    panel.view_model.take(events.BargeIn(9, 4, 1, 2, 3, 210.0))
    assert panel.refresh_if_changed()
    assert not panel.refresh_if_changed()
    assert texts(panel) == ["median: 750 ms", "p95: 950 ms", "p99: 950 ms", "to fall silent: 210 ms"]
    text = panel.waterfall.accessibleDescription()
    assert text.startswith(
        "Turn 4: 950 ms — end of turn 400, recognition 60, first token 90, first clause 200, voice 150"
    )
    assert text.endswith("interrupted, silent after 210 ms")
    assert panel._detail.text() == text


def test_the_budget_is_the_configurations(panel: LatencyPanel) -> None:
    talk(panel, 4)
    assert panel.context.theme.colours.bad not in panel._p50._value.styleSheet()
    panel.context.loaded = load_config(file=None, env={}, overrides=["ui.latency_budget_ms=700"])
    talk(panel, 4)
    assert panel.context.theme.colours.bad in panel._p50._value.styleSheet()
    assert panel.waterfall._budget_name == "budget 700 ms"


def test_tab_goes_from_the_picture_to_the_button(panel: LatencyPanel, qtbot: Any) -> None:
    panel.waterfall.setFocus()
    qtbot.keyClick(panel.waterfall, Qt.Key.Key_Tab)
    assert panel._button.hasFocus()


def test_keys_choose_a_turn(panel: LatencyPanel, qtbot: Any) -> None:
    talk(panel, 4)
    panel.waterfall.setFocus()

    def press(key: Qt.Key) -> int:
        qtbot.keyClick(panel.waterfall, key)
        assert panel.waterfall.selected is not None
        assert f"Turn {panel.waterfall.selected.turn}:" in panel.waterfall.accessibleDescription()
        return panel.waterfall.selected.turn

    keys = Qt.Key
    assert [press(key) for key in (keys.Key_Down, keys.Key_Down, keys.Key_Up)] == [3, 2, 3]
    assert [press(key) for key in (keys.Key_End, keys.Key_Down, keys.Key_Home, keys.Key_Up)] == [1, 1, 4, 4]
    press(keys.Key_End)
    talk(panel, 5)
    assert panel.waterfall.selected is not None
    assert panel.waterfall.selected.turn == 1, "a chosen turn stays chosen when another comes"
    assert press(keys.Key_Escape) == 5


def test_the_mouse_chooses_for_as_long_as_it_is_there(panel: LatencyPanel, qtbot: Any) -> None:
    talk(panel, 4)
    waterfall = panel.waterfall
    third = QPoint(100, round(waterfall._top() + 2.5 * waterfall._row_height()))
    qtbot.mouseMove(waterfall, third)
    qtbot.waitUntil(lambda: waterfall.selected is not None and waterfall.selected.turn == 2)
    qtbot.mouseMove(waterfall, QPoint(100, 1))
    qtbot.waitUntil(lambda: waterfall.selected is not None and waterfall.selected.turn == 4)
    qtbot.mouseClick(waterfall, Qt.MouseButton.LeftButton, pos=third)
    assert waterfall.selected is not None
    assert waterfall.selected.turn == 2


def test_the_table_has_the_same_figures(panel: LatencyPanel, qtbot: Any) -> None:
    talk(panel, 3)
    qtbot.mouseClick(panel._button, Qt.MouseButton.LeftButton)
    assert panel.table.isVisible()
    assert not panel.waterfall.isVisible()
    model = panel.table.figures

    def row(number: int) -> list[str]:
        return [str(model.data(model.index(number, column))) for column in range(model.columnCount())]

    assert row(0) == ["median", "750", "200", "60", "90", "200", "150", "20", "30", "—"]
    assert row(3) == ["#3", "850", "300", "60", "90", "200", "150", "20", "30", "—"]
    assert model.rowCount() == 6
    spoken = model.data(model.index(3, 3), Qt.ItemDataRole.AccessibleTextRole)
    assert spoken == "recognition: 60"
    panel.table.selectRow(4)
    talk(panel, 3)
    assert panel.table.currentIndex().row() == 4
    qtbot.keyClick(panel._button, Qt.Key.Key_Space)
    assert panel.waterfall.isVisible()


def test_the_guard_says_how_it_is(panel: LatencyPanel, new_meters: Callable[..., events.Meters]) -> None:
    assert "not measured yet" in panel._guard.text()
    panel.view_model.take(new_meters(1600, 3.0, 0))
    panel.refresh_if_changed()
    assert "Keeps up with the sound: ear done 3.0 ms after the block (p99), 0 ms lost" in panel._guard.text()
    panel.view_model.take(events.DeviceOpened(0, "in", "out", 16_000, 1.0, "normal"))
    panel.view_model.take(new_meters(1700, 3.0, 800))
    panel.refresh_if_changed()
    assert "Sound was lost" in panel._guard.text()
    assert "50 ms lost" in panel._guard.text()


@pytest.fixture
def new_meters() -> Callable[..., events.Meters]:
    import dataclasses

    def make(at_samples: int, late_ms: float, lost_frames: int) -> events.Meters:
        made = {field.name: 0 for field in dataclasses.fields(events.Meters)}
        return events.Meters(**made | {"at_samples": at_samples, "hop_late_ms": late_ms, "lost_frames": lost_frames})

    return make


def test_a_hidden_panel_does_nothing(panel: LatencyPanel) -> None:
    panel.hide()
    talk(panel, 1)
    assert texts(panel)[0] == "median: —"
    panel.show()
    assert panel.refresh_if_changed()
    assert texts(panel)[0] == "median: 650 ms"


def test_both_themes(panel: LatencyPanel, context: Context) -> None:
    talk(panel, 4)
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    seen = []
    for name in ("light", "dark"):
        context.theme.apply(application, name)
        panel.restyle()
        image = panel.waterfall.grab().toImage()
        found = {image.pixelColor(x, y).name() for x in range(0, image.width(), 3) for y in range(0, image.height(), 3)}
        assert set(context.theme.colours.series[:5]) <= found
        assert context.theme.colours.series[0] in panel._legend.text()
        seen.append(found)
    assert seen[0] != seen[1]


def test_names_for_a_screen_reader(panel: LatencyPanel) -> None:
    for widget in (panel.waterfall, panel.table, panel._button, *panel._tiles):
        assert widget.accessibleName()
        assert widget.toolTip() or widget is panel.table


@pytest.mark.parametrize(
    ("longest_ms", "most", "wanted"), [(1150, 6, 200), (1150, 2, 1000), (2300, 5, 500), (80, 4, 20)]
)
def test_ticks(longest_ms: float, most: int, wanted: float) -> None:
    assert tick_ms(longest_ms, most) == wanted
