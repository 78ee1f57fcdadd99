"""Builds the configuration: defaults < user file < environment < flags; remembers where each value came from.

Environment: `VIVAVOCE__SECTION__KEY=value` (two underscores between the parts, as in `VIVAVOCE__LLM__SEED=7`), and
`VIVAVOCE_STORE` for `paths.store`. Flags: `--set section.key=value`. Values are written as in TOML; quotes around
text may be left out.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from app.config.keys import ANY_NAME, all_keys, find_key, flatten
from app.config.schema import Config
from app.errors import ConfigError
from app.paths import assets_dir, config_file

ENV_PREFIX = "VIVAVOCE__"
STORE_VARIABLE = "VIVAVOCE_STORE"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration and, for each dotted key, where its value came from."""

    config: Config
    origins: Mapping[str, str]
    user_file: Path
    """The user's file that was read or, where there is none, would be."""
    has_user_file: bool
    """It was read."""
    overrides: tuple[str, ...] = ()
    """The flags, as given."""


def load_config(*, file: Path | None, env: Mapping[str, str], overrides: Sequence[str] = ()) -> Loaded:
    """Read all sources.

    `file`: a configuration file that must exist; None: the user's own where there is one.
    `overrides`: `section.key=value` strings.

    Raises:
        ConfigError: one sentence with the key, where it stands, and what is allowed.
    """
    user_file = file or config_file(env)
    has_user_file = file is not None or user_file.is_file()
    text = _read(user_file) if has_user_file else None
    return load_text(text, user_file, env=env, overrides=overrides)


def load_text(text: str | None, user_file: Path, *, env: Mapping[str, str], overrides: Sequence[str] = ()) -> Loaded:
    """As `load_config` where the user's file holds `text` (None: is not there); the file is not looked at.

    Raises:
        ConfigError: as there.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    sources = (
        _defaults(),
        _from_text(text or "", user_file, str(user_file)),
        _from_environment(env),
        _from_overrides(overrides),
    )
    for source in sources:
        for key, value, origin in source:
            values[key] = value
            origins[key] = origin
    _complete_personas(values, origins)
    config = _validate(values, origins)
    _check_relations(config, origins)
    return Loaded(config, origins, user_file, text is not None, tuple(overrides))


def unread_variables(env: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that looks like one of ours and is none: a key written with too few underscores."""
    keys = {_squeezed(key.pattern): key.pattern for key in all_keys()}
    sentences = []
    for name in sorted(env):
        if not name.startswith("VIVAVOCE_") or name.startswith(ENV_PREFIX):
            continue
        near = difflib.get_close_matches(_squeezed(name.removeprefix("VIVAVOCE_")), keys, 1, cutoff=0.8)
        if near:
            right = ENV_PREFIX + keys[near[0]].upper().replace(".", "__")
            sentences.append(f"the variable {name} is not read. Did you mean {right}?")
    return sentences


def _squeezed(name: str) -> str:
    return name.lower().replace(".", "").replace("_", "")


_Entry = tuple[str, Any, str]


@cache
def _defaults() -> tuple[_Entry, ...]:
    path = assets_dir() / "default.toml"
    return tuple(_from_text(_read(path), path, "default"))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"Cannot read the configuration file {path}: {reason}"
        raise ConfigError(message, key="", origin=str(path), fix="Check the path given with --config") from error


def _from_text(text: str, path: Path, label: str) -> list[_Entry]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = f"{path} is not valid TOML: {error}"
        raise ConfigError(message, key="", origin=str(path), fix="Mend that line") from error
    lines = _key_lines(text)
    entries = []
    for key, value in flatten(document).items():
        origin = label if label == "default" else f"{label}:{lines[key]}" if key in lines else label
        entries.append((_known(key, origin), value, origin))
    return entries


