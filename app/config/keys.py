"""Walks the schema: the dotted key of every value, its type and range in words, its help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.config.schema import Config

ANY_NAME = "NAME"
"""Stands in a key pattern for a name that the user chooses, as in `personas.NAME.prompt`."""


@dataclass(frozen=True, slots=True)
class Key:
    """One value of the configuration."""

    pattern: str
    kind: type
    allowed: str
    """In words: `0.0 to 2.0`, `fp32, bf16 or int8`, `text`."""
    help: str


def all_keys() -> tuple[Key, ...]:
    """Every key, in the order of the schema."""
    return tuple(_walk(Config, ""))


def find_key(name: str) -> Key | None:
    """The key that a dotted name refers to, None where there is none."""
    parts = name.split(".")
    for key in all_keys():
        pattern = key.pattern.split(".")
        if len(parts) == len(pattern) and all(p in (ANY_NAME, part) for p, part in zip(pattern, parts, strict=True)):
            return key
    return None


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables to dotted keys."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        flat.update(flatten(value, f"{key}.") if isinstance(value, Mapping) else {key: value})
    return flat


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
        elif get_origin(annotation) is dict:
            yield from _walk(get_args(annotation)[1], f"{prefix}{name}.{ANY_NAME}.")
        else:
            yield Key(f"{prefix}{name}", _kind(annotation), _allowed(annotation, field), field.description or "")


def _kind(annotation: Any) -> type:
    origin = get_origin(annotation)
    kind = type(get_args(annotation)[0]) if origin is Literal else origin or annotation
    assert isinstance(kind, type)
    return kind


def _allowed(annotation: Any, field: FieldInfo) -> str:
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    if get_origin(annotation) is list:
        return f"a list of {_one_of(get_args(get_args(annotation)[0]))}"
    low = high = None
    for constraint in field.metadata:
        if isinstance(constraint, annotated_types.Ge):
            low = f"{constraint.ge}"
        elif isinstance(constraint, annotated_types.Gt):
            low = f"more than {constraint.gt}"
        elif isinstance(constraint, annotated_types.Le):
            high = f"{constraint.le}"
    what = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[_kind(annotation)]
    return what if low is None or high is None else f"{what}, {low} to {high}"


def _one_of(values: tuple[Any, ...]) -> str:
    names = [str(value) for value in values]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
