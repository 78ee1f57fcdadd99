"""The memory panel: what it says with an engine, without one, under pressure, and on a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PySide6", reason="the window is Qt")

from PySide6.QtWidgets import QApplication

from app import events
from app.config.load import load_config
from app.ui.panel import Context
from app.ui.panels.figures import FiguresTable, size_text
from app.ui.panels.memory import MemoryPanel
from app.ui.theme import Theme
from app.viewmodel.machine_memory import MachineMemory
from app.viewmodel.memory import Memory
from gpu.memory.ladder import ORDER
from gpu.memory.places import Place
from gpu.telemetry import GpuProcess

MB = 1_000_000
CARD = Place("cuda", "GPU 0 (A card)", 24_000 * MB, 0, "cuda:0", processes=(GpuProcess(78, 6_000 * MB),))
MACHINE = MachineMemory(Place("cpu", "memory", 16_000 * MB, 9_000 * MB), (CARD,), "", frozenset({1}), 1_500 * MB)
STATE = events.MemoryState(
    at_samples=0,
    device="cpu",
    total_bytes=16_000 * MB,
    free_bytes=10_000 * MB,
    engine_bytes=900 * MB,
    weights_bytes=140 * MB,
    page_bytes=8 * MB,
    pages=4,
    shared_pages=1,
    parked_sessions=0,
    live_tokens=1400,
    window_tokens=2048,
    sessions=[[3, 1, 12, 1400]],
    prefixes=[[2, 1, 2, 24]],
    level="calm",
    rungs_given=[],
    rungs_open={"window": 16 * MB},
)


@pytest.fixture
def context() -> Context:
    return Context(load_config(file=None, env={}), Path(), lambda _: None, lambda _: None, Theme("light"))


@pytest.fixture
def panel(qtbot: Any, context: Context) -> MemoryPanel:
    made = MemoryPanel(Memory(read=lambda: MACHINE), context)
    qtbot.addWidget(made)
    made.resize(480, 700)
    with qtbot.waitExposed(made):
        made.show()
    return made


def show(panel: MemoryPanel, *taken: events.Event) -> None:
    for event in taken:
        panel.view_model.take(event)
    assert panel.refresh_if_changed()


def rows(table: FiguresTable) -> list[list[str]]:
    model = table.figures
    columns = range(model.columnCount())
    return [[str(model.data(model.index(row, column))) for column in columns] for row in range(model.rowCount())]


def test_before_anything_is_known(panel: MemoryPanel) -> None:
    assert "RAM: —" in panel._place.text()
    assert (rows(panel.parts), rows(panel.stages)) == ([], [])
    assert not panel.map.isVisible()
    assert "not known yet" in panel._level.text()
    assert [row[1] for row in rows(panel.ladder)] == ["nothing now"] * len(ORDER)


def test_the_machine_comes_by_itself(panel: MemoryPanel, qtbot: Any) -> None:
    panel.poll()
    qtbot.waitUntil(lambda: panel.poll() or panel.refresh_if_changed(), timeout=20_000)
    assert "RAM: 16.00 GB" in panel._place.text()
    assert ["free", "9.00 GB", "56.2 %"] in rows(panel.parts)


def test_on_the_cpu_it_is_said_plainly(panel: MemoryPanel) -> None:
    show(panel, STATE, events.StageBackend(0, "asr", "moonshine", 44 * MB), events.StageBackend(0, "gate", "webrtc", 9))
    assert "runs on the CPU" in panel._place.text()
    assert rows(panel.parts) == [
        ["language model", "140 MB", "0.9 %"],
        ["its conversation", "32 MB", "0.2 %"],
        ["speech models", "44 MB", "0.3 %"],
        ["the rest of Vivavoce", "684 MB", "4.3 %"],
        ["other programs and the system", "5.10 GB", "31.9 %"],
        ["free", "10.00 GB", "62.5 %"],
    ]
    assert panel.bar.accessibleDescription().startswith("language model 140 MB, its conversation 32 MB")
    assert "Of this Vivavoce's own: 900 MB" in panel._own.text()
    assert rows(panel.stages) == [["recognition", "moonshine", "44 MB"]]
    assert not panel._others.isVisible()


def test_the_arena(panel: MemoryPanel) -> None:
    show(panel, STATE)
    assert "1,400 of 2,048 tokens in 4 pages of 8.0 MB, 1 of them shared" in panel._arena.text()
    wanted = "conversation: 3 of 12 pages, 1,400 tokens; persona 1: 2 of 2 pages, 24 tokens"
    assert panel.map.accessibleDescription() == wanted
    show(panel, dataclasses.replace(STATE, parked_sessions=2, sessions=[[3, 1, 12, 1400], [0, 0, 12, 5]]))
    assert "2 sessions lie on the host" in panel._arena.text()
    assert "session 2: 0 of 12 pages, 5 tokens" in panel.map.accessibleDescription()


def test_an_arena_of_thousands_of_pages_is_painted_at_once(panel: MemoryPanel) -> None:
    show(panel, dataclasses.replace(STATE, sessions=[[5000, 100, 8192, 90_000]], prefixes=[[100, 100, 100, 1600]] * 20))
    series = panel.context.theme.colours.series
    image = panel.map.grab().toImage()
    found = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())}
    assert {series[0], series[2]} <= found


def test_under_pressure(panel: MemoryPanel) -> None:
    show(
        panel,
        events.MemoryDegraded(1, "tight", "spare pages", 8 * MB),
        dataclasses.replace(STATE, level="tight", rungs_given=["spare pages"]),
    )
    assert "Memory is tight" in panel._level.text()
    assert rows(panel.ladder)[:3] == [
        ["spare pages", "given up", "8.0 MB came free"],
        ["half of the window", "possible", "16 MB would come free"],
        ["conversation in 8 bits", "nothing now", "—"],
    ]
    show(panel, events.MemoryRestored(2, "calm", "spare pages", 8 * MB))
    assert "Enough memory is free" in panel._level.text()
    assert rows(panel.ladder)[0][1] == "nothing now"
    show(panel, dataclasses.replace(STATE, level=""))
    assert "nobody watches" in panel._level.text()


def test_on_a_gpu(panel: MemoryPanel, qtbot: Any) -> None:
    panel.view_model.take(dataclasses.replace(STATE, device="cuda:0", total_bytes=24_000 * MB))
    panel.poll()
    qtbot.waitUntil(lambda: panel.poll() or "GPU 0" in _refreshed(panel), timeout=20_000)
    assert "Memory of GPU 0 (A card): 24.00 GB" in panel._place.text()
    assert panel._others.isVisible()
    assert panel._others.text() == "process 78: 6.00 GB"


def _refreshed(panel: MemoryPanel) -> str:
    panel.refresh_if_changed()
    return panel._place.text()


def test_a_hidden_panel_does_nothing(panel: MemoryPanel) -> None:
    panel.hide()
    panel.view_model.take(STATE)
    assert not panel.refresh_if_changed()
    assert rows(panel.parts) == []


def test_both_themes(panel: MemoryPanel, context: Context) -> None:
    show(panel, STATE)
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    for name in ("light", "dark"):
        context.theme.apply(application, name)
        panel.restyle()
        image = panel.own_bar.grab().toImage()
        found = {image.pixelColor(x, image.height() // 2).name() for x in range(image.width())}
        assert {context.theme.colours.series[0], context.theme.colours.series[3]} <= found


def test_tables_are_as_high_as_their_rows(panel: MemoryPanel) -> None:
    show(panel, STATE)
    for table in (panel.parts, panel.ladder):
        last = table.figures.index(table.figures.rowCount() - 1, 0)
        assert table.viewport().rect().contains(table.visualRect(last))
        assert table.viewport().height() - table.visualRect(last).bottom() < table.fontMetrics().height()


def test_names_for_a_screen_reader(panel: MemoryPanel) -> None:
    for widget in (panel.bar, panel.own_bar, panel.map, panel.parts, panel.ladder, panel.stages):
        assert widget.accessibleName()


def test_sizes_in_words() -> None:
    assert [size_text(size) for size in (0, 8_388_608, 136_487_680, 1_620_000_000)] == [
        "0 MB",
        "8.4 MB",
        "136 MB",
        "1.62 GB",
    ]
