"""Which sound device a name means: names are followed, never indices.

PortAudio's and the server's indices change at every replug, an ALSA card its number, a twin its numeric
suffix. What stays is the name without them, the serial number, and the port.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol, TypeVar

from audio.errors import DeviceError

_SERVER_DEVICES = ("pulse", "default")
"""ALSA devices that stand for a sound server, whose own devices PortAudio does not list."""
_SOUND_CARDS = Path("/sys/class/sound")
_CARD = re.compile(r"\(hw:(\d+),")
_WINDOWS_TWIN = re.compile(r"\((\d+)- ")
_PCI_ADDRESS = re.compile(r"pci-[0-9a-f_]+$")


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One sound device as PortAudio sees it."""

    index: int
    name: str
    host_api: str
    inputs: int
    """Input channels; 0 = no microphone."""
    outputs: int
    """Output channels; 0 = no loudspeaker."""
    default_rate_hz: float
    is_default_input: bool
    is_default_output: bool
    port: str = ""
    """Where it is plugged in; "" where nothing says so."""
    serial: str = ""
    """Serial number; "" where it has none."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What it may be called."""
        return (self.name, f"{self.name}, {self.host_api}")


@dataclass(frozen=True, slots=True)
class ServerDevice:
    """One source or sink of the sound server."""

    index: int
    name: str
    description: str
    is_input: bool
    port: str = ""
    serial: str = ""
    bus: str = ""
    """`usb`, `pci`, `bluetooth`; "" for what exists in software only."""
    form_factor: str = ""
    """`internal`, `headset`, `webcam`...; "" where nothing says so."""
    card: int = -1
    """Index of its card; -1 where it has none."""
    monitor_of: str = ""
    """The sink that this source repeats; "" for a real source."""
    is_suspended: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        """What it may be called."""
        return (self.name, self.description)


