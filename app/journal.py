"""The conversation on disk: what the user said and what they heard of each answer, safe after every turn.

One JSON object a line, appended; the face writes it, so it outlives the engine. Every turn is synced to the
disk; the words of a reply are written one by one as they are heard, so they outlive the face too. A line that
a crash cut off is dropped when the journal is next opened. The same turn may be written again (the user went
on after all); the last one counts.
"""

from __future__ import annotations

import json
import os
import time
from io import BufferedRandom
from pathlib import Path
from typing import Any

from app import events
from app.conversation.history import Exchange
from app.errors import AgentError


class Journal:
    """Append-only. Close it, or leave it to the end of the process: nothing is buffered."""

    def __init__(self, path: Path, *, session: str = "") -> None:
        """Open or create. `session` goes on with one that another process began.

        Raises:
            AgentError: the file cannot be written, or is no journal.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BufferedRandom = path.open("a+b")
        except OSError as error:
            raise AgentError(
                f"the journal {path} cannot be written: {error.strerror}", fix="Name another with --journal"
            ) from None
        self.session = session or f"{time.time_ns():x}"
        self._reply = ""
        self._heard_chars = 0
        try:
            self._entries = self._load()
        except AgentError:
            self._file.close()
            raise

    def exchanges(self) -> list[Exchange]:
        """Everything said so far, oldest first."""
        return [Exchange(entry["user"], entry.get("heard", "")) for entry in self._entries.values() if "user" in entry]

    def heard_by_turn(self) -> dict[int, str]:
        """What was heard of each answer of the newest session in it, by turn."""
        last = max((session for session, _ in self._entries), default="", key=lambda name: int(name, 16))
        return {turn: entry.get("heard", "") for (name, turn), entry in self._entries.items() if name == last}

    def take(self, event: events.Event) -> None:
        """Keep what belongs to the journal; called with every event."""
        match event:
            case events.UserTranscript(turn=turn, text=text, final=True):
                self._reply, self._heard_chars = "", 0
                self._append({"session": self.session, "turn": turn, "user": text})
            case events.AgentText(text=text, start_chars=start):
                self._reply = self._reply[:start].ljust(start) + text
            case events.AgentWord(turn=turn, chars=chars) if chars > self._heard_chars:
                more, self._heard_chars = self._reply[self._heard_chars : chars], chars
                self._append({"session": self.session, "turn": turn, "heard_more": more}, is_synced=False)
            case events.AgentSaid(turn=turn, text=text, heard=heard):
                self._append({"session": self.session, "turn": turn, "heard": heard, "intended": text})

    def close(self) -> None:
        """No more is written."""
        self._file.close()

    def _append(self, entry: dict[str, Any], *, is_synced: bool = True) -> None:
        """Raises AgentError when the disk is full; what is there stays whole."""
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
            self._file.flush()
            if is_synced:
                os.fsync(self._file.fileno())
        except OSError as error:
            os.truncate(self.path, end)
            raise AgentError(
                f"the journal {self.path} cannot be written: {error.strerror}", fix="Free some disk space"
            ) from None
        self._merge(entry)

    def _merge(self, entry: dict[str, Any]) -> None:
        kept = self._entries.setdefault((entry["session"], entry["turn"]), {})
        if "user" in entry:
            kept.clear()
        if "heard_more" in entry:
            kept["heard"] = (kept.get("heard", "") + entry["heard_more"]).lstrip()
        else:
            kept.update(entry)

    def _load(self) -> dict[tuple[str, int], dict[str, Any]]:
        self._entries = {}
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            self._file.truncate(whole)
        for line in content[:whole].splitlines():
            try:
                entry = json.loads(line)
                self._merge({"session": str(entry["session"]), "turn": int(entry["turn"]), **entry})
            except (ValueError, KeyError, TypeError):
                raise AgentError(
                    f"{self.path} is not a journal: {line[:60]!r}", fix="Name another with --journal"
                ) from None
        return self._entries
