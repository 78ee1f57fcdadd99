"""What really left the loudspeaker, read from the microphone ring by a thread that only watches."""

from __future__ import annotations

import threading
from pathlib import Path

from audio.io.records import FLAG_REPLY, MIC_CAPACITY, block_dtype
from audio.io.segments import SegmentRef, attach
from audio.ring import RecordRing

_LOOK_S = 0.2


class PlaybackWatcher:
    """`frames`: how many device frames of each reply were played, by its generation."""

    def __init__(self, mic_ring: RecordRing) -> None:
        self._reader = mic_ring.reader(first=0)
        self.frames: dict[int, int] = {}
        self._starts_ns: list[int] = []
        """When each generation's first block was played."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="playback-watcher", daemon=True)
        self._thread.start()

    @classmethod
    def attach_to(cls, face_pid: int, rate_hz: int) -> PlaybackWatcher:
        """Watch the session of another process."""
        dtype = block_dtype(rate_hz // 100)
        (path,) = Path("/dev/shm").glob(f"vivavoce-{face_pid}-*-mic")
        ref = SegmentRef(path.name, RecordRing.nbytes(dtype, MIC_CAPACITY))
        return cls(RecordRing(dtype, MIC_CAPACITY, attach(ref)))

    def first_reply_after(self, at_ns: int, *, within_ns: int) -> int | None:
        """When the first block of a reply that had not sounded before was played."""
        return next((start for start in self._starts_ns if at_ns < start <= at_ns + within_ns), None)

    def close(self) -> None:
        """Read what is left and end."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._stop.wait(_LOOK_S)
            for record in self._reader.read():
                if not record["flags"] & FLAG_REPLY:
                    continue
                generation = int(record["generation"])
                if generation not in self.frames:
                    self._starts_ns.append(int(record["time_ns"]))
                self.frames[generation] = int(record["reply_frames"])
