"""The catalog beside the store and the machine: what is here, what fits, and what is being downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from app.config.schema import Config
from app.engine.memory_plan import AskCuda, open_peaks, precision_on, request_of
from app.errors import AgentError, ModelStoreError
from app.models.catalog import Catalog, Model
from app.models.progress import FetchStoppedError, Figures, Gauge
from app.models.store import Store
from app.viewmodel.background import Background
from app.viewmodel.base import ViewModel
from gpu.errors import GpuError
from gpu.memory.places import Machine, read_machine
from gpu.memory.preflight import plan

if TYPE_CHECKING:
    from app.engine.builder import Places


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict of the memory plan on a language model, with what was free when it was asked."""

    fits: bool
    place: str
    """Name of the memory that it would lie in."""
    needs_bytes: int
    free_bytes: int
    problem: str = ""
    """Why there is no verdict; a sentence."""


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model of the catalog."""

    model: Model
    state: str = ""
    """`in place`, `damaged`, `partial` or `missing`; "": not looked yet."""
    used_for: tuple[str, ...] = ()
    """Where the configuration names it: roles, and `persona NAME`."""
    fit: Fit | None = None
    """None: not planned (yet), or no language model."""
    activity: str = ""
    """`waiting`, `fetching`, `pausing`, `cancelling`, `removing` or `verifying`; "": none."""
    figures: Figures = field(default_factory=Figures)
    problem: str = ""
    """What went wrong last, a sentence of the store."""


class ModelsModel(ViewModel):
    """Rows by name. Everything slow happens in threads; `poll` brings in what they found."""

    def __init__(
        self,
        config: Config,
        where: Places,
        catalog: Catalog,
        *,
        env: Mapping[str, str],
        is_offline: bool,
        ask_cuda: AskCuda = lambda: None,
    ) -> None:
        super().__init__()
        self.store = Store(where.store, catalog)
        self._config = config
        self._where = where
        self._env = env
        self._is_offline = is_offline
        self._ask_cuda = ask_cuda
        self._background = Background("models")
        self._gauge: Gauge | None = None
        self._fetching = ""
        self._waiting: list[str] = []
        self._rows = {model.name: ModelRow(model, used_for=used_for(model, config)) for model in catalog}

    @property
    def rows(self) -> list[ModelRow]:
        """In the order of the catalog."""
        return list(self._rows.values())

    @property
    def is_busy(self) -> bool:
        """Whether anything is under way."""
        return self._background.is_busy

    def row(self, name: str) -> ModelRow:
        """KeyError for a name that is not in the catalog."""
        return self._rows[name]

    def look(self) -> None:
        """Look at the store and at the free memory again."""
        models = [row.model for row in self.rows]
        self._background.start(partial(_states, self.store, models), self._take_states)
        names = [model.name for model in models if model.role == "llm"]
        job = partial(_fits, self._config, self._where, names, self._env, self._ask_cuda)
        self._background.start(job, self._take_fits)

    def use(self, config: Config) -> None:
        """Another configuration is in force."""
        if config is not self._config:
            self._config = config
            for name, row in self._rows.items():
                self._set(name, used_for=used_for(row.model, config))
            self.look()

    def fetch(self, name: str) -> None:
        """Download, or go on with a download; one at a time, others wait their turn."""
        if self._rows[name].activity:
            return
        self._set(name, activity="waiting", problem="", figures=Figures())
        self._waiting.append(name)
        self._begin_next()

    def pause(self, name: str) -> None:
        """Stop; what was received stays."""
        self._stop(name, "pausing")

    def cancel(self, name: str) -> None:
        """Stop and delete what was received."""
        if self._rows[name].activity:
            self._stop(name, "cancelling")
        else:
            self._discard(name)

    def remove(self, name: str) -> None:
        """Delete the model from the store. The face has asked."""
        if not self._rows[name].activity:
            self._work(name, "removing", partial(self.store.remove, name))

    def verify(self, name: str) -> None:
        """Read every byte again."""
        if not self._rows[name].activity:
            self._work(name, "verifying", partial(self.store.check, self._rows[name].model, rehash=True))

    def poll(self) -> None:
        """Bring in what the threads have done."""
        self._background.poll()
        if self._gauge is not None and self._gauge.figures != self._rows[self._fetching].figures:
            self._set(self._fetching, figures=self._gauge.figures)

    def _begin_next(self) -> None:
        if self._gauge is not None or not self._waiting:
            return
        name = self._fetching = self._waiting.pop(0)
        self._gauge = Gauge()
        self._set(name, activity="fetching")
        job = partial(_fetch, self.store, self._rows[name].model, self._env, self._is_offline, self._gauge)
        self._background.start(job, self._take_fetched)

    def _take_fetched(self, problem: str) -> None:
        name, self._gauge = self._fetching, None
        is_cancelled = self._rows[name].activity == "cancelling"
        self._set(name, activity="", problem=problem, figures=Figures())
        if is_cancelled:
            self._discard(name)
        else:
            self._look_at(name)
        self._begin_next()

    def _stop(self, name: str, activity: str) -> None:
        if name in self._waiting:
            self._waiting.remove(name)
            self._set(name, activity="")
            if activity == "cancelling":
                self._discard(name)
        elif self._gauge is not None and name == self._fetching:
            self._gauge.stop()
            self._set(name, activity=activity)

    def _discard(self, name: str) -> None:
        self._work(name, "cancelling", partial(_discard, self.store, self._rows[name].model))

    def _look_at(self, name: str) -> None:
        self._background.start(partial(_states, self.store, [self._rows[name].model]), self._take_states)

    def _work(self, name: str, activity: str, work: Callable[[], object]) -> None:
        """Something brief with the store, in a thread; then look what came of it."""
        self._set(name, activity=activity, problem="")

        def take(problem: str) -> None:
            self._set(name, activity="", problem=problem)
            self._look_at(name)

        self._background.start(partial(_sentence_of, work), take)

    def _take_states(self, states: Mapping[str, str]) -> None:
        for name, state in states.items():
            self._set(name, state=state)

    def _take_fits(self, fits: Mapping[str, Fit]) -> None:
        for name, fit in fits.items():
            self._set(name, fit=fit)

    def _set(self, name: str, **values: object) -> None:
        self._rows[name] = replace(self._rows[name], **values)  # type: ignore[arg-type]
        self.changed()


def used_for(model: Model, config: Config) -> tuple[str, ...]:
    """Roles for which the configuration names the model, and personas that speak with it."""
    names = {
        "vad": config.ear.vad_model,
        "turn": config.turn.model,
        "asr": config.asr.model,
        "llm": config.llm.model,
        "tts": config.tts.model,
    }
    roles = [role for role, name in names.items() if name == model.name]
    personas = [f"persona {name}" for name, persona in config.personas.items() if persona.voice == model.name]
    return (*roles, *personas)


def _states(store: Store, models: list[Model]) -> dict[str, str]:
    return {model.name: store.state(model) for model in models}


def _fits(config: Config, where: Places, names: list[str], env: Mapping[str, str], ask: AskCuda) -> dict[str, Fit]:
    machine = read_machine(env, ask_cuda=ask)
    return {name: fit_of(config, where, machine, name) for name in names}


def fit_of(config: Config, where: Places, machine: Machine, name: str) -> Fit:
    """Whether the configuration with this language model fits: as an engine would decide that starts now."""
    try:
        request = request_of(config, where, machine, model=name)
        known = open_peaks(where).peak
        made = plan(request, machine, known)
        if not made.fits and request.kind == "cuda" and config.llm.device == "auto":
            on_cpu = plan(replace(request, kind="cpu", precision=precision_on("cpu", config)), machine, known)
            made = on_cpu if on_cpu.fits else made
    except (AgentError, GpuError) as error:
        return Fit(False, "", 0, 0, str(error))
    ledger = made.ledgers[0]
    return Fit(made.fits, ledger.place.name, ledger.needs_bytes, ledger.place.free_bytes)


def _fetch(store: Store, model: Model, env: Mapping[str, str], is_offline: bool, gauge: Gauge) -> str:
    """The sentence on what went wrong; "" where it is in place now or was stopped."""
    from app.models.fetch import fetch  # with the network library, which is slow to import

    try:
        fetch(store, [model], env=env, is_offline=is_offline, progress=gauge)
    except FetchStoppedError:
        pass
    except ModelStoreError as error:
        return str(error)
    return ""


def _discard(store: Store, model: Model) -> None:
    from app.models.download import discard  # see `_fetch`

    for part in store.downloads(model):
        discard(part)


def _sentence_of(work: Callable[[], object]) -> str:
    try:
        work()
    except ModelStoreError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""
