"""The two units that everything in `audio` is counted in: the 16 kHz sample and the 10 ms hop.

One index orders the whole product: the number of 16 kHz microphone samples since the stream was
opened. Device rates exist only between the device and the ear; a device block is always 10 ms long, so
block `n` is hop `n` and covers index samples `[n * HOP_SAMPLES, (n + 1) * HOP_SAMPLES)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]

SAMPLE_RATE_HZ = 16_000
HOP_MS = 10
HOP_SAMPLES = SAMPLE_RATE_HZ * HOP_MS // 1000
HOPS_PER_SECOND = 1000 // HOP_MS
SILENCE_DB = -120.0
"""Level reported for digital silence, in dB relative to full scale."""


@dataclass(frozen=True, slots=True)
class AudioBlock:
    """A run of mono samples at a known place and rate."""

    samples: Float32Array
    """Shape (N,), full scale is 1.0."""
    start_samples: int
    """Place of the first sample, counted at `rate_hz`."""
    rate_hz: int

    @property
    def end_samples(self) -> int:
        """Place just behind the last sample, counted at `rate_hz`."""
        return self.start_samples + len(self.samples)


def ms_to_samples(duration_ms: float) -> int:
    """Milliseconds to 16 kHz samples, rounded to the nearest."""
    return round(duration_ms * SAMPLE_RATE_HZ / 1000)


def samples_to_ms(count_samples: float) -> float:
    """16 kHz samples to milliseconds."""
    return count_samples * 1000 / SAMPLE_RATE_HZ
