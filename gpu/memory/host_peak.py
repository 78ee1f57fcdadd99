"""How much memory this process takes: now, and at most since a moment of the caller's."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident_bytes() -> int:
    """RAM that this process holds now, pages of files included."""
    import psutil

    return int(psutil.Process().memory_info().rss)


class HostPeak:
    """The peak since it was made. Linux counts it itself; elsewhere it is the largest of the caller's looks."""

    def __init__(self) -> None:
        self.begin_bytes = resident_bytes()
        self._seen_bytes = self.begin_bytes
        try:
            _RESET.write_text(_RESET_PEAK, encoding="ascii")
            self._is_counted = True
        except OSError:
            self._is_counted = False

    def look(self) -> int:
        """Bytes by which this process has grown at most."""
        now = self._high_water() if self._is_counted else resident_bytes()
        self._seen_bytes = max(self._seen_bytes, now)
        return self._seen_bytes - self.begin_bytes

    def _high_water(self) -> int:
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return resident_bytes()
