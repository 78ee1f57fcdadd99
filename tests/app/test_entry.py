"""Which face `vivavoce` takes, and that the terminal's needs no Qt."""

from __future__ import annotations

import subprocess
import sys

import pytest

from app.cli.main import build_parser
from app.entry import wants_window

_SCREEN = {"DISPLAY": ":0"}


@pytest.mark.parametrize(
    ("flags", "environ", "wanted"),
    [
        ([], _SCREEN, True),
        ([], {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ([], {}, False),
        (["--no-ui"], _SCREEN, False),
        (["--input", "a.wav"], _SCREEN, False),
        (["--output", "a.wav"], _SCREEN, False),
        (["--in-process"], _SCREEN, False),
        (["--record", "talk"], _SCREEN, True),
    ],
)
def test_a_window_where_there_is_a_screen_for_it(flags: list[str], environ: dict[str, str], wanted: bool) -> None:
    pytest.importorskip("PySide6")
    assert wants_window(build_parser().parse_args(flags), environ) is wanted


def test_no_window_without_qt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not wants_window(build_parser().parse_args([]), _SCREEN)


_TALK = """
import sys
from app.entry import main
sys.argv = ["vivavoce", "--no-ui", "--input", "no-such-file.wav"]
code = main()
loaded = [name for name in sys.modules if name.startswith(("PySide6", "shiboken6", "app.ui"))]
sys.exit(f"imported: {loaded}" if loaded else code)
"""


def test_the_terminal_never_imports_qt() -> None:
    env = {"DISPLAY": ":0", "PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    done = subprocess.run([sys.executable, "-c", _TALK], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2, done.stderr
    assert "no-such-file.wav" in done.stderr
