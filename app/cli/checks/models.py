"""The models of the store and of the configuration, and the memory that they want."""

from __future__ import annotations

from collections.abc import Iterator

from app.cli.checks.check import Check
from app.cli.models import open_store
from app.config.schema import Config
from app.errors import ModelStoreError
from app.models.own import choose


def configured(config: Config) -> dict[str, str]:
    """Role to the model that a conversation would use: a name of the catalog or a path."""
    return {
        "vad": config.ear.vad_model,
        "turn": config.turn.model,
        "asr": config.asr.model,
        "llm": config.llm.model,
        "tts": config.active_persona().voice or config.tts.model,
    }


def checks(config: Config) -> Iterator[Check]:
    """The configured ones, of which none may be missing; then what else the store holds, and whether it is sound."""
    store = open_store(config)
    wanted = configured(config)
    for role, name in wanted.items():
        try:
            choose(name, role, store)
            yield Check(f"model {role}", "ok", name)
        except ModelStoreError as error:
            fix = error.fix or f"Choose another one with --set {role}.model=NAME"
            yield Check(f"model {role}", "problem", error.message, fix)
    for model in store.catalog:
        state = store.state(model)
        if model.name not in wanted.values() and state not in ("missing", "in place"):
            fix = f"Run: vivavoce models fetch {model.name}"
            yield Check(f"model {model.name}", "warning", f"{state} in the store, not in use", fix)
