"""Every speech recogniser by name. A new engine is its own file and one entry here; nothing is imported early."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from audio.errors import ModelFileError
from audio.protocols import Asr


@dataclass(frozen=True, slots=True)
class AsrSpec:
    """How to load one engine: `module.load(files, threads=...)` returns an `Asr`."""

    name: str
    kind: str
    """`offline`: decodes a whole segment, so partials come from a growing one."""
    module: str
    required_files: tuple[str, ...]
    """Roles that `files` must have."""


ENGINES: Mapping[str, AsrSpec] = {
    spec.name: spec
    for spec in (AsrSpec("moonshine", "offline", "audio.asr.moonshine", ("encoder", "decoder", "tokenizer")),)
}


def create(name: str, files: Mapping[str, Path], *, threads: int = 1) -> Asr:
    """Load engine `name` from `files` (role to path).

    Raises:
        ModelFileError: unknown engine, or a file is missing or not usable.
    """
    spec = ENGINES.get(name)
    if spec is None:
        raise ModelFileError(f"unknown speech recogniser {name!r}", fix=f"Use one of: {', '.join(sorted(ENGINES))}")
    for role in spec.required_files:
        if role not in files or not files[role].is_file():
            where = files.get(role, "not configured")
            raise ModelFileError(f"{name} needs its {role} file ({where})", fix="Run `vivavoce models fetch`")
    return cast(Asr, importlib.import_module(spec.module).load(files, threads=threads))
