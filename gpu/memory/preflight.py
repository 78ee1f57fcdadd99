"""What will be needed, row by row, against what is free now: decided before anything loads.

A `Request` says what shall run, a `Machine` what is free; `plan` compares them, one `Ledger` for each memory. Every
row says where its figure comes from: arithmetic on the model's shape, a peak measured before on this kind of device, or
an estimate where neither exists. What other programs hold is not a row that we add up: free memory leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpu.errors import GpuError
from gpu.kv.spec import KvDtype
from gpu.llm.weights.prepare import Precision
from gpu.memory.needs import (
    MIB,
    PRECISIONS_ON,
    PREFILL_TOKENS,
    DeviceKind,
    kv_bytes,
    loading_bytes,
    row_bytes,
    weights_bytes,
    workspace_bytes,
)
from gpu.memory.places import Machine, Place
from gpu.memory.shapes import ModelShape

EXIT_DOES_NOT_FIT = 3

_CONTEXT_BYTES = 640 * MIB
"""A CUDA context with torch's and cuBLAS's kernels, where none was measured: 450 to 600 MiB are usual."""
_PROGRAM_BYTES: dict[DeviceKind, int] = {"cpu": 400 * MIB, "cuda": 2048 * MIB}
"""RAM of our processes without models. CPU: measured as PSS (engine 228 MiB, ear 61, audio 27, face 54); GPU: with
torch's CUDA libraries."""
_COUNTED = f"counted: a forward pass of {PREFILL_TOKENS} tokens at the window's end, scores, libraries"
_LEAST_RESERVE_BYTES = 256 * MIB
_MOST_RESERVE_BYTES = 1024 * MIB
_RESERVED_SHARE = 32


class MemoryPlanError(GpuError):
    """What shall run does not fit; nothing was loaded."""

    exit_code = EXIT_DOES_NOT_FIT

    def __init__(self, message: str, *, short_bytes: int, fix: str) -> None:
        super().__init__(message, fix=fix)
        self.short_bytes = short_bytes


@dataclass(frozen=True, slots=True)
class PeakKey:
    """What a recorded peak is about. Fields that do not matter for a stage are empty or 0."""

    stage: str
    model: str = ""
    precision: str = ""
    context_tokens: int = 0
    device: str = ""
    version: str = ""


Known = Callable[[PeakKey], int | None]
"""The recorded peak in bytes, None where there is none."""


