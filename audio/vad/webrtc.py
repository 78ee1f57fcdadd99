"""WebRTC's Gaussian-mixture voice detector: 3 microseconds a hop, no delay, easily fooled by noise.

The fast gate: it says that something is going on, never that somebody speaks.
"""

from __future__ import annotations

from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ, Float32Array
from audio.pcm import float_to_int16

_NATIVE_BYTES = 1024
"""The detector's C state (models and filter memories) is about 0.7 KiB; there are no weights."""


class WebRtcVad:
    """`Vad` on `webrtcvad-wheels`; answers 0.0 or 1.0.

    Mode 0 to 3 sets how much it takes to call a hop speech. White noise at -26 dBFS passes as speech
    all the time in modes 0 and 1, a quarter of the time in mode 3.
    """

    latency_samples = 0

    def __init__(self, mode: int = 3) -> None:
        if mode not in range(4):
            raise ValueError(f"webrtcvad mode must be 0, 1, 2 or 3, not {mode}")
        self._mode = mode
        self.reset()

    def process(self, hop: Float32Array) -> float:
        """(HOP_SAMPLES,) to 1.0 where the hop may hold speech, else 0.0."""
        if hop.shape != (HOP_SAMPLES,):
            raise ValueError(f"a hop has {HOP_SAMPLES} samples, not {hop.shape}")
        return float(self._vad.is_speech(float_to_int16(hop).tobytes(), SAMPLE_RATE_HZ))

    def reset(self) -> None:
        """Forget the stream."""
        import webrtcvad

        self._vad = webrtcvad.Vad(self._mode)

    def memory_bytes(self) -> int:
        """Bytes of native state."""
        return _NATIVE_BYTES
