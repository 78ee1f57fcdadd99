"""`vivavoce log`: the lines of one session, from all its processes, and what crashed in it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from app.config.schema import Config
from app.engine.builder import places
from app.errors import AgentError
from app.log import LOG_FILE


def run(args: argparse.Namespace, config: Config) -> int:
    """Print one session, by default the last one that began.

    Raises:
        AgentError: there is no log yet, or no such session in it.
    """
    folder = places(config, os.environ).data / "logs"
    records = list(_records(folder))
    sessions = sorted({_session(record) for record in records})
    if not sessions:
        raise AgentError(f"there is no log in {folder}", fix="Talk first: a conversation writes it")
    matches = [name for name in sessions if name.startswith(args.session)] if args.session else sessions[-1:]
    if len(matches) != 1:
        known = ", ".join((matches or sessions)[-5:])
        problem = "several sessions begin" if matches else "no session in the log begins"
        raise AgentError(f"{problem} with {args.session!r}", fix=f"Choose one of: {known}")
    for record in records:
        if _session(record) == matches[0]:
            print(record)
    for path in sorted(folder.glob(f"crash-{matches[0]}-*.txt")):
        if path.stat().st_size:
            print(f"crash: {path}")
    return 0


def _records(folder: Path) -> Iterator[str]:
    """Every record of the files that are kept, oldest file first; a record may have several lines."""
    rotated = sorted(folder.glob(f"{LOG_FILE}.*"), reverse=True)
    for path in [*rotated, folder / LOG_FILE]:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise AgentError(f"{path} cannot be read: {error.strerror}", fix="Check its permissions") from None
        record: list[str] = []
        for line in text.splitlines():
            if record and not line.startswith(" "):
                yield "\n".join(record)
                record = []
            record.append(line)
        if record:
            yield "\n".join(record)


def _session(record: str) -> str:
    """The second word; "" in a line that is no record."""
    words = record.split(" ", 2)
    return words[1] if len(words) == 3 else ""