@dataclass(frozen=True, slots=True)
class StageNeed:
    """Another stage that runs in RAM beside the language model (recognition, voice)."""

    name: str
    size_bytes: int
    origin: str
    model: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What shall run. `gpu` is the number of the GPU; it counts only where `kind` is "cuda"."""

    shape: ModelShape
    precision: Precision
    kind: DeviceKind
    sessions: int = 1
    context_tokens: int = 2048
    kv_dtype: KvDtype = "auto"
    gpu: int = 0
    stages: tuple[StageNeed, ...] = ()
    version: str = ""
    """Of what decides memory beside our code (torch's): peaks of another one do not count."""

    def __post_init__(self) -> None:
        if self.sessions < 1 or self.context_tokens < 1:
            raise GpuError("A plan needs at least one session and one token", fix="Give larger numbers")
        if self.precision not in PRECISIONS_ON[self.kind]:
            allowed = ", ".join(PRECISIONS_ON[self.kind])
            raise GpuError(f"Precision {self.precision} does not run on {self.kind}", fix=f"Use one of: {allowed}")

    @property
    def positions(self) -> int:
        """The context, cut to what the model was trained for."""
        return min(self.context_tokens, self.shape.max_positions)


@dataclass(frozen=True, slots=True)
class Row:
    """One need."""

    name: str
    size_bytes: int
    origin: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The needs in one memory."""

    place: Place
    rows: tuple[Row, ...]

    @property
    def needs_bytes(self) -> int:
        """All rows."""
        return sum(row.size_bytes for row in self.rows)

    @property
    def peak_bytes(self) -> int:
        """What the driver or the system will see us hold: all rows but the reserve."""
        return sum(row.size_bytes for row in self.rows if row.name != "reserve")

    @property
    def short_bytes(self) -> int:
        """What is missing; 0 where it fits."""
        return max(0, self.needs_bytes - self.place.free_bytes)

    def row(self, name: str) -> Row:
        """The row of that name; KeyError where there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdict. `ledgers` begins with the memory that the language model lies in."""

    request: Request
    machine: Machine
    ledgers: tuple[Ledger, ...]

    @property
    def arena_bytes(self) -> int:
        """What all sessions may hold together: for `Arena.open(budget_bytes=...)`."""
        return self.ledgers[0].row("kv arena").size_bytes

    @property
    def fits(self) -> bool:
        """Whether every memory has room."""
        return not any(ledger.short_bytes for ledger in self.ledgers)

    @property
    def short_bytes(self) -> int:
        """What is missing in all memories together."""
        return sum(ledger.short_bytes for ledger in self.ledgers)


def plan(request: Request, machine: Machine, known: Known = lambda key: None) -> Plan:
    """Compare. Arithmetic only: microseconds.

    Raises:
        GpuError: the request names a GPU that is not there.
    """
    if request.kind == "cpu":
        return Plan(request, machine, (_host_ledger(request, machine.host, known),))
    if request.gpu >= len(machine.gpus):
        fix = "Set llm.device to cpu, or see: vivavoce doctor"
        raise GpuError(f"There is no GPU {request.gpu}{'; ' + machine.note if machine.note else ''}", fix=fix)
    gpu = _gpu_ledger(request, machine.gpus[request.gpu], known)
    return Plan(request, machine, (gpu, _host_ledger(request, machine.host, known)))


def most_sessions(request: Request, machine: Machine, known: Known = lambda key: None, limit: int = 4096) -> int:
    """How many sessions of this context fit, up to `limit`; 0 where not even one does."""
    return largest(1, limit, lambda count: plan(replace(request, sessions=count), machine, known).fits) or 0


def largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number in [low, high] that fits, where everything below one that fits does; None: none does."""
    if high < low or not fits(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def reserve_bytes(total_bytes: int) -> int:
    """What stays untouched, for what nobody planned: a window that another program opens, a driver's own growth."""
    return min(_MOST_RESERVE_BYTES, max(_LEAST_RESERVE_BYTES, total_bytes // _RESERVED_SHARE))


def context_key(place: Place, version: str) -> PeakKey:
    """Under what the size of a CUDA context is recorded."""
    return PeakKey("cuda context", device=place.model, version=version)


def workspace_key(request: Request, place: Place) -> PeakKey:
    """Under what the peak of a forward pass is recorded."""
    return PeakKey(
        "workspace" if request.kv_dtype == "auto" else f"workspace {request.kv_dtype}",
        request.shape.name,
        request.precision,
        request.positions,
        place.model or "cpu",
        request.version,
    )


def stage_key(stage: StageNeed) -> PeakKey:
    """Under what the memory of another stage is recorded."""
    return PeakKey(stage.name, stage.model, device="cpu")


def _gpu_ledger(request: Request, place: Place, known: Known) -> Ledger:
    context = known(context_key(place, request.version))
    measured = "measured on this kind of GPU"
    rows = (
        Row("cuda context", context or _CONTEXT_BYTES, measured if context else "estimate, none was measured yet"),
        *_model_rows(request, place, known),
        _reserve(place),
    )
    return Ledger(place, rows)


def _host_ledger(request: Request, place: Place, known: Known) -> Ledger:
    rows = [Row("program", _PROGRAM_BYTES[request.kind], "estimate: our processes without any model")]
    loading = loading_bytes(request.shape, request.precision)
    if request.kind == "cpu":
        model = _model_rows(request, place, known)
        rows += model
        # While the model is converted there are neither sessions nor activations yet.
        extra = loading - sum(row.size_bytes for row in model)
        if extra > 0:
            rows.append(Row("loading", extra, "the largest matrix while it is converted"))
    else:
        rows.append(Row("loading", loading, "the weights on their way to the GPU"))
    for stage in request.stages:
        peak = known(stage_key(stage))
        rows.append(Row(stage.name, peak or stage.size_bytes, "measured" if peak else stage.origin))
    rows.append(_reserve(place))
    return Ledger(place, tuple(rows))


def _model_rows(request: Request, place: Place, known: Known) -> Sequence[Row]:
    shape, precision, positions = request.shape, request.precision, request.positions
    cut = "" if positions == request.context_tokens else f", cut to the model's {positions}"
    tokens = f"{request.sessions} x {positions} tokens{cut}"
    work = known(workspace_key(request, place))
    counted = workspace_bytes(shape, precision, positions, place.kind, place.capability, request.kv_dtype)
    held = f"of {row_bytes(shape, precision)} bytes"
    held = held if request.kv_dtype == "auto" else f"as {request.kv_dtype}, the first and last {held}"
    parameters = f"{shape.parameters / 1e6:.0f} million parameters at {precision}"
    return (
        Row("weights", weights_bytes(shape, precision, positions, place.kind), f"{shape.name}: {parameters}"),
        Row(
            "kv arena",
            kv_bytes(shape, precision, request.sessions, positions, request.kv_dtype, request.kind),
            f"{tokens} {held}, in whole pages",
        ),
        # A recorded run may never have filled its window, so it can only show that more is needed than was counted.
        Row("workspace", max(work or 0, counted), "measured" if work and work > counted else _COUNTED),
    )


def _reserve(place: Place) -> Row:
    return Row("reserve", reserve_bytes(place.total_bytes), "stays free for what nobody planned")
