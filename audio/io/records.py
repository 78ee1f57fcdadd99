"""What lies in the rings around the sound device. One record is one 10 ms block at the device's rate."""

from __future__ import annotations

import numpy as np

FLAG_REPLY = 1
"""Reply audio was copied to the loudspeaker in this block."""
FLAG_FADED = 2
"""A fade-out happened in this block."""
FLAG_UNDERRUN = 4
"""The playback ring was empty inside a reply."""

PLAYBACK_CAPACITY = 30
"""Blocks, 300 ms: how far playback may run ahead."""
MIC_CAPACITY = 1024
"""Blocks, 10 s: how far a reader of the microphone may fall behind; a new ear needs seconds to load."""


def block_dtype(block_frames: int) -> np.dtype[np.void]:
    """Record of the microphone ring: what came in and what went out in the same block."""
    return np.dtype(
        [
            ("index", "i8"),  # block number since the stream started
            ("time_ns", "i8"),  # monotonic clock at callback entry
            ("generation", "i8"),  # whose reply was played last; 0 before any
            ("reply_frames", "i8"),  # frames of that reply that left the callback, this block included
            ("flags", "u4"),
            ("near", "f4", (block_frames,)),  # microphone
            ("far", "f4", (block_frames,)),  # loudspeaker
        ],
        align=True,
    )


def playback_dtype(block_frames: int) -> np.dtype[np.void]:
    """Record of the playback ring."""
    return np.dtype(
        [
            ("generation", "i8"),
            ("end_frames", "i8"),  # place in the reply behind this block, counting real samples only
            ("last", "u1"),  # final block of the reply
            ("samples", "f4", (block_frames,)),  # zero padded
        ],
        align=True,
    )
