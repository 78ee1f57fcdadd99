"""What every PortAudio stream shares: opening, starting, watching, and an end that does not take the process along."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from audio.block import HOPS_PER_SECOND
from audio.errors import DeviceError
from audio.io.device import Finished, refused_every_rate

_END_LIMIT_S = 0.1
Callback = TypeVar("Callback", bound=Callable[..., None])


class PortAudioStream(Generic[Callback]):
    """A stream that calls back 100 times a second. A subclass opens it (`_open_first`) and has the real-time callback.

    While `_callback` is None the stream is being stopped: the real-time callback then raises `_abort`.
    """

    def __init__(self, name: str, rates_hz: tuple[int, ...]) -> None:
        """`name` is for sentences; `rates_hz` are tried in order."""
        self._name = name
        self._rates_hz = rates_hz
        self._stream: Any = None
        self._callback: Callback | None = None
        self._finished: Finished | None = None

    def start(self, callback: Callback) -> None:
        """Call `callback` from now on, on a real-time thread."""
        if self._stream is None:
            raise RuntimeError("open() comes before start()")
        self._callback = callback
        self._stream.start()

    def stop(self) -> None:
        """Close the stream; harmless where none is open."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._callback = None
            _end(stream)

    @property
    def active(self) -> bool:
        """Whether it calls back."""
        return self._stream is not None and bool(self._stream.active)

    @property
    def finished(self) -> Finished | None:
        """Why it ended by itself, or None."""
        return self._finished

    def _open_first(
        self, kind: Callable[..., Any], on_block: Callable[..., None], *, device: object, channels: Sequence[object]
    ) -> int:
        """Open a stream of `kind` at the first rate that is accepted, with the first of `channels` that is; the rate.

        Raises:
            DeviceError: none is accepted.
        """
        sd = sounddevice_module()
        self._abort = sd.CallbackAbort
        self._finished = None
        reason = ""
        for rate_hz in self._rates_hz:
            for count in dict.fromkeys(channels):
                try:
                    self._stream = kind(
                        samplerate=rate_hz,
                        blocksize=rate_hz // HOPS_PER_SECOND,
                        device=device,
                        channels=count,
                        dtype="float32",
                        latency="low",
                        callback=on_block,
                        finished_callback=self._on_finished,
                    )
                    return rate_hz
                except sd.PortAudioError as error:
                    reason = str(error)
        refused = refused_every_rate(self._name, self._rates_hz)
        raise DeviceError(f"{refused.message}: {reason}", device=self._name, fix=refused.fix)

    def _on_finished(self) -> None:
        if self._stream is not None and self._finished is None:
            self._finished = Finished("the sound device or its server went away", is_lost=True)


def _end(stream: Any) -> None:
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
