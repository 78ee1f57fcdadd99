"""Every way to lose a real sound device: noticed within a second, and back on the same device 1.5 s after it is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rig import PulseRig, missing_tools

from app import events
from app.engine.device_keeper import DeviceKeeper
from app.engine.round_trips import RoundTrips
from audio.io.device import PortAudioSpec, SimulatedSpec
from audio.io.pulse import look

pytestmark = pytest.mark.audio_device
DETECT_LIMIT_S = 1.0
RECOVER_LIMIT_S = 1.5
_LIMIT_S = 20.0
_FORMAT = "format=float32le norewinds=1"


class Desk:
    """A microphone `desk_mic` and a loudspeaker `desk_spk` on a server of their own, and what we do to them."""

    def __init__(self) -> None:
        self.rig = PulseRig()
        self.begin()

    def begin(self) -> None:
        self.rig.start()
        self.modules = {name: self._load(name) for name in ("desk_bus", "desk_mic", "desk_spk")}

    def _load(self, name: str) -> str:
        if name == "desk_mic":
            kind = ["module-remap-source", "source_name=desk_mic", "master=desk_bus.monitor"]
        else:
            kind = ["module-null-sink", f"sink_name={name}", "rate=48000", "channels=1", *_FORMAT.split()]
        return self.pactl("load-module", *kind).strip()

    def pactl(self, *command: str) -> str:
        return self.rig.run("pactl", *command).stdout

    def unplug(self, name: str) -> None:
        self.pactl("unload-module", self.modules[name])

    def plug(self, name: str) -> None:
        self.modules[name] = self._load(name)

    def replug_elsewhere(self, name: str) -> None:
        """Something else has taken its index meanwhile."""
        self.pactl("load-module", "module-null-sink", "sink_name=newcomer", *_FORMAT.split())
        self.plug(name)

    @property
    def pid(self) -> int:
        return int((self.rig.folder / "pid").read_text())

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        for left in self.rig.folder.rglob("pid"):  # or its successor takes it for running until init has reaped it
            left.unlink()


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    if missing_tools():
        pytest.skip(missing_tools())
    one = Desk()
    for name, value in one.rig.variables.items():
        monkeypatch.setenv(name, value)
    yield one
    one.rig.stop()


class Kept:
    """A keeper and what it said, with the time of each event."""

    def __init__(self, folder: Path, spec: PortAudioSpec | SimulatedSpec, when_lost: str = "wait") -> None:
        self.log: list[tuple[float, events.Event]] = []
        self.keeper = DeviceKeeper(spec, when_lost, self._take, RoundTrips(folder / "trips.json"))
        self.keeper.start(lambda _: None)

    def _take(self, event: events.Event) -> None:
        self.log.append((time.monotonic(), event))

    def until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + _LIMIT_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited in vain; {self.log[-4:]}"
            self.keeper.poll()
            time.sleep(0.01)

    def seconds_to(self, kind: type[events.Event], since_s: float) -> float:
        """How long after `since_s` the next event of this kind came."""
        self.until(lambda: any(at >= since_s and isinstance(event, kind) for at, event in self.log))
        return next(at for at, event in self.log if at >= since_s and isinstance(event, kind)) - since_s

    def flows(self, blocks: int = 20) -> None:
        wanted = self.keeper.audio.control.blocks + blocks
        self.until(lambda: self.keeper.audio.control.blocks >= wanted)

    def places(self) -> tuple[str, str]:
        """Where the server has our streams: (source, sink)."""
        view, reason = look()
        assert view is not None, reason
        pid = self.keeper.audio.pid
        names = {(d.is_input, d.index): d.name for d in view.devices}
        ours = {s.is_input: names[s.is_input, s.device_index] for s in view.streams if s.pid == pid}
        return ours.get(True, ""), ours.get(False, "")


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Callable[..., Kept]]:
    made: list[Kept] = []

    def make(*arguments: object) -> Kept:
        made.append(Kept(tmp_path, *arguments))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.keeper.stop()


LOSSES: dict[str, tuple[Callable[[Desk], object], Callable[[Desk], object]]] = {
    "loudspeaker unplugged": (lambda d: d.unplug("desk_spk"), lambda d: d.plug("desk_spk")),
    "microphone unplugged, the server rescues the stream to a monitor": (
        lambda d: d.unplug("desk_mic"),
        lambda d: d.plug("desk_mic"),
    ),
    "microphone suspended, callbacks cease silently": (
        lambda d: d.pactl("suspend-source", "desk_mic", "1"),
        lambda d: d.pactl("suspend-source", "desk_mic", "0"),
    ),
    "server stopped": (lambda d: os.kill(d.pid, signal.SIGSTOP), lambda d: os.kill(d.pid, signal.SIGCONT)),
    "server killed": (Desk.kill, Desk.begin),
    "replugged under another index": (lambda d: d.unplug("desk_spk"), lambda d: d.replug_elsewhere("desk_spk")),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_lost_device_is_noticed_and_taken_up_again_under_its_name(
    desk: Desk, kept: Callable[..., Kept], loss: str
) -> None:
    one = kept(PortAudioSpec("desk_mic", "desk_spk"))
    one.flows()
    assert one.places() == ("desk_mic", "desk_spk")
    ring, blocks = one.keeper.audio.mic_ring, one.keeper.audio.control.blocks
    take_away, give_back = LOSSES[loss]
    began_s = time.monotonic()
    take_away(desk)
    detect_s = one.seconds_to(events.DeviceLost, began_s)
    for _ in range(30):  # a while without it
        one.keeper.poll()
        time.sleep(0.02)
    give_back(desk)
    back_s = time.monotonic()
    recover_s = one.seconds_to(events.DeviceBack, back_s)
    one.flows()
    print(f"{loss}: noticed after {detect_s:.2f} s, back after {recover_s:.2f} s")
    assert detect_s <= DETECT_LIMIT_S
    assert recover_s <= RECOVER_LIMIT_S
    assert one.places() == ("desk_mic", "desk_spk")
    assert one.keeper.audio.mic_ring is ring  # the rings are kept, and their count goes on
    assert ring.written > blocks
    index = ring.columns["index"][(ring.position - 1) % ring.capacity]
    assert index == ring.written - 1
    assert one.keeper.audio.control.lost_frames > 0


def test_a_stream_that_is_moved_to_our_own_monitor_is_taken_back(desk: Desk, kept: Callable[..., Kept]) -> None:
    one = kept(PortAudioSpec("desk_mic", "desk_spk"))
    one.flows()
    began_s = time.monotonic()
    listing = desk.pactl("list", "short", "source-outputs").splitlines()
    desk.pactl("move-source-output", listing[-1].split()[0], "desk_spk.monitor")
    assert one.seconds_to(events.DeviceLost, began_s) <= DETECT_LIMIT_S
    lost = next(event for _, event in one.log if isinstance(event, events.DeviceLost))
    assert "own loudspeaker's monitor" in lost.reason
    assert one.seconds_to(events.DeviceBack, began_s) <= DETECT_LIMIT_S + RECOVER_LIMIT_S
    one.flows()
    assert one.places() == ("desk_mic", "desk_spk")


def test_meanwhile_the_default_is_used_and_the_named_one_again_when_it_is_back(
    desk: Desk, kept: Callable[..., Kept]
) -> None:
    one = kept(PortAudioSpec("desk_mic", "desk_spk"), "default")
    one.flows()
    began_s = time.monotonic()
    desk.unplug("desk_mic")
    one.seconds_to(events.DeviceLost, began_s)
    one.until(lambda: any("going on with" in getattr(event, "message", "") for _, event in one.log))
    one.flows()
    assert one.places() == ("mic", "desk_spk")  # the default microphone, and no monitor
    assert not any(isinstance(event, events.DeviceBack) for _, event in one.log)
    back_s = time.monotonic()
    desk.plug("desk_mic")
    assert one.seconds_to(events.DeviceBack, back_s) <= RECOVER_LIMIT_S
    one.flows()
    assert one.places() == ("desk_mic", "desk_spk")


def test_a_simulated_device_comes_back_too(kept: Callable[..., Kept]) -> None:
    one = kept(SimulatedSpec(disappears_at_s=0.5, returns_after_s=1.0))
    one.until(lambda: any(isinstance(event, events.DeviceBack) for _, event in one.log))
    kinds = [event.type for _, event in one.log]
    assert kinds == ["device.opened", "device.lost", "device.back", "device.opened"]
