"""The record of peaks: the largest of the last runs, and no fault of its file ever stops anybody."""

from __future__ import annotations

import itertools
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from gpu.memory.peaks import Peaks
from gpu.memory.preflight import PeakKey

KEY = PeakKey("workspace", "llama-3.2-1b", "bf16", 4096, "Card", "torch 1")


@pytest.fixture
def peaks(tmp_path: Path) -> Peaks:
    ticks = itertools.count()
    return Peaks(tmp_path / "data" / "peaks.sqlite", clock_s=lambda: float(next(ticks)))


def test_the_largest_of_a_keys_runs(peaks: Peaks) -> None:
    assert peaks.peak(KEY) is None
    for size in (5, 9, 7):
        assert peaks.record(KEY, size)
    assert peaks.peak(KEY) == 9
    assert Peaks(peaks.path).peak(KEY) == 9
    for other in ({"stage": "x"}, {"model": "x"}, {"precision": "fp32"}, {"context_tokens": 1}, {"device": "x"},
                  {"version": "torch 2"}):  # fmt: skip
        assert peaks.peak(replace(KEY, **other)) is None


def test_old_runs_are_forgotten(peaks: Peaks) -> None:
    peaks.record(KEY, 1000)
    for size in range(1, 5):
        peaks.record(KEY, size)
    assert peaks.peak(KEY) == 1000
    peaks.record(KEY, 3)
    assert peaks.peak(KEY) == 4
    peaks.record(replace(KEY, model="other"), 9)
    assert peaks.peak(KEY) == 4


def test_what_an_older_program_kept_longer_does_not_count(peaks: Peaks) -> None:
    """It kept 20 runs of each key."""
    peaks.record(KEY, 5)
    with closing(sqlite3.connect(peaks.path)) as base:
        row = ("workspace", "llama-3.2-1b", "bf16", 4096, "Card", "torch 1", 1000)
        base.executemany("INSERT INTO peaks VALUES (?, ?, ?, ?, ?, ?, ?, -1)", [row] * 15)
        base.executemany("INSERT INTO peaks VALUES (?, ?, ?, ?, ?, ?, ?, 1)", [(*row[:-1], 7)] * 4)
        base.commit()
    assert peaks.peak(KEY) == 7


def test_a_damaged_file_is_put_aside_and_begun_anew(peaks: Peaks) -> None:
    peaks.record(KEY, 5)
    peaks.path.write_bytes(b"this is no database" * 100)
    assert peaks.peak(KEY) is None
    assert peaks.path.with_name("peaks.sqlite.damaged").is_file()
    assert peaks.record(KEY, 6)
    assert peaks.peak(KEY) == 6


def test_damage_in_the_middle(peaks: Peaks) -> None:
    for size in range(1, 400):
        peaks.record(replace(KEY, model=f"model {size}"), size)
        if size > 40 and peaks.path.stat().st_size > 40_000:
            break
    data = bytearray(peaks.path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    peaks.path.write_bytes(data)
    assert peaks.peak(replace(KEY, model="model 1")) is None
    peaks.record(KEY, 7)  # the first one may still meet the damage
    assert peaks.record(KEY, 7)
    assert peaks.peak(KEY) == 7


def test_a_locked_file_costs_the_record_and_not_the_run(peaks: Peaks) -> None:
    peaks.record(KEY, 5)
    blocker = sqlite3.connect(peaks.path, isolation_level=None)
    try:
        blocker.execute("BEGIN EXCLUSIVE")
        assert peaks.peak(KEY) is None
        assert not peaks.record(KEY, 9)
        assert peaks.path.is_file()  # a lock is no damage
    finally:
        blocker.close()
    assert peaks.peak(KEY) == 5


def test_a_file_of_another_program_and_a_foreign_schema(peaks: Peaks) -> None:
    peaks.path.parent.mkdir()
    base = sqlite3.connect(peaks.path)
    base.execute("CREATE TABLE peaks (something INTEGER)")
    base.close()
    assert peaks.peak(KEY) is None
    assert not peaks.record(KEY, 1)


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    peaks = Peaks(tmp_path / "file" / "peaks.sqlite")
    assert not peaks.record(KEY, 1)
    assert peaks.peak(KEY) is None
