"""The headset that sounds like a telephone as soon as its microphone is opened."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audio.io.bluetooth import BluetoothAdvice, advise, is_bluetooth
from audio.io.identity import ServerDevice
from audio.io.server import ServerCard, ServerView

_HEADSET_OUT = ServerDevice(5, "bluez_output.AA_BB.1", "Acme Buds", False, "AA:BB", "", "bluetooth", "headset", card=4)
_HEADSET_IN = ServerDevice(6, "bluez_input.AA_BB.0", "Acme Buds", True, "AA:BB", "", "bluetooth", "headset", card=4)
_INNER = ServerDevice(1, "alsa_input.pci-1", "Built-in Microphone", True, "pci-1", "", "pci", "internal", card=0)
_WEBCAM = ServerDevice(2, "alsa_input.usb-cam", "Webcam", True, "usb-1", "", "usb", "webcam", card=1)
_USB = ServerDevice(3, "alsa_input.usb-desk", "Desk Microphone", True, "usb-2", "", "usb", "microphone", card=2)
_SPEAKER = ServerDevice(1, "alsa_output.pci-1", "Speakers", False, "pci-1", "", "pci", "internal", card=0)
_REMAPPED = ServerDevice(9, "effects", "Effects", True)


def _view(*devices: ServerDevice, source: str, sink: str, profile: str = "a2dp-sink") -> ServerView:
    card = ServerCard(4, profile)
    return ServerView("fake", source, sink, devices, (), (card,))


def test_opening_the_bluetooth_microphone_makes_everything_muffled_so_it_is_warned_of() -> None:
    view = _view(_HEADSET_OUT, _HEADSET_IN, _INNER, source=_INNER.name, sink=_HEADSET_OUT.name)
    advice = advise(view, "Acme", "")
    assert advice.warning == "opening the microphone of Acme Buds drops it to telephone quality"
    assert "Built-in Microphone" in advice.fix
    assert advice.input_name == ""
    talking = _view(*view.devices, source=_INNER.name, sink=_HEADSET_OUT.name, profile="headset-head-unit")
    assert "plays in telephone quality" in advise(talking, "Acme", "").warning


@pytest.mark.parametrize(
    ("others", "preferred"),
    [((_WEBCAM, _INNER, _USB), _USB), ((_WEBCAM, _INNER), _INNER), ((_WEBCAM, _REMAPPED), _WEBCAM)],
)
def test_by_default_another_microphone_is_preferred_to_the_headsets(
    others: tuple[ServerDevice, ...], preferred: ServerDevice
) -> None:
    view = _view(_HEADSET_OUT, _HEADSET_IN, *others, source=_HEADSET_IN.name, sink=_HEADSET_OUT.name)
    advice = advise(view, "", "")
    assert advice.input_name == preferred.name
    assert preferred.description in advice.warning


def test_with_no_other_microphone_the_headsets_is_opened_with_a_warning() -> None:
    view = _view(_HEADSET_OUT, _HEADSET_IN, source=_HEADSET_IN.name, sink=_HEADSET_OUT.name)
    advice = advise(view, "", "")
    assert advice.warning
    assert advice.input_name == ""


def test_a_bluetooth_microphone_beside_other_speakers_costs_only_its_own_quality() -> None:
    view = _view(_HEADSET_IN, _SPEAKER, _INNER, source=_INNER.name, sink=_SPEAKER.name)
    assert "delivers telephone quality" in advise(view, "bluez_input.AA_BB.0", "").warning


def test_nothing_is_said_where_nothing_is_lost() -> None:
    view = _view(_HEADSET_OUT, _INNER, _SPEAKER, source=_INNER.name, sink=_HEADSET_OUT.name)
    assert advise(view, "", "") == BluetoothAdvice()
    assert advise(view, "", "Speakers") == BluetoothAdvice()
    assert is_bluetooth(replace(_HEADSET_IN, bus=""))
    assert not is_bluetooth(_INNER)
