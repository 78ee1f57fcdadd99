"""Configuration in, wired objects out: the only file that names concrete classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app import events
from app.config.schema import Config
from app.conversation.agent import Conversation, ConversationSettings, Engines
from app.conversation.costs import CostTable
from app.conversation.desk import ChargedRelease, Desk, LiveRelease, Release
from app.conversation.history import History
from app.conversation.output import ReplyOutput
from app.conversation.resume import ResumePoint
from app.conversation.speaker import SpeakerSettings
from app.conversation.turn import TurnSettings
from app.engine.memory_plan import missing_on_cpu, open_peaks, plan_start
from app.engine.memory_reporter import MemoryReporter
from app.engine.peak_recorder import PeakRecorder
from app.engine.persona import check_persona
from app.engine.pressure_guard import GpuMemory, HostMemory, News, PressureGuard, limits
from app.engine.relocation import Relocation
from app.engine.snapshots import SnapshotKeeper, resume
from app.engine.tended_model import TendedModel
from app.engine.upkeep import Upkeep
from app.models.catalog import load_catalog
from app.models.own import choose, engine_of
from app.models.store import Store
from app.paths import data_dir, default_store
from app.samples import sample_questions
from audio.asr.growing import GrowingConfig
from audio.ear import EarSpec
from gpu.errors import GpuError
from gpu.llm.protocol import SamplingParams
from gpu.memory.host_peak import resident_bytes
from gpu.memory.ladder import Rung
from gpu.memory.places import cuda_memory
from gpu.memory.preflight import Plan
from gpu.memory.rungs import QUESTION_TOKENS, CpuRung, KvRung, SpareRung, WindowRung

if TYPE_CHECKING:
    from gpu.llm.model import LocalLanguageModel

_ECHO_TAIL_MS = 300.0
_RESUME_MS = 120.0


@dataclass(frozen=True, slots=True)
class Places:
    """Folders of one run."""

    store: Path
    cache: Path
    """What is made from models once: converted weights, the proof that recognition files work."""
    data: Path


def places(config: Config, env: Mapping[str, str]) -> Places:
    """The folders that configuration and environment name."""
    store = Path(config.paths.store) if config.paths.store else default_store(env)
    data = Path(config.paths.data) if config.paths.data else data_dir(env)
    return Places(store, data / "cache", data)


def model_files(config: Config, where: Places) -> dict[str, dict[str, Path]]:
    """Checked files of every model that the configuration names, by role, then by part.

    Raises:
        ModelStoreError: one is missing, damaged or unknown, or a path to the user's own cannot be used.
    """
    store = Store(where.store, load_catalog())
    return {role: dict(choose(name, role, store).parts) for role, name in _models(config).items()}


def engine_names(config: Config) -> dict[str, str]:
    """Which engine runs each role's model."""
    catalog = load_catalog()
    return {role: engine_of(name, role, catalog) for role, name in _models(config).items()}


def _models(config: Config) -> dict[str, str]:
    """Configured model of each role: a name of the catalog, or a path."""
    return {
        "asr": config.asr.model,
        "vad": config.ear.vad_model,
        "turn": config.turn.model,
        "llm": config.llm.model,
        "tts": config.active_persona().voice or config.tts.model,
    }


def ear_spec(config: Config, files: Mapping[str, Mapping[str, Path]]) -> EarSpec:
    """What the ear is made of."""
    return EarSpec(
        silero_path=str(files["vad"]["model"]),
        chain=tuple(config.ear.chain),
        vad_after=config.ear.vad_after,
        gate_mode=config.ear.gate_mode,
        vad_on=config.ear.speech_on,
        vad_off=config.ear.speech_off,
    )


