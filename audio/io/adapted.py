"""A device at another rate than the rings around it, for one that comes back and no longer offers theirs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from audio.block import HOPS_PER_SECOND, Float32Array
from audio.io.device import AudioDevice, BlockCallback, Finished, SpokenUtterance, StreamFormat
from audio.io.drift_mapper import SplitStats
from audio.resample import HopResampler


class AdaptedDevice:
    """An `AudioDevice` whose blocks are 10 ms at `ring_rate_hz`, whatever rate the device below opens at.

    A block in is a block out: 10 ms are whole frames at either rate. Each way costs 4 ms; where the rates are
    equal, nothing. The loudspeaker's delay is constant, so the far end stays true to what is played.

    Args:
        device: any, not yet opened.
        ring_rate_hz: a multiple of 100.
    """

    def __init__(self, device: AudioDevice, ring_rate_hz: int) -> None:
        if ring_rate_hz % HOPS_PER_SECOND:
            raise ValueError(f"10 ms of {ring_rate_hz} Hz is no whole number of samples")
        self._device = device
        self._ring_rate_hz = ring_rate_hz
        self._rate_hz = ring_rate_hz  # of the device below
        self._callback: BlockCallback | None = None

    def open(self) -> StreamFormat:
        """See `AudioDevice`; the format is that of the rings."""
        stream = self._device.open()
        self._rate_hz = stream.rate_hz
        self._near_resampler = HopResampler(stream.rate_hz, self._ring_rate_hz)
        self._out_resampler = HopResampler(self._ring_rate_hz, stream.rate_hz)
        frames = self._ring_rate_hz // HOPS_PER_SECOND
        self._near, self._out = np.zeros(frames, np.float32), np.zeros(frames, np.float32)
        latency_ms = stream.output_latency_ms + self._out_resampler.latency_samples * 1000 / stream.rate_hz
        return replace(stream, rate_hz=self._ring_rate_hz, block_frames=frames, output_latency_ms=latency_ms)

    def start(self, callback: BlockCallback) -> None:
        """See `AudioDevice`."""
        self._callback = callback
        self._device.start(self._on_block)

    def stop(self) -> None:
        """See `AudioDevice`."""
        self._device.stop()

    @property
    def active(self) -> bool:
        """See `AudioDevice`."""
        return self._device.active

    @property
    def finished(self) -> Finished | None:
        """See `AudioDevice`."""
        return self._device.finished

    @property
    def stats(self) -> SplitStats | None:
        """See `AudioDevice`."""
        return self._device.stats

    def spoken(self) -> tuple[SpokenUtterance, ...]:
        """See `AudioDevice`, in frames of the rings' rate."""
        ratio = self._ring_rate_hz / self._rate_hz
        return tuple(
            replace(
                utterance,
                start_frames=round(utterance.start_frames * ratio),
                onset_frames=round(utterance.onset_frames * ratio),
                end_frames=round(utterance.end_frames * ratio),
            )
            for utterance in self._device.spoken()
        )

    def _on_block(self, near: Float32Array, out: Float32Array, time_ns: int) -> None:
        """The device's real-time thread."""
        assert self._callback is not None
        self._near_resampler.process(near, self._near)
        self._callback(self._near, self._out, time_ns)
        self._out_resampler.process(self._out, out)
