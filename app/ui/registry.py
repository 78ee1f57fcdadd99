"""The panels of the window, in the order of its menu. A new panel is one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from PySide6.QtCore import QT_TRANSLATE_NOOP

from app.ui.panel import Context, Panel
from app.viewmodel.base import ViewModel

Place = Literal["center", "left", "right", "bottom"]


@dataclass(frozen=True, slots=True)
class PanelSpec:
    """One panel: its view model, its widget and where it begins."""

    name: str
    """Stable; the window's saved state uses it."""
    title: str
    """Source text of the title, context "Panel"."""
    place: Place
    make_model: Callable[[Context], ViewModel]
    make_widget: Callable[[Any, Context], Panel]
    """Of what `make_model` makes."""
    is_open: bool = True
    """Whether it is seen before the user has changed anything."""


def panel_specs() -> list[PanelSpec]:
    """All panels."""
    from app.ui.panels import conversation, devices, doctor, emotion, latency, log, memory, models, settings, signal

    title = QT_TRANSLATE_NOOP
    return [
        PanelSpec(
            "conversation",
            title("Panel", "Conversation"),
            "center",
            conversation.make_model,
            conversation.ConversationPanel,
        ),
        PanelSpec("signal", title("Panel", "Signal"), "right", signal.make_model, signal.SignalPanel),
        PanelSpec("memory", title("Panel", "Memory"), "right", memory.make_model, memory.MemoryPanel),
        PanelSpec("devices", title("Panel", "Devices"), "right", devices.make_model, devices.DevicesPanel, False),
        PanelSpec("models", title("Panel", "Models"), "right", models.make_model, models.ModelsPanel, False),
        PanelSpec("settings", title("Panel", "Settings"), "right", settings.make_model, settings.SettingsPanel, False),
        PanelSpec("latency", title("Panel", "Latency"), "bottom", latency.make_model, latency.LatencyPanel),
        PanelSpec("emotion", title("Panel", "Emotion"), "bottom", emotion.make_model, emotion.EmotionPanel, False),
        PanelSpec("log", title("Panel", "Log"), "bottom", log.make_model, log.LogPanel, False),
        PanelSpec("doctor", title("Panel", "Doctor"), "bottom", doctor.make_model, doctor.DoctorPanel, False),
    ]
