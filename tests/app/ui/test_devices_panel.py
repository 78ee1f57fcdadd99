"""The *Devices* panel on a screen that nobody sees; at the end against a real sound server."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app import events
from app.commands import Quit
from app.engine.device_check import ECHO, Finding
from app.notices import NO_SIGNAL, SIGNAL_BACK
from app.ui.panel import Context
from app.ui.panels import devices
from app.viewmodel.devices import CheckKind, Devices, DeviceTools, Show
from audio.io.identity import ServerDevice
from audio.io.server import ServerView

_VIEW = ServerView(
    "pulseaudio",
    "usb_mic",
    "pci_out",
    (
        ServerDevice(1, "usb_mic", "Desk Microphone", True, bus="usb"),
        ServerDevice(2, "pci_in", "Built-in Microphone", True, bus="pci"),
        ServerDevice(3, "pci_out", "Built-in Audio", False, bus="pci"),
    ),
)
_OPENED = events.DeviceOpened(0, "usb_mic", "pci_out", 48_000, 21.3, "SCHED_FIFO 10")
_LIST_LIMIT_MS = 20_000


class Bench:
    """The panel over a model whose machine is made of plain values."""

    def __init__(self, context: Context, qtbot: QtBot) -> None:
        self.view: ServerView | None = _VIEW
        self.findings = [Finding("stream", "ok", "opened"), Finding("echo", "wrong", "too late", "Choose a wired one")]
        tools = DeviceTools(lambda: self.view, lambda: [], self._check, devices._save)
        self.model = Devices(lambda: context.loaded, context.send, context.restart, tools)
        self.panel = devices.DevicesPanel(self.model, context)
        self.qtbot = qtbot
        qtbot.addWidget(self.panel)
        self.panel.resize(420, 560)
        self.panel.show()
        qtbot.waitExposed(self.panel)

    @property
    def picker(self) -> QComboBox:
        """Of the microphone."""
        return self.panel.findChildren(QComboBox)[0]

    @property
    def texts(self) -> list[str]:
        """Of all labels that are seen."""
        return [label.text() for label in self.panel.findChildren(QLabel) if label.isVisibleTo(self.panel)]

    def button(self, name: str) -> QPushButton:
        """By its accessible name."""
        return next(b for b in self.panel.findChildren(QPushButton) if b.accessibleName() == name)

    def items(self) -> list[str]:
        """What the microphone's picker offers."""
        return [self.picker.itemText(index) for index in range(self.picker.count())]

    def until(self, ready: Callable[[], bool]) -> None:
        """Let the window work on."""

        def look() -> bool:
            self.panel.poll()
            self.panel.refresh_if_changed()
            return ready()

        self.qtbot.waitUntil(look, timeout=_LIST_LIMIT_MS)

    def _check(self, kind: CheckKind, source: str, sink: str, rate_hz: int | None, show: Show) -> list[Finding]:
        show(ECHO, -30.0)
        return self.findings


@pytest.fixture
def bench(context: Context, qtbot: QtBot) -> Iterator[Bench]:
    made = Bench(context, qtbot)
    made.until(lambda: made.picker.count() == 3)
    yield made
    made.panel._settling.stop()


def test_devices_are_offered_by_name(bench: Bench) -> None:
    assert bench.items() == ["System default: Desk Microphone", "Desk Microphone", "Built-in Microphone"]
    assert bench.picker.currentIndex() == 0
    assert not bench.button("Use these").isEnabled()


def test_a_choice_is_written_to_the_users_file_and_the_conversation_begins_anew(
    bench: Bench, context: Context, recorded: Any
) -> None:
    bench.picker.setCurrentIndex(2)
    assert bench.button("Use these").isEnabled()
    bench.qtbot.keyClick(bench.button("Use these"), Qt.Key.Key_Space)
    bench.until(lambda: bool(recorded.restarted))
    document = tomllib.loads(context.loaded.user_file.read_text(encoding="utf-8"))
    assert document == {"audio": {"input": "pci_in"}}
    assert recorded.restarted[0].config.audio.input == "pci_in"
    context.loaded = recorded.restarted[0]
    bench.model.take(_OPENED)
    bench.until(lambda: not bench.button("Use these").isEnabled())
    bench.picker.setCurrentIndex(0)
    bench.button("Use these").click()
    bench.until(lambda: len(recorded.restarted) == 2)
    assert tomllib.loads(context.loaded.user_file.read_text(encoding="utf-8")) == {}


def test_what_the_user_picked_stays_while_the_list_changes(bench: Bench) -> None:
    bench.picker.setCurrentIndex(2)
    bench.view = ServerView("pulseaudio", "pci_in", "pci_out", _VIEW.devices[1:])
    bench.button("Look again").click()
    bench.until(lambda: bench.picker.count() == 2)
    assert bench.picker.currentText() == "Built-in Microphone"
    bench.view = ServerView("pulseaudio", "", "pci_out", _VIEW.devices[2:])
    bench.button("Look again").click()
    bench.until(lambda: bench.picker.count() == 1)
    assert bench.picker.currentText() == "System default"


