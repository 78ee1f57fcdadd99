"""Rings: order, overflow, wrapping, the consumer's promise, and two processes at once."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.io.segments import Segment, SegmentRef, attach
from audio.ring import RecordRing

_DTYPE = np.dtype([("number", "i8"), ("mark", "u1"), ("samples", "f4", (64,))], align=True)


def _push(ring: RecordRing, number: int) -> None:
    slot = ring.slot()
    slot["number"] = number
    slot["mark"] = number % 251
    slot["samples"] = float(number)
    ring.commit()


def test_a_reader_gets_what_was_written_after_it_came_in_order() -> None:
    ring = RecordRing(_DTYPE, 8)
    _push(ring, 0)
    reader, early = ring.reader(), ring.reader(first=0)
    for number in range(1, 5):
        _push(ring, number)
    assert reader.available == 4
    assert early.read()["number"].tolist() == [0, 1, 2, 3, 4]
    assert reader.read(3)["number"].tolist() == [1, 2, 3]
    last = reader.read()
    assert last["number"].tolist() == [4]
    assert last["samples"].shape == (1, 64)
    assert np.all(last["samples"] == 4.0)
    assert len(reader.read()) == 0
    assert reader.lost == early.lost == 0


def test_what_was_read_does_not_change_when_the_writer_goes_on() -> None:
    ring = RecordRing(_DTYPE, 4)
    reader = ring.reader()
    _push(ring, 7)
    records = reader.read()
    for number in range(8, 20):
        _push(ring, number)
    assert records["number"].tolist() == [7]


def test_a_slow_reader_loses_the_oldest_and_counts_them() -> None:
    ring = RecordRing(_DTYPE, 8)
    reader = ring.reader()
    for number in range(20):
        _push(ring, number)
    assert reader.read()["number"].tolist() == [13, 14, 15, 16, 17, 18, 19]
    assert reader.lost == 13


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=30), st.integers(2, 9))
def test_read_and_lost_together_account_for_everything(steps: list[tuple[int, int]], capacity: int) -> None:
    ring = RecordRing(_DTYPE, capacity)
    reader = ring.reader()
    written = 0
    for pushes, wanted in steps:
        for _ in range(pushes):
            _push(ring, written)
            written += 1
        before = written - reader.available
        records = reader.read(wanted)
        skipped = max(0, written - capacity + 1 - before)
        assert records["number"].tolist() == list(range(before + skipped, written))[:wanted]
        assert reader.available == written - before - skipped - len(records)


def test_the_consumer_gives_slots_back() -> None:
    ring = RecordRing(_DTYPE, 3)
    consumer = ring.consumer()
    assert consumer.position == -1
    for number in range(3):
        assert ring.free() == 3 - number
        _push(ring, number)
    assert ring.free() == 0
    for number in range(3):
        assert ring.columns["number"][consumer.position] == number
        consumer.pop()
        assert ring.free() == number + 1
    assert consumer.position == -1


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="needs"):
        RecordRing(_DTYPE, 8, memoryview(bytearray(100)))


def _write_many(ref: SegmentRef, count: int, ready: Connection) -> None:
    ring = RecordRing(_DTYPE, 64, attach(ref))
    ready.recv()
    for number in range(count):
        _push(ring, number)


def test_another_process_is_never_seen_half_way_through_a_record() -> None:
    count = 20_000
    segment = Segment("ringtest", RecordRing.nbytes(_DTYPE, 64))
    ring = RecordRing(_DTYPE, 64, segment.buffer)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    writer = context.Process(target=_write_many, args=(segment.ref, count, theirs))
    writer.start()
    reader = ring.reader(first=0)
    ours.send("go")
    seen, expected = 0, 0
    while ring.written < count or reader.available:
        records = reader.read()
        for record in records:
            assert record["number"] >= expected
            expected = int(record["number"]) + 1
            assert record["mark"] == record["number"] % 251
            assert np.all(record["samples"] == float(record["number"]))
        seen += len(records)
        assert writer.exitcode in (None, 0), "the writer died"
    writer.join(10)
    segment.unlink()
    assert expected == count
    assert seen + reader.lost == count
    assert seen > 0
