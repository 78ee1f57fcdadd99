"""Lost sound devices on the sound server that is there: how soon it is noticed, and how soon sound flows again.

Works on virtual devices of its own, loaded into the user's server and removed afterwards; no device of the user's is
touched. Killing or stopping the server itself is for the tests, which have a server of their own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app import events
from app.bench.document import Row
from app.engine.device_keeper import DeviceKeeper
from app.engine.round_trips import RoundTrips
from audio.io.device import PortAudioSpec
from audio.io.pulse import look

_MICROPHONE, _BUS, _LOUDSPEAKER = "vivavoce_bench_mic", "vivavoce_bench_bus", "vivavoce_bench_spk"
_NULL = "rate=48000 channels=1 format=float32le norewinds=1"
_LIMIT_S = 20.0
_AWAY_S = 0.6
_POLL_S = 0.01


class _Desk:
    """A virtual microphone and loudspeaker, to be unplugged."""

    def __init__(self, pulse: Any) -> None:
        self._pulse = pulse
        self._modules: dict[str, int] = {}
        for name in (_BUS, _MICROPHONE, _LOUDSPEAKER):
            self.plug(name)

    def plug(self, name: str) -> None:
        if name == _MICROPHONE:
            module, options = "module-remap-source", f"source_name={name} master={_BUS}.monitor"
        else:
            module, options = "module-null-sink", f"sink_name={name} {_NULL}"
        self._modules[name] = self._pulse.module_load(module, options)

    def unplug(self, name: str) -> None:
        self._pulse.module_unload(self._modules.pop(name))

    def suspend(self, *, is_suspended: bool) -> None:
        source = self._pulse.get_source_by_name(_MICROPHONE)
        self._pulse.source_suspend(source.index, is_suspended)

    def close(self) -> None:
        for name in list(reversed(self._modules)):
            self.unplug(name)


_CASES: dict[str, tuple[Callable[[_Desk], None], Callable[[_Desk], None]]] = {
    "loudspeaker unplugged": (lambda desk: desk.unplug(_LOUDSPEAKER), lambda desk: desk.plug(_LOUDSPEAKER)),
    "microphone unplugged": (lambda desk: desk.unplug(_MICROPHONE), lambda desk: desk.plug(_MICROPHONE)),
    "microphone suspended": (
        lambda desk: desk.suspend(is_suspended=True),
        lambda desk: desk.suspend(is_suspended=False),
    ),
}


def loss_rows(repeats: int) -> list[Row]:
    """Rows `case`, `detect_s`, `recover_s`; none where no PulseAudio or PipeWire server answers."""
    view, _ = look()
    if view is None or not repeats:
        return []
    with _desk() as desk:
        return [_lose(desk, case) for _ in range(repeats) for case in _CASES]


@contextmanager
def _desk() -> Iterator[_Desk]:
    import pulsectl

    with pulsectl.Pulse("vivavoce-bench") as pulse:
        desk = _Desk(pulse)
        try:
            yield desk
        finally:
            desk.close()


def _lose(desk: _Desk, case: str) -> Row:
    heard: list[tuple[float, events.Event]] = []
    with tempfile.TemporaryDirectory() as folder:
        keeper = DeviceKeeper(
            PortAudioSpec(_MICROPHONE, _LOUDSPEAKER),
            "wait",
            lambda event: heard.append((time.monotonic(), event)),
            RoundTrips(Path(folder) / "trips.json"),
        )

        def seconds_to(kind: type[events.Event], since_s: float) -> float:
            while time.monotonic() - since_s < _LIMIT_S:
                keeper.poll()
                for at_s, event in heard:
                    if at_s >= since_s and isinstance(event, kind):
                        return at_s - since_s
                time.sleep(_POLL_S)
            return float("inf")

        try:
            keeper.start(lambda _: None)
            while not keeper.audio.control.blocks > 20:
                keeper.poll()
                time.sleep(_POLL_S)
            take_away, give_back = _CASES[case]
            began_s = time.monotonic()
            take_away(desk)
            detect_s = seconds_to(events.DeviceLost, began_s)
            until_s = time.monotonic() + _AWAY_S
            while time.monotonic() < until_s:
                keeper.poll()
                time.sleep(_POLL_S)
            back_s = time.monotonic()
            give_back(desk)
            recover_s = seconds_to(events.DeviceBack, back_s)
        finally:
            keeper.stop()
    return {
        "scene": "device_loss",
        "kind": "loss",
        "case": case,
        "detect_s": round(detect_s, 3),
        "recover_s": round(recover_s, 3),
    }