def test_what_is_wrong_is_said_until_it_is_mended(bench: Bench) -> None:
    bench.model.take(_OPENED)
    bench.model.take(events.Notice(0, "warning", NO_SIGNAL))
    bench.model.take(events.DeviceLost(0, "usb_mic", "usb_mic is gone"))
    bench.panel.refresh_if_changed()
    assert any(text.startswith("The microphone gives no signal.") for text in bench.texts)
    assert "Lost usb_mic: usb_mic is gone" in bench.texts
    bench.model.take(events.Notice(0, "info", SIGNAL_BACK))
    bench.model.take(events.DeviceBack(0, "usb_mic"))
    bench.panel.refresh_if_changed()
    assert not any("signal" in text or text.startswith("Lost") for text in bench.texts)
    assert "In use: usb_mic → pci_out; 48000 Hz, 21 ms output latency, SCHED_FIFO 10" in bench.texts


def test_a_check_reports_and_the_conversation_comes_back_even_behind_a_hidden_panel(
    bench: Bench, recorded: Any
) -> None:
    bench.model.take(_OPENED)
    bench.button("Check both").click()
    assert recorded.sent == [Quit()]
    bench.panel.refresh_if_changed()
    assert "Ending the conversation…" in bench.texts
    assert not bench.button("Play a tone").isEnabled()
    bench.panel.hide()
    bench.model.take(events.SessionEnded(0, "quit"))
    bench.qtbot.waitUntil(lambda: len(recorded.restarted) == 1)
    assert not bench.panel.refresh_if_changed()
    bench.panel.show()
    bench.panel.refresh_if_changed()
    assert "echo: too late. Choose a wired one" in bench.texts
    assert "✗" in bench.texts
    assert bench.button("Play a tone").isEnabled()


def test_a_hidden_panel_asks_for_nothing_and_shows_nothing(bench: Bench) -> None:
    bench.panel.hide()
    bench.model.take(_OPENED)
    assert not bench.panel.refresh_if_changed()
    assert not bench.panel._settling.isActive()


def test_the_keyboard_reaches_everything_in_order(bench: Bench) -> None:
    bench.picker.setCurrentIndex(1)
    bench.panel.activateWindow()
    bench.picker.setFocus()
    reached = []
    for _ in range(6):
        focused = bench.panel.focusWidget()
        assert focused is not None
        reached.append(focused.accessibleName())
        bench.qtbot.keyClick(focused, Qt.Key.Key_Tab)
    assert reached == ["Microphone", "Loudspeaker", "Use these", "Look again", "Play a tone", "Check both"]


def test_everything_has_a_name_and_an_explanation_in_both_themes(
    bench: Bench, both_themes: Callable[[str], None]
) -> None:
    seen = set()
    for name in ("light", "dark"):
        both_themes(name)
        bench.panel.restyle()
        image = bench.panel.grab().toImage()
        seen.add(image.pixelColor(image.width() - 5, image.height() - 5).name())
    assert len(seen) == 2
    widgets: list[QWidget] = [*bench.panel.findChildren(QComboBox), *bench.panel.findChildren(QPushButton)]
    assert all(widget.accessibleName() and widget.toolTip() for widget in widgets if widget.isVisibleTo(bench.panel))


@pytest.mark.audio_device
def test_the_devices_of_a_real_server_are_listed_and_an_unplugging_is_followed(
    new_pulse_rig: Any, context: Context, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in new_pulse_rig.variables.items():
        monkeypatch.setenv(name, value)
    model = devices.make_model(context)
    panel = devices.make_widget(model, context)
    qtbot.addWidget(panel)
    panel.show()
    picker = panel.findChildren(QComboBox)[0]

    def offers(text: str) -> bool:
        panel.poll()
        panel.refresh_if_changed()
        return any(text in picker.itemText(index) for index in range(picker.count()))

    qtbot.waitUntil(lambda: offers("test_mic"), timeout=_LIST_LIMIT_MS)  # of PortAudio
    server_devices = {choice.value for choice in model.list.choices(is_input=True)}  # type: ignore[attr-defined]
    assert {"mic", "test_mic", "test_duplex"} <= server_devices
    kind = ("module-remap-source", "source_name=webcam", "master=micbus.monitor")
    plugged = new_pulse_rig.run("pactl", "load-module", *kind, "source_properties=device.description=Webcam")
    qtbot.waitUntil(lambda: offers("Webcam"), timeout=_LIST_LIMIT_MS)
    picker.setCurrentIndex(next(i for i in range(picker.count()) if "Webcam" in picker.itemText(i)))
    new_pulse_rig.run("pactl", "unload-module", plugged.stdout.strip())
    qtbot.waitUntil(lambda: not offers("Webcam"), timeout=_LIST_LIMIT_MS)
    assert picker.currentIndex() == 0