class _Device(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def port(self) -> str: ...
    @property
    def serial(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...


_D = TypeVar("_D", bound=_Device)


def find_device(devices: Sequence[DeviceInfo], name: str, *, is_input: bool) -> tuple[DeviceInfo, str]:
    """The device that `name` means, and the sound server's own name where it is one that PortAudio does not list.

    "" is the default; else a name, with the host API behind a comma where it is in several; else a serial
    number or port; else a name but for its changing numbers; else the only one that contains it. Upper and
    lower case are alike.

    Raises:
        DeviceError: none, or several.
    """
    kind = "input" if is_input else "output"
    usable = [device for device in devices if (device.inputs if is_input else device.outputs) > 0]
    if not name:
        defaults = [d for d in usable if (d.is_default_input if is_input else d.is_default_output)]
        if not (defaults or usable):
            fix = "Connect one, or start a sound server"
            raise DeviceError(f"there is no {kind} device", device="default", fix=fix)
        return (defaults or usable)[0], ""
    matches = _matches(usable, name)
    if len(matches) == 1:
        return matches[0], ""
    if matches:
        raise _ask(matches, [f"{device.name} ({device.host_api})" for device in matches], name, kind)
    for server in _SERVER_DEVICES:
        for device in usable:
            if device.name == server:
                return device, name
    known = ", ".join(device.name for device in usable) or "none"
    message = f"no {kind} device matches {name!r}; there are: {known}"
    raise DeviceError(message, device=name, fix="Connect it or give one of these names")


def find_server_device(devices: Iterable[ServerDevice], name: str, *, is_input: bool) -> ServerDevice | None:
    """The source or sink that `name` means, by the same rules; None where the server has no such device.

    A monitor is meant only by its exact name.

    Raises:
        DeviceError: several.
    """
    usable = [device for device in devices if device.is_input == is_input]
    if not name:
        return None
    matches = _matches([d for d in usable if not d.monitor_of or d.name == name], name)
    if len(matches) > 1:
        raise _ask(matches, [d.description for d in matches], name, "input" if is_input else "output")
    return matches[0] if matches else None


def find_again(known: ServerDevice, devices: Iterable[ServerDevice]) -> ServerDevice | None:
    """The same device in a later list: under another index, suffix or port; None where it is not there.

    Another serial number is another device, whatever its name.
    """
    candidates = [
        device
        for device in devices
        if device.is_input == known.is_input
        and bool(device.monitor_of) == bool(known.monitor_of)
        and not (device.serial and known.serial and device.serial != known.serial)
    ]
    serial, port, base = known.serial, known.port, stem(known.name)
    rules: tuple[Callable[[ServerDevice], bool], ...] = (
        lambda d: bool(serial) and (d.serial, d.port, stem(d.name)) == (serial, port, base),
        lambda d: bool(port) and (d.port, stem(d.name)) == (port, base),
        lambda d: d.name == known.name,
        lambda d: stem(d.name) == base,
        lambda d: bool(serial) and (d.serial, d.description) == (serial, known.description),
    )
    for rule in rules:
        found = [device for device in candidates if rule(device)]
        if len(found) == 1:
            return found[0]
    return None


def alike(devices: Sequence[_D]) -> list[list[_D]]:
    """Groups of devices that only their serial number or port tells apart."""
    groups: dict[str, list[_D]] = {}
    for device in devices:
        groups.setdefault(stem(device.name), []).append(device)
    return [group for group in groups.values() if len({(d.port, d.serial) for d in group}) > 1]


def distinction(device: _Device) -> str:
    """What tells a device from one just like it: what the configuration accepts in the place of its name."""
    parts = (f"serial {device.serial}" if device.serial else "", f"port {device.port}" if device.port else "")
    return ", ".join(part for part in parts if part)


def stem(name: str) -> str:
    """A name without the numbers that change when the device is plugged in again.

    ALSA card numbers, the suffix that a sound server gives to a second device of the same name, and the
    number that Windows puts before it. The function of a PCI address (`.3` in `pci-0000_00_1f.3`) stays.
    """
    name = _WINDOWS_TWIN.sub("(", _CARD.sub("(hw:,", name))
    parts = name.split(".")
    kept = parts[:1]
    for before, part in pairwise(parts):
        if not part.isdecimal() or _PCI_ADDRESS.search(before):
            kept.append(part)
    return ".".join(kept)


def alsa_place(name: str, cards: Path = _SOUND_CARDS) -> tuple[str, str]:
    """(port, serial) of the card behind PortAudio's name for an ALSA device, as the kernel has them; "" else."""
    card = _CARD.search(name)
    if card is None:
        return "", ""
    interface = (cards / f"card{card.group(1)}" / "device").resolve()
    for folder in (interface, interface.parent):  # of USB: the interface, then the device
        if (folder / "idVendor").is_file():
            serial = folder / "serial"
            return f"usb-{folder.name}", serial.read_text(errors="replace").strip() if serial.is_file() else ""
    return (interface.name, "") if interface.is_dir() else ("", "")


def _matches(devices: Sequence[_D], name: str) -> list[_D]:
    """Devices that the best rule which finds any finds for `name`."""
    wanted = name.casefold()
    exact = [d for d in devices if wanted in (label.casefold() for label in d.labels)]
    if len(exact) == 1:
        # A name that only an order of plugging in gave is no name: of two alike it means the one or the other.
        twins = next((group for group in alike(devices) if exact[0] in group), exact)
        return twins
    return (
        exact
        or [d for d in devices if wanted in (d.serial.casefold(), d.port.casefold())]
        or [d for d in devices if stem(d.name).casefold() == stem(name).casefold()]
        or [d for d in devices if any(wanted in text.casefold() for text in (*d.labels, d.serial, d.port))]
    )


def _ask(matches: Sequence[_Device], labels: Sequence[str], name: str, kind: str) -> DeviceError:
    """Several devices match: the sentence that lists them, and what the user can write instead."""
    apart = [distinction(device) for device in matches]
    shown = [f"{label} [{place}]" if place else label for label, place in zip(labels, apart, strict=True)]
    fix = "Give more of the name"
    if all(apart) and len(set(apart)) == len(apart):
        fix = "Give the serial number or the port of one instead of its name"
    message = f"several {kind} devices match {name!r}: {', '.join(shown)}"
    return DeviceError(message, device=name, fix=fix, is_permanent=True)
