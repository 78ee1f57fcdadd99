"""The *Signal* and *Emotion* panels on a screen that nobody sees."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot

from app import events
from app.notices import sound_lost
from app.ui.panel import Context
from app.ui.panels import emotion, signal
from app.ui.panels.level_meter import LevelMeter
from app.ui.panels.spectrogram import Spectrogram, label_tops
from app.viewmodel.signal import Signal
from audio.block import HOPS_PER_SECOND
from audio.files import read_audio
from audio.io.records import block_dtype
from audio.ring import RecordRing

_SAMPLE = Path(__file__).resolve().parents[3] / "assets" / "samples" / "question_capital.wav"
_METERS = events.Meters(1600, -22.0, -35.0, -24.0, 0.93, 4.0, 0)


@pytest.fixture
def model(context: Context) -> Signal:
    made = signal.make_model(context)
    assert isinstance(made, Signal)
    return made


@pytest.fixture
def panel(model: Signal, context: Context, qtbot: QtBot) -> signal.SignalPanel:
    made = signal.make_widget(model, context)
    assert isinstance(made, signal.SignalPanel)
    qtbot.addWidget(made)
    made.resize(520, 560)
    made.show()
    qtbot.waitExposed(made)
    return made


def _values(panel: signal.SignalPanel) -> dict[str, str]:
    """Of labels, by what a screen reader calls them."""
    labels = panel.findChildren(QLabel)
    return {label.accessibleName(): label.text() for label in labels if label.accessibleName()}


def _ring_of_speech() -> tuple[RecordRing, Callable[[], None]]:
    """A ring, and a call that plays a recorded question into it."""
    samples, rate_hz = read_audio(_SAMPLE)
    frames = rate_hz // HOPS_PER_SECOND
    ring = RecordRing(block_dtype(frames), 1024)

    def play() -> None:
        for block in samples[: len(samples) // frames * frames].reshape(-1, frames):
            slot = ring.slot()
            slot["near"], slot["far"] = block, 0.0
            ring.commit()

    return ring, play


def _colours(widget: QWidget) -> int:
    """How many colours a picture of it has."""
    image = widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)
    return len(np.unique(np.frombuffer(image.constBits(), np.uint32)))


def test_figures_are_shown_and_what_nobody_measures_is_a_dash(panel: signal.SignalPanel, model: Signal) -> None:
    model.take(events.DeviceOpened(0, "mic", "spk", 48_000, 20.0, "normal"))
    model.take(_METERS)
    model.take(events.DeviceRoundTrip(0, 84.4, 0.9))
    model.take(events.DeviceDrift(0, -12.4, 20.0, 30.0, 0, 0))
    model.take(events.Notice(0, "warning", sound_lost(130)))
    assert panel.refresh_if_changed()
    values = _values(panel)
    assert values["Speech"] == "93 %"
    assert values["Round trip"] == "84 ms"
    assert values["Clock drift"] == "−12 ppm"
    assert values["Lost sound"] == "130 ms"
    assert values["Gaps in replies"] == "0"
    assert {values["SNR"], values["ERLE"], values["Speech quality"]} == {"—"}


def test_double_talk_is_told_while_it_lasts(panel: signal.SignalPanel, model: Signal) -> None:
    model.take(events.Playback(0, 1, 0, True, False))
    model.take(_METERS)
    panel.refresh_if_changed()
    assert _values(panel)["Double talk"] == "now, 0.1 s in all"
    model.take(events.Playback(0, 1, 0, False, False))
    panel.refresh_if_changed()
    assert _values(panel)["Double talk"] == "0.1 s"


def test_meters_and_spectrogram_move_by_themselves_while_seen(
    panel: signal.SignalPanel, model: Signal, qtbot: QtBot
) -> None:
    ring, play = _ring_of_speech()
    empty = _colours(panel.findChild(Spectrogram))
    model.tap.follow(ring)
    qtbot.waitUntil(lambda: model.tap._reader is not None)
    play()
    qtbot.waitUntil(lambda: model.history.written > 10)
    assert _colours(panel.findChild(Spectrogram)) > empty + 100
    assert _values(panel)["Peak of Microphone"] != "—"


def test_a_hidden_panel_rests(panel: signal.SignalPanel, model: Signal, qtbot: QtBot) -> None:
    ring, play = _ring_of_speech()
    model.tap.follow(ring)
    qtbot.waitUntil(lambda: model.tap._reader is not None)
    panel.hide()
    assert not panel._timer.isActive()
    play()
    model.take(_METERS)
    qtbot.wait(80)
    assert model.history.written == 0
    assert not panel.refresh_if_changed()
    panel.show()
    qtbot.waitUntil(lambda: panel._timer.isActive())
    assert panel.refresh_if_changed()


def test_both_themes_have_colours_of_their_own(
    panel: signal.SignalPanel, model: Signal, qtbot: QtBot, both_themes: Callable[[str], None]
) -> None:
    ring, play = _ring_of_speech()
    model.tap.follow(ring)
    qtbot.waitUntil(lambda: model.tap._reader is not None)
    play()
    qtbot.waitUntil(lambda: model.history.written > 10)
    brightness = []
    for name in ("light", "dark"):
        both_themes(name)
        panel.restyle()
        image = panel.findChild(Spectrogram).grab().toImage().scaled(1, 1)
        brightness.append(image.pixelColor(0, 0).lightness())
    assert brightness[0] > brightness[1] + 60


def test_a_meter_paints_only_what_moves_by_a_pixel(context: Context, qtbot: QtBot) -> None:
    meter = LevelMeter(context.theme, "user")
    qtbot.addWidget(meter)
    meter.resize(200, 12)
    asked: list[float] = []
    meter.update = lambda: asked.append(1.0)  # type: ignore[method-assign, assignment]
    meter.show_level(-30.0, -20.0)
    meter.show_level(-30.05, -20.05)
    assert len(asked) == 1
    meter.show_level(-10.0, -10.0)
    assert len(asked) == 2
    meter.show_level(-500.0, -500.0)
    meter.show_level(40.0, 40.0)  # louder than full scale is full
    assert meter._place(40.0) == meter.width()


def test_everything_that_shows_something_has_a_name(panel: signal.SignalPanel) -> None:
    for kind in (LevelMeter, Spectrogram):
        for widget in panel.findChildren(kind):
            assert widget.accessibleName()
            assert widget.toolTip()
    assert "speak" in next(w for w in panel.findChildren(QLabel) if w.text() == "SNR").toolTip()


def test_emotion_is_a_dash_and_a_sentence(context: Context, qtbot: QtBot, both_themes: Callable[[str], None]) -> None:
    panel = emotion.make_widget(emotion.make_model(context), context)
    qtbot.addWidget(panel)
    both_themes("dark")
    panel.restyle()
    texts = [label.text() for label in panel.findChildren(QLabel)]
    assert texts == ["—", "Nothing measures the emotion in a voice yet."]


def test_labels_of_a_low_spectrogram_do_not_overlap() -> None:
    line = 16
    assert list(label_tops(400, line)) == [8000, 100, 1000, 300, 3000]
    for height in range(line, 400):
        tops = sorted(label_tops(height, line).values())
        assert tops[0] >= 0
        assert tops[-1] + line <= height
        assert all(after - before >= line for before, after in pairwise(tops))
    assert list(label_tops(3 * line, line))[:2] == [8000, 100]
