"""The face adds to the engine's meters what only the audio process has counted."""

from __future__ import annotations

from types import SimpleNamespace

from app import events
from app.config.load import load_config
from app.engine.live import LiveSession
from audio.control import ControlWords
from audio.io.device import SimulatedSpec

_METERS = events.Meters(1600, -30.0, -40.0, -31.0, 0.2, 1.0, 0)


def test_lost_frames_and_gaps_are_in_every_meters_event() -> None:
    shown: list[events.Event] = []
    session = LiveSession(load_config(file=None, env={}).config, SimulatedSpec(), shown.append)
    session._relay([_METERS])
    assert shown == [_METERS]  # before there is a device
    control = ControlWords()
    control.lost_frames, control.underruns = 480, 3
    session._device.audio = SimpleNamespace(control=control)  # type: ignore[assignment]
    session._has_rings = True
    session._relay([_METERS, events.StateChanged(1600, "listening")])
    meters = shown[1]
    assert isinstance(meters, events.Meters)
    assert (meters.lost_frames, meters.underruns, meters.level_db) == (480, 3, -30.0)
    assert isinstance(shown[2], events.StateChanged)
