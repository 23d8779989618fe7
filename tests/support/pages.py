"""Pages of the documentation, run as a reader would: their blocks in order, in a folder of their own."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from fedlightning.cli import main

BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
NEAR = 0.15
"""Share by which a printed number may be off; the last digit shown may always be off by two."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is, its text, and what the page says it prints."""

    language: str
    file: str
    text: str
    prints: str | None


def blocks(page: str) -> list[Block]:
    """The blocks of a page; a ``text`` block belongs to the one before."""
    found = BLOCK.findall(page)
    after = [*found[1:], ("", "", "")]
    return [
        Block(
            language,
            (re.search(r'title="([^"]+)"', options) or ["", ""])[1],
            text,
            following[2] if following[0] == "text" else None,
        )
        for (language, options, text), following in zip(found, after, strict=True)
        if language != "text"
    ]


def run(page: Path, monkeypatch) -> int:
    """Run the Python, the commands and the files of a page in the current folder; the number of blocks run."""
    names = ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, names.__name__, names)
    monkeypatch.setattr(sys, "path", [str(Path.cwd()), *sys.path])
    done = 0
    for block in blocks(page.read_text()):
        if block.file:
            Path(block.file).write_text(block.text)
        elif block.language == "python":
            shown: list[str] = []
            vars(names)["print"] = lambda *values, shown=shown: shown.append(" ".join(map(str, values)))
            exec(compile(block.text, f"{page.name}: {block.text[:60]!r}", "exec"), vars(names))
            if block.prints is not None:
                assert_alike("\n".join(shown), block.prints)
        elif block.language == "console":
            for line in block.text.replace("\\\n", " ").splitlines():
                command(line, monkeypatch)
        else:
            continue
        done += 1
    return done


def command(line, monkeypatch):
    """Run a line ``$ fedlightning ...``; it must not end with an error."""
    prompt, *words = shlex.split(line)
    assert (prompt, words[0]) == ("$", "fedlightning"), line
    monkeypatch.setattr(sys, "argv", words)
    assert not status(), line


def status():
    """The status with which the command ends."""
    try:
        main()
    except SystemExit as end:
        return end.code
    return 0


def assert_alike(shown, printed):
    """Equal words, and numbers that agree nearly."""
    assert NUMBER.sub("#", shown).split() == NUMBER.sub("#", printed).split(), f"printed {shown!r}"
    for ours, theirs in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        last_digit = 10.0 ** -len(theirs.partition(".")[2])
        room = max(2 * last_digit if "." in theirs else 0, NEAR * abs(float(theirs)))
        assert abs(float(ours) - float(theirs)) <= room, f"{ours} instead of {theirs} in {shown!r}"
