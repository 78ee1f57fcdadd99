"""How much memory this process takes: now, and at most since a moment of the caller's."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_bytes() -> int:
    """RAM that this process holds for itself now; what its heap keeps for later is given back first.

    Without that a stage would seem to grow by nothing where it fills what the stage before left behind, or by what it
    dropped itself. Pages of files do not count: they are the system's, and come as somebody reads them.
    """
    _trim_heap()
    return _status_bytes("RssAnon:") or _rss_bytes()


def _rss_bytes() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


def _trim_heap() -> None:
    if sys.platform == "linux":
        with suppress(AttributeError):  # musl's heap keeps nothing back
            ctypes.CDLL(None).malloc_trim(0)


def _status_bytes(name: str) -> int:
    """A figure of the system's account of this process; 0 where there is none."""
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


class HostPeak:
    """The peak since it was made. Linux counts it itself; elsewhere it is the largest of the caller's looks."""

    def __init__(self) -> None:
        _trim_heap()
        self.begin_bytes = _rss_bytes()
        self._seen_bytes = self.begin_bytes
        try:
            _RESET.write_text(_RESET_PEAK, encoding="ascii")
            self._is_counted = True
        except OSError:
            self._is_counted = False

    def look(self) -> int:
        """Bytes by which this process has grown at most."""
        now = (_status_bytes("VmHWM:") if self._is_counted else 0) or _rss_bytes()
        self._seen_bytes = max(self._seen_bytes, now)
        return self._seen_bytes - self.begin_bytes
