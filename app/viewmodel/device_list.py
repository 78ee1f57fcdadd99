"""The microphones and loudspeakers that a user may choose from, out of what PortAudio and the sound server list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from audio.errors import DeviceError
from audio.io.identity import DeviceInfo, ServerDevice, alike, distinction, find_device
from audio.io.server import ServerView

_STAND_INS = ("pulse", "default")
"""ALSA devices that lead to the sound server, whose own devices are listed instead."""
_D = TypeVar("_D", DeviceInfo, ServerDevice)


@dataclass(frozen=True, slots=True)
class Choice:
    """One device in one direction."""

    value: str
    """What the configuration says to mean it; "" is the system's default."""
    label: str
    detail: str = ""
    """What tells it from others like it, or where it belongs; "" where the label says all."""
    is_present: bool = True


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Everything that is there at one moment."""

    devices: tuple[DeviceInfo, ...] = ()
    view: ServerView | None = None
    """The sound server's answer; None where there is none."""

    def choices(self, *, is_input: bool) -> list[Choice]:
        """The default first, then the sound server's devices, then those that PortAudio opens itself."""
        default = Choice("", self._default_label(is_input=is_input))
        return [default, *self._server_choices(is_input=is_input), *self._own_choices(is_input=is_input)]

    def index_of(self, name: str, *, is_input: bool) -> int:
        """Where in `choices` the device is that a configured name means; -1 where it is not there or several are."""
        choices = self.choices(is_input=is_input)
        for index, choice in enumerate(choices):
            if choice.value.casefold() == name.casefold():
                return index
        value = self._value_of(name, is_input=is_input)
        return next((i for i, choice in enumerate(choices) if choice.value == value), -1) if value else -1

    @property
    def signature(self) -> tuple[object, ...]:
        """Differs when the sound server has other devices than before."""
        return signature(self.view)

    def _value_of(self, name: str, *, is_input: bool) -> str:
        """By the rules with which a conversation would open it."""
        try:
            found = self.view.find(name, is_input=is_input) if self.view is not None else None
            if found is not None:
                return _server_value(found, self._server_devices(is_input=is_input))
            own, server_name = find_device(self.devices, name, is_input=is_input)
        except DeviceError:
            return ""
        return "" if server_name else _own_value(own, self._own_devices(is_input=is_input))

    def _default_label(self, *, is_input: bool) -> str:
        if self.view is not None:
            name = self.view.default_input if is_input else self.view.default_output
            return next((_label(d) for d in self.view.devices if d.name == name and d.is_input == is_input), name)
        return next((d.name for d in self.devices if (d.is_default_input if is_input else d.is_default_output)), "")

    def _server_devices(self, *, is_input: bool) -> list[ServerDevice]:
        devices = self.view.devices if self.view is not None else ()
        return [d for d in devices if d.is_input == is_input and not d.monitor_of]

    def _server_choices(self, *, is_input: bool) -> Iterable[Choice]:
        devices = self._server_devices(is_input=is_input)
        for device in devices:
            yield Choice(_server_value(device, devices), _label(device), _detail(device, devices, ""))

    def _own_devices(self, *, is_input: bool) -> list[DeviceInfo]:
        usable = [d for d in self.devices if (d.inputs if is_input else d.outputs) > 0]
        return [d for d in usable if self.view is None or d.name not in _STAND_INS]

    def _own_choices(self, *, is_input: bool) -> Iterable[Choice]:
        devices = self._own_devices(is_input=is_input)
        for device in devices:
            yield Choice(_own_value(device, devices), device.name, _detail(device, devices, device.host_api))


def signature(view: ServerView | None) -> tuple[object, ...]:
    """See `DeviceList.signature`."""
    if view is None:
        return ()
    real = tuple((d.name, d.description, d.is_input) for d in view.devices if not d.monitor_of)
    return (view.server, view.default_input, view.default_output, real)


def _label(device: ServerDevice) -> str:
    return device.description or device.name


def _detail(device: _D, devices: Sequence[_D], place: str) -> str:
    """`place` says where a device belongs; twins have their serial number or port as well."""
    is_twin = any(device in group for group in alike(devices))
    return ", ".join(part for part in (place, distinction(device) if is_twin else "") if part)


def _server_value(device: ServerDevice, devices: Sequence[ServerDevice]) -> str:
    return _apart(device, devices) or device.name


def _own_value(device: DeviceInfo, devices: Sequence[DeviceInfo]) -> str:
    apart = _apart(device, devices)
    is_ambiguous = sum(other.name == device.name for other in devices) > 1
    return apart or (device.labels[1] if is_ambiguous else device.name)


def _apart(device: _D, devices: Sequence[_D]) -> str:
    """Of twins the serial number or the port, whichever only this one has."""
    twins = next((group for group in alike(devices) if device in group), [device])
    for mark in ("serial", "port"):
        marks = [getattr(twin, mark) for twin in twins]
        if len(twins) > 1 and all(marks) and len(set(marks)) == len(marks):
            return str(getattr(device, mark))
    return ""
