"""Where the details of a bug go: one file, appended to, that the sentence for the user names."""

from __future__ import annotations

import os
import traceback
from datetime import datetime

from app.paths import state_dir
from app.version import VERSION


def describe_crash(error: BaseException) -> str:
    """Append the traceback to the log; one sentence that says what happened and where the details are."""
    details = "".join(traceback.format_exception(error))
    log = state_dir(os.environ) / "crash.log"
    where = str(log)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().astimezone().isoformat()} vivavoce {VERSION}\n{details}\n")
    except OSError as reason:
        where = f"lost, because {log} cannot be written ({reason.strerror}): {details.splitlines()[-2].strip()}"
    return f"unexpected {type(error).__name__}: {error}. This is a bug; details: {where}"
