"""What every event is, and how it becomes a line of a log and an event again. The events: `app.events`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

REGISTRY: dict[str, type[Event]] = {}
_E = TypeVar("_E", bound="type[Event]")


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    type: ClassVar[str] = ""
    is_logged: ClassVar[bool] = True
    at_samples: int

    def to_json(self) -> str:
        """One line: `type`, `at_samples`, then the event's own fields."""
        return json.dumps({"type": self.type, **dataclasses.asdict(self)}, ensure_ascii=False)


def event_type(name: str, *, logged: bool = True) -> Any:
    """Decorates a class: its stable `type`, by which `from_json` finds it."""

    def register(cls: _E) -> _E:
        cls.type = name
        cls.is_logged = logged
        REGISTRY[name] = cls
        return cls

    return register


def from_json(line: str) -> Event:
    """Read one line of a log.

    Raises:
        ValueError: no JSON object, an unknown type, or fields that are not the type's.
    """
    record: Mapping[str, Any] = json.loads(line)
    if not isinstance(record, dict) or record.get("type") not in REGISTRY:
        raise ValueError(f"not an event: {line[:120]!r}")
    fields = {key: value for key, value in record.items() if key != "type"}
    try:
        return REGISTRY[record["type"]](**fields)
    except TypeError as error:
        raise ValueError(f"event {record['type']}: {error}") from None
