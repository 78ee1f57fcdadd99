"""What was measured once is the first guess of the next session, and no state of the file stops one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.round_trips import DevicePair, RoundTrips, StoredTrip, round_trips_file

_PAIR = DevicePair("usb_mic serial A17", "spk port pci-1", 48_000, "duplex")


def test_a_pair_keeps_its_last_round_trip_across_sessions(tmp_path: Path) -> None:
    path = round_trips_file({"XDG_DATA_HOME": str(tmp_path)})
    assert RoundTrips(path).load(_PAIR) is None
    assert RoundTrips(path).store(_PAIR, 87.654321, 40.0)
    assert RoundTrips(path).store(replace(_PAIR, mode="split"), 120.0, 30.0)
    assert RoundTrips(path).store(_PAIR, 91.5, 44.0)
    assert RoundTrips(path).load(_PAIR) == StoredTrip(91.5, 44.0)
    assert RoundTrips(path).load(replace(_PAIR, mode="split")) == StoredTrip(120.0, 30.0)
    assert RoundTrips(path).load(replace(_PAIR, rate_hz=44_100)) is None
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"round_trips": 3}', '{"round_trips": [{"input": "x"}]}', "\x00\xff",
     '{"round_trips": [{"input":"usb_mic serial A17","output":"spk port pci-1","rate_hz":48000,"mode":"duplex",'
     '"delay_ms":-3,"confidence":4}]}'],
)  # fmt: skip
def test_a_damaged_file_is_ignored_and_written_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "round_trips.json"
    path.write_text(text, encoding="latin-1")
    trips = RoundTrips(path)
    assert trips.load(_PAIR) is None
    assert trips.store(_PAIR, 50.0, 20.0)
    assert trips.load(_PAIR) == StoredTrip(50.0, 20.0)


def test_the_oldest_pairs_make_room(tmp_path: Path) -> None:
    trips = RoundTrips(tmp_path / "trips.json")
    for number in range(70):
        trips.store(replace(_PAIR, input=str(number)), float(number), 20.0)
    assert trips.load(replace(_PAIR, input="5")) is None
    assert trips.load(replace(_PAIR, input="6")) == StoredTrip(6.0, 20.0)


def test_a_disk_that_takes_nothing_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trips = RoundTrips(tmp_path / "file" / "trips.json")
    assert trips.store(_PAIR, 50.0, 20.0) is False
    assert trips.load(_PAIR) is None
