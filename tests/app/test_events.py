"""Events: one line of JSON each, and back."""

from __future__ import annotations

import dataclasses
import json

import pytest

from app import events

_SAMPLE = {
    "int": 3,
    "float": 1.5,
    "str": "wörter",
    "bool": True,
    "list[str]": ["a", "b"],
    "dict[str, int]": {"a": 1},
    "list[list[str]]": [["a", "b"]],
    "list[list[int]]": [[1, 2]],
}
ALL = sorted(events._REGISTRY.values(), key=lambda cls: cls.type)


def example(cls: type[events.Event]) -> events.Event:
    return cls(**{field.name: _SAMPLE[str(field.type)] for field in dataclasses.fields(cls)})


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.type)
def test_every_event_survives_a_log(cls: type[events.Event]) -> None:
    event = example(cls)
    line = event.to_json()
    assert "\n" not in line
    assert list(json.loads(line))[:2] == ["type", "at_samples"]
    assert events.from_json(line) == event


def test_type_names_are_unique_and_the_promised_ones_exist() -> None:
    assert len({cls.type for cls in ALL}) == len(ALL)
    promised = {
        "user.transcript": {"text", "final"},
        "agent.said": {"text", "heard"},
        "turn.latency": {"voice_to_voice_ms"},
        "barge_in": {"stop_ms"},
        "stage.backend": {"stage", "backend"},
        "device.lost": set(),
        "device.back": set(),
        "memory.degraded": {"level", "rung", "freed_bytes"},
        "memory.state": {"free_bytes", "weights_bytes", "sessions", "prefixes", "rungs_given"},
        "memory.restored": {"level", "rung", "taken_bytes"},
    }
    for name, fields in promised.items():
        cls = events._REGISTRY[name]
        assert fields <= {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    "line",
    ["", "[]", "7", '{"type": "no.such"}', '{"type": "state"}', '{"type": "state", "at_samples": 0, "other": 1}'],
)
def test_what_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        events.from_json(line)
