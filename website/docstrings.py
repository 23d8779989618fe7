"""Docstrings as Markdown: prose, updates as code, and the paragraphs on symbols and departures."""

from __future__ import annotations

import re
from dataclasses import dataclass

UPDATE = re.compile(r"^(Client|Server|Phase \d|Stage)\b.*(:|<-|=)|^\s{2,}\S")
"""First characters of a line that belongs to an update: who does it, or further in than prose."""

ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):`~?([^`]+)`")
MARKED = re.compile(r"``(.+?)``")


@dataclass(frozen=True)
class Method:
    """Holds the parts of an algorithm's module docstring.

    Attributes:
        title: Its first sentence: name, source and what it does.
        text: The method, as Markdown.
        symbols: Symbol of the paper and name here, in order.
        departures: Where the code differs from the paper, and why, as Markdown; empty if nothing is said.
    """

    title: str
    text: str
    symbols: tuple[tuple[str, str], ...]
    departures: str


def method(docstring: str) -> Method:
    """Return the parts of an algorithm's module docstring."""
    first, *paragraphs = re.split(r"\n\s*\n", docstring.strip())
    named = {name: next((p for p in paragraphs if p.startswith(f"{name}:")), "") for name in ("Symbols", "Departures")}
    rest = [paragraph for paragraph in paragraphs if paragraph not in named.values()]
    return Method(
        title=prose(first.replace("\n", " ")),
        text="\n\n".join(markdown(paragraph) for paragraph in rest),
        symbols=symbols(named["Symbols"].removeprefix("Symbols:")),
        departures=markdown(named["Departures"].removeprefix("Departures:").strip()) if named["Departures"] else "",
    )


def symbols(paragraph: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a paragraph ``paper -> here; paper -> here``."""
    pairs = [each.partition("->") for each in " ".join(paragraph.split()).rstrip(".").split(";") if each.strip()]
    return tuple((paper.strip(), here.strip()) for paper, _, here in pairs)


def markdown(paragraph: str) -> str:
    """Return a paragraph as Markdown; lines of an update become one block of code."""
    blocks: list[tuple[bool, list[str]]] = []
    for line in paragraph.splitlines():
        is_update = UPDATE.match(line) is not None and not paragraph.startswith("* ")
        if not blocks or blocks[-1][0] is not is_update:
            blocks.append((is_update, []))
        blocks[-1][1].append(line)
    return "\n\n".join(
        "\n".join(["```text", *lines, "```"]) if is_update else prose("\n".join(lines)) for is_update, lines in blocks
    )


def prose(text: str) -> str:
    """Return plain text as Markdown: marked names as code, other signs as they are."""
    text = ROLE.sub(lambda match: f"``{match[1].rsplit('.', 1)[-1]}``", text)
    parts = MARKED.split(text)
    escaped = [re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;").replace("|", "&#124;") for part in parts[::2]]
    escaped = [re.sub(r"^\\\* ", "* ", part, flags=re.MULTILINE) for part in escaped]
    return "".join(
        part for pair in zip(escaped, [*(f"`{code}`" for code in parts[1::2]), ""], strict=True) for part in pair
    )
