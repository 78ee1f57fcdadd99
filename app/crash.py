"""What is said of a bug and of a crash: one sentence, and where the details are."""

from __future__ import annotations

import logging
import os
import traceback
from datetime import datetime

from app.log import LogSpec, current_log
from app.paths import state_dir
from app.version import VERSION

_logger = logging.getLogger("vivavoce.crash")


def describe_crash(error: BaseException) -> str:
    """Keep the traceback, in the session's log where there is one; one sentence that says what happened and where."""
    details = "".join(traceback.format_exception(error))
    log = current_log()
    if log is not None:
        _logger.error("vivavoce %s\n%s", VERSION, details.rstrip())
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
