"""Importing a package needs none of the heavy or optional libraries; layers are checked by import-linter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "pycuda", "PySide6", "sherpa_onnx", "onnxruntime", "livekit", "sounddevice", "transformers")
MORE_FOR_AUDIO = ("pydantic", "soxr", "soundfile", "scipy", "onnx", "app", "gpu")

_IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    # Subclasses of transformers' classes, and the window, which is made of Qt: nothing else imports them.
    if module.name != "gpu.kv.hf_cache" and not module.name.startswith("app.ui."):
        importlib.import_module(module.name)
found = [name for name in sys.argv[2:] if name in sys.modules]
sys.exit(f"imported at module level: {', '.join(found)}" if found else 0)
"""


@pytest.mark.parametrize(
    ("package", "banned"), [("audio", (*HEAVY, *MORE_FOR_AUDIO)), ("gpu", (*HEAVY, "pydantic", "app")), ("app", HEAVY)]
)
def test_every_module_imports_without_heavy_libraries(package: str, banned: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", _IMPORT_ALL, package, *banned]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_layer_contracts_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    if not lint.exists():
        pytest.skip("import-linter is not installed: make test installs it")
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_no_package_marker_where_it_would_shadow() -> None:
    """`packaging` is a library's name, and `tests/audio` must not become the package `audio`."""
    assert not list((ROOT / "tests").rglob("__init__.py"))
    assert not (ROOT / "packaging" / "__init__.py").exists()


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
