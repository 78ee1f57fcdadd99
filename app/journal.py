"""The conversation on disk: what the user said and what they heard of each answer, safe after every turn.

One JSON object a line, appended; the face writes it, so it outlives the engine. Every turn is synced to the
disk; the words of a reply are written one by one as they are heard, so they outlive the face too. A line that
a crash cut off is dropped when the journal is next opened; of a damaged file what can be read is kept, and the
whole is moved aside. The same turn may be written again (the user went on after all); the last one counts.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from io import FileIO
from pathlib import Path
from typing import Any

from app import events
from app.conversation.history import Exchange
from app.errors import AgentError

_OTHER = "Name another with --journal"
_ENTRY_START = b'{"session": "'


class Journal:
    """Append-only. Close it, or leave it to the end of the process: nothing is buffered."""

    def __init__(self, path: Path, *, session: str = "") -> None:
        """Open or create. `session` goes on with one that another process began.

        Raises:
            AgentError: the file cannot be written, or is no journal; it is then as it was.
        """
        self.path = path
        self.remark = ""
        """What became of a damaged file; "" where there was none."""
        self.session = session or f"{time.time_ns():x}"
        self._reply = ""
        self._heard_chars = 0
        self._entries: dict[tuple[str, int], dict[str, Any]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(path)
            self._load()
        except OSError as error:
            raise AgentError(f"the journal {path} cannot be written: {error.strerror}", fix=_OTHER) from None

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
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if is_synced:
                os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
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

    def _load(self) -> None:
        """Read what is there. Nothing is changed before it is known to be a journal."""
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        lines, rest = content[:whole].splitlines(), content[whole:]
        good = [line for line in lines if self._take_line(line)]
        is_cut_off = rest.startswith(_ENTRY_START[: len(rest)]) or not rest.strip(b"\0")
        if not good and (lines or not is_cut_off):
            self._file.close()
            raise AgentError(f"{self.path} is not a journal", fix=_OTHER)
        if len(good) < len(lines) or not is_cut_off:
            self._move_aside(b"".join(line + b"\n" for line in good))
        elif rest:
            self._file.truncate(whole)

    def _take_line(self, line: bytes) -> bool:
        try:
            entry = json.loads(line)
            int(str(entry["session"]), 16)
            texts = [entry[name] for name in ("user", "heard", "heard_more", "intended") if name in entry]
            if not all(isinstance(text, str) for text in texts):
                return False
            self._merge({**entry, "session": str(entry["session"]), "turn": int(entry["turn"])})
        except (ValueError, KeyError, TypeError):
            return False
        return True

    def _move_aside(self, kept: bytes) -> None:
        """A journal with lines that nobody can read: keep it under another name, go on with the lines that are good."""
        self._file.close()
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        self.path.rename(aside)
        self._file = _open(self.path)
        self._file.write(kept)
        os.fsync(self._file.fileno())
        self.remark = f"the journal was damaged; it is kept as {aside}, and what could be read of it goes on"


def is_whole_entry(event: events.Event) -> bool:
    """Whether a journal may take the event twice: a whole question or a whole reply."""
    return isinstance(event, events.AgentSaid) or (isinstance(event, events.UserTranscript) and event.final)


def _open(path: Path) -> FileIO:
    """For appending, unbuffered; OSError for what is no regular file (opening some of them would wait for ever)."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
    except FileNotFoundError:
        pass
    return path.open("a+b", buffering=0)
