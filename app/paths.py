"""Where things lie: shipped assets, the user's configuration, data and log folders. Creates nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

APP_FOLDER = "vivavoce"


def assets_dir() -> Path:
    """The folder with `default.toml` and `catalog.toml`.

    A wheel carries it inside the package (`app/assets`); a checkout has it beside the package.
    """
    package = Path(__file__).resolve().parent
    installed = package / "assets"
    return installed if installed.is_dir() else package.parent / "assets"


def config_file(env: Mapping[str, str]) -> Path:
    """The user's configuration file, which need not exist."""
    return _base(env, "XDG_CONFIG_HOME", "APPDATA", ".config") / "config.toml"


def data_dir(env: Mapping[str, str]) -> Path:
    """Journals, recordings, and the model store unless it is put elsewhere."""
    return _base(env, "XDG_DATA_HOME", "LOCALAPPDATA", ".local/share")


def state_dir(env: Mapping[str, str]) -> Path:
    """Logs."""
    return _base(env, "XDG_STATE_HOME", "LOCALAPPDATA", ".local/state")


def default_store(env: Mapping[str, str]) -> Path:
    """The model store where neither the configuration nor `VIVAVOCE_STORE` names one."""
    return Path(env["VIVAVOCE_STORE"]) if env.get("VIVAVOCE_STORE") else data_dir(env) / "models"


def _base(env: Mapping[str, str], variable: str, windows_variable: str, below_home: str) -> Path:
    if env.get(variable):
        return Path(env[variable]) / APP_FOLDER
    if os.name == "nt" and env.get(windows_variable):
        return Path(env[windows_variable]) / APP_FOLDER
    return Path(env.get("HOME") or Path.home()) / below_home / APP_FOLDER
