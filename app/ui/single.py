"""One window for each user: a second start brings the first one to the front."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

_LOCK_FILE = "window.lock"
_LIMIT_MS = 500


class SingleInstance(QObject):
    """Holds a lock in the user's data folder, and a local socket by which later starts ask for the window.

    The lock decides: of two that start at the same time only one gets it, and that of a dead program is taken over.
    A folder that cannot be written has no lock; then a socket that answers is the first window.
    """

    raised = Signal()
    """Another start wanted the window."""

    def __init__(self, data: Path) -> None:
        super().__init__()
        name = "vivavoce-" + hashlib.sha256(str(data.absolute()).encode()).hexdigest()[:16]
        self._server: QLocalServer | None = None
        with suppress(OSError):
            data.mkdir(parents=True, exist_ok=True)
        self._lock = QLockFile(str(data / _LOCK_FILE))
        self._lock.setStaleLockTime(0)  # however long it is held; that of a dead process counts for nothing
        is_held = self._lock.tryLock(0)
        is_taken = not is_held and self._lock.error() is QLockFile.LockError.LockFailedError
        self.is_second = is_taken or (not is_held and _knock(name))
        if self.is_second:
            if is_taken:
                _knock(name)
            return
        QLocalServer.removeServer(name)  # of a program that was killed
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._on_connection)
        self._server.listen(name)

    def close(self) -> None:
        """Let another start be the first."""
        if self._server is not None:
            self._server.close()
        self._lock.unlock()

    def _on_connection(self) -> None:
        assert self._server is not None
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.close()
            socket.deleteLater()
        self.raised.emit()


def _knock(name: str) -> bool:
    """Ask the first window to come to the front; whether there is one that hears."""
    socket = QLocalSocket()
    socket.connectToServer(name)
    is_heard = socket.waitForConnected(_LIMIT_MS)
    socket.disconnectFromServer()
    return is_heard
