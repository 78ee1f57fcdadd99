"""The words that the processes around the sound device share: stop words in, counters out.

Each word has one writer and is stored whole, so readers need no lock; they may see a value one block old.
"""

from __future__ import annotations

from typing import Protocol

_WORDS = (
    "generation",
    "muted",
    "heartbeat_ns",
    "shutdown",
    "blocks",
    "lost_frames",
    "underruns",
    "late_blocks",
    "running",
)


class _Words(Protocol):
    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class _Word:
    """Descriptor of one int64 word."""

    def __init__(self, name: str) -> None:
        self._index = _WORDS.index(name)

    def __get__(self, owner: ControlWords, _: type[ControlWords]) -> int:
        return owner.words[self._index]

    def __set__(self, owner: ControlWords, value: int) -> None:
        owner.words[self._index] = value


class ControlWords:
    """Named int64 words over a shared buffer (None: local memory). An all-zero buffer is the start state."""

    NBYTES = 8 * len(_WORDS)

    generation = _Word("generation")
    """Only playback records of this generation sound. Written by the engine."""
    muted = _Word("muted")
    """Not 0: playback is silenced. Written by the face."""
    heartbeat_ns = _Word("heartbeat_ns")
    """Monotonic time of the engine's last sign of life; 0 = not supervised. Written by the engine."""
    shutdown = _Word("shutdown")
    """Not 0: the audio process ends. Written by the face."""
    blocks = _Word("blocks")
    """Callbacks since the stream started. Written by the callback, as all that follow but `running`."""
    lost_frames = _Word("lost_frames")
    """Device frames that never reached the callback."""
    underruns = _Word("underruns")
    """Times that the playback ring ran empty inside a reply."""
    late_blocks = _Word("late_blocks")
    """Callbacks more than two blocks after the one before."""
    running = _Word("running")
    """1 while the stream runs. Written by the audio process."""

    def __init__(self, buffer: memoryview | None = None) -> None:
        memory = memoryview(bytearray(self.NBYTES)) if buffer is None else buffer
        self.words: _Words = memory[: self.NBYTES].cast("q")
