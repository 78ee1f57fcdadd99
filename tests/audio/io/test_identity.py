"""The same device again, and its twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from audio.errors import DeviceError
from audio.io.identity import ServerDevice, alsa_place, find_again, find_server_device, stem

_MIC = ServerDevice(
    3, "alsa_input.usb-Acme_H1-00.mono-fallback", "Acme H1 Mono", True, "pci-0000:00:14.0-usb-0:2", "A17", "usb"
)
_TWIN = replace(
    _MIC, index=8, name="alsa_input.usb-Acme_H1-00.2.mono-fallback", port="pci-0000:00:14.0-usb-0:4", serial="B03"
)
_INNER = ServerDevice(1, "alsa_input.pci-0000_00_1f.3.analog-stereo", "Built-in Audio", True, "pci-0000:00:1f.3")
_MONITOR = ServerDevice(2, "acme.monitor", "Monitor of Acme H1", True, monitor_of="acme")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("alsa_input.usb-Acme_H1-00.2.mono-fallback", "alsa_input.usb-Acme_H1-00.mono-fallback"),
        ("alsa_input.usb-Acme_H1-00.mono-fallback.3", "alsa_input.usb-Acme_H1-00.mono-fallback"),
        ("alsa_input.pci-0000_00_1f.3.analog-stereo", "alsa_input.pci-0000_00_1f.3.analog-stereo"),
        ("USB Mic: Audio (hw:2,1)", "USB Mic: Audio (hw:,1)"),
        ("Microphone (2- USB Audio Device)", "Microphone (USB Audio Device)"),
        ("spk", "spk"),
    ],
)
def test_only_the_numbers_that_change_are_left_out(name: str, base: str) -> None:
    assert stem(name) == base


@pytest.mark.parametrize(
    "changed",
    [
        {"index": 44},
        {"index": 44, "name": "alsa_input.usb-Acme_H1-00.5.mono-fallback"},
        {"port": "pci-0000:00:14.0-usb-0:9"},
        {"name": "alsa_input.usb-Acme_H1-00.analog-stereo"},
    ],
)
def test_a_device_is_found_again_under_another_index_suffix_port_and_profile(changed: dict[str, object]) -> None:
    now = replace(_MIC, **changed)
    assert find_again(_MIC, [_INNER, _MONITOR, _TWIN, now]) is now


def test_another_serial_number_is_another_device_whatever_its_name() -> None:
    assert find_again(_MIC, [replace(_TWIN, name=_MIC.name), _INNER]) is None
    assert find_again(_MIC, []) is None


def test_a_device_without_serial_number_is_told_from_its_twin_by_the_port() -> None:
    mic, twin = replace(_MIC, serial=""), replace(_TWIN, serial="")
    swapped = [replace(mic, name=twin.name), replace(twin, name=mic.name)]
    assert find_again(mic, swapped) is swapped[0]


def test_two_headsets_alike_are_asked_for_and_the_answer_is_accepted() -> None:
    devices = [_INNER, _MIC, _MONITOR, _TWIN]
    for name in ("Acme", "acme h1 mono", _MIC.name):
        with pytest.raises(DeviceError, match=r"serial A17.*serial B03") as caught:
            find_server_device(devices, name, is_input=True)
        assert caught.value.is_permanent
    assert find_server_device(devices, "b03", is_input=True) is _TWIN
    assert find_server_device(devices, _MIC.port, is_input=True) is _MIC
    assert find_server_device([_INNER, _MIC], "Acme", is_input=True) is _MIC


def test_a_monitor_is_meant_by_its_exact_name_only() -> None:
    assert find_server_device([_MONITOR], "acme", is_input=True) is None
    assert find_server_device([_MONITOR], "acme.monitor", is_input=True) is _MONITOR
    assert find_server_device([_MIC], "", is_input=True) is None
    assert find_server_device([_MIC], "Acme", is_input=False) is None


def test_port_and_serial_number_of_a_card_are_the_kernels(tmp_path: Path) -> None:
    usb = tmp_path / "devices" / "1-2"
    (usb / "1-2:1.0").mkdir(parents=True)
    (usb / "idVendor").write_text("1234\n")
    (usb / "serial").write_text("A17\n")
    inner = tmp_path / "devices" / "0000:00:1f.3"
    inner.mkdir()
    for number, folder in ((1, usb / "1-2:1.0"), (0, inner)):
        (tmp_path / f"card{number}").mkdir()
        (tmp_path / f"card{number}" / "device").symlink_to(folder)
    assert alsa_place("Acme H1: USB Audio (hw:1,0)", tmp_path) == ("usb-1-2", "A17")
    assert alsa_place("HDA Intel PCH: ALC257 (hw:0,0)", tmp_path) == ("0000:00:1f.3", "")
    assert alsa_place("Gone: USB Audio (hw:5,0)", tmp_path) == ("", "")
    assert alsa_place("pulse", tmp_path) == ("", "")
