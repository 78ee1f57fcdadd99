"""The sound server as plain values, and the rules that tell from them what has happened to our streams.

Knows no server library: `audio.io.pulse` fills the values in.
"""

from __future__ import annotations

from dataclasses import dataclass

from audio.errors import DeviceError
from audio.io.identity import ServerDevice, distinction, find_again, find_server_device, stem

_SUSPENDED_FOR_S = 0.15
"""Servers suspend a device for a moment to change its rate or profile; that is no event."""


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One stream of a client."""

    pid: int
    is_input: bool
    device_index: int
    is_corked: bool = False
    """Paused by its own client."""


@dataclass(frozen=True, slots=True)
class ServerCard:
    """One card: a headset has one for its microphone and its loudspeaker."""

    index: int
    active_profile: str
    """As in `a2dp-sink`, `headset-head-unit`."""


@dataclass(frozen=True, slots=True)
class ServerView:
    """What the server answers at one moment."""

    server: str
    default_input: str
    default_output: str
    devices: tuple[ServerDevice, ...]
    streams: tuple[ServerStream, ...] = ()
    cards: tuple[ServerCard, ...] = ()
    """Asked for by `look` only."""

    def find(self, name: str, *, is_input: bool) -> ServerDevice | None:
        """The device that `name` means, "" the default one; None where there is none.

        Raises:
            DeviceError: several.
        """
        default = self.default_input if is_input else self.default_output
        return find_server_device(self.devices, name or default, is_input=is_input)

    def is_present(self, name: str, *, is_input: bool) -> bool:
        """Whether the wanted device is there; for "" any that is no monitor."""
        if not name:
            return any(device.is_input == is_input and not device.monitor_of for device in self.devices)
        try:
            return self.find(name, is_input=is_input) is not None
        except DeviceError:  # two alike, and the user must say which
            return True


def exact_name(view: ServerView | None, name: str, *, is_input: bool) -> str:
    """What to open for the name that the user gave: the server's own name of it now, else the name as it is.

    Raises:
        DeviceError: several.
    """
    found = find_server_device(view.devices, name, is_input=is_input) if view is not None else None
    return found.name if found is not None else name


def identity_key(view: ServerView | None, name: str, *, is_input: bool) -> str:
    """A text that stays the same for the same device; "" is the default one."""
    try:
        device = view.find(name, is_input=is_input) if view is not None else None
    except DeviceError:  # two alike: the name that was opened
        device = None
    if device is None:
        return stem(name) or "default"
    return " ".join(part for part in (stem(device.name), distinction(device)) if part)


@dataclass(frozen=True, slots=True)
class StreamMoved:
    """Our stream is on another device than the one it was on."""

    is_input: bool
    origin: str
    """"" where the stream has just appeared."""
    now: str
    is_wanted: bool
    """It is (again) where it should be."""
    is_own_monitor: bool = False
    """The microphone hears our own loudspeaker."""


@dataclass(frozen=True, slots=True)
class DeviceGone:
    """The wanted device is no longer on the server; for the default: the last one."""

    is_input: bool
    name: str


@dataclass(frozen=True, slots=True)
class DeviceBack:
    """The wanted device is there again."""

    is_input: bool
    name: str
    """What the server calls it now."""


@dataclass(frozen=True, slots=True)
class DeviceSuspended:
    """The server feeds the device of our stream no longer: callbacks cease."""

    is_input: bool
    name: str


@dataclass(frozen=True, slots=True)
class DeviceResumed:
    """It does again."""

    is_input: bool
    name: str


@dataclass(frozen=True, slots=True)
class ServerGone:
    """The server ended or does not answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class ServerBack:
    """A server answers again."""

    server: str


ServerEvent = StreamMoved | DeviceGone | DeviceBack | DeviceSuspended | DeviceResumed | ServerGone | ServerBack


class StreamJudge:
    """Compares where our streams are with where they should be. Push views in order; it answers what is new.

    A device named by the user is followed by its identity. A name that the server does not know (of an ALSA
    device that leads to the server) means the device where the stream is first seen. "" is the default:
    such a stream may go where the server sends it, except to a monitor.
    """

    def __init__(self, input_name: str, output_name: str) -> None:
        self._ends = (_End(input_name, is_input=True), _End(output_name, is_input=False))

    def push(self, view: ServerView, pid: int | None, now_s: float) -> list[ServerEvent]:
        """The server's state at monotonic `now_s`, and the process whose streams are ours (None: no stream)."""
        sink = _place(view, pid, is_input=False)
        return [event for end in self._ends for event in end.push(view, pid, sink.name if sink else "", now_s)]


