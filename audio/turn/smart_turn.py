"""Smart Turn v3 (BSD-2): does the end of this recording sound like a finished thought?

A hint, not an oracle: of 12 clips it was wrong on 3. 60 ms a decision, so never inside the hop loop.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audio.block import SAMPLE_RATE_HZ, Float32Array
from audio.errors import ModelFileError
from audio.frontend.whisper import WhisperFrontend
from audio.onnx_session import open_session

WINDOW_SAMPLES = 8 * SAMPLE_RATE_HZ


class SmartTurn:
    """`TurnModel` on ONNX Runtime, one thread; no state between calls."""

    backend = "smart-turn-v3"

    def __init__(self, model_path: Path) -> None:
        self._session = open_session(model_path, model="smart-turn")
        names = [entry.name for entry in self._session.get_inputs()]
        if names != ["input_features"]:
            raise ModelFileError(
                f"smart-turn: {model_path.name} has inputs {names}, not input_features",
                fix="Use smart-turn-v3.2-cpu.onnx",
            )
        self._frontend = WhisperFrontend(normalize=True)
        self._weights_bytes = model_path.stat().st_size

    def predict(self, samples: Float32Array) -> float:
        """(N,) of the user's turn up to now to the probability that it is complete.

        The last 8 s count; shorter turns get silence in FRONT, so that their end is the model's end.
        """
        window = np.zeros(WINDOW_SAMPLES, np.float32)
        tail = samples[-WINDOW_SAMPLES:]
        window[WINDOW_SAMPLES - len(tail) :] = tail
        (probability,) = self._session.run(None, {"input_features": self._frontend.features(window)[None]})
        return float(np.ravel(probability)[0])  # the output is called `logits` and is a probability already

    def memory_bytes(self) -> int:
        """Bytes of weights (as on disk) and tables."""
        return self._weights_bytes + self._frontend.memory_bytes()
