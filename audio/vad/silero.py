"""Silero VAD (MIT): a small recurrent network, the judge of whether somebody speaks.

Input is 512 new samples behind the last 64 of the frame before; without that context it answers 0.000
to anything. It costs 0.13 ms for each 32 ms, so it runs always: a gate in front would save 0.3 % of a
core and could only lose onsets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audio.block import HOP_SAMPLES, SAMPLE_RATE_HZ, Float32Array
from audio.errors import ModelFileError
from audio.onnx_session import open_session

FRAME_SAMPLES = 512
_CONTEXT_SAMPLES = 64
_STATE_SHAPE = (2, 1, 128)


class SileroVad:
    """`Vad` on ONNX Runtime, one thread.

    A frame is judged in the hop that completes it; hops between repeat the last answer. `frame_end_samples`
    is the stream position up to which the present answer has heard.
    """

    latency_samples = FRAME_SAMPLES

    def __init__(self, model_path: Path) -> None:
        self._session = open_session(model_path, model="silero-vad")
        names = {entry.name for entry in self._session.get_inputs()}
        if names != {"input", "state", "sr"}:
            raise ModelFileError(
                f"silero-vad: {model_path.name} has inputs {sorted(names)}, not input, state and sr",
                fix="Use silero_vad.onnx of silero-vad 5 or 6",
            )
        self._weights_bytes = model_path.stat().st_size
        self._rate = np.array(SAMPLE_RATE_HZ, np.int64)
        self._frame: Float32Array = np.empty(_CONTEXT_SAMPLES + FRAME_SAMPLES, np.float32)
        self._filled: int
        self._probability: float
        self.reset()

    def process(self, hop: Float32Array) -> float:
        """(HOP_SAMPLES,) to the probability of speech in the newest whole frame; 0.0 before the first."""
        if hop.shape != (HOP_SAMPLES,):
            raise ValueError(f"a hop has {HOP_SAMPLES} samples, not {hop.shape}")
        taken = min(HOP_SAMPLES, len(self._frame) - self._filled)
        self._frame[self._filled : self._filled + taken] = hop[:taken]
        self._filled += taken
        if self._filled == len(self._frame):
            self._judge()
            rest = HOP_SAMPLES - taken
            self._frame[:_CONTEXT_SAMPLES] = self._frame[-_CONTEXT_SAMPLES:]
            self._frame[_CONTEXT_SAMPLES : _CONTEXT_SAMPLES + rest] = hop[taken:]
            self._filled = _CONTEXT_SAMPLES + rest
        return self._probability

    def reset(self) -> None:
        """Forget the stream."""
        self._frame[:] = 0.0
        self._filled = _CONTEXT_SAMPLES
        self._state: Float32Array = np.zeros(_STATE_SHAPE, np.float32)
        self._probability = 0.0
        self.frame_end_samples = 0

    def forget(self) -> None:
        """Forget how loud speech was, keep the place in the stream.

        The net takes a voice 30 dB below the last one for background for seconds.
        """
        self._state = np.zeros(_STATE_SHAPE, np.float32)

    def memory_bytes(self) -> int:
        """Bytes of weights (as on disk), state and frame."""
        return self._weights_bytes + int(self._state.nbytes) + int(self._frame.nbytes)

    def _judge(self) -> None:
        inputs = {"input": self._frame[None], "state": self._state, "sr": self._rate}
        probability, self._state = self._session.run(None, inputs)
        self._probability = float(probability[0, 0])
        self.frame_end_samples += FRAME_SAMPLES
