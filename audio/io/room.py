"""A simulated room: what the loudspeaker plays comes back to the microphone, block by block."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from audio.block import AudioBlock, Float32Array
from audio.files import read_audio
from audio.io.device import AudioSource, RoomSpec
from audio.resample import resample


def load_source(source: AudioSource, rate_hz: int) -> Float32Array:
    """A recording at the device's rate, mono float32.

    Raises:
        AudioFileError: see `read_audio`.
    """
    if isinstance(source, AudioBlock):
        return resample(source.samples, source.rate_hz, rate_hz)
    samples, file_rate_hz = read_audio(source)
    return resample(samples, file_rate_hz, rate_hz)


class BlockConvolver:
    """Streaming convolution, equal to the whole one: uniformly partitioned overlap-save.

    (Stockham 1966; partitions as in Wefers, Partitioned convolution algorithms, 2015, chapter 5.)
    """

    def __init__(self, impulse_response: npt.NDArray[np.float64], block_frames: int) -> None:
        self._block = block_frames
        parts = max(1, -(-len(impulse_response) // block_frames))
        padded = np.zeros((parts, 2 * block_frames))
        padded[:, :block_frames].flat[: len(impulse_response)] = impulse_response
        self._filter = np.fft.rfft(padded, axis=1)
        self._spectra = np.zeros_like(self._filter)
        self._newest = 0
        self._window = np.zeros(2 * block_frames)

    def process(self, block: Float32Array) -> npt.NDArray[np.float64]:
        """(B,) to (B,): the convolution's samples at the same place."""
        self._window[: self._block] = self._window[self._block :]
        self._window[self._block :] = block
        self._newest = (self._newest - 1) % len(self._spectra)
        self._spectra[self._newest] = np.fft.rfft(self._window)
        # Row i of the ring holds the spectrum of (i - newest) blocks ago.
        split = len(self._filter) - self._newest
        total = (self._filter[:split] * self._spectra[self._newest :]).sum(axis=0)
        total += (self._filter[split:] * self._spectra[: self._newest]).sum(axis=0)
        return np.fft.irfft(total)[self._block :]


_HALF_TAPS = 40
_FINE = 2048
_STOP_BAND_DB = 110.0


class Air:
    """A loudspeaker's samples as sound: its value between them, band-limited to what both clocks can carry.

    Simulates what a converter does, so it shares nothing with the product's own resamplers: the kernel is read
    from a table of 2048 places a sample, in double precision, better than -110 dB.
    """

    def __init__(self, loudspeaker_hz: int, microphone_hz: int) -> None:
        lower_hz = min(loudspeaker_hz, microphone_hz)
        self._to_lower = lower_hz / loudspeaker_hz
        self.half_width = -(-_HALF_TAPS * loudspeaker_hz // lower_hz)
        """Loudspeaker samples that are needed around each place."""
        self._taps = np.arange(1 - self.half_width, self.half_width + 1)
        distance = np.arange(_HALF_TAPS * _FINE + 2) / _FINE  # in samples of the lower rate
        beta = 0.1102 * (_STOP_BAND_DB - 8.7)
        transition = (_STOP_BAND_DB - 8.0) / (2.285 * 2 * np.pi) / (2 * _HALF_TAPS)
        inside = np.clip(1 - (distance / _HALF_TAPS) ** 2, 0, None)
        window = np.where(distance <= _HALF_TAPS, np.i0(beta * np.sqrt(inside)) / np.i0(beta), 0.0)
        self._kernel = (1 - transition) * np.sinc((1 - transition) * distance) * window * self._to_lower

    def listen(self, samples: npt.NDArray[np.float64], places: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(N,) loudspeaker samples, silent at both ends, to the sound at `places` (B,), counted in them."""
        whole = np.floor(places).astype(np.int64)
        at = np.abs((places - whole)[:, None] - self._taps) * (self._to_lower * _FINE)
        np.minimum(at, len(self._kernel) - 2, out=at)
        row = at.astype(np.int64)
        lower = self._kernel[row]
        weights = lower + (at - row) * (self._kernel[row + 1] - lower)
        sound: npt.NDArray[np.float64] = np.einsum(
            "bt,bt->b", weights, np.take(samples, whole[:, None] + self._taps, mode="clip")
        )
        return sound


class Room:
    """Feeds back the loudspeaker: `add_echo` to block n what `hear` was given up to block n - 1."""

    def __init__(self, spec: RoomSpec, rate_hz: int, block_frames: int) -> None:
        delay = round(spec.delay_ms * rate_hz / 1000)
        if delay < block_frames:
            raise ValueError(f"delay_ms must be at least one block of 10 ms, is {spec.delay_ms}")
        response = room_response(spec, rate_hz)
        # The first block of the delay passes by itself: block n is heard when block n + 1 is recorded.
        self._convolver = BlockConvolver(np.concatenate((np.zeros(delay - block_frames), response)), block_frames)
        self._soft_clip = spec.soft_clip
        self._echo = np.zeros(block_frames)
        self._noise_rms = 0.0 if spec.noise_db is None else 10 ** (spec.noise_db / 20)
        self._random = np.random.default_rng(spec.noise_seed)

    def add_echo(self, near: Float32Array) -> None:
        """Add echo and room noise to the microphone block (B,)."""
        near += self._echo
        if self._noise_rms:
            near += self._noise_rms * self._random.standard_normal(len(near))

    def hear(self, far: Float32Array) -> None:
        """The loudspeaker block (B,) of the same time."""
        if self._soft_clip:
            far = np.tanh(self._soft_clip * far) / self._soft_clip
        self._echo = self._convolver.process(far)


def room_response(spec: RoomSpec, rate_hz: int) -> npt.NDArray[np.float64]:
    """The room's impulse response at `rate_hz` without delay, its energy set by `erl_db`."""
    if spec.impulse_response is not None:
        response = load_source(spec.impulse_response, rate_hz).astype(np.float64)
    else:
        time_s = np.arange(max(1, round(spec.rt60_ms * rate_hz / 1000))) / rate_hz
        decay = 10 ** (-3 * time_s * 1000 / spec.rt60_ms)
        response = np.random.default_rng(spec.seed).standard_normal(len(time_s)) * decay
    energy = float(np.sum(response**2))
    if energy == 0.0:
        raise ValueError("the room's impulse response is silent")
    scaled: npt.NDArray[np.float64] = response * (10 ** (-spec.erl_db / 20) / np.sqrt(energy))
    return scaled
