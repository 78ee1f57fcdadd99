"""The spoken sample questions that ship with the product, in a voice that is not the agent's."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from app.errors import AgentError
from app.paths import assets_dir


@dataclass(frozen=True, slots=True)
class Sample:
    """A recording and its words."""

    path: Path
    text: str


def sample_questions() -> list[Sample]:
    """All of them, in order.

    Raises:
        AgentError: they are missing from the installation.
    """
    folder = assets_dir() / "samples"
    try:
        rows = tomllib.loads((folder / "index.toml").read_text(encoding="utf-8"))["sample"]
        samples = [Sample(folder / row["file"], row["text"]) for row in rows]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise AgentError(f"the sample questions cannot be read: {error}", fix="Install again") from None
    missing = [sample.path.name for sample in samples if not sample.path.is_file()]
    if missing:
        raise AgentError(f"sample questions are missing: {', '.join(missing)}", fix="Install again")
    return samples
