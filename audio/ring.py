"""Rings of fixed records between one writer and its readers, in local or in shared memory.

The ring knows nothing of audio. Nobody ever waits: a broadcast reader that falls behind loses the oldest
records and counts them; a consumer publishes how far it has read, and the writer asks `free()` first.
Counters are positions since the start and never wrap. The writer fills a slot and stores the counter
after it; aligned 8-byte stores that become visible in order (x86-64) are all the synchronisation there is.
An all-zero buffer is an empty ring, so the first to attach has nothing to initialise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

RecordArray = npt.NDArray[np.void]

_HEADER_BYTES = 128
_WRITTEN = 0
_CONSUMED = 8
"""Header words; 64 bytes apart, so that writer and consumer do not share a cache line."""


class RecordRing:
    """One writer's view of the ring, and the factory of its readers; every process makes its own.

    Args:
        dtype: structured, aligned type of one record.
        capacity: number of slots. A broadcast reader sees at most the last `capacity - 1` records,
            because the writer may be filling the oldest slot.
        buffer: at least `nbytes(dtype, capacity)` bytes, zero or already a ring; None takes local memory.
    """

    def __init__(self, dtype: np.dtype[np.void], capacity: int, buffer: memoryview | None = None) -> None:
        needed = self.nbytes(dtype, capacity)
        memory = memoryview(bytearray(needed)) if buffer is None else buffer
        if memory.nbytes < needed:
            raise ValueError(f"a ring of {capacity} records needs {needed} bytes, the buffer has {memory.nbytes}")
        self.capacity = capacity
        self._words = memory[:_HEADER_BYTES].cast("q")
        self._records: RecordArray = np.frombuffer(memory, dtype, capacity, offset=_HEADER_BYTES)
        self._bytes = self._records.view(np.uint8).reshape(capacity, dtype.itemsize)
        self.columns: dict[str, npt.NDArray[Any]] = {name: self._records[name] for name in dtype.names or ()}
        """Each field of all slots, (capacity, ...): the fast way to the fields of slot `position`."""

    @staticmethod
    def nbytes(dtype: np.dtype[np.void], capacity: int) -> int:
        """Bytes that a ring of `capacity` records takes, header included."""
        return _HEADER_BYTES + capacity * dtype.itemsize

    @property
    def written(self) -> int:
        """Records written since the start."""
        return self._words[_WRITTEN]

    @property
    def position(self) -> int:
        """Number of the slot that the next `commit` publishes."""
        return self._words[_WRITTEN] % self.capacity

    def slot(self) -> np.void:
        """The record that the next `commit` publishes, as a view: assign to its fields."""
        record: np.void = self._records[self.position]
        return record

    def commit(self) -> None:
        """Publish the slot that was filled last."""
        self._words[_WRITTEN] += 1

    def free(self) -> int:
        """Slots that the consumer has given back; meaningless for a ring that is only broadcast."""
        return self.capacity - (self._words[_WRITTEN] - self._words[_CONSUMED])

    def reader(self, first: int | None = None) -> RingReader:
        """A new broadcast reader: from now on, or from record number `first`, or the oldest that is still there."""
        return RingReader(self, self.written if first is None else first)

    def consumer(self) -> RingConsumer:
        """The one consumer, whose place the writer sees."""
        return RingConsumer(self)


class RingReader:
    """A cursor of its own on a broadcast ring."""

    def __init__(self, ring: RecordRing, cursor: int) -> None:
        self._ring = ring
        self._cursor = cursor
        self.lost = 0
        """Records that were overwritten before this reader came to them."""

    @property
    def available(self) -> int:
        """Records written and not yet read; may exceed the capacity."""
        return self._ring.written - self._cursor

    def read(self, max_records: int | None = None) -> RecordArray:
        """Copy of the next records in order, oldest first; empty where there is none."""
        ring = self._ring
        end = ring.written
        start = self._skip_to(end - ring.capacity + 1)
        count = end - start if max_records is None else min(end - start, max_records)
        first = start % ring.capacity
        if first + count <= ring.capacity:
            copied = ring._bytes[first : first + count].copy()
        else:
            wrapped = first + count - ring.capacity
            copied = np.concatenate((ring._bytes[first:], ring._bytes[:wrapped]))
        # The writer may have lapped us while we copied: what it touched since is torn, drop it.
        torn = min(self._skip_to(ring.written - ring.capacity + 1) - start, count)
        self._cursor = max(self._cursor, start + count)
        return copied[torn:].view(ring._records.dtype)[:, 0]

    def _skip_to(self, oldest: int) -> int:
        if oldest > self._cursor:
            self.lost += oldest - self._cursor
            self._cursor = oldest
        return self._cursor


class RingConsumer:
    """Takes records one by one and tells the writer."""

    def __init__(self, ring: RecordRing) -> None:
        self._words = ring._words
        self._capacity = ring.capacity

    @property
    def position(self) -> int:
        """Number of the slot of the next record (see `RecordRing.columns`), or -1 where there is none."""
        consumed = self._words[_CONSUMED]
        return -1 if consumed == self._words[_WRITTEN] else consumed % self._capacity

    def pop(self) -> None:
        """Give the slot of the next record back to the writer."""
        self._words[_CONSUMED] += 1
