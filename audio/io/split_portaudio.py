"""One PortAudio stream as half of a split device, and when a pair of devices needs two of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from audio.block import HOPS_PER_SECOND, Float32Array
from audio.io.channels import mix_down, spread
from audio.io.device import candidate_rates_hz
from audio.io.identity import DeviceInfo
from audio.io.portaudio_stream import PortAudioStream, quiet_stderr, server_devices, sounddevice_module
from audio.io.split import HalfCallback, HalfFormat

_ALSA_CARD = re.compile(r"\(hw:(\d+),")
_SERVER_CARD = re.compile(r"^(?:alsa|bluez)_(?:input|output|source|sink)\.([^.]+)")
_WINDOWS_CARD = re.compile(r"\((?:\d+- )?(.+)\)$")


def has_one_clock(source: DeviceInfo, sink: DeviceInfo, server_names: tuple[str, str]) -> bool:
    """Whether the two are the same hardware, as far as their names and ports tell; in doubt yes.

    `server_names`: the sound server's own, "" where PortAudio knows the device.
    """
    if all(server_names):
        return _same(_SERVER_CARD, *server_names)
    if source.index == sink.index:
        return True
    if source.host_api != sink.host_api:
        return False
    if source.port and sink.port:
        return source.port == sink.port
    pattern = _ALSA_CARD if source.host_api == "ALSA" else _WINDOWS_CARD
    return _same(pattern, source.name, sink.name)


def _same(pattern: re.Pattern[str], source: str, sink: str) -> bool:
    cards = [match.group(1) for name in (source, sink) if (match := pattern.search(name))]
    return len(cards) < 2 or cards[0] == cards[1]


class PortAudioHalf(PortAudioStream[HalfCallback]):
    """A microphone's or a loudspeaker's stream; see `DeviceHalf`.

    Args:
        device: where PortAudio finds it.
        server_name: the sound server's own name for it, "" where PortAudio knows it.
        is_input: which of the two.
        rate_hz: tried first; None takes the device's own.
    """

    def __init__(self, device: DeviceInfo, server_name: str, *, is_input: bool, rate_hz: int | None = None) -> None:
        super().__init__(server_name or device.name, candidate_rates_hz(rate_hz or device.default_rate_hz))
        self._device = device
        self._server_name = server_name
        self._is_input = is_input

    def open(self) -> HalfFormat:
        """See `DeviceHalf`."""
        sd, device = sounddevice_module(), self._device
        kind = sd.InputStream if self._is_input else sd.OutputStream
        on_block: Callable[..., None] = self._on_input if self._is_input else self._on_output
        channels = (1, device.inputs) if self._is_input else (min(2, device.outputs), device.outputs)
        source, sink = (self._server_name, "") if self._is_input else ("", self._server_name)
        with server_devices(source, sink), quiet_stderr():
            rate_hz = self._open_first(kind, on_block, device=device.index, channels=channels)
        self._block = np.zeros(rate_hz // HOPS_PER_SECOND, np.float32)
        return HalfFormat(rate_hz, self._name, self._stream.latency * 1000)

    def _on_input(self, indata: Float32Array, frames: int, times: Any, status: Any) -> None:
        """PortAudio's real-time thread. `times` and `status` say nothing dependable, so they are not read."""
        now_ns = time.monotonic_ns()
        callback = self._callback
        if callback is None:  # being stopped
            raise self._abort
        mix_down(indata, self._block)
        callback(self._block, now_ns)

    def _on_output(self, outdata: Float32Array, frames: int, times: Any, status: Any) -> None:
        """PortAudio's real-time thread."""
        now_ns = time.monotonic_ns()
        callback = self._callback
        if callback is None:  # being stopped
            outdata.fill(0.0)
            raise self._abort
        callback(self._block, now_ns)
        spread(self._block, outdata)
