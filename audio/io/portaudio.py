"""Real sound devices through PortAudio (package `sounddevice`): float32, 10 ms blocks, one stream or two."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from audio.block import HOPS_PER_SECOND, Float32Array
from audio.errors import DeviceError
from audio.io.channels import mix_down, spread
from audio.io.device import (
    AudioDevice,
    BlockCallback,
    Finished,
    PortAudioSpec,
    SpokenUtterance,
    StreamFormat,
    candidate_rates_hz,
)
from audio.io.drift_mapper import SplitStats
from audio.io.identity import DeviceInfo, alsa_place, find_device
from audio.io.portaudio_stream import PortAudioStream, quiet_stderr, server_devices, sounddevice_module


def list_devices() -> list[DeviceInfo]:
    """All devices, in PortAudio's order. A process sees those that were there when PortAudio started.

    Raises:
        DeviceError: PortAudio is not installed or does not start.
    """
    sd = sounddevice_module()
    apis = sd.query_hostapis()
    default_input, default_output = sd.default.device
    return [
        DeviceInfo(
            index=index,
            name=device["name"],
            host_api=apis[device["hostapi"]]["name"],
            inputs=device["max_input_channels"],
            outputs=device["max_output_channels"],
            default_rate_hz=device["default_samplerate"],
            is_default_input=index == default_input,
            is_default_output=index == default_output,
            port=alsa_place(device["name"])[0],
            serial=alsa_place(device["name"])[1],
        )
        for index, device in enumerate(sd.query_devices())
    ]


class PortAudioDevice:
    """A microphone and a loudspeaker by name, in the mode that `PortAudioSpec.mode` says; see `AudioDevice`.

    `auto` takes one duplex stream where both seem to be the same hardware and it opens, else two streams.
    """

    def __init__(self, spec: PortAudioSpec) -> None:
        self._spec = spec
        self._device: AudioDevice | None = None

    def open(self) -> StreamFormat:
        """See `AudioDevice`."""
        devices = list_devices()
        source, server_source = find_device(devices, self._spec.input_name, is_input=True)
        sink, server_sink = find_device(devices, self._spec.output_name, is_input=False)
        try:
            return self._open(source, sink, (server_source, server_sink))
        except DeviceError as error:
            if not (server_source or server_sink):
                raise
            unknown = " and ".join(repr(name) for name in (server_source, server_sink) if name)
            message = f"neither PortAudio nor the sound server opens {unknown}"
            raise DeviceError(
                message,
                device=error.device,
                fix="Give a name that `vivavoce devices` lists, or one of the server's own",
            ) from None

    def start(self, callback: BlockCallback) -> None:
        """See `AudioDevice`."""
        if self._device is None:
            raise RuntimeError("open() comes before start()")
        self._device.start(callback)

    def stop(self) -> None:
        """See `AudioDevice`."""
        if self._device is not None:
            self._device.stop()

    @property
    def active(self) -> bool:
        """See `AudioDevice`."""
        return self._device is not None and self._device.active

    @property
    def finished(self) -> Finished | None:
        """See `AudioDevice`."""
        return None if self._device is None else self._device.finished

    @property
    def stats(self) -> SplitStats | None:
        """See `AudioDevice`."""
        return None if self._device is None else self._device.stats

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`: nobody's script is known here."""
        return ()

    def _open(self, source: DeviceInfo, sink: DeviceInfo, server_names: tuple[str, str]) -> StreamFormat:
        """One stream or two; where neither opens, the error of the first that was tried."""
        from audio.io.split import SplitDevice
        from audio.io.split_portaudio import PortAudioHalf, has_one_clock

        mode, rate_hz = self._spec.mode, self._spec.rate_hz
        split = SplitDevice(
            PortAudioHalf(source, server_names[0], is_input=True, rate_hz=rate_hz),
            PortAudioHalf(sink, server_names[1], is_input=False),
        )
        if mode == "split" or (mode == "auto" and not has_one_clock(source, sink, server_names)):
            stream, self._device = split.open(), split
            return stream
        duplex = DuplexStream(source, sink, server_names, rate_hz)
        try:
            stream, self._device = duplex.open(), duplex
        except DeviceError as refused:
            if mode == "duplex":
                raise
            try:
                stream, self._device = split.open(), split
            except DeviceError:
                raise refused from None
        return stream


class DuplexStream(PortAudioStream[BlockCallback]):
    """One PortAudio stream on one or two devices of the same host API; see `AudioDevice`."""

    def __init__(
        self, source: DeviceInfo, sink: DeviceInfo, server_names: tuple[str, str], rate_hz: int | None
    ) -> None:
        self._source, self._sink = source, sink
        self._server_names = server_names
        names = self._names = (server_names[0] or source.name, server_names[1] or sink.name)
        both = names[0] if names[0] == names[1] else f"{names[0]} with {names[1]}"
        super().__init__(both, candidate_rates_hz(rate_hz or source.default_rate_hz))

    def open(self) -> StreamFormat:
        """See `AudioDevice`."""
        source, sink = self._source, self._sink
        with server_devices(*self._server_names), quiet_stderr():
            rate_hz = self._open_first(
                sounddevice_module().Stream,
                self._on_block,
                device=(source.index, sink.index),
                channels=((1, min(2, sink.outputs)), (source.inputs, sink.outputs)),  # few rather than many
            )
        frames = rate_hz // HOPS_PER_SECOND
        self._near = np.zeros(frames, np.float32)
        self._out = np.zeros(frames, np.float32)
        return StreamFormat(rate_hz, frames, *self._names, "duplex", self._stream.latency[1] * 1000)

    @property
    def stats(self) -> SplitStats | None:
        """See `AudioDevice`: one clock."""
        return None

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`."""
        return ()

    def _on_block(self, indata: Float32Array, outdata: Float32Array, frames: int, times: Any, status: Any) -> None:
        """PortAudio's real-time thread. `times` and `status` say nothing dependable, so they are not read."""
        now_ns = time.monotonic_ns()
        near, out, callback = self._near, self._out, self._callback
        if callback is None:  # being stopped
            outdata.fill(0.0)
            raise self._abort
        mix_down(indata, near)
        try:
            callback(near, out, now_ns)
        except Exception as error:
            self._finished = Finished(f"the audio callback failed: {error!r}", is_lost=True)
            raise
        spread(out, outdata)


def read_devices_anew() -> None:
    """Let PortAudio list what is there now. No stream may be open: it would be lost."""
    sd = sounddevice_module()
    with quiet_stderr():
        sd._terminate()
        sd._initialize()
