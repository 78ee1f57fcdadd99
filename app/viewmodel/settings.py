"""Every key of the configuration, who set it, and what the user would change; saved only when it loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app.config.keys import ANY_NAME, Key, all_keys, find_key, flatten
from app.config.load import Loaded, load_text
from app.config.save import edited, read_user_file, save_keys
from app.errors import ConfigError
from app.models.catalog import ROLES, Catalog
from app.viewmodel.base import ViewModel

Origin = Literal["default", "persona", "file", "environment", "flag"]
"""`persona`: taken from the persona `default`."""
Editor = Literal["choice", "suggestions", "switch", "whole", "number", "text", "long_text", "list", "folder"]
_UNITS = ("ms", "hz", "s", "mb", "tokens")
_MODEL_ROLES = {f"{role}.model": role for role in ROLES} | {"ear.vad_model": "vad"}
_FORBIDDEN_IN_NAMES = frozenset('."\\')


@dataclass(frozen=True, slots=True)
class Setting:
    """One key as it would be after saving."""

    name: str
    """Dotted."""
    key: Key
    value: Any
    origin: Origin
    origin_text: str
    """As in `environment VIVAVOCE__LLM__SEED`."""
    editor: Editor
    suggestions: tuple[str, ...]
    unit: str
    is_changed: bool
    """Not saved yet."""
    problem: str
    """Why it cannot be saved, in the loader's words; "": it can."""
    is_last_of_persona: bool = False
    """The persona is there because of this key alone: without it, it would be gone."""

    @property
    def is_locked(self) -> bool:
        """Environment and flags win over the file, so that a change there would do nothing."""
        return self.origin in ("environment", "flag")

    @property
    def section(self) -> str:
        """All but the last part: `llm`, `personas.NAME`, "" for a key without a table."""
        return self.name.rpartition(".")[0]

    @property
    def can_be_default(self) -> bool:
        """Whether there is something to take back."""
        return not self.is_locked and not self.is_last_of_persona and (self.origin == "file" or self.is_changed)