def check_models(config: Config, where: Places) -> None:
    """Refuse files that would end the process that loads them, and models that do not fit into the memory that is free.

    Quick where the files were checked before.

    Raises:
        ModelStoreError, ModelFileError: which file, and the fix.
        MemoryPlanError: how much is missing, and three fixes.
    """
    from audio.asr.validate import KnownClip, validate

    files, known = model_files(config, where), sample_questions()[0]
    plan_start(config, where)  # first: the validation loads a model
    clip = KnownClip(known.path, known.text)
    validate(engine_names(config)["asr"], files["asr"], clip, cache_dir=where.cache)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Everything that a conversation works with, and what it took to get there."""

    engines: Engines
    llm: LocalLanguageModel
    """The language model of `engines`."""
    backends: Sequence[tuple[str, str, int]]
    """(stage, backend, bytes) of each."""
    plan: Plan
    grown_bytes: Mapping[str, int]
    """By how much RAM grew while a stage loaded."""


def open_engines(
    config: Config,
    where: Places,
    notice: Callable[[str], None] = lambda _: None,
    *,
    avoids_gpu: bool = False,
) -> tuple[Engines, Sequence[tuple[str, str, int]]]:
    """As `load_engines`, for those who keep nothing up: the models, and (stage, backend, bytes) of each."""
    loaded = load_engines(config, where, notice, avoids_gpu=avoids_gpu)
    return loaded.engines, loaded.backends


def load_engines(
    config: Config,
    where: Places,
    notice: Callable[[str], None] = lambda _: None,
    *,
    avoids_gpu: bool = False,
    snapshot: Path | None = None,
) -> Loaded:
    """Load the models, which `check_models` has passed.

    `notice` is told in a sentence where the language model runs on the CPU although it should not. `snapshot`: where
    an engine before this one may have kept what its language model had read.

    Raises:
        AgentError, AudioError, GpuError: what is missing or broken, with the fix.
    """
    from audio.asr.registry import create as create_asr
    from audio.tts.registry import create as create_tts
    from audio.turn.smart_turn import SmartTurn

    files = model_files(config, where)
    engine = engine_names(config)
    grown: dict[str, int] = {}
    with _growth("asr", grown):
        asr = create_asr(engine["asr"], files["asr"], threads=config.asr.threads)
    made = plan_start(config, where, avoids_gpu=avoids_gpu, ask_cuda=cuda_memory)
    llm = _open_llm(config, files["llm"]["model"], where, notice, made, avoids_gpu=avoids_gpu)
    check_persona(config, llm)
    if snapshot is None or not resume(llm, snapshot):
        llm.warm(History(config.active_persona().prompt).messages("")[:-1])
    with _growth("tts", grown):
        tts = create_tts(engine["tts"], files["tts"])
    with _growth("turn", grown):
        turn = SmartTurn(files["turn"]["model"])
    engines = Engines(asr, turn, llm, tts)
    backends = [
        ("asr", engine["asr"], asr.memory_bytes()),
        ("turn", turn.backend, turn.memory_bytes()),
        ("llm", llm.backend, llm.memory_bytes()),
        ("tts", engine["tts"], tts.memory_bytes()),
    ]
    return Loaded(engines, llm, backends, made, grown)


@contextmanager
def _growth(stage: str, grown: dict[str, int]) -> Iterator[None]:
    before = resident_bytes()
    yield
    grown[stage] = resident_bytes() - before


def _open_llm(
    config: Config, path: Path, where: Places, notice: Callable[[str], None], made: Plan, *, avoids_gpu: bool
) -> LocalLanguageModel:
    """On the GPU where there is one that works and has room, else on the CPU: slower, but it talks."""
    from gpu.device import choose_device
    from gpu.kv.pages_vmm import open_vmm
    from gpu.memory.budget import budget_of
    from gpu.memory.pool import Pools

    device, problem = choose_device("cpu" if avoids_gpu else config.llm.device)
    if device != "cpu" and made.request.kind == "cpu":
        device, problem = "cpu", f"{device} has too little free memory (vivavoce plan says how much)"
    if device != "cpu":
        pools = Pools()
        try:
            pools.take(budget_of(made, arena_is_torchs=bool(open_vmm(device)[1])))
            return _load_llm(config, path, where, device)
        except (RuntimeError, GpuError) as error:  # torch's own class for every CUDA failure, out of memory too
            problem = str(error).splitlines()[0]
        pools.give_back(device)  # behind the error, which holds what had been loaded
    if avoids_gpu or problem:
        notice(f"the language model runs on the CPU: {problem or 'an engine before this one died on the GPU'}")
    return _load_llm(config, path, where, "cpu")


def _load_llm(config: Config, path: Path, where: Places, device: str) -> LocalLanguageModel:
    from gpu.llm.model import open_language_model

    return open_language_model(
        path,
        device=device,
        precision=config.llm.precision,
        context_tokens=config.llm.context_tokens,
        kv_dtype=config.llm.kv_dtype,
        cache_dir=where.cache,
        threads=config.llm.threads,
    )


def open_upkeep(config: Config, where: Places, loaded: Loaded, model: TendedModel, snapshot: Path | None) -> Upkeep:
    """Starts what an engine does beside the conversation for `model`, which holds `loaded.llm`."""
    upkeep = Upkeep()
    recorder = PeakRecorder(model, open_peaks(where), loaded.plan, model.device, loaded.grown_bytes)
    tasks: list[Callable[[], object]] = [recorder.look]
    guard = _guard(config, where, loaded, model, upkeep.tell) if config.memory.guard else None
    if guard is not None:
        tasks.append(guard.look)
    tasks.append(MemoryReporter(model, guard, upkeep.tell).look)
    if snapshot is not None:
        tasks.append(SnapshotKeeper(model, snapshot, lambda: upkeep.is_idle).look)
    upkeep.start(tasks, begin=[model.enter_thread, recorder.begin], end=[recorder.close])
    return upkeep


def _guard(
    config: Config, where: Places, loaded: Loaded, model: TendedModel, tell: Callable[[News], None]
) -> PressureGuard:
    home, host = model.device, HostMemory(model)
    window = WindowRung(
        model,
        least_tokens=_least_window_tokens(config, model),
        reply_tokens=config.active_persona().max_reply_tokens,
    )
    rungs: list[Rung] = [SpareRung(model), window, KvRung(model)]
    if home == "cpu":
        return PressureGuard(host, limits(config.memory.tight_mb, host.total_bytes()), rungs, tell)
    gpu, path = GpuMemory(model, home), model_files(config, where)["llm"]["model"]
    relocation = Relocation(
        model, home, partial(_load_llm, config, path, where), partial(missing_on_cpu, config, loaded.plan)
    )
    rungs.append(CpuRung(lambda: model.memory_bytes_on(home), relocation.move))
    return PressureGuard(gpu, limits(config.memory.tight_mb, gpu.total_bytes()), rungs, tell)


def _least_window_tokens(config: Config, model: TendedModel) -> int:
    """What the persona, a question and a reply need, and at least what is configured."""
    persona = config.active_persona()
    prompt_tokens = model.count_tokens(History(persona.prompt).messages(""))
    return max(config.memory.least_context_tokens, prompt_tokens + persona.max_reply_tokens + QUESTION_TOKENS)


def conversation_settings(config: Config, output_latency_ms: float) -> ConversationSettings:
    """The configuration's numbers as the conversation wants them."""
    persona, turn, llm = config.active_persona(), config.turn, config.llm
    sampling = SamplingParams(llm.temperature, llm.top_k, llm.top_p, llm.repetition_penalty, llm.seed)
    return ConversationSettings(
        turn=TurnSettings(
            min_silence_ms=turn.min_silence_ms,
            max_silence_ms=turn.max_silence_ms,
            complete_threshold=turn.complete_threshold,
            barge_in_ms=turn.barge_in_ms,
            cold_barge_in_ms=turn.cold_barge_in_ms,
            barge_in_threshold=turn.barge_in_threshold,
            resume_ms=_RESUME_MS,
            echo_tail_ms=_ECHO_TAIL_MS,
        ),
        speaker=SpeakerSettings(sampling, persona.max_reply_tokens, persona.max_history_tokens, output_latency_ms),
        growing=GrowingConfig(
            interval_ms=config.asr.partial_ms,
            cut_after_ms=config.asr.soft_cut_s * 1000,
            cut_at_ms=config.asr.hard_cut_s * 1000,
        ),
        preroll_ms=turn.preroll_ms,
    )


def open_desk(costs: CostTable | None, *, is_paced: bool, release: Release | None = None) -> Desk:
    """A desk that charges `costs`, or works live where there are none; a replay brings its own `release`."""
    from app.conversation.costs import zero_costs

    table = costs or zero_costs()
    if release is None:
        release = LiveRelease() if costs is None else ChargedRelease(table, is_paced=is_paced)
    return Desk(release, table)


def open_conversation(
    config: Config,
    engines: Engines,
    desk: Desk,
    output: ReplyOutput,
    emit: Callable[[events.Event], None],
    *,
    output_latency_ms: float,
    resume: ResumePoint,
    first_generation: int = 0,
) -> Conversation:
    """The conversation of the configured persona, from where it stands."""
    return Conversation(
        engines,
        conversation_settings(config, output_latency_ms),
        desk,
        output,
        History(config.active_persona().prompt, resume.exchanges),
        emit,
        first_generation=first_generation,
        last_turn=resume.last_turn,
    )
