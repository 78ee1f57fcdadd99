"""This machine's memory and this program's share of it, read now: for what no event tells."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from gpu.memory.places import Place, read_machine


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """RAM and GPUs, and who we are among those who hold it."""

    host: Place
    gpus: tuple[Place, ...]
    note: str
    """What the figures leave out, in a sentence, or ""."""
    pids: frozenset[int]
    """Of this program."""
    own_bytes: int
    """RAM of all of them; a library that several have loaded counts in each."""

    def place(self, device: str) -> Place:
        """By torch's name; RAM where it names nothing here."""
        return next((gpu for gpu in self.gpus if gpu.device == device), self.host)


def read_machine_memory() -> MachineMemory:
    """Some milliseconds, some ten where there is a GPU."""
    import psutil

    me = psutil.Process()
    found: dict[int, int] = {}
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has just ended
            found[process.pid] = int(process.memory_info().rss)
    machine = read_machine(os.environ)
    return MachineMemory(machine.host, machine.gpus, machine.note, frozenset(found), sum(found.values()))
