"""Who holds the memory that the language model lies in, what its arena holds, and what was given up under pressure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from app import events
from app.viewmodel.background import Background
from app.viewmodel.base import ViewModel
from app.viewmodel.machine_memory import MachineMemory, read_machine_memory
from gpu.memory.ladder import ORDER

_READ_S = 2.0
PartName = Literal["weights", "arena", "speech", "rest", "others", "free"]
PARTS: tuple[PartName, ...] = ("weights", "arena", "speech", "rest", "others", "free")
"""Language model, its conversation, the speech models, the rest of this program, other programs, nobody."""
HolderKind = Literal["conversation", "session", "prefix"]
RungState = Literal["given", "open", "nothing"]


@dataclass(frozen=True, slots=True)
class Holder:
    """One session or prefix of the arena, in pages."""

    kind: HolderKind
    number: int
    """From 1 among its kind."""
    pages: int
    shared_pages: int
    room_pages: int
    """That it may grow to."""
    tokens: int


@dataclass(frozen=True, slots=True)
class RungRow:
    """One rung of the ladder. `size_bytes`: what came free, or would now; None where nobody has said."""

    name: str
    state: RungState
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class OtherProcess:
    """Somebody else who holds memory of the GPU; `used_bytes` None where the driver does not tell."""

    pid: int
    used_bytes: int | None


class Memory(ViewModel):
    """`state` is the engine's last report; None before the first, and where no engine runs."""

    def __init__(
        self,
        read: Callable[[], MachineMemory] = read_machine_memory,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.state: events.MemoryState | None = None
        self.machine: MachineMemory | None = None
        self.stages: dict[str, events.StageBackend] = {}
        self.level = ""
        """`calm`, `tight`, `critical`; empty where nobody guards the memory."""
        self._freed: dict[str, int] = {}
        """Of each rung that is given up."""
        self._read = read
        self._clock_s = clock_s
        self._background = Background("memory")
        self._due_s = 0.0

    def take(self, event: events.Event) -> None:
        """See `ViewModel`."""
        match event:
            case events.MemoryState():
                self.state, self.level = event, event.level
                self._freed = {name: self._freed.get(name, 0) for name in event.rungs_given}
            case events.StageBackend(stage=stage):
                self.stages[stage] = event
            case events.MemoryDegraded(level=level, rung=rung, freed_bytes=freed_bytes):
                self.level, self._freed[rung] = level, freed_bytes
            case events.MemoryRestored(level=level, rung=rung):
                self.level = level
                self._freed.pop(rung, None)
            case events.ProcessLost(process="engine") | events.SessionEnded():
                self.state, self.level = None, ""
                self._freed.clear()
            case _:
                return
        self.changed()

    def poll(self) -> None:
        """Take what was read of the machine, and have it read again where it is time: call it now and then."""
        if self._background.poll():
            self.changed()
        now_s = self._clock_s()
        if not self._background.is_busy and now_s >= self._due_s:
            self._due_s = now_s + _READ_S
            self._background.start(self._read, self._take_machine)

    def _take_machine(self, found: MachineMemory) -> None:
        self.machine = found

    # -- the memory as a whole --------------------------------------------------------------------------------

    @property
    def is_gpu(self) -> bool:
        """Whether the language model lies in a GPU's memory, and all figures are of that."""
        return self.state is not None and self.state.device != "cpu"

    @property
    def total_bytes(self) -> int:
        """Of the memory that the language model lies in; 0 where it is not known yet."""
        if self.state is not None:
            return self.state.total_bytes
        return 0 if self.machine is None else self.machine.host.total_bytes

    @property
    def place_name(self) -> str:
        """Of the GPU, as in `GPU 0 (NVIDIA H200)`; "" for RAM."""
        if self.state is None or not self.is_gpu:
            return ""
        known = self.machine.place(self.state.device) if self.machine else None
        return known.name if known is not None and known.kind == "cuda" else self.state.device

    @property
    def note(self) -> str:
        """What the figures leave out, in a sentence, or ""."""
        if self.machine is None:
            return ""
        return self.machine.note if self.is_gpu else self.machine.host.note

    def parts(self) -> dict[PartName, int]:
        """Bytes by `PARTS`; together `total_bytes`. Empty where nothing is known yet."""
        total, free = self.total_bytes, self._free_bytes()
        if not total:
            return {}
        used = max(0, total - free)
        own = min(used, self._own_bytes())
        wanted: dict[PartName, int] = {"weights": 0, "arena": 0, "speech": 0}
        if self.state is not None:
            wanted["weights"] = self.state.weights_bytes
            wanted["arena"] = self.state.pages * self.state.page_bytes
        if not self.is_gpu:
            wanted["speech"] = sum(stage.memory_bytes for name, stage in self.stages.items() if name != "llm")
        made: dict[PartName, int] = {}
        left = own
        for name, size in wanted.items():
            made[name] = min(size, left)
            left -= made[name]
        return made | {"rest": left, "others": used - own, "free": total - used}

    def other_processes(self) -> list[OtherProcess]:
        """Those on the same GPU that the driver names, largest first."""
        if self.machine is None or self.state is None or not self.is_gpu:
            return []
        found = [p for p in self.machine.place(self.state.device).processes if p.pid not in self.machine.pids]
        found.sort(key=lambda process: -(process.used_bytes or 0))
        return [OtherProcess(process.pid, process.used_bytes) for process in found]

    def _free_bytes(self) -> int:
        if self.state is not None:
            return self.state.free_bytes
        return 0 if self.machine is None else self.machine.host.free_bytes

    def _own_bytes(self) -> int:
        """What the engine says, or more where the system counts more: the other processes, the CUDA context."""
        said = 0 if self.state is None else self.state.engine_bytes
        if self.machine is None:
            return said
        if self.state is None or not self.is_gpu:
            return max(said, self.machine.own_bytes)
        ours = (p for p in self.machine.place(self.state.device).processes if p.pid in self.machine.pids)
        return max(said, sum(process.used_bytes or 0 for process in ours))

    # -- the arena --------------------------------------------------------------------------------------------

    def holders(self) -> list[Holder]:
        """The conversation, other sessions, and what sessions may begin with."""
        return list(self._holders())

    def _holders(self) -> Iterator[Holder]:
        if self.state is None:
            return
        for number, figures in enumerate(self.state.sessions, 1):
            yield Holder("conversation" if number == 1 else "session", number, *figures)
        for number, figures in enumerate(self.state.prefixes, 1):
            yield Holder("prefix", number, *figures)

    # -- the ladder -------------------------------------------------------------------------------------------

    def ladder(self) -> list[RungRow]:
        """Every rung, mildest first."""
        open_rungs = {} if self.state is None else self.state.rungs_open
        rows = []
        for name in ORDER:
            if name in self._freed:
                rows.append(RungRow(name, "given", self._freed[name] or None))
            elif name in open_rungs:
                rows.append(RungRow(name, "open", open_rungs[name]))
            else:
                rows.append(RungRow(name, "nothing", None))
        return rows
