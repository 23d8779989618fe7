"""A page for every algorithm, from its docstring, its fields, its configs and the results."""

from __future__ import annotations

import ast
import re
from functools import cache

import griffe

from website import docstrings, results
from website.configs import title as task_title
from website.sources import ROOT, algorithm_page

PACKAGE = "fedlightning.algorithms"

_PLACES = {"per_block": 0, "name_prefix": 0, "constant": 1, "field": 0}
"""Which argument of the functions that declare a field is its default."""


@cache
def package() -> griffe.Module:
    """Return what is written in ``fedlightning.algorithms``, read without importing it."""
    loaded = griffe.load("fedlightning", search_paths=[str(ROOT)], docstring_parser="google")
    return loaded["algorithms"]  # type: ignore[no-any-return]


@cache
def table() -> dict[str, tuple[str, str, str]]:
    """Return the table of ``docs/algorithms.md``: other names, paper and setting by class."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs/algorithms.md").read_text(), re.MULTILINE)
    cells = {name: [cell.strip() for cell in row.split("|")] for name, row in rows}
    return {name: (known, paper, setting) for name, (known, paper, setting, _) in cells.items()}


def navigation() -> list[tuple[str, str]]:
    """Return name and page of every algorithm, in the order of the table."""
    return [(name, algorithm_page(name)) for name in table()]


def fields(cls: griffe.Class) -> list[tuple[str, str, str]]:
    """Return name, default and description of the hyper-parameters, those of base classes first."""
    found: dict[str, tuple[str, str, str]] = {}
    for each in (*reversed(cls.mro()), cls):
        described = arguments(each)
        for name, attribute in each.members.items():
            is_field = attribute.is_attribute and "instance-attribute" in attribute.labels and attribute.annotation
            if not is_field or each.name == "Algorithm":
                continue
            value = str(attribute.value) if attribute.value is not None else ""
            if "init=False" in value:
                found.pop(name, None)
                continue
            found[name] = (name, default(value), described.get(name, found.get(name, ("", "", ""))[2]))
        for name, text in described.items():
            if name in found:
                found[name] = (name, found[name][1], text)
    return list(found.values())


def default(value: str) -> str:
    """Return a field's default as a user would write it; empty for a required one.

    Args:
        value: What is assigned to the field, as source.
    """
    if not value:
        return ""
    written = ast.parse(value, mode="eval").body
    makes = ast.unparse(written.func) if isinstance(written, ast.Call) else ""
    if not isinstance(written, ast.Call) or makes not in _PLACES:
        return value
    by_name = {each.arg: each.value for each in written.keywords}
    place = _PLACES[makes]
    given = written.args[place] if len(written.args) > place else by_name.get("default")
    if factory := by_name.get("default_factory"):
        return ast.unparse(factory.body) if isinstance(factory, ast.Lambda) else f"{ast.unparse(factory)}()"
    return "" if given is None else ast.unparse(given)


def arguments(cls: griffe.Class) -> dict[str, str]:
    """Return the descriptions in a class's docstring by argument or attribute."""
    found: dict[str, str] = {}
    for section in cls.docstring.parse("google") if cls.docstring else []:
        if section.kind.value in ("parameters", "attributes"):
            found.update({each.name: " ".join(each.description.split()) for each in section.value})
    return found


def states(module: griffe.Module) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return name, sentence and fields of the dataclasses of an algorithm's module: states, messages, uploads."""
    found = []
    for name, cls in module.classes.items():
        described = arguments(cls)
        own = [(field, text) for field, text in described.items()]
        if not cls.is_alias and cls.docstring and "Attributes:" in cls.docstring.value:
            found.append((name, cls.docstring.value.splitlines()[0], own))
    return found


def cell(text: str) -> str:
    """Return text that may stand in a cell of a table."""
    return docstrings.prose(" ".join(text.split()))


def named(here: str) -> str:
    """Return what a symbol is called here, in code type if it is one name."""
    return f"`{here}`" if re.fullmatch(r"\w+", here) else cell(here)


def page(name: str) -> str:
    """Return the page of an algorithm."""
    cls = package()[name]
    cls = cls.final_target if cls.is_alias else cls
    module = cls.module
    known, paper, setting = table()[name]
    method = docstrings.method(module.docstring.value)
    facts = {
        "Paper": paper,
        "Also known as": known,
        "Setting": setting,
        "Class": f"`{PACKAGE}.{name}`",
        "Regularisers": "yes" if takes_regularizers(cls) else "no, they are refused before training",
    }
    lines = [f"# {name}", "", method.title, ""]
    lines += [f"* **{fact}:** {text}" for fact, text in facts.items() if text]
    lines += ["", "## Method", "", method.text, ""]
    if method.symbols:
        lines += ["## Symbols", "", "| paper | here |", "| --- | --- |"]
        lines += [f"| {cell(paper)} | {named(here)} |" for paper, here in method.symbols] + [""]
    if method.departures:
        lines += ["## Departures from the paper", "", method.departures[0].upper() + method.departures[1:], ""]
    lines += ["## Hyper-parameters", "", "| name | default | meaning |", "| --- | --- | --- |"]
    lines += [
        f"| `{field}` | {f'`{value}`' if value else 'required'} | {cell(text)} |" for field, value, text in fields(cls)
    ]
    lines += ["", *kept(module), *started(name), *results.reached(name)]
    lines += ["## API", "", f"::: {cls.path}", "    options: {heading_level: 3}", ""]
    return "\n".join(lines)


def takes_regularizers(cls: griffe.Class) -> bool:
    """Return whether the class or one of its bases says ``regularized = True``."""
    for each in (cls, *cls.mro()):
        if "regularized" in each.attributes:
            return str(each.attributes["regularized"].value) == "True"
    return False


def kept(module: griffe.Module) -> list[str]:
    """Return the section on states and messages."""
    found = states(module)
    if not found:
        return ["## What is kept and sent", "", "Only the point travels, and clients keep nothing between rounds.", ""]
    lines = ["## What is kept and sent", ""]
    for name, sentence, attributes in found:
        lines += [f"**`{name}`.** {cell(sentence)}", "", "| field | meaning |", "| --- | --- |"]
        lines += [f"| `{field}` | {cell(text)} |" for field, text in attributes] + [""]
    return lines


def started(name: str) -> list[str]:
    """Return the section with the configs that use an algorithm."""
    lines = ["## Configs to start from", ""]
    for task, config in results.configs_of(name):
        path = f"configs/{task}/{config}.yaml"
        lines += [
            f"[{task_title(task)}](../{path.rsplit('/', 1)[0]}.md#{config.replace('_', '-')}), `{path}`:",
            "",
            "```yaml",
            (ROOT / path).read_text().rstrip(),
            "```",
            "",
            "```",
            f"fedlightning fit -c configs/{task}/base.yaml -c {path}",
            "```",
            "",
        ]
    return lines


def with_links(markdown: str) -> str:
    """Return the page with the table of algorithms, each name leading to its page."""
    return re.sub(r"^\| `(\w+)` \|", lambda m: f"| [`{m[1]}`]({algorithm_page(m[1])}) |", markdown, flags=re.MULTILINE)


def pages() -> dict[str, str]:
    """Return the text of every page by its place on the site."""
    return {algorithm_page(name): page(name) for name in table()}
