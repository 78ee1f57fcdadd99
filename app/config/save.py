"""Writes keys into the user's TOML file and leaves everything else in it as it is: comments, order, spelling.

The file is replaced in one step, so that it is the old one or the new one whatever happens, and only by one that loads.
"""

from __future__ import annotations

import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from app.config.keys import flatten
from app.config.load import load_text
from app.errors import ConfigError

_NEW_FILE_MODE = 0o644
_BY_HAND = "Edit it by hand"


def save_keys(path: Path, changes: Mapping[str, object | None]) -> None:
    """Set dotted keys in the file, which need not exist; None takes a key out, back to its default.

    Raises:
        ConfigError: the result would not load, with the loader's sentence, or the file cannot be read or written; it is
            then as it was.
    """
    target = Path(os.path.realpath(path))  # a link to a file kept elsewhere stays one
    text = edited(read_user_file(target), target, changes)
    load_text(text, path, env={})
    _replace(target, text)


def read_user_file(path: Path) -> str:
    """The text with its own line ends; "" where there is no file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        message = f"Cannot read the configuration file {path}: {reason}"
        raise ConfigError(message, key="", origin=str(path), fix=_BY_HAND) from error


def edited(text: str, path: Path, changes: Mapping[str, object | None]) -> str:
    """The text of a configuration file with the changes made; whether it would load is not looked at.

    Raises:
        ConfigError: it is no TOML, or the changes cannot be made in the way it is written.
    """
    try:
        document = tomlkit.parse(text)
        for key, value in changes.items():
            *tables, name = key.split(".")
            if value is None:
                _remove(document, tables, name)
            else:
                _table(document, tables)[name] = value
        made = tomlkit.dumps(document)
        wanted = {**flatten(tomllib.loads(text)), **changes}
        if flatten(tomllib.loads(made)) == {key: value for key, value in wanted.items() if value is not None}:
            return made
        reason = "the keys in it are written in a way that cannot be changed safely"
    except (TOMLKitError, tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        reason = str(error)
    raise ConfigError(f"{path} was not changed: {reason}", key="", origin=str(path), fix=_BY_HAND)


def _table(document: Any, tables: list[str]) -> Any:
    """The table of that path, made where it is not there."""
    for depth, part in enumerate(tables):
        if part not in document:
            # [personas] itself gets no line, only [personas.NAME]
            document[part] = tomlkit.table(is_super_table=depth < len(tables) - 1)
        document = document[part]
    return document


def _remove(document: Any, tables: list[str], name: str) -> None:
    """Take a key out, and the tables around it that hold nothing any more, not even a comment."""
    path = [document]
    for part in tables:
        if part not in path[-1]:
            return
        path.append(path[-1][part])
    path[-1].pop(name, None)
    for depth in range(len(tables), 0, -1):
        if len(path[depth]) or path[depth].as_string().strip(" \r\n{}"):
            return
        path[depth - 1].pop(tables[depth - 1])


def _replace(target: Path, text: str) -> None:
    """Write beside it and rename over it, with the permissions that it had."""
    temporary = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else _NEW_FILE_MODE
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with open(descriptor, "wb") as sink:
            sink.write(text.encode("utf-8"))
            sink.flush()
            os.fsync(sink.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        message = f"Cannot write the configuration file {target}: {error.strerror}"
        raise ConfigError(message, key="", origin=str(target), fix="Check its permissions and the disk") from error
