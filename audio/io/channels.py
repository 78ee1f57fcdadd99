"""One voice in and out of devices of several channels."""

from __future__ import annotations

import numpy as np

from audio.block import Float32Array


def mix_down(channels: Float32Array, mono: Float32Array) -> None:
    """(B, C) to the mean of the channels, into (B,)."""
    if channels.shape[1] == 1:
        mono[:] = channels[:, 0]
    else:
        np.mean(channels, axis=1, out=mono)


def spread(mono: Float32Array, channels: Float32Array) -> None:
    """(B,) to every channel of (B, C): wherever the loudspeakers are connected, they sound."""
    channels[:] = mono[:, None]
