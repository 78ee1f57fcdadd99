"""The memory plan of a configuration: what the conversation's models need, against what this machine has free now."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

from app.config.schema import Config
from app.errors import ModelStoreError
from app.models.catalog import load_catalog
from app.models.own import choose, is_path
from app.models.store import Store
from gpu.errors import WeightsError
from gpu.llm.weights.prepare import Precision
from gpu.memory.fixes import Switches, require_fit
from gpu.memory.headers import read_shape
from gpu.memory.needs import DeviceKind
from gpu.memory.peaks import Peaks
from gpu.memory.places import Machine, read_machine
from gpu.memory.preflight import Plan, Request, StageNeed, plan
from gpu.memory.shapes import KNOWN_SHAPES, ModelShape, known_shape

if TYPE_CHECKING:
    from app.engine.builder import Places

AskCuda = Callable[[], list[tuple[str, str, int, int]] | None]
_FILES_IN_MEMORY = 3
"""Speech models hold their file as weights, as the runtime's packed copies, and buffers. Measured for the starter set,
as private memory: recognition 66 MiB of a file of 42, voice 196 to 211 of 60, turn 11 of 8.
"""


def open_peaks(where: Places) -> Peaks:
    """The record of what earlier runs took."""
    return Peaks(where.data / "peaks.sqlite")


def plan_start(config: Config, where: Places, *, avoids_gpu: bool = False, ask_cuda: AskCuda = lambda: None) -> Plan:
    """The plan by which an engine may load: on the GPU, or with `llm.device = "auto"` on the CPU where only that fits.

    Raises:
        MemoryPlanError: it fits nowhere; nothing was loaded.
        AgentError, GpuError: a model is missing or cannot be planned, with the fix.
    """
    machine = read_machine(os.environ, ask_cuda=ask_cuda)
    request = request_of(config, where, machine, avoids_gpu=avoids_gpu)
    known = open_peaks(where).peak
    made = plan(request, machine, known)
    if not made.fits and request.kind == "cuda" and config.llm.device == "auto":
        on_cpu = plan(replace(request, kind="cpu", precision=precision_on("cpu", config)), machine, known)
        made = on_cpu if on_cpu.fits else made
    return require_fit(made, smaller_models(where), known, switches(config))


def smaller_models(where: Places) -> list[ModelShape]:
    """Language models that `llm.model` can name here: those of the catalog, of which any may be fetched."""
    return [shape_of(row.name, where) for row in load_catalog() if row.role == "llm" and _is_readable(row.name, where)]


def switches(config: Config, *, window_flag: str = "", model_flag: str = "") -> Switches:
    """How a fix is written for a command whose own flags win over the configuration's keys, "" where none is given."""
    chosen = Switches(least_tokens=max(config.memory.least_context_tokens, config.active_persona().max_history_tokens))
    if window_flag:
        chosen = replace(chosen, window=f"{window_flag} ")
    return replace(chosen, model=f"{model_flag} ") if model_flag else chosen


def _is_readable(model: str, where: Places) -> bool:
    """Whether it can be planned: a file in the store may be damaged, and one that was never fetched be unknown."""
    try:
        shape_of(model, where)
    except (ModelStoreError, WeightsError):
        return False
    return True


def missing_on_cpu(config: Config, running: Plan) -> int:
    """Bytes of RAM that lack for the language model of `running` beside everything that runs; 0 where it fits."""
    request = replace(running.request, kind="cpu", precision=precision_on("cpu", config), stages=())
    ledger = plan(request, read_machine({"CUDA_VISIBLE_DEVICES": ""}, has_gpu=lambda: False)).ledgers[0]
    return max(0, ledger.needs_bytes - ledger.row("program").size_bytes - ledger.place.free_bytes)


def request_of(
    config: Config,
    where: Places,
    machine: Machine,
    *,
    model: str = "",
    sessions: int = 1,
    context_tokens: int = 0,
    avoids_gpu: bool = False,
) -> Request:
    """What the configuration would run; `model` and `context_tokens` replace its own where given.

    Raises:
        ModelStoreError, WeightsError: there is no such model, or it cannot be read.
        GpuError: a precision that the device does not run.
    """
    wanted = config.llm.device
    kind: DeviceKind = "cpu" if avoids_gpu or wanted == "cpu" or not machine.gpus else "cuda"
    return Request(
        shape=shape_of(model or config.llm.model, where),
        precision=precision_on(kind, config),
        kind=kind,
        sessions=sessions,
        context_tokens=context_tokens or config.llm.context_tokens,
        kv_dtype=config.llm.kv_dtype,
        gpu=int(wanted.partition(":")[2] or 0),
        stages=tuple(_stages(config, where)),
        version=f"torch {metadata.version('torch')}",
    )


def shape_of(model: str, where: Places) -> ModelShape:
    """From the model's own file, or from the table of known shapes where it is not here (yet).

    Raises:
        ModelStoreError, WeightsError: there is no such model, or it cannot be read.
    """
    store = Store(where.store, load_catalog())
    is_own = is_path(model, store.catalog)
    is_here = is_own or any(row.name == model and store.state(row) == "in place" for row in store.catalog)
    known = known_shape(model)
    if known is not None and not is_here:
        return known
    if not is_own and all(row.name != model for row in store.catalog):
        names = [row.name for row in store.catalog if row.role == "llm"] + [shape.name for shape in KNOWN_SHAPES]
        fix = f"Give the path of a model, or one of: {', '.join(dict.fromkeys(names))}"
        raise ModelStoreError(f"There is no language model named {model!r}", model=model, fix=fix)
    shape = read_shape(choose(model, "llm", store).parts["model"])
    return shape if is_own else replace(shape, name=model)


def precision_on(kind: DeviceKind, config: Config) -> Precision:
    """As `open_language_model` chooses it."""
    wanted = config.llm.precision
    if wanted == "auto":
        return "int8" if kind == "cpu" else "bf16"
    return wanted


def _stages(config: Config, where: Places) -> Iterator[StageNeed]:
    """The speech models, which run in RAM."""
    store = Store(where.store, load_catalog())
    voice = config.active_persona().voice or config.tts.model
    names = {"asr": config.asr.model, "vad": config.ear.vad_model, "turn": config.turn.model, "tts": voice}
    for role, name in names.items():
        if is_path(name, store.catalog):
            size = sum(path.stat().st_size for path in choose(name, role, store).parts.values())
        else:  # by the catalog, so that a plan needs no download
            size = store.catalog[name].size_bytes
        yield StageNeed(role, _FILES_IN_MEMORY * size, f"estimate: {_FILES_IN_MEMORY} times the files of {name}", name)
