"""Command-line parsers whose complaints take a line or two: what, the value, the remedy."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from fedlightning.cli.complaints import did_you_mean, no_argument, no_class, no_name, no_option


class ComparisonParser(ArgumentParser):
    """jsonargparse's parser, without the usage of all arguments in front of every complaint."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As the base's; what is cut short (``--trainer.max_step``) is misspelt."""
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End the process with :func:`plain` of the message; parsers of classes within leave that to the outermost."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        print(f"fedlightning: {plain(message, parser)}", file=sys.stderr)
        self.exit(2)


def plain(message: str, parser: ArgumentParser | None = None) -> str:
    """What matters of a message of jsonargparse.

    For a class within a class the message is a tree: keys and class paths on the way, all members of every union that
    do not fit, and dumps of what was given. The complaint furthest down is about what the user wrote.

    Args:
        message: Of a parser, or of making the objects.
        parser: Whose arguments are proposed for unknown ones.

    Returns:
        One to three lines, or the message itself if nothing in it is understood.
    """
    complaints = _complaints(message)
    if not complaints:
        return message.strip()
    depth = max(complaint.depth for complaint in complaints)
    deepest = [complaint for complaint in complaints if complaint.depth == depth]
    first = next((c for c in deepest if not _type_expected(c.text)), deepest[0])
    if _type_expected(first.text):
        types = dict.fromkeys(filter(None, (_type_expected(c.text) for c in deepest)))
        example = f" such as [{first.given}]" if first.given and set(types) == {"list"} else ""
        return f"{first.where()}: expected {' or '.join(types)}{example}{', or null' if 'NoneType' in message else ''}."
    for pattern, explain in _EXPLANATIONS:
        if match := re.fullmatch(pattern, first.text, re.DOTALL):
            return explain(first, match, parser)
    return f"{first.where()}: {first.text}" if first.key else first.text


@dataclass
class _Complaint:
    """One leaf of the tree.

    Attributes:
        text: What jsonargparse says.
        key: Where, as on the command line.
        owner: Class path of the innermost class it is about.
        depth: Keys and classes above it.
        indent: Of its line.
        given: The value, as far as it is short.
    """

    text: str
    key: str
    owner: str | None
    depth: int
    indent: int
    given: str | None = None

    def where(self, name: str = "") -> str:
        """``key=value``, or the key alone if the value is a whole configuration."""
        key = f"{self.key}.{name}" if name else self.key.removesuffix(".init_args")
        return key if self.given is None else f"{key}={self.given}"


def _complaints(message: str) -> list[_Complaint]:
    path: list[tuple[int, str, str]] = []  # indentation, "key" or "class", name
    found: list[_Complaint] = []
    goes_on = False  # whether the next line may belong to the last complaint
    for line in message.splitlines():
        indent, dash, text = re.fullmatch(r"( *)(- )?(.*)", line).groups()  # type: ignore[union-attr]
        column = len(indent)
        if given := re.fullmatch(r"Given value: (.*)", text):
            for complaint in found:
                if complaint.given is None and complaint.indent > column:
                    complaint.given = _short(given[1])
            continue
        if _NOISE.fullmatch(text):
            goes_on = False
            continue
        while path and path[-1][0] >= column:
            path.pop()
        if opened := re.fullmatch(r'Parser key "([^"]+)"[^:]*: *(.*)', text):
            path.append((column, "key", opened[1]))
            text, column = opened[2], column + 1
            goes_on = False
        elif opened := re.fullmatch(r"Problem with given class_path '([^']+)':", text):
            path.append((column, "class", opened[1]))
            goes_on = False
            continue
        if not text:
            continue
        if goes_on and not dash:
            found[-1].text += f"\n{text}"
            continue
        text, _, value = text.partition(". Got value: ")
        owner = next((name for _, kind, name in reversed(path) if kind == "class"), None)
        found.append(_Complaint(text, _key(path), owner, len(path), column, _short(value) if value else None))
        goes_on = True
    return found


_NOISE = re.compile(
    r"|Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*"
    r"|Expected a path but .* either not accessible or invalid|Expected a <class 'NoneType'>"
)


def _key(path: Iterable[tuple[int, str, str]]) -> str:
    """The dotted key: ``init_args`` between a class and its argument."""
    parts: list[str] = []
    for _, kind, name in path:
        parts.append(name if kind == "key" else "init_args")
    return ".".join(parts)


def _short(value: str) -> str | None:
    """A given value, if it is one value; jsonargparse wraps those of keys within a class."""
    if nested := re.fullmatch(r"NestedArg\(key='.*?', val='?(.*?)'?\)", value):
        value = nested[1]
    return None if "Namespace(" in value or value.startswith("{") or len(value) > 80 else value


def _type_expected(text: str) -> str | None:
    match = re.fullmatch(r"Expected (?:an? )?<class '(?:.*\.)?(\w+)'>", text)
    return match and {"Sequence": "list"}.get(match[1], match[1])


def _unknown_argument(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    name = match[1]
    if complaint.owner is None:
        return no_option(name, name, _options(parser))
    owner = complaint.owner.rpartition(".")[2]
    return no_argument(complaint.where(name), owner, name, _arguments_of(complaint.owner))


def _unrecognized(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    name, _, value = match[1].lstrip("-").partition("=")
    options = _options(parser)
    if "set" in options and name.partition(".")[0] in _OF_A_RUN:
        return f"{match[1]}: no such argument. Values of all runs are given as --set {name}={value or '...'}."
    return no_option(match[1], name, options)


_OF_A_RUN = ("trainer", "model", "data", "seed_everything")
"""What the arguments of a single run begin with."""


def _options(parser: ArgumentParser | None) -> list[str]:
    return [] if parser is None else [o.lstrip("-") for o in parser._option_string_actions if o.startswith("--")]


def _arguments_of(path: str) -> list[str]:
    """Names of a class's arguments, those it hands on to its bases among them."""
    module, _, name = path.rpartition(".")
    names: dict[str, None] = {}
    for cls in getattr(import_module(module), name).__mro__:
        if "__init__" in vars(cls):
            parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
            hands_on = any(p.kind is p.VAR_KEYWORD for p in parameters)
            names |= dict.fromkeys(p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
            if not hands_on:
                break
    return list(names)


def _unknown_class(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    module, name = match.groups()
    where = complaint.key.removesuffix(".init_args")
    if complaint.owner != f"{module}.{name}":
        return no_class(where, complaint.owner or name)
    public: Any = import_module(module)
    known = getattr(public, "__all__", [n for n in vars(public) if not n.startswith("_")])
    return no_name(where, module, name, known)


def _unknown_short_class(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    return no_class(complaint.key.removesuffix(".init_args"), match[1])


def _unknown_module(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    if complaint.owner is None:
        return complaint.text
    if not f"{complaint.owner}.".startswith(f"{match[1]}."):  # an import within the module it names
        return f"{complaint.key.removesuffix('.init_args')}={complaint.owner}: {complaint.text}."
    return no_class(complaint.key.removesuffix(".init_args"), complaint.owner)


def _required(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    names = match[1].split(", ")
    owner = "" if complaint.owner is None else f"{complaint.owner.rpartition('.')[2]} needs {match[1]}. "
    prefix = f"{complaint.key}." if complaint.key else ""
    return f"{owner}Give {' '.join(f'--{prefix}{name}=...' for name in names)}, or a config (-c) that has it."


def _literal(complaint: _Complaint, match: re.Match[str], parser: ArgumentParser | None) -> str:
    known = ast.literal_eval(f"[{match[1]}]")
    hint = did_you_mean(str(complaint.given), map(str, known))
    return f"{complaint.where()}: expected one of {match[1]}.{hint}"


_Explanation = Callable[[_Complaint, "re.Match[str]", ArgumentParser | None], str]

_EXPLANATIONS: tuple[tuple[str, _Explanation], ...] = (
    (r"Option '(.+)' is not accepted", _unknown_argument),
    (r"Subcommand '\w+' does not accept option '(.+)'", _unknown_argument),
    (r"unrecognized arguments: (\S+).*", _unrecognized),
    (r"module '(.+)' has no attribute '(.+)'", _unknown_class),
    (r"Expected a dot import path string: (.+)", _unknown_short_class),
    (r"No module named '(.+)'", _unknown_module),
    (r"the following arguments are required: (.+)", _required),
    (r"Expected a typing\.Literal\[(.+)\]", _literal),
)
