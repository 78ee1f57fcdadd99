"""What users complain of about sound devices, on a PortAudio that is made of tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audio.block import Float32Array
from audio.errors import DeviceError
from audio.io import portaudio, portaudio_stream
from audio.io.device import PortAudioSpec
from audio.io.portaudio import PortAudioDevice


class _Refused(Exception):
    pass


class _Aborted(Exception):
    pass


class _FakeLibrary:
    """A host with these cards (name, inputs, outputs); streams open at the rate that the card has, and no other."""

    PortAudioError = _Refused
    CallbackAbort = _Aborted

    def __init__(self, *cards: tuple[str, int, int], rates_hz: dict[str, int]) -> None:
        self.cards, self.rates_hz = list(cards), rates_hz
        self.default = SimpleNamespace(device=(0, 0))
        self.opened: list[tuple[str, str]] = []
        self.tried_hz: list[int] = []

    def query_hostapis(self) -> list[dict[str, str]]:
        return [{"name": "ALSA"}]

    def query_devices(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "hostapi": 0,
                "max_input_channels": inputs,
                "max_output_channels": outputs,
                "default_samplerate": 16_000.0,  # a lie that real drivers tell
            }
            for name, inputs, outputs in self.cards
        ]

    def Stream(self, **fields: Any) -> Any:
        names = tuple(self.cards[index][0] for index in fields["device"])
        self.tried_hz.append(int(fields["samplerate"]))
        if any(self.rates_hz[name] != fields["samplerate"] for name in names):
            raise _Refused("Invalid sample rate")
        self.opened.append(names)
        self.callback = fields["callback"]
        stream = SimpleNamespace(latency=(0.02, 0.03), active=False)
        stream.start = lambda: setattr(stream, "active", True)
        stream.abort = lambda ignore_errors: setattr(stream, "active", False)
        stream.close = lambda ignore_errors: None
        return stream


_LAPTOP = ("Built-in (hw:0,0)", 2, 2)
_USB = ("USB Headset (hw:1,0)", 1, 2)
_RATES_HZ = {_LAPTOP[0]: 16_000, _USB[0]: 48_000, "USB Headset (hw:2,0)": 48_000}


def _open(monkeypatch: pytest.MonkeyPatch, library: _FakeLibrary, name: str) -> PortAudioDevice:
    for module in (portaudio, portaudio_stream):
        monkeypatch.setattr(module, "sounddevice_module", lambda: library)
    device = PortAudioDevice(PortAudioSpec(name, name, mode="duplex"))
    device.open()
    return device


@pytest.mark.parametrize("only_hz", [44_100, 48_000])
def test_invalid_sample_rate_takes_another_rate_and_no_other_microphone(
    monkeypatch: pytest.MonkeyPatch, only_hz: int
) -> None:
    """A microphone that does not open at 16 kHz is opened at its own rate, whatever else would take 16 kHz."""
    library = _FakeLibrary(_LAPTOP, _USB, rates_hz={**_RATES_HZ, _USB[0]: only_hz})
    device = _open(monkeypatch, library, "USB Headset")
    assert library.opened == [(_USB[0], _USB[0])]
    assert library.tried_hz[0] == 16_000
    heard: list[Float32Array] = []
    device.start(lambda near, out, time_ns: heard.append(near.copy()))
    library.callback(np.full((only_hz // 100, 1), 0.5, np.float32), np.zeros((only_hz // 100, 2), np.float32), 0, 0, 0)
    assert heard[0].shape == (only_hz // 100,)
    assert (heard[0] == 0.5).all()
    device.stop()


def test_invalid_sample_rate_everywhere_is_told_and_no_other_microphone_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _FakeLibrary(_LAPTOP, _USB, rates_hz={**_RATES_HZ, _USB[0]: 8_000})
    with pytest.raises(DeviceError, match="USB Headset"):
        _open(monkeypatch, library, "USB Headset")
    assert library.opened == []


def test_device_list_is_not_frozen_at_the_start_and_no_stale_index_means_the_wrong_speaker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unplugged, then back behind a new device and under another card number: the name decides, not the index."""
    library = _FakeLibrary(_LAPTOP, _USB, rates_hz=_RATES_HZ)
    _open(monkeypatch, library, _USB[0]).stop()
    library.cards = [_LAPTOP]
    with pytest.raises(DeviceError, match="no input device matches"):
        _open(monkeypatch, library, _USB[0])
    library.cards = [_LAPTOP, ("HDMI (hw:1,0)", 0, 8), ("USB Headset (hw:2,0)", 1, 2)]
    _open(monkeypatch, library, _USB[0]).stop()
    assert library.opened == [(_USB[0], _USB[0]), ("USB Headset (hw:2,0)",) * 2]
