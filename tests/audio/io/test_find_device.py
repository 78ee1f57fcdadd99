"""Which device a name means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from audio.errors import DeviceError
from audio.io.device import candidate_rates_hz
from audio.io.identity import DeviceInfo, find_device


def _info(index: int, name: str, inputs: int, outputs: int, *, default: bool = False) -> DeviceInfo:
    return DeviceInfo(index, name, "ALSA", inputs, outputs, 44_100.0, default and inputs > 0, default and outputs > 0)


_CARDS = [_info(0, "USB Mic", 1, 0), _info(1, "USB Headset", 1, 2, default=True), _info(2, "HDMI", 0, 8)]
_SERVER = [*_CARDS, _info(3, "pulse", 32, 32), _info(4, "default", 32, 32)]


@pytest.mark.parametrize(
    ("name", "is_input", "index"),
    [("", True, 1), ("", False, 1), ("usb mic", True, 0), ("mic", True, 0), ("hdmi", False, 2), ("usb", False, 1)],
)
def test_a_part_of_the_name_is_enough(name: str, is_input: bool, index: int) -> None:
    assert find_device(_CARDS, name, is_input=is_input) == (_CARDS[index], "")


def test_an_exact_name_wins_over_longer_ones() -> None:
    devices = [_info(0, "mic", 1, 0), _info(1, "mic array", 4, 0)]
    assert find_device(devices, "mic", is_input=True)[0].index == 0


def test_several_matches_are_listed() -> None:
    with pytest.raises(DeviceError, match=r"USB Mic \(ALSA\), USB Headset \(ALSA\)"):
        find_device(_CARDS, "usb", is_input=True)


def test_an_unknown_name_is_left_to_the_sound_server_where_there_is_one() -> None:
    assert find_device(_SERVER, "alsa_input.pci", is_input=True) == (_SERVER[3], "alsa_input.pci")
    with pytest.raises(DeviceError, match="there are: USB Mic, USB Headset"):
        find_device(_CARDS, "alsa_input.pci", is_input=True)


def test_without_a_default_the_first_usable_device_is_taken() -> None:
    assert find_device(_CARDS[:1], "", is_input=True)[0].index == 0
    with pytest.raises(DeviceError, match="no output device"):
        find_device(_CARDS[:1], "", is_input=False)


def test_rates_are_tried_in_turn() -> None:
    assert candidate_rates_hz(96_000.0) == (96_000, 48_000, 44_100, 16_000)
    assert candidate_rates_hz(44_100.0) == (44_100, 48_000, 16_000)
    assert candidate_rates_hz(11_025.0) == (48_000, 44_100, 16_000)
    assert candidate_rates_hz(0.0) == (48_000, 44_100, 16_000)


def test_a_name_under_several_host_apis_is_told_apart_by_the_api() -> None:
    both = [replace(_CARDS[0], index=index, host_api=api) for index, api in ((4, "MME"), (7, "Windows WASAPI"))]
    name = both[0].name
    with pytest.raises(DeviceError, match=r"\(MME\).*\(Windows WASAPI\)"):
        find_device(both, name, is_input=True)
    assert find_device(both, f"{name}, Windows WASAPI", is_input=True)[0].index == 7


def test_stale_index_the_same_card_under_another_number_is_found() -> None:
    before = DeviceInfo(1, "USB Mic: Audio (hw:1,0)", "ALSA", 1, 0, 48_000.0, False, False)
    now = [*_CARDS, replace(before, index=9, name="USB Mic: Audio (hw:3,0)")]
    assert find_device(now, before.name, is_input=True)[0].index == 9


def test_two_headsets_alike_are_asked_for_and_the_serial_number_or_port_answers() -> None:
    first = DeviceInfo(1, "Headset: USB (hw:1,0)", "ALSA", 1, 2, 48_000.0, False, False, "usb-1-2", "A17")
    twin = replace(first, index=2, name="Headset: USB (hw:2,0)", port="usb-1-4", serial="B03")
    for name in ("headset", first.name):
        with pytest.raises(DeviceError, match=r"serial A17, port usb-1-2.*serial B03, port usb-1-4") as caught:
            find_device([first, twin], name, is_input=True)
        assert "serial number" in caught.value.fix
    assert find_device([first, twin], "b03", is_input=True)[0] is twin
    assert find_device([first, twin], "usb-1-2", is_input=True)[0] is first
