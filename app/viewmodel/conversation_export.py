"""A conversation as a file that people read: plain text or Markdown."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.viewmodel.conversation import Line

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!])")


@dataclass(frozen=True, slots=True)
class ExportWords:
    """What a face says in the user's language."""

    user: str
    agent: str
    not_heard: str
    describe: Callable[[Line], str]
    """The sentence of a notice."""


def as_text(lines: Sequence[Line], words: ExportWords) -> str:
    """One paragraph a line; what was not heard of a reply stands in brackets."""

    def paragraphs() -> Iterator[str]:
        for line in lines:
            heard, unheard = _parts(line)
            if line.kind == "notice":
                yield f"({words.describe(line)})"
            else:
                name = words.user if line.kind == "user" else words.agent
                marked = f"[{words.not_heard}: {unheard}]" if unheard else ""
                yield f"{name}: {' '.join(part for part in (heard, marked) if part)}"

    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs())


def as_markdown(lines: Sequence[Line], words: ExportWords) -> str:
    """Names in bold, notices quoted, struck through what was not heard of a reply."""

    def paragraphs() -> Iterator[str]:
        for line in lines:
            heard, unheard = (_escaped(part) for part in _parts(line))
            if line.kind == "notice":
                yield f"> {_escaped(words.describe(line))}"
            else:
                name = words.user if line.kind == "user" else words.agent
                marked = f"~~{unheard}~~" if unheard else ""
                yield f"**{_escaped(name)}:** {' '.join(part for part in (heard, marked) if part)}"

    return "".join(f"{paragraph}\n\n" for paragraph in paragraphs())


def write_private(path: Path, content: str) -> None:
    """Replace `path` as a whole; only its owner may read it. Raises OSError; what was there stays then."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")  # with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _parts(line: Line) -> tuple[str, str]:
    """What was said or heard, and what of a reply that is over was not."""
    cut = line.heard_chars if line.is_cut_off else len(line.text)
    return " ".join(line.text[:cut].split()), " ".join(line.text[cut:].split())


def _escaped(text: str) -> str:
    """So that words are words: no list, heading or emphasis begins in them."""
    return re.sub(r"^(\d*)([-+.)])", r"\1\\\2", _MARKDOWN.sub(r"\\\1", text))
