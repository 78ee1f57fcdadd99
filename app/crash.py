"""What is said of a bug, of a crash and of a machine that has nothing left: one sentence, and where the details are."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from datetime import datetime

from app.errors import AgentError, NoMemoryError
from app.log import LogSpec, current_log
from app.paths import state_dir
from app.version import VERSION

_logger = logging.getLogger("vivavoce.crash")
_OUR_PACKAGES = ("app", "audio", "gpu")
_FIXES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "Free some disk space"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n 1024)"),
    **dict.fromkeys((errno.ENOMEM, errno.EAGAIN), "Close other programs, or raise the limits (ulimit -a)"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "Choose a place that you may write to"),
    errno.EIO: "Look after the disk or the device",
}
"""Errors of the system that are never a bug of ours."""


def outside_fault(error: BaseException) -> AgentError | None:
    """An error that the machine is to blame for, as a sentence with the fix; None: it is a bug."""
    reason = (str(error).splitlines() or [""])[0][:200]
    match error:
        case OSError() if error.errno in _FIXES:
            where = f"{error.filename}: " if error.filename else ""
            return AgentError(f"{where}{os.strerror(error.errno).lower()}", fix=_FIXES[error.errno])
        case MemoryError():
            return NoMemoryError("not enough memory", fix="Close other programs, or raise the limit (ulimit -v)")
        case ImportError() if "failed to map segment" in reason and _are_addresses_limited():
            return NoMemoryError(f"not enough memory: {reason}", fix="Raise the limit (ulimit -v)")
        case ImportError() if (error.name or "").partition(".")[0] not in _OUR_PACKAGES:
            fix = "Install it again (make run), or allow more memory (ulimit -v)"
            return AgentError(f"a library cannot be loaded: {reason}", fix=fix)
        case RuntimeError() if "can't start new thread" in reason:
            return AgentError("no more threads are allowed", fix="Close other programs, or raise the limit (ulimit -u)")
    return None


def _are_addresses_limited() -> bool:
    from gpu.memory.places import address_space  # seldom needed, and it costs a tenth of a second

    return address_space() is not None


def describe_crash(error: BaseException) -> str:
    """Keep the traceback, in the session's log where there is one; one sentence that says what happened and where."""
    details = "".join(traceback.format_exception(error))
    log, fault = current_log(), outside_fault(error)
    if log is not None:
        _logger.error("vivavoce %s\n%s", VERSION, details.rstrip())
    if fault is not None:
        return str(fault)
    if log is not None:
        where = f"{log.path}, session {log.session}"
    else:
        where = _append_to_crash_log(details)
    return f"unexpected {type(error).__name__}: {error}. This is a bug; details: {where}"


def describe_death(log: LogSpec | None, process_name: str, pid: int | None) -> str:
    """What the interpreter of a dead child wrote as it crashed, to be put behind the sentence that reports the death.

    As in `: Segmentation fault; details: FILE`; "" where it wrote nothing (it was killed, or ended by itself).
    """
    if log is None or pid is None:
        return ""
    path = log.crash_path(process_name, pid)
    try:
        first_line = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return ""
    if not first_line:
        return ""
    return f": {first_line.removeprefix('Fatal Python error: ')}; details: {path}"


def _append_to_crash_log(details: str) -> str:
    """For a bug outside of a session; where it was written, or that it is lost."""
    log = state_dir(os.environ) / "crash.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().astimezone().isoformat()} vivavoce {VERSION}\n{details}\n")
    except OSError as reason:
        return f"lost, because {log} cannot be written ({reason.strerror}): {details.splitlines()[-2].strip()}"
    return str(log)
