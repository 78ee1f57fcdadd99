"""What is written while a conversation runs, whatever its face: the journal and the event logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from app import events
from app.cli.event_log import EventLog
from app.conversation.history import Exchange
from app.engine.process import JournalRef
from app.journal import Journal
from app.log import event_line

_logger = logging.getLogger("vivavoce.face")


class Keeper:
    """Takes every event. `remark` gets the sentences that the user should see."""

    def __init__(self, journal: Path | None, logs: Sequence[Path], remark: Callable[[str], None]) -> None:
        """Raises AgentError where the journal or a log cannot be written."""
        self._remark = remark
        self.journal = None if journal is None else Journal(journal)
        if self.journal is not None and self.journal.remark:
            remark(f"warning: {self.journal.remark}")
        self._logs = [EventLog(path) for path in logs]

    @property
    def journal_ref(self) -> JournalRef | None:
        """For an engine that outlives its face."""
        return None if self.journal is None else JournalRef(self.journal.path, self.journal.session)

    def exchanges(self) -> list[Exchange]:
        """What the journal has of earlier conversations."""
        return [] if self.journal is None else self.journal.exchanges()

    def take(self, event: events.Event) -> None:
        """Keep and log."""
        if self.journal is not None:
            self.journal.take(event)
        if event.is_logged:
            _logger.info("%s", event_line(event))
            if self._logs:
                self._log(event.to_json())

    def close(self) -> None:
        """No more is written."""
        if self.journal is not None:
            self.journal.close()
        for log in self._logs:
            log.close()

    def _log(self, line: str) -> None:
        """A full disk ends the log, not the conversation."""
        for log in self._logs[:]:
            try:
                log.write(line)
            except OSError as error:
                log.close()
                self._logs.remove(log)
                self._remark(f"error: the event log {log.path} ends here: {error.strerror}")
