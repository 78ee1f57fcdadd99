"""How a parent ends a process that it started."""

from __future__ import annotations

from multiprocessing.context import SpawnProcess

_TERMINATE_S = 0.3
_KILL_S = 1.0


def end_child(process: SpawnProcess, grace_s: float) -> None:
    """Wait `grace_s` for it to end as it was told, then make it; one that is stopped or hangs ends too."""
    if process.pid is None:
        return  # never started
    for end, limit_s in ((None, grace_s), (process.terminate, _TERMINATE_S), (process.kill, _KILL_S)):
        if end is not None:
            end()
        process.join(limit_s)
        if process.exitcode is not None:
            break
    if process.exitcode is not None:  # else it hangs in the kernel, and goes when that lets it
        process.close()
