"""What the keeper does with the server's news, on a pretended server and audio process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import events
from app.engine.device_keeper import DeviceKeeper
from app.engine.round_trips import RoundTrips
from audio.io.device import PortAudioSpec, StreamFormat
from audio.io.identity import ServerDevice
from audio.io.server import DeviceBack, DeviceResumed, DeviceSuspended, ServerView, StreamMoved
from audio.io.stream_child import DeviceRunning, DeviceStopped

STREAM = StreamFormat(48_000, 480, "headset", "headset", "duplex", 20.0)


class Control:
    blocks = 100


class Audio:
    """An audio process whose news are put in by hand."""

    pid = 7
    priority = "normal"
    control = Control()

    def __init__(self) -> None:
        self.news: list[Any] = []
        self.restarts: list[tuple[PortAudioSpec, PortAudioSpec | None]] = []

    def poll_events(self) -> list[Any]:
        news, self.news = self.news, []
        return news

    def restart(self, spec: PortAudioSpec, fallback: PortAudioSpec | None) -> None:
        self.restarts.append((spec, fallback))

    def stop(self) -> None:
        pass


class Server:
    """A watcher whose news and view are put in by hand."""

    def __init__(self, view: ServerView) -> None:
        self.view = view
        self.news: list[Any] = []

    def poll(self) -> list[Any]:
        news, self.news = self.news, []
        return news

    def follow(self, pid: int | None) -> None:
        pass

    def close(self) -> None:
        pass


def device(name: str, index: int, *, is_input: bool, serial: str = "") -> ServerDevice:
    return ServerDevice(index=index, name=name, description=name, is_input=is_input, serial=serial)


MICROPHONE = device("usb_headset", 1, is_input=True, serial="A1")
LOUDSPEAKER = device("usb_headset", 2, is_input=False, serial="A1")
BUILT_IN = (device("built_in", 3, is_input=True), device("built_in", 4, is_input=False))
VIEW = ServerView("test", "built_in", "built_in", (MICROPHONE, LOUDSPEAKER, *BUILT_IN))


class Desk:
    def __init__(self, folder: Path, when_lost: str) -> None:
        self.log: list[events.Event] = []
        self.keeper = DeviceKeeper(
            PortAudioSpec("usb_headset", "usb_headset"), when_lost, self.log.append, RoundTrips(folder / "trips.json")
        )
        self.audio, self.server = Audio(), Server(VIEW)
        self.keeper.audio = self.audio  # type: ignore[assignment]
        self.keeper._watcher = self.server  # type: ignore[assignment]
        self.keeper.stream = STREAM

    def poll(self, *news: Any) -> None:
        for one in news:
            target = self.audio if isinstance(one, DeviceRunning | DeviceStopped) else self.server
            target.news.append(one)
        self.keeper.poll()

    def of(self, kind: type[events.Event]) -> list[Any]:
        return [event for event in self.log if isinstance(event, kind)]


@pytest.fixture
def desk(tmp_path: Path) -> Callable[..., Desk]:
    return lambda when_lost="default": Desk(tmp_path, when_lost)


def moved(*, is_own_monitor: bool, is_wanted: bool = False) -> StreamMoved:
    return StreamMoved(True, "usb_headset", "somewhere", is_wanted, is_own_monitor)


def test_a_second_device_of_the_same_name_ends_no_session(desk: Callable[..., Desk]) -> None:
    one = desk()
    twin = device("usb_headset.2", 9, is_input=True, serial="B2")
    one.poll(DeviceStopped("gone", is_lost=True))
    first = one.audio.restarts[-1][0]
    one.server.view = replace(VIEW, devices=(*VIEW.devices, replace(twin, name="usb_headset", index=9)))
    one.poll(DeviceStopped("the one that waited ended too", is_lost=True))
    one.poll(DeviceBack(True, "usb_headset"))  # raises nothing
    assert one.keeper._opened == first
    assert len(one.of(events.DeviceLost)) == 1


@pytest.mark.parametrize("is_makeshift", [False, True])
def test_nobody_may_hear_their_own_loudspeaker_on_a_makeshift_neither(
    desk: Callable[..., Desk], is_makeshift: bool
) -> None:
    one = desk()
    one.poll(DeviceStopped("gone", is_lost=True))
    one.poll(DeviceRunning(STREAM, is_makeshift))
    restarts = len(one.audio.restarts)
    one.poll(moved(is_own_monitor=True))
    assert len(one.audio.restarts) == restarts + 1
    assert "own loudspeaker's monitor" in one.of(events.DeviceLost)[-1].reason


def test_a_makeshift_may_be_elsewhere(desk: Callable[..., Desk]) -> None:
    one = desk()
    one.poll(DeviceStopped("gone", is_lost=True))
    one.poll(DeviceRunning(STREAM, True))
    restarts = len(one.audio.restarts)
    one.poll(moved(is_own_monitor=False))
    assert len(one.audio.restarts) == restarts
    one.poll(DeviceBack(True, "usb_headset"))
    assert len(one.audio.restarts) == restarts + 1


def test_a_stream_that_is_moved_while_it_is_opened_is_taken_back(desk: Callable[..., Desk]) -> None:
    one = desk("wait")
    one.poll(DeviceStopped("gone", is_lost=True))
    one.poll(moved(is_own_monitor=False))
    restarts = len(one.audio.restarts)
    one.poll(DeviceRunning(STREAM))
    assert len(one.audio.restarts) == restarts + 1
    one.poll(moved(is_own_monitor=False, is_wanted=True))
    one.poll(DeviceRunning(STREAM))
    assert len(one.audio.restarts) == restarts + 1


def test_a_reason_is_not_said_of_a_later_loss(desk: Callable[..., Desk]) -> None:
    one = desk("wait")
    one.poll(DeviceSuspended(True, "usb_headset"))
    one.poll(DeviceResumed(True, "usb_headset"))
    one.poll(DeviceStopped("the audio process died", is_lost=True))
    assert one.of(events.DeviceLost)[-1].reason == "the audio process died"
