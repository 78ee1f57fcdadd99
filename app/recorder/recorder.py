"""Writes microphone and loudspeaker of a live stream to WAV files, from the first block on, without touching it.

A broadcast reader of the microphone ring in a thread of its own: when the disk stalls, the recording loses
blocks (they are written as silence and counted, so that places stay right), the conversation does not.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import numpy as np

from audio.errors import AudioFileError
from audio.files import WavWriter
from audio.ring import RecordRing

MICROPHONE = "microphone.wav"
LOUDSPEAKER = "loudspeaker.wav"
_POLL_S = 0.2
_JOIN_LIMIT_S = 0.5
"""A disk that hangs must not keep the session from ending."""


class Recorder:
    """Runs until `close`. `lost_blocks` counts 10 ms blocks that came too late for the disk."""

    def __init__(self, mic_ring: RecordRing, tracks: dict[str, WavWriter]) -> None:
        """`tracks`: file for the ring's column `near` (microphone) and `far` (loudspeaker), one or both."""
        self._tracks = tracks
        self._reader = mic_ring.reader(first=0)
        self._next_block = 0
        self.lost_blocks = 0
        self.failure = ""
        """Why the recording has ended early; "" while it has not."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what has come and complete the files."""
        self._stopping.set()
        self._thread.join(_JOIN_LIMIT_S)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_POLL_S):
                self._drain()
            self._drain()
            for track in self._tracks.values():
                track.close()
        except AudioFileError as error:
            self.failure = error.message
            for track in self._tracks.values():
                with suppress(AudioFileError):  # the same disk
                    track.close()

    def _drain(self) -> None:
        for record in self._reader.read():
            missing = int(record["index"]) - self._next_block
            self.lost_blocks += missing
            self._next_block = int(record["index"]) + 1
            for column, track in self._tracks.items():
                for _ in range(missing):
                    track.write(np.zeros_like(record[column]))
                track.write(record[column])


def session_tracks(folder: Path, rate_hz: int) -> dict[str, WavWriter]:
    """Both sides as 32-bit floats, exact to the bit: with the event log, a replay needs nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "near": WavWriter(folder / MICROPHONE, rate_hz, subtype="FLOAT"),
        "far": WavWriter(folder / LOUDSPEAKER, rate_hz, subtype="FLOAT"),
    }


def loudspeaker_track(path: Path, rate_hz: int) -> dict[str, WavWriter]:
    """What the agent's side played, as a common 16-bit file."""
    return {"far": WavWriter(path, rate_hz)}