class _End:
    """One direction."""

    def __init__(self, name: str, *, is_input: bool) -> None:
        self._name = name
        self._is_input = is_input
        self._home: ServerDevice | None = None
        self._twins: set[tuple[str, str]] = set()  # serial and port of devices like it that were there beside it
        self._is_gone = False
        self._pid: int | None = None
        self._place: ServerDevice | None = None
        self._is_off = False
        self._suspended_since_s: float | None = None
        self._has_told_suspended = False

    def push(self, view: ServerView, pid: int | None, own_sink: str, now_s: float) -> list[ServerEvent]:
        if pid != self._pid:
            self._pid, self._place, self._is_off = pid, None, False
        place = _place(view, pid, is_input=self._is_input)
        is_own_monitor = place is not None and bool(place.monitor_of) and own_sink in ("", place.monitor_of)
        self._learn(view, place, is_own_monitor)
        found: list[ServerEvent] = [*self._presence(view), *self._movement(place, is_own_monitor)]
        return found + self._suspension(view, pid, now_s)

    def _learn(self, view: ServerView, place: ServerDevice | None, is_own_monitor: bool) -> None:
        """Which device is meant, as soon as the server or our stream shows it."""
        if self._home is None and self._name:
            try:
                self._home = find_server_device(view.devices, self._name, is_input=self._is_input)
            except DeviceError:  # two alike: the one that was opened
                pass
            if self._home is None and not is_own_monitor:
                self._home = place

    def _presence(self, view: ServerView) -> list[ServerEvent]:
        if self._name and self._home is None:
            return []
        if self._home is not None:
            present = find_again(self._home, [d for d in view.devices if (d.serial, d.port) not in self._twins])
            is_gone = present is None
            if present is not None:
                self._home = present
                self._twins = _twins(present, view)
            name = self._home.name
        else:
            is_gone = not view.is_present("", is_input=self._is_input)
            name = view.default_input if self._is_input else view.default_output
        if is_gone == self._is_gone:
            return []
        self._is_gone = is_gone
        return [DeviceGone(self._is_input, name) if is_gone else DeviceBack(self._is_input, name)]

    def _movement(self, place: ServerDevice | None, is_own_monitor: bool) -> list[ServerEvent]:
        before, self._place = self._place, place
        if place is None or (before is not None and before.name == place.name):
            return []
        was_off = self._is_off
        self._is_off = bool(place.monitor_of) if not self._name else self._is_elsewhere(place, is_own_monitor)
        if not (was_off or self._is_off):
            return []
        origin = before.name if before is not None else ""
        return [StreamMoved(self._is_input, origin, place.name, not self._is_off, self._is_off and is_own_monitor)]

    def _is_elsewhere(self, place: ServerDevice, is_own_monitor: bool) -> bool:
        return is_own_monitor if self._home is None else place.name != self._home.name

    def _suspension(self, view: ServerView, pid: int | None, now_s: float) -> list[ServerEvent]:
        place = self._place
        if place is None or not place.is_suspended or _is_corked(view, pid, self._is_input):
            self._suspended_since_s = None
            if self._has_told_suspended and place is not None:
                self._has_told_suspended = False
                return [DeviceResumed(self._is_input, place.name)]
            return []
        if self._suspended_since_s is None:
            self._suspended_since_s = now_s
        if self._has_told_suspended or now_s - self._suspended_since_s < _SUSPENDED_FOR_S:
            return []
        self._has_told_suspended = True
        return [DeviceSuspended(self._is_input, place.name)]


def _twins(home: ServerDevice, view: ServerView) -> set[tuple[str, str]]:
    alike = (d for d in view.devices if d.is_input == home.is_input and stem(d.name) == stem(home.name))
    return {(d.serial, d.port) for d in alike if (d.serial, d.port) not in ((home.serial, home.port), ("", ""))}


def _place(view: ServerView, pid: int | None, *, is_input: bool) -> ServerDevice | None:
    """The device that the stream of a process is on."""
    for stream in view.streams:
        if pid is not None and stream.pid == pid and stream.is_input == is_input:
            return next(
                (d for d in view.devices if d.is_input == is_input and d.index == stream.device_index),
                None,
            )
    return None


def _is_corked(view: ServerView, pid: int | None, is_input: bool) -> bool:
    return any(s.is_corked for s in view.streams if s.pid == pid and s.is_input == is_input)
