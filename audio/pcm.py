"""Float samples to 16-bit integers and back, for the engines that know nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from audio.block import Float32Array

Int16Array = npt.NDArray[np.int16]

_FULL_SCALE = 32768.0


def float_to_int16(samples: Float32Array) -> Int16Array:
    """Full scale 1.0 to 32768, rounded to the nearest, saturated at the ends of the range."""
    scaled = np.rint(samples * np.float32(_FULL_SCALE))
    saturated: Int16Array = np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)
    return saturated


def int16_to_float(samples: Int16Array) -> Float32Array:
    """32768 to full scale 1.0."""
    return samples.astype(np.float32) * np.float32(1 / _FULL_SCALE)
