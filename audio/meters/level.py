"""Level of a run of samples."""

from __future__ import annotations

import math

import numpy as np

from audio.block import SILENCE_DB, Float32Array


def level_db(samples: Float32Array) -> float:
    """RMS of (N,) samples in dB relative to full scale (a full-scale square wave is 0 dB).

    Never below `SILENCE_DB`, which is also the level of no samples at all.
    """
    if not len(samples):
        return SILENCE_DB
    mean_square = float(np.dot(samples, samples)) / len(samples)
    if mean_square <= 10 ** (SILENCE_DB / 10):
        return SILENCE_DB
    return 10 * math.log10(mean_square)
