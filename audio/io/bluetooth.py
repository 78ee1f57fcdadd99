"""What opening a Bluetooth microphone does to a headset, and which microphone to take instead.

A headset plays music quality (A2DP) or has a microphone (HSP/HFP, telephone quality: mono at 8 or 16 kHz),
never both. Pure rules over what the sound server says.
"""

from __future__ import annotations

from dataclasses import dataclass

from audio.io.identity import ServerDevice
from audio.io.server import ServerView

_MUSIC = "a2dp"


@dataclass(frozen=True, slots=True)
class BluetoothAdvice:
    """What to say and do before the microphone is opened."""

    warning: str = ""
    """A sentence for the user; "" where nothing is lost."""
    fix: str = ""
    input_name: str = ""
    """The server's name of the microphone to open instead of the default one; "" to leave it."""


def advise(view: ServerView, input_name: str, output_name: str) -> BluetoothAdvice:
    """Names as the user gave them, "" is the default.

    A microphone that the user named is never replaced: they get the warning. A default one that would drop
    the loudspeaker's headset to telephone quality is, if there is another.

    Raises:
        DeviceError: several devices match a name.
    """
    source = view.find(input_name, is_input=True)
    sink = view.find(output_name, is_input=False)
    if source is None or not is_bluetooth(source):
        return BluetoothAdvice()
    other = _best_other(view)
    instead = f"Choose another microphone: {other.description}" if other else "Connect another microphone"
    if sink is None or sink.card != source.card or sink.card < 0:
        warning = f"{source.description} is a Bluetooth microphone: it delivers telephone quality"
        return BluetoothAdvice(warning, instead)
    if not input_name and other is not None:
        warning = f"the microphone of {sink.description} would drop it to telephone quality; using {other.description}"
        fix = f"To use it all the same, name it: --input-device {source.name}"
        return BluetoothAdvice(warning, fix, other.name)
    card = next((card for card in view.cards if card.index == sink.card), None)
    if card is not None and card.active_profile.startswith(_MUSIC):
        return BluetoothAdvice(f"opening the microphone of {sink.description} drops it to telephone quality", instead)
    return BluetoothAdvice(f"{sink.description} plays in telephone quality while its microphone is open", instead)


def is_bluetooth(device: ServerDevice) -> bool:
    """Whether it is connected by Bluetooth."""
    return device.bus == "bluetooth" or device.name.startswith(("bluez_", "bluez5."))


def _best_other(view: ServerView) -> ServerDevice | None:
    """Of the microphones that are not Bluetooth: one plugged in before the built-in one, a webcam after both."""
    others = [d for d in view.devices if d.is_input and not d.monitor_of and d.bus and not is_bluetooth(d)]
    return min(others, key=lambda d: (d.form_factor == "webcam", d.bus != "usb", d.index), default=None)
