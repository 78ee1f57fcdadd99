"""Walks the schema: the dotted key of every value, its type and range in words, its help."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
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
    choices: tuple[Any, ...] = ()
    """All allowed values, or all allowed items of a list; empty: no closed set."""
    low: float | None = None
    high: float | None = None
    is_low_excluded: bool = False
    """`low` itself is not allowed."""


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key, in the order of the schema."""
    return tuple(_walk(Config, ""))


@cache
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
            yield _key(f"{prefix}{name}", annotation, field)


def _key(pattern: str, annotation: Any, field: FieldInfo) -> Key:
    help_text, kind, choices = field.description or "", _kind(annotation), _choices(annotation)
    if choices:
        allowed = f"a list of {_one_of(choices)}" if kind is list else _one_of(choices)
        return Key(pattern, kind, allowed, help_text, choices)
    what = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}[kind]
    low: Any = None
    high: Any = None
    is_low_excluded = False
    for constraint in field.metadata:
        if isinstance(constraint, annotated_types.Ge):
            low = constraint.ge
        elif isinstance(constraint, annotated_types.Gt):
            low, is_low_excluded = constraint.gt, True
        elif isinstance(constraint, annotated_types.Le):
            high = constraint.le
        elif getattr(constraint, "pattern", None):
            what = f"text of the form {constraint.pattern}"
    if low is not None and high is not None:
        what += f", more than {low} to {high}" if is_low_excluded else f", {low} to {high}"
    return Key(pattern, kind, what, help_text, (), low, high, is_low_excluded)


def _kind(annotation: Any) -> type:
    origin = get_origin(annotation)
    kind = type(get_args(annotation)[0]) if origin is Literal else origin or annotation
    assert isinstance(kind, type)
    return kind


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is list:
        return _choices(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _one_of(values: tuple[Any, ...]) -> str:
    names = [str(value) or "empty" for value in values]
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
