"""Bring the translations up to date with the sources: `python tools/update_translations.py [--check]`.

Collects the texts of `app/ui` into `assets/i18n/zh.ts`, keeps what is translated, and compiles `zh.qm`, which the
window loads. New texts are `unfinished` in the .ts: translate them there and run this again. `--check` writes
nothing and exits with 1 where a text is missing, unfinished or no longer used.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import PySide6

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "app" / "ui"
TS = ROOT / "assets" / "i18n" / "zh.ts"
QM = TS.with_suffix(".qm")
ALIAS = "QT_TRANSLATE_NOOP+=title"
"""`app.ui.registry` writes its titles with this shorter name."""
Texts = dict[tuple[str, str], str]


def collect(ts: Path) -> None:
    """Put the texts of the sources into `ts`, with the translations that it has already."""
    sources = sorted(path.relative_to(ROOT) for path in SOURCES.rglob("*.py") if path.name != "__init__.py")
    languages = ("-source-language", "en", "-target-language", "zh_CN")
    options = ("-silent", "-no-obsolete", "-locations", "none", "-tr-function-alias", ALIAS, *languages)
    _run("lupdate", *map(str, sources), *options, "-ts", str(ts))


def compile_to(qm: Path, ts: Path) -> None:
    """Make of a .ts what the program loads."""
    _run("lrelease", "-silent", str(ts), "-qm", str(qm))


def read(ts: Path) -> Texts:
    """Translation of each (context, source); "" where it is unfinished."""
    texts: Texts = {}
    for context in ElementTree.parse(ts).iter("context"):
        for message in context.iter("message"):
            translation = message.find("translation")
            assert translation is not None
            is_done = translation.get("type") is None
            key = (context.findtext("name", ""), message.findtext("source", ""))
            texts[key] = (translation.text or "") if is_done else ""
    return texts


def problems() -> list[str]:
    """What is missing, unfinished or not used any more, in sentences."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "zh.ts"
        collect(fresh)
        wanted, held = read(fresh), read(TS)
    found = [
        f"{context}: no translation of {source!r}" for context, source in wanted if not held.get((context, source))
    ]
    return found + [
        f"{context}: no longer used: {source!r}" for context, source in held if (context, source) not in wanted
    ]


def _run(tool: str, *arguments: str) -> None:
    """One of the tools that PySide6 brings along."""
    name = f"{tool}.exe" if os.name == "nt" else tool
    subprocess.run([str(Path(PySide6.__file__).parent / name), *arguments], cwd=ROOT, check=True)


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something is to do")
    if not parser.parse_args().check:
        TS.parent.mkdir(parents=True, exist_ok=True)
        collect(TS)
        compile_to(QM, TS)
    found = problems()
    sys.stdout.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