def _key_lines(text: str) -> dict[str, int]:
    """Dotted key to line number, for keys written the plain way; good enough for messages."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[([\w.\- ]+)\]", line):
            table = f"{header.group(1).replace(' ', '')}."
        elif entry := re.match(r"\s*([\w.\-]+)\s*=", line):
            lines.setdefault(f"{table}{entry.group(1)}", number)
    return lines


def _from_environment(env: Mapping[str, str]) -> list[_Entry]:
    entries: list[_Entry] = []
    if env.get(STORE_VARIABLE):
        entries.append(("paths.store", env[STORE_VARIABLE], f"environment {STORE_VARIABLE}"))
    for name in sorted(env):
        if name.startswith(ENV_PREFIX):
            origin = f"environment {name}"
            key = _known(name.removeprefix(ENV_PREFIX).lower().replace("__", "."), origin)
            entries.append((key, _parse(key, env[name]), origin))
    return entries


def _from_overrides(overrides: Sequence[str]) -> list[_Entry]:
    entries: list[_Entry] = []
    for text in overrides:
        name, sign, value = text.partition("=")
        origin = f"flag --set {text}"
        if not sign:
            raise ConfigError(f"{origin} has no '='", key=name, origin=origin, fix="Write --set section.key=value")
        key = _known(name.strip(), origin)
        entries.append((key, _parse(key, value.strip()), origin))
    return entries


def _known(name: str, origin: str) -> str:
    if find_key(name):
        return name
    known = [key.pattern for key in all_keys()]
    parts = name.split(".")
    if len(parts) == 3 and parts[0] == "personas":
        known = [pattern.replace(ANY_NAME, parts[1]) for pattern in known]
    near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    fix = f"Did you mean {near[0]}?" if near else "See: vivavoce config keys"
    raise ConfigError(f"Unknown configuration key {name} ({origin})", key=name, origin=origin, fix=fix)


def _parse(key: str, text: str) -> Any:
    """A value from the environment or a flag: TOML where it is TOML, else the text itself."""
    found = find_key(key)
    if found and found.kind is str and not text.startswith(('"', "'")):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _complete_personas(values: dict[str, Any], origins: dict[str, str]) -> None:
    """A persona of the user need not repeat what it takes from the default one."""
    prefix = "personas.default."
    fields = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    for name in {key.split(".")[1] for key in values if key.startswith("personas.")}:
        for field, value in fields.items():
            if f"personas.{name}.{field}" not in values:
                values[f"personas.{name}.{field}"] = value
                origins[f"personas.{name}.{field}"] = f"{prefix}{field}"


def _validate(values: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
    try:
        return Config.model_validate(_nest(values), strict=False)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        location = [str(part) for part in problem["loc"]]
        while location and not find_key(".".join(location)) and len(location) > 1:
            location.pop()  # inside a list the location ends with the index
        raise _value_error(".".join(map(str, location)) or "", problem, values, origins) from None


def _value_error(key: str, problem: Any, values: Mapping[str, Any], origins: Mapping[str, str]) -> ConfigError:
    if problem["type"] == "missing":
        key = ".".join(str(part) for part in problem["loc"])
        origin = next((o for k, o in origins.items() if k.startswith(f"{key.rpartition('.')[0]}.")), "default")
        found = find_key(key)
        fix = f"Allowed: {found.allowed}" if found else "See: vivavoce config keys"
        return ConfigError(f"Configuration key {key} is missing ({origin})", key=key, origin=origin, fix=fix)
    found = find_key(key)
    origin = origins.get(key, "default")
    allowed = found.allowed if found else problem["msg"]
    message = f"{key} cannot be {values.get(key)!r} ({origin})"
    return ConfigError(message, key=key, origin=origin, fix=f"Allowed: {allowed}")


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *tables, name = key.split(".")
        table = nested
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return nested


def _check_relations(config: Config, origins: Mapping[str, str]) -> None:
    """Rules between keys, which a range cannot say."""
    if config.persona not in config.personas:
        allowed = ", ".join(config.personas)
        raise _relation("persona", config.persona, origins, f"Allowed: {allowed}")
    if len(set(config.ear.chain)) != len(config.ear.chain):
        raise _relation("ear.chain", config.ear.chain, origins, "Allowed: each stage once")
    rules = (
        ("ear.speech_off", config.ear.speech_off, "ear.speech_on", config.ear.speech_on),
        ("asr.soft_cut_s", config.asr.soft_cut_s, "asr.hard_cut_s", config.asr.hard_cut_s),
        ("turn.min_silence_ms", config.turn.min_silence_ms, "turn.max_silence_ms", config.turn.max_silence_ms),
    )
    if config.ear.vad_after and config.ear.vad_after not in config.ear.chain:
        raise _relation("ear.vad_after", config.ear.vad_after, origins, f"Allowed: one of {config.ear.chain}, or empty")
    for low_key, low, high_key, high in (*rules, *_window_rules(config, origins)):
        if low > high:
            raise _relation(low_key, low, origins, f"Allowed: at most {high_key}, which is {high}")


def _window_rules(config: Config, origins: Mapping[str, str]) -> list[tuple[str, int, str, int]]:
    """What somebody wants to lie in the window must fit into it; the defaults give way to a smaller one."""
    wanted = {
        "memory.least_context_tokens": config.memory.least_context_tokens,
        f"personas.{config.persona}.max_history_tokens": config.active_persona().max_history_tokens,
    }
    window = config.llm.context_tokens
    return [
        (key, tokens, "llm.context_tokens", window)
        for key, tokens in wanted.items()
        if origins.get(origins.get(key, "default"), origins.get(key, "default")) != "default"
    ]


def _relation(key: str, value: Any, origins: Mapping[str, str], fix: str) -> ConfigError:
    origin = origins.get(key, "default")
    return ConfigError(f"{key} cannot be {value!r} ({origin})", key=key, origin=origin, fix=fix)
