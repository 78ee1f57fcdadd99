"""Real sound devices through PortAudio (package `sounddevice`): one duplex stream, float32, 10 ms blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from audio.block import Float32Array
from audio.errors import DeviceError
from audio.io.device import (
    BlockCallback,
    Finished,
    PortAudioSpec,
    SpokenUtterance,
    StreamFormat,
    candidate_rates_hz,
    refused_every_rate,
)

_SERVER_DEVICES = ("pulse", "default")
"""ALSA devices that stand for a sound server, whose own devices PortAudio does not list."""


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


def list_devices() -> list[DeviceInfo]:
    """All devices, in PortAudio's order. A process sees those that were there when PortAudio started.

    Raises:
        DeviceError: PortAudio is not installed or does not start.
    """
    sd = _sounddevice()
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
        )
        for index, device in enumerate(sd.query_devices())
    ]


class PortAudioDevice:
    """A duplex stream on one or two devices of the same host API; see `AudioDevice` for the order of calls."""

    def __init__(self, spec: PortAudioSpec) -> None:
        self._spec = spec
        self._stream: Any = None
        self._callback: BlockCallback | None = None
        self._finished: Finished | None = None

    def open(self) -> StreamFormat:
        """See `AudioDevice`."""
        devices = list_devices()
        source, server_source = find_device(devices, self._spec.input_name, is_input=True)
        sink, server_sink = find_device(devices, self._spec.output_name, is_input=False)
        rates_hz = candidate_rates_hz(self._spec.rate_hz or source.default_rate_hz)
        names = (server_source or source.name, server_sink or sink.name)
        try:
            with _server_devices(server_source, server_sink), _quiet_stderr():
                rate_hz = self._open_first(source, sink, rates_hz, names)
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
        frames = rate_hz // 100
        self._near = np.zeros(frames, np.float32)
        self._out = np.zeros(frames, np.float32)
        self._finished = None
        return StreamFormat(rate_hz, frames, *names, "duplex", self._stream.latency[1] * 1000)

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
            stream.abort(ignore_errors=True)
            stream.close(ignore_errors=True)

    @property
    def active(self) -> bool:
        """See `AudioDevice`."""
        return self._stream is not None and bool(self._stream.active)

    @property
    def finished(self) -> Finished | None:
        """See `AudioDevice`."""
        return self._finished

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`."""
        return ()

    def _open_first(
        self, source: DeviceInfo, sink: DeviceInfo, rates_hz: tuple[int, ...], names: tuple[str, str]
    ) -> int:
        """Open at the first rate that is accepted, with few channels rather than many; the rate."""
        sd = _sounddevice()
        few = (1, min(2, sink.outputs))
        every = (source.inputs, sink.outputs)
        reason = ""
        for rate_hz in rates_hz:
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
        refused = refused_every_rate(both, rates_hz)
        raise DeviceError(f"{refused.message}: {reason}", device=both, fix=refused.fix)

    def _on_block(self, indata: Float32Array, outdata: Float32Array, frames: int, times: Any, status: Any) -> None:
        """PortAudio's real-time thread. `times` and `status` say nothing dependable, so they are not read."""
        now_ns = time.monotonic_ns()
        near, out, callback = self._near, self._out, self._callback
        if callback is None:  # being stopped
            outdata.fill(0.0)
            return
        if indata.shape[1] == 1:
            near[:] = indata[:, 0]
        else:
            np.mean(indata, axis=1, out=near)
        try:
            callback(near, out, now_ns)
        except Exception as error:
            self._finished = Finished(f"the audio callback failed: {error!r}", is_lost=True)
            raise
        outdata[:] = out[:, None]

    def _on_finished(self) -> None:
        if self._stream is not None and self._finished is None:
            self._finished = Finished("the sound device or its server went away", is_lost=True)


def find_device(devices: list[DeviceInfo], name: str, *, is_input: bool) -> tuple[DeviceInfo, str]:
    """The device that `name` means, and the sound server's own name where it is one that PortAudio does not list.

    "" is the default; else an exact name, else the only one that contains it, upper and lower case alike.

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
    wanted = name.casefold()
    matches = [d for d in usable if d.name.casefold() == wanted] or [d for d in usable if wanted in d.name.casefold()]
    if len(matches) == 1:
        return matches[0], ""
    if matches:
        found = ", ".join(f"{device.name} ({device.host_api})" for device in matches)
        message = f"several {kind} devices match {name!r}: {found}"
        raise DeviceError(message, device=name, fix="Give more of the name", is_permanent=True)
    for server in _SERVER_DEVICES:
        for device in usable:
            if device.name == server:
                return device, name
    known = ", ".join(device.name for device in usable) or "none"
    message = f"no {kind} device matches {name!r}; there are: {known}"
    raise DeviceError(message, device=name, fix="Connect it or give one of these names")


@contextmanager
def _server_devices(source: str, sink: str) -> Iterator[None]:
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
def _quiet_stderr() -> Iterator[None]:
    """PortAudio and ALSA print each attempt that fails to file descriptor 2; our errors say it in a sentence."""
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def _sounddevice() -> Any:
    try:
        with _quiet_stderr():
            import sounddevice
    except OSError:
        fix = "Install it (Debian, Ubuntu: apt-get install libportaudio2)"
        raise DeviceError("the PortAudio library is not installed", device="PortAudio", fix=fix) from None
    except Exception as error:  # PortAudioError while it initialises: the class is not importable then
        fix = "Check the sound system"
        raise DeviceError(f"PortAudio does not start: {error}", device="PortAudio", fix=fix) from None
    return sounddevice
