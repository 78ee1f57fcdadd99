"""The scenes module as a fixture: tests have no packages, so it cannot be imported by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def scenes(test_data: Path) -> ModuleType:
    """`ear_scenes`, reading from the folder of recordings."""
    spec = importlib.util.spec_from_file_location("ear_scenes", Path(__file__).with_name("ear_scenes.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DATA = test_data
    return module
