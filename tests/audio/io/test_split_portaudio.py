"""Which pairs of devices get one PortAudio stream and which two, on a PortAudio that is made of tables."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audio.errors import DeviceError
from audio.files import read_audio
from audio.io import portaudio, portaudio_stream, split_portaudio
from audio.io.device import PortAudioSpec
from audio.io.identity import DeviceInfo
from audio.io.portaudio import PortAudioDevice
from audio.io.process import AudioProcess
from audio.io.split_portaudio import has_one_clock


def _info(index: int, name: str, host_api: str = "ALSA", port: str = "") -> DeviceInfo:
    return DeviceInfo(index, name, host_api, 2, 8, 48_000.0, False, False, port=port)


@pytest.mark.parametrize(
    ("source", "sink", "server_names", "expected"),
    [
        (_info(0, "Headset (hw:1,0)"), _info(0, "Headset (hw:1,0)"), ("", ""), True),
        (_info(0, "Headset (hw:1,0)"), _info(1, "Headset #2 (hw:1,1)"), ("", ""), True),
        (_info(0, "Microphone (hw:1,0)"), _info(1, "HDMI (hw:0,3)"), ("", ""), False),
        (_info(0, "mic"), _info(1, "speakers"), ("", ""), True),
        (_info(0, "mic", port="usb-1-2"), _info(1, "speakers", port="usb-1-3"), ("", ""), False),
        (_info(0, "mic", "ALSA"), _info(1, "speakers", "JACK Audio Connection Kit"), ("", ""), False),
        (
            _info(0, "Microphone (USB Audio)", "Windows WASAPI"),
            _info(1, "Speakers (USB Audio)", "Windows WASAPI"),
            ("", ""),
            True,
        ),
        (
            _info(0, "Microphone (2- USB Audio)", "Windows WASAPI"),
            _info(1, "Speakers (Realtek(R) Audio)", "Windows WASAPI"),
            ("", ""),
            False,
        ),
        (_info(0, "pulse"), _info(0, "pulse"), ("alsa_input.usb-A.mono", "alsa_output.pci-B.stereo"), False),
        (_info(0, "pulse"), _info(0, "pulse"), ("alsa_input.usb-A.mono", "alsa_output.usb-A.stereo"), True),
        (_info(0, "pulse"), _info(0, "pulse"), ("mic", "spk"), True),
    ],
)
def test_hardware_is_told_by_name_and_port(
    source: DeviceInfo, sink: DeviceInfo, server_names: tuple[str, str], expected: bool
) -> None:
    assert has_one_clock(source, sink, server_names) is expected


class _Refused(Exception):
    pass


class _Aborted(Exception):
    pass


class _FakeLibrary:
    """What `PortAudioDevice` uses of `sounddevice`. Streams are driven by the test."""

    PortAudioError = _Refused
    CallbackAbort = _Aborted

    def __init__(
        self, names: tuple[str, str], *, takes_duplex: bool = True, only_hz: int = 0, channels: int = 2
    ) -> None:
        self._names, self._takes_duplex, self._only_hz, self._channels = names, takes_duplex, only_hz, channels
        self.default = SimpleNamespace(device=(0, 1))
        self.streams: dict[str, Any] = {}

    def query_hostapis(self) -> list[dict[str, str]]:
        return [{"name": "ALSA"}]

    def query_devices(self) -> list[dict[str, Any]]:
        sides = ((self._channels, 0), (0, self._channels))
        return [
            {
                "name": name,
                "hostapi": 0,
                "max_input_channels": inputs,
                "max_output_channels": outputs,
                "default_samplerate": 48_000.0,
            }
            for name, (inputs, outputs) in zip(self._names, sides, strict=True)
        ]

    def Stream(self, **fields: Any) -> Any:
        if not self._takes_duplex:
            raise _Refused("Illegal combination of I/O devices")
        return self._open("duplex", fields, (0.02, 0.03))

    def InputStream(self, **fields: Any) -> Any:
        return self._open("input", fields, 0.02)

    def OutputStream(self, **fields: Any) -> Any:
        return self._open("output", fields, 0.03)

    def _open(self, kind: str, fields: dict[str, Any], latency: Any) -> Any:
        if self._only_hz and fields["samplerate"] != self._only_hz:
            raise _Refused("Invalid sample rate")
        if fields["channels"] not in (self._channels, (self._channels, self._channels)):
            raise _Refused("Invalid number of channels")
        stream = SimpleNamespace(fields=fields, latency=latency, active=False, is_closed=False)
        stream.start = lambda: setattr(stream, "active", True)
        stream.abort = lambda ignore_errors: setattr(stream, "active", False)
        stream.close = lambda ignore_errors: setattr(stream, "is_closed", True)
        self.streams[kind] = stream
        return stream


_APART = ("Microphone (hw:1,0)", "HDMI (hw:0,3)")
_TOGETHER = ("Headset in (hw:1,0)", "Headset out (hw:1,0)")


def _device(monkeypatch: pytest.MonkeyPatch, library: _FakeLibrary, mode: str = "auto") -> PortAudioDevice:
    for module in (portaudio, split_portaudio, portaudio_stream):
        monkeypatch.setattr(module, "sounddevice_module", lambda: library)
    return PortAudioDevice(PortAudioSpec(mode=mode))


@pytest.mark.parametrize(
    ("names", "takes_duplex", "mode", "expected"),
    [
        (_TOGETHER, True, "auto", "duplex"),
        (_APART, True, "auto", "split"),
        (_TOGETHER, False, "auto", "split"),
        (_APART, True, "duplex", "duplex"),
        (_TOGETHER, True, "split", "split"),
    ],
)
def test_the_mode_follows_the_hardware_unless_it_is_told(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, str], takes_duplex: bool, mode: str, expected: str
) -> None:
    library = _FakeLibrary(names, takes_duplex=takes_duplex)
    device = _device(monkeypatch, library, mode)
    stream = device.open()
    assert (stream.mode, stream.input_name, stream.output_name) == (expected, *names)
    assert set(library.streams) == ({"duplex"} if expected == "duplex" else {"input", "output"})
    device.start(lambda near, out, time_ns: None)
    assert device.active
    device.stop()
    assert all(stream.is_closed for stream in library.streams.values())
    assert not device.active


def test_a_duplex_that_is_wanted_and_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    device = _device(monkeypatch, _FakeLibrary(_APART, takes_duplex=False), "duplex")
    with pytest.raises(DeviceError, match="Illegal combination") as caught:
        device.open()
    assert caught.value.fix


@pytest.mark.parametrize("names", [_APART, _TOGETHER])
def test_a_pair_that_refuses_every_rate_gives_one_sentence(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    with pytest.raises(DeviceError, match="refuses every sample rate tried") as caught:
        _device(monkeypatch, _FakeLibrary(names, only_hz=22_050)).open()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("only_hz", [44_100, 48_000])
@pytest.mark.parametrize("channels", [1, 8])
def test_two_streams_carry_one_voice_at_any_rate_and_channels(
    monkeypatch: pytest.MonkeyPatch, only_hz: int, channels: int
) -> None:
    library = _FakeLibrary(_APART, only_hz=only_hz, channels=channels)
    device = _device(monkeypatch, library)
    assert device.open().rate_hz == only_hz
    heard: list[float] = []

    def callback(near: Any, out: Any, time_ns: int) -> None:
        heard.append(float(near.mean()))
        out.fill(0.25)

    device.start(callback)
    frames = only_hz // 100
    indata = np.zeros((frames, channels), np.float32)
    indata[:, 0] = 0.5
    outdata = np.ones((frames, channels), np.float32)
    clock = SimpleNamespace(now_ns=0)
    monkeypatch.setattr("audio.io.split_portaudio.time", SimpleNamespace(monotonic_ns=lambda: clock.now_ns))
    for block in range(60):
        clock.now_ns = block * 10_000_000
        library.streams["input"].fields["callback"](indata, frames, None, None)
        library.streams["output"].fields["callback"](outdata, frames, None, None)
    assert heard == pytest.approx([0.5 / channels] * 60)
    assert outdata == pytest.approx(0.25, abs=1e-4)
    device.stop()
    for kind, block in (("input", indata), ("output", outdata)):
        with pytest.raises(_Aborted):
            library.streams[kind].fields["callback"](block, frames, None, None)
    assert not outdata.any()
    assert len(heard) == 60


def test_a_server_that_dies_ends_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    library = _FakeLibrary(_APART)
    device = _device(monkeypatch, library)
    device.open()
    device.start(lambda near, out, time_ns: None)
    library.streams["output"].fields["finished_callback"]()
    assert device.finished is not None
    assert device.finished.is_lost
    device.stop()


@pytest.mark.audio_device
def test_two_real_streams_play_a_clean_tone(pulse_rig: Any, tmp_path: Path) -> None:
    """The server starves on a busy machine, and then its monitor has gaps that are not ours: some attempts."""
    for attempt in range(5):
        path = tmp_path / f"played{attempt}.wav"
        process = AudioProcess(PortAudioSpec("test_mic", "test_spk", rate_hz=48_000, mode="split"))
        try:
            assert process.start().mode == "split"
            capture = pulse_rig.capture(path)
            _play_tone(process, 200.0, 2.0)
            capture.send_signal(signal.SIGINT)
            capture.wait(5)
        finally:
            process.stop()
        if (roughness := _roughness(path, 200.0)) < 3:
            return
    pytest.fail(f"a tone through two streams came out {roughness:.0f} times as rough as it is")


def _play_tone(process: AudioProcess, frequency_hz: float, duration_s: float) -> None:
    """One reply of generation 1, once the stream has run for a second, to its end in the server."""
    frames = process.playback_ring.columns["samples"].shape[1]
    tone = 0.5 * np.sin(2 * np.pi * frequency_hz * np.arange(round(duration_s * 100) * frames) / (100 * frames))
    _wait(lambda: process.control.blocks > 100)
    process.control.generation = 1
    for block in tone.astype(np.float32).reshape(-1, frames):
        _wait(process.playback_ring.free)
        slot = process.playback_ring.slot()
        slot["generation"], slot["samples"] = 1, block
        process.playback_ring.commit()
    done_at = process.control.blocks + 80
    _wait(lambda: process.control.blocks > done_at)


def _roughness(path: Path, frequency_hz: float) -> float:
    """Largest second difference in the middle of what was heard, over the tone's: 1 is clean, a click is far more."""
    played, rate_hz = read_audio(path)
    loud = np.flatnonzero(np.abs(played) > 0.25)
    if len(loud) < rate_hz:
        return math.inf
    part = played[loud[0] + rate_hz // 10 : loud[-1] - rate_hz // 10].astype(np.float64)
    return float(np.abs(np.diff(part, 2)).max() / (0.5 * (2 * np.pi * frequency_hz / rate_hz) ** 2))


def _wait(condition: Callable[[], object], limit_s: float = 20.0) -> None:
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "waited in vain"
        time.sleep(0.005)
