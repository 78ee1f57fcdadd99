"""The *Signal* panel: meters, spectrogram, and the figures of the sound."""

from __future__ import annotations

import time

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QPalette, QShowEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QVBoxLayout

from app.ui.panel import Context, Panel
from app.ui.panels.level_meter import LevelMeter
from app.ui.panels.spectrogram import Spectrogram
from app.viewmodel.base import ViewModel
from app.viewmodel.levels import HeldLevel
from app.viewmodel.signal import Signal
from audio.block import SILENCE_DB

_FRAME_MS = 33
_NONE = "—"
_FIGURES = (
    ("speech", "double_talk"),
    ("snr", "erle"),
    ("lost", "gaps"),
    ("round_trip", "drift"),
    ("late", "quality"),
)
"""Rows of two."""


def make_model(context: Context) -> ViewModel:
    """See `PanelSpec`."""
    return Signal(context.loaded.config.ear.speech_on)


def make_widget(model: ViewModel, context: Context) -> Panel:
    """See `PanelSpec`."""
    assert isinstance(model, Signal)
    return SignalPanel(model, context)


class SignalPanel(Panel):
    """Meters move at 30 frames a second and the spectrogram at 15, from a timer that rests while nobody looks."""

    fps = 5.0

    def __init__(self, model: Signal, context: Context) -> None:
        super().__init__(model, context)
        self._model = model
        self._meters: list[tuple[HeldLevel, LevelMeter, QLabel, QLabel]] = []
        self._figures: dict[str, tuple[QLabel, QLabel]] = {}
        self._spectrogram = Spectrogram(context.theme, model.history)
        layout = QVBoxLayout(self)
        layout.addLayout(self._make_meters())
        layout.addWidget(self._spectrogram, 1)
        layout.addLayout(self._make_figures())
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._advance)
        self.retranslate()

    def _make_meters(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setColumnStretch(1, 1)
        held = (self._model.microphone, self._model.far_end, self._model.clean)
        for row, (level, role) in enumerate(zip(held, ("user", "accent", "good"), strict=True)):
            meter, name, value = LevelMeter(self.context.theme, role), QLabel(), QLabel()
            value.setMinimumWidth(value.fontMetrics().horizontalAdvance("−120 dB "))
            for column, widget in enumerate((name, meter, value)):
                grid.addWidget(widget, row, column)
            self._meters.append((level, meter, name, value))
        return grid

    def _make_figures(self) -> QGridLayout:
        grid = QGridLayout()
        grid.setVerticalSpacing(2)
        for row, names in enumerate(_FIGURES):
            for column, key in enumerate(names):
                name, value = QLabel(), QLabel(_NONE)
                self._figures[key] = (name, value)
                grid.addWidget(name, row, column * 2)
                grid.addWidget(value, row, column * 2 + 1)
                grid.setColumnStretch(column * 2 + 1, 1)
        return grid

    # -- while it is seen -----------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        """Somebody looks."""
        super().showEvent(event)
        self._timer.start(_FRAME_MS)

    def hideEvent(self, event: QHideEvent) -> None:
        """Nobody does: no frames, and the microphone is not read."""
        self._timer.stop()
        self._model.rest()
        super().hideEvent(event)

    def _advance(self) -> None:
        has_moved, has_column = self._model.advance(time.monotonic())
        if has_moved:
            self._show_levels()
        if has_column:
            self._spectrogram.update()

    def _show_levels(self) -> None:
        for level, meter, _, value in self._meters:
            meter.show_level(level.level_db, level.peak_db)
            value.setText(_NONE if level.peak_db <= SILENCE_DB else f"{_signed(level.peak_db)} dB")

    def refresh(self) -> None:
        """See `Panel`."""
        model = self._model
        self._show("speech", _number(model.speech_probability, 100, " %"), "user" if model.is_speaking else "text")
        self._show(
            "double_talk",
            self.tr("now, {0} s in all").format(f"{model.double_talk_s:.1f}")
            if model.is_double_talk
            else f"{model.double_talk_s:.1f} s",
            "warning" if model.is_double_talk else "text",
        )
        self._show("snr", _number(model.snr_db, 1, " dB"))
        lost_ms = model.device_lost_ms + model.unheard_ms
        self._show("lost", f"{lost_ms:.0f} ms", "bad" if lost_ms else "text")
        self._show("gaps", str(model.gaps), "warning" if model.gaps else "text")
        self._show("round_trip", _number(model.round_trip_ms, 1, " ms"))
        drift_ppm = model.drift_ppm
        self._show("drift", _NONE if drift_ppm is None else f"{'+' if drift_ppm > 0 else ''}{_signed(drift_ppm)} ppm")
        self._show("late", _number(model.late_ms, 1, " ms"))
        self._figures["lost"][1].setToolTip(
            self.tr("{0} ms never came from the device, {1} ms came while this machine was too busy").format(
                f"{model.device_lost_ms:.0f}", model.unheard_ms
            )
        )

    def _show(self, key: str, text: str, role: str = "text") -> None:
        label = self._figures[key][1]
        label.setText(text)
        palette, colour = label.palette(), self.context.theme.colour(role)
        if palette.color(QPalette.ColorRole.WindowText) != colour:
            palette.setColor(QPalette.ColorRole.WindowText, colour)
            label.setPalette(palette)

    def restyle(self) -> None:
        """See `Panel`."""
        self.refresh()
        for name, _ in self._figures.values():
            palette = name.palette()
            palette.setColor(QPalette.ColorRole.WindowText, self.context.theme.colour("faint"))
            name.setPalette(palette)
        self.update()

    # -- texts ------------------------------------------------------------------------------------------------

    def retranslate(self) -> None:
        """See `Panel`."""
        meters = (
            (
                self.tr("Microphone"),
                self.tr("What the microphone delivers; the number is the peak, in dB of full scale"),
            ),
            (self.tr("Loudspeaker"), self.tr("What leaves the loudspeaker (the far end)")),
            (self.tr("Clean"), self.tr("The microphone without echo and noise: what is recognised")),
        )
        for (_, meter, name, value), (text, tip) in zip(self._meters, meters, strict=True):
            name.setText(text)
            meter.setAccessibleName(text)
            value.setAccessibleName(self.tr("Peak of {0}").format(text))
            for widget in (name, meter, value):
                widget.setToolTip(tip)
        texts = self._figure_texts()
        for key, (name, value) in self._figures.items():
            text, tip = texts[key]
            name.setText(text)
            value.setAccessibleName(text)
            name.setToolTip(tip)
            value.setToolTip(tip)
        spectrogram = self._spectrogram
        spectrogram.placeholder = self.tr("No sound yet")
        spectrogram.speech_label, spectrogram.reply_label = self.tr("You"), self.tr("Reply")
        spectrogram.setAccessibleName(self.tr("Spectrogram of the microphone"))
        spectrogram.setToolTip(
            self.tr(
                "The microphone's frequencies over the last 20 s. Beneath: how probable it is that you spoke, "
                "and when a reply played; both at once is double talk, in another colour."
            )
        )
        self.restyle()

    def _figure_texts(self) -> dict[str, tuple[str, str]]:
        """Name and explanation of each figure."""
        later = self.tr("Nothing measures it yet")
        return {
            "speech": (self.tr("Speech"), self.tr("Probability that the microphone hears speech and no echo")),
            "double_talk": (self.tr("Double talk"), self.tr("How long you spoke while a reply played")),
            "snr": (
                self.tr("SNR"),
                self.tr(
                    "Estimated: power of the microphone while you speak over its power while nobody does, the last "
                    "half minute of each; what comes while a reply plays is left out"
                ),
            ),
            "erle": (self.tr("ERLE"), later),
            "lost": (self.tr("Lost sound"), ""),
            "gaps": (self.tr("Gaps in replies"), self.tr("Times that a reply had no sound to play")),
            "round_trip": (self.tr("Round trip"), self.tr("From the loudspeaker back to the microphone")),
            "drift": (
                self.tr("Clock drift"),
                self.tr("How much faster the loudspeaker's clock runs; nothing where one clock drives both"),
            ),
            "late": (
                self.tr("Ear behind"),
                self.tr("From a block of sound arriving to its being understood as speech"),
            ),
            "quality": (self.tr("Speech quality"), later),
        }


def _signed(value: float) -> str:
    """Rounded, with the minus sign that is as wide as a digit."""
    return f"{value:.0f}".replace("-0", "0", 1 if round(value) == 0 else 0).replace("-", "−")


def _number(value: float | None, factor: float, unit: str) -> str:
    return _NONE if value is None else f"{_signed(value * factor)}{unit}"
