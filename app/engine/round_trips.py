"""The round trip of each device pair, kept between sessions as a first guess. Losing it costs seconds, no more."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.paths import data_dir
from audio.io.device import StreamFormat
from audio.io.server import ServerView, identity_key

_MOST_PAIRS = 64
_MAX_MS = 500.0
"""The echo canceller takes no longer one."""


@dataclass(frozen=True, slots=True)
class DevicePair:
    """What the round trip depends on."""

    input: str
    """See `identity_key`."""
    output: str
    rate_hz: int
    mode: str
    """As in `StreamFormat`."""


@dataclass(frozen=True, slots=True)
class StoredTrip:
    """What was measured last."""

    delay_ms: float
    confidence: float


class RoundTrips:
    """The file. Reads it at each call: another session may have written it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, pair: DevicePair) -> StoredTrip | None:
        """The last round trip of a pair; None where there is none, or the file is not to be read."""
        return self._read().get(pair)

    def store(self, pair: DevicePair, delay_ms: float, confidence: float) -> bool:
        """Keep it in the place of an older one; False where the disk does not take it."""
        trips = self._read()
        trips.pop(pair, None)
        trips[pair] = StoredTrip(round(delay_ms, 2), round(confidence, 2))
        rows = [
            {"input": p.input, "output": p.output, "rate_hz": p.rate_hz, "mode": p.mode,
             "delay_ms": trip.delay_ms, "confidence": trip.confidence}
            for p, trip in list(trips.items())[-_MOST_PAIRS:]
        ]  # fmt: skip
        try:
            _replace(self._path, json.dumps({"round_trips": rows}, indent=1))
        except OSError:
            return False
        return True

    def _read(self) -> dict[DevicePair, StoredTrip]:
        try:
            rows = json.loads(self._path.read_text(encoding="utf-8"))["round_trips"]
            return dict(_entry(row) for row in rows)
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or damaged: written anew by the next store
            return {}


def device_pair(stream: StreamFormat, input_name: str, output_name: str, view: ServerView | None) -> DevicePair:
    """The pair behind an open stream, by the names that were wanted."""
    source, sink = identity_key(view, input_name, is_input=True), identity_key(view, output_name, is_input=False)
    return DevicePair(source, sink, stream.rate_hz, stream.mode)


def round_trips_file(env: Mapping[str, str]) -> Path:
    """Where the file lies."""
    return data_dir(env) / "round_trips.json"


def _entry(row: Any) -> tuple[DevicePair, StoredTrip]:
    pair = DevicePair(str(row["input"]), str(row["output"]), int(row["rate_hz"]), str(row["mode"]))
    trip = StoredTrip(float(row["delay_ms"]), float(row["confidence"]))
    if not (0 <= trip.delay_ms <= _MAX_MS and math.isfinite(trip.confidence)):
        raise ValueError("outside of what can be")
    return pair, trip


def _replace(path: Path, text: str) -> None:
    """Whole or not at all, also for two at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
        raise
