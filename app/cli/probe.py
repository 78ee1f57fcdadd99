"""Questions that only a short-lived child may ask: they would change the asking process or keep a GPU context alive."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def ask_in_child(question: Callable[[], Any], *, timeout_s: float) -> Any:
    """Run a module-level function in a fresh process; its answer, None where it raised, died or took too long."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(question, sender), daemon=True)
    child.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(timeout_s) else None
    except EOFError:  # it died before it answered
        return None
    finally:
        child.kill()
        child.join()
        child.close()
        receiver.close()


def _answer(question: Callable[[], Any], sender: Connection) -> None:
    try:
        answer = question()
    except Exception:  # to the one who asked, an error and a dead child are the same: no answer
        answer = None
    sender.send(answer)