class SettingsModel(ViewModel):
    """The saved configuration and the changes to it, each of which can be taken back until they are applied."""

    def __init__(
        self, loaded: Loaded, catalog: Catalog, *, env: Mapping[str, str], restart: Callable[[Loaded], None]
    ) -> None:
        super().__init__()
        self._env = env
        self._restart = restart
        self._models = {role: tuple(m.name for m in catalog if m.role == role) for role in ROLES}
        self._loaded = loaded
        self._show(loaded)
        self._changes: dict[str, Any] = {}
        """Dotted key to its new value; None: back to the default."""
        self._history: list[dict[str, Any]] = []
        self._problems: dict[str, str] = {}
        self._seen = _state_of(loaded.user_file)
        self.trouble = ""
        """Why it could not be saved or read again; a sentence."""

    @property
    def user_file(self) -> Path:
        """Where changes go."""
        return self._loaded.user_file

    @property
    def has_changes(self) -> bool:
        """Whether anything is not saved."""
        return bool(self._changes)

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to take back."""
        return bool(self._history)

    @property
    def can_apply(self) -> bool:
        """Whether there is something to save, all of which may be saved."""
        return self.has_changes and not self._problems

    @property
    def problems(self) -> Mapping[str, str]:
        """Sentence by key; "" is the key where the file as a whole is wrong."""
        return self._problems

    @property
    def personas(self) -> tuple[str, ...]:
        """Names, those not saved yet among them."""
        names = [*self._would_be.config.personas, *(key.split(".")[1] for key in self._changes if _is_persona(key))]
        return tuple(name for name in dict.fromkeys(names) if not self._is_removed(name))

    @property
    def sections(self) -> tuple[str, ...]:
        """In the order of the schema; personas by name at the end."""
        patterns = (key.pattern.rpartition(".")[0] for key in all_keys() if ANY_NAME not in key.pattern)
        return (*dict.fromkeys(patterns), *(f"personas.{name}" for name in self.personas))

    def settings(self, section: str) -> list[Setting]:
        """Those of one section."""
        return [self.setting(name) for name in self._names() if name.rpartition(".")[0] == section]

    def matching(self, text: str) -> list[Setting]:
        """Those whose key, help or value has every word of `text`."""
        words = text.casefold().split()
        found = (self.setting(name) for name in self._names())
        return [
            one for one in found if all(word in f"{one.name} {one.key.help} {one.value}".casefold() for word in words)
        ]

    def has(self, name: str) -> bool:
        """Whether there is such a key; a persona that was taken out has none any more."""
        return find_key(name) is not None and (not _is_persona(name) or name.split(".")[1] in self.personas)

    def setting(self, name: str) -> Setting:
        """One key. KeyError where there is none."""
        key = find_key(name)
        if key is None or not self.has(name):
            raise KeyError(name)
        origin_text = self._would_be.origins.get(name, "default")
        value = self._changes.get(name)
        if value is None:
            value = self._values[name] if name in self._values else self._fallback(name)
        return Setting(
            name=name,
            key=key,
            value=value,
            origin=_origin(origin_text),
            origin_text=origin_text,
            editor=_editor(key, self._suggestions(name)),
            suggestions=self._suggestions(name),
            unit=_unit(name),
            is_changed=name in self._changes,
            problem=self._problems.get(name, ""),
            is_last_of_persona=_is_persona(name) and self._own_keys(name.split(".")[1]) == [name],
        )

    def set_value(self, name: str, value: Any) -> None:
        """Change a key; whether it may be is in its `problem` afterwards. The saved value is no change."""
        setting = self.setting(name)
        if setting.is_locked or setting.value == value:
            return
        changes = {**self._changes, name: value}
        saved = flatten(self._loaded.config.model_dump())
        if name in saved and saved[name] == value:
            changes.pop(name)
        self._change(changes)

    def set_default(self, name: str) -> None:
        """Take the key out of the file."""
        if self.setting(name).can_be_default:
            changes = {key: value for key, value in self._changes.items() if key != name}
            if _origin(self._loaded.origins.get(name, "default")) == "file":
                changes[name] = None
            self._change(changes)

    def undo(self) -> None:
        """Take the last change back."""
        if self._history:
            self._changes = self._history.pop()
            self._check()

    def discard(self) -> None:
        """Take all changes back, as one change."""
        if self._changes:
            self._change({})

    def apply(self) -> bool:
        """Save, and begin the conversation anew; False: it could not be saved, and `trouble` says why."""
        if not self.can_apply:
            return False
        try:
            save_keys(self.user_file, self._changes)
            self._read()
        except ConfigError as error:
            self.trouble = str(error)
            self.changed()
            return False
        self._changes, self._history = {}, []
        self._check()
        self._restart(self._loaded)
        return True

    def use(self, loaded: Loaded) -> None:
        """Another configuration is in force: somebody else began the conversation anew."""
        if loaded is not self._loaded:
            self._loaded = loaded
            self._seen = _state_of(loaded.user_file)
            self._check()

    def poll(self) -> None:
        """Follow the file, which others may change too."""
        if (state := _state_of(self.user_file)) != self._seen:
            self._seen = state
            try:
                self._read()
            except ConfigError as error:
                self.trouble = str(error)
                self.changed()
            else:
                self._check()

    # --- personas

    def can_name(self, name: str) -> bool:
        """Whether a persona may be called that."""
        is_plain = bool(name.strip()) and name.isprintable() and not set(name) & _FORBIDDEN_IN_NAMES
        return is_plain and name not in self.personas

    def add_persona(self, name: str) -> None:
        """A persona that begins like `default`. ValueError for a name that cannot be."""
        self._require_name(name)
        self._change({**self._changes, f"personas.{name}.prompt": ""})

    def can_remove(self, name: str) -> bool:
        """Whether the persona is the user's own; those that come with the program can only be changed."""
        origins = self._would_be.origins
        found = [_origin(origins.get(key, "file")) for key in self._names() if key.startswith(f"personas.{name}.")]
        return "file" in found and set(found) <= {"file", "persona"}

    def remove_persona(self, name: str) -> None:
        """Take it out of the file; if it was the one that speaks, the default speaks."""
        if self.can_remove(name):
            changes = self._without(name)
            if self.setting("persona").value == name:
                changes["persona"] = "default"
            self._change(changes)

    def rename_persona(self, name: str, new_name: str) -> None:
        """ValueError for a name that cannot be."""
        self._require_name(new_name)
        if not self.can_remove(name):
            return
        values = {}
        for setting in self.settings(f"personas.{name}"):
            if setting.origin == "file" or setting.is_changed:
                values[f"personas.{new_name}.{setting.name.rpartition('.')[2]}"] = setting.value
        changes = {**self._without(name), **values}
        if self.setting("persona").value == name:
            changes["persona"] = new_name
        self._change(changes)

    def _require_name(self, name: str) -> None:
        if not self.can_name(name):
            raise ValueError(f"no persona can be called {name!r}")

    def _without(self, persona: str) -> dict[str, Any]:
        """The changes with those that remove a persona."""
        prefix = f"personas.{persona}."
        changes = {key: value for key, value in self._changes.items() if not key.startswith(prefix)}
        saved = [key for key, origin in self._loaded.origins.items() if _origin(origin) == "file"]
        return {**changes, **{key: None for key in saved if key.startswith(prefix)}}

    def _own_keys(self, persona: str) -> list[str]:
        """Keys by which a persona is in the file or will be; those that come with the program have more than these."""
        prefix, origins = f"personas.{persona}.", self._would_be.origins
        saved = [key for key in origins if key.startswith(prefix) and _origin(origins[key]) in ("file", "default")]
        changed = [key for key, value in self._changes.items() if key.startswith(prefix) and value is not None]
        return list(dict.fromkeys([*saved, *changed]))

    def _is_removed(self, persona: str) -> bool:
        keys = [value for key, value in self._changes.items() if key.startswith(f"personas.{persona}.")]
        return bool(keys) and all(value is None for value in keys) and persona not in self._would_be.config.personas

    # --- what is common to all

    def _names(self) -> list[str]:
        names = [key.pattern for key in all_keys() if ANY_NAME not in key.pattern]
        fields = [key.pattern.rpartition(".")[2] for key in all_keys() if ANY_NAME in key.pattern]
        return [*names, *(f"personas.{name}.{field}" for name in self.personas for field in fields)]

    def _suggestions(self, name: str) -> tuple[str, ...]:
        if name == "persona":
            return self.personas
        if name in _MODEL_ROLES:
            return self._models[_MODEL_ROLES[name]]
        if _is_persona(name) and name.endswith(".voice"):
            return ("", *self._models["tts"])
        return ("auto", "cpu", "cuda") if name == "llm.device" else ()

    def _fallback(self, name: str) -> Any:
        """A key of a persona that does not load yet: as the default persona has it."""
        return getattr(self._loaded.config.personas["default"], name.rpartition(".")[2])

    def _change(self, changes: dict[str, Any]) -> None:
        self._history.append(self._changes)
        self._changes = changes
        self._check()

    def _check(self) -> None:
        """Load what would be saved. What is wrong is set aside, one key after another, to find all that is."""
        self.trouble, self._problems = "", {}
        changes = dict(self._changes)
        while True:
            try:
                text = edited(read_user_file(self.user_file), self.user_file, changes)
                load_text(text, self.user_file, env={})  # as saving will ask
                self._show(self._load(text))
                break
            except ConfigError as error:
                self._problems[error.key] = _sentence(error)
                if changes.pop(error.key, None) is None:  # of several keys that must fit each other, any may be named
                    self._show(self._loaded)
                    break
        self.changed()

    def _show(self, loaded: Loaded) -> None:
        self._would_be, self._values = loaded, flatten(loaded.config.model_dump())

    def _read(self) -> None:
        """The saved state, from the file."""
        self._loaded = self._load(read_user_file(self.user_file))
        self._seen = _state_of(self.user_file)

    def _load(self, text: str) -> Loaded:
        return load_text(text, self.user_file, env=self._env, overrides=self._loaded.overrides)


def _is_persona(key: str) -> bool:
    return key.startswith("personas.")


def _origin(text: str) -> Origin:
    if text == "default":
        return "default"
    if text.startswith("personas."):
        return "persona"
    if text.startswith("environment "):
        return "environment"
    return "flag" if text.startswith("flag ") else "file"


def _editor(key: Key, suggestions: tuple[str, ...]) -> Editor:
    if key.kind is list:
        return "list"
    if key.choices:
        return "choice"
    if suggestions:
        return "choice" if key.pattern == "persona" else "suggestions"
    if key.kind is bool:
        return "switch"
    if key.kind in (int, float):
        return "whole" if key.kind is int else "number"
    if key.pattern.startswith("paths."):
        return "folder"
    return "long_text" if key.pattern.endswith(".prompt") else "text"


def _unit(name: str) -> str:
    ending = name.rpartition("_")[2] if "_" in name.rpartition(".")[2] else ""
    return ending if ending in _UNITS else ""


def _sentence(error: ConfigError) -> str:
    """Without the place: it is being edited."""
    message = error.message.replace(f" ({error.origin})", "")
    return f"{message}. {error.fix}" if error.fix else message


def _state_of(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)
