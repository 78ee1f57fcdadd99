"""Real sound devices through PortAudio (package `sounddevice`): float32, 10 ms blocks, one stream or two."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from audio.block import Float32Array
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
    refused_every_rate,
)
from audio.io.drift_mapper import SplitStats
from audio.io.identity import DeviceInfo, alsa_place, find_device

_END_LIMIT_S = 0.1


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


class DuplexStream:
    """One PortAudio stream on one or two devices of the same host API; see `AudioDevice`."""

    def __init__(
        self, source: DeviceInfo, sink: DeviceInfo, server_names: tuple[str, str], rate_hz: int | None
    ) -> None:
        self._source, self._sink = source, sink
        self._server_names = server_names
        self._names = (server_names[0] or source.name, server_names[1] or sink.name)
        self._rates_hz = candidate_rates_hz(rate_hz or source.default_rate_hz)
        self._stream: Any = None
        self._callback: BlockCallback | None = None
        self._finished: Finished | None = None

    def open(self) -> StreamFormat:
        """See `AudioDevice`."""
        with server_devices(*self._server_names), quiet_stderr():
            rate_hz = self._open_first()
        frames = rate_hz // 100
        self._near = np.zeros(frames, np.float32)
        self._out = np.zeros(frames, np.float32)
        self._finished = None
        return StreamFormat(rate_hz, frames, *self._names, "duplex", self._stream.latency[1] * 1000)

    def start(self, callback: BlockCallback) -> None:
        """See `AudioDevice`."""
        if self._stream is None:
            raise RuntimeError("open() comes before start()")
        self._callback = callback
        self._stream.start()

    def stop(self) -> None:
        """See `AudioDevice`."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._callback = None
            end_stream(stream)

    @property
    def active(self) -> bool:
        """See `AudioDevice`."""
        return self._stream is not None and bool(self._stream.active)

    @property
    def finished(self) -> Finished | None:
        """See `AudioDevice`."""
        return self._finished

    @property
    def stats(self) -> SplitStats | None:
        """See `AudioDevice`: one clock."""
        return None

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`."""
        return ()

    def _open_first(self) -> int:
        """Open at the first rate that is accepted, with few channels rather than many; the rate."""
        sd = sounddevice_module()
        self._abort = sd.CallbackAbort
        source, sink, names = self._source, self._sink, self._names
        few = (1, min(2, sink.outputs))
        every = (source.inputs, sink.outputs)
        reason = ""
        for rate_hz in self._rates_hz:
            for channels in dict.fromkeys((few, every)):
                try:
                    self._stream = sd.Stream(
                        samplerate=rate_hz,
                        blocksize=rate_hz // 100,
                        device=(source.index, sink.index),
                        channels=channels,
                        dtype="float32",
                        latency="low",
                        callback=self._on_block,
                        finished_callback=self._on_finished,
                    )
                    return rate_hz
                except sd.PortAudioError as error:
                    reason = str(error)
        both = names[0] if names[0] == names[1] else f"{names[0]} with {names[1]}"
        refused = refused_every_rate(both, self._rates_hz)
        raise DeviceError(f"{refused.message}: {reason}", device=both, fix=refused.fix)

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

    def _on_finished(self) -> None:
        if self._stream is not None and self._finished is None:
            self._finished = Finished("the sound device or its server went away", is_lost=True)


def end_stream(stream: Any) -> None:
    """Close a stream whose callback raises `CallbackAbort` from now on.

    On ALSA PortAudio cancels a thread that still runs, and inside Python that can take the process with it: so the
    thread is given the time to end by itself, which a stalled one has not.
    """
    until_s = time.monotonic() + _END_LIMIT_S
    while stream.active and time.monotonic() < until_s:
        time.sleep(0.002)
    stream.abort(ignore_errors=True)
    stream.close(ignore_errors=True)


@contextmanager
def server_devices(source: str, sink: str) -> Iterator[None]:
    """libpulse reads which of its devices to use from the environment when a stream is opened."""
    wanted = {"PULSE_SOURCE": source, "PULSE_SINK": sink}
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update({key: value for key, value in wanted.items() if value})
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """PortAudio and ALSA print each attempt that fails to file descriptor 2; our errors say it in a sentence."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def sounddevice_module() -> Any:
    try:
        with quiet_stderr():
            import sounddevice
    except OSError:
        fix = "Install it (Debian, Ubuntu: apt-get install libportaudio2)"
        raise DeviceError("the PortAudio library is not installed", device="PortAudio", fix=fix) from None
    except Exception as error:  # PortAudioError while it initialises: the class is not importable then
        fix = "Check the sound system"
        raise DeviceError(f"PortAudio does not start: {error}", device="PortAudio", fix=fix) from None
    return sounddevice


def read_devices_anew() -> None:
    """Let PortAudio list what is there now. No stream may be open: it would be lost."""
    sd = sounddevice_module()
    with quiet_stderr():
        sd._terminate()
        sd._initialize()
