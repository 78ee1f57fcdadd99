"""Every voice engine by name. A new engine is its own file and one entry here; nothing is imported early."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from audio.errors import ModelFileError
from audio.protocols import Tts


@dataclass(frozen=True, slots=True)
class TtsSpec:
    """How to load one engine: `module.load(files)` returns a `Tts`."""

    name: str
    kind: str
    """`clause`: makes the whole clause before the first sample comes out."""
    module: str
    required_files: tuple[str, ...]
    """Roles that `files` must have."""


ENGINES: Mapping[str, TtsSpec] = {
    spec.name: spec for spec in (TtsSpec("piper", "clause", "audio.tts.piper", ("model", "config")),)
}


def create(name: str, files: Mapping[str, Path]) -> Tts:
    """Load engine `name` from `files` (role to path).

    Raises:
        ModelFileError: unknown engine, or a file is missing or not usable.
    """
    spec = ENGINES.get(name)
    if spec is None:
        raise ModelFileError(f"unknown voice {name!r}", fix=f"Use one of: {', '.join(sorted(ENGINES))}")
    for role in spec.required_files:
        if role not in files or not files[role].is_file():
            where = files.get(role, "not configured")
            raise ModelFileError(f"{name} needs its {role} file ({where})", fix="Run `vivavoce models fetch`")
    return cast(Tts, importlib.import_module(spec.module).load(files))
