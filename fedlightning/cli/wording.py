"""The wording of jsonargparse's and Lightning's messages, which no other module knows: new wording changes this alone.

For a class within a class a message is a tree: keys and class paths on the way, all members of every union that do not
fit, and dumps of what was given. :func:`deepest_complaints` reads the tree and says of its leaves what they are about,
so that nothing else has to look at the text. ``tests/cli/test_wording.py`` provokes every message with jsonargparse
and Lightning themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from fedlightning.core.requirements import how_to_install


class Subject(Enum):
    """Lists what a complaint can be about; the details named in the text are in parentheses."""

    UNKNOWN_ARGUMENT = auto()
    """A class or subcommand has no such argument (name)."""
    UNKNOWN_FIELD = auto()
    """A dataclass that is an argument of a class has no such field (the argument, name of the field)."""
    UNKNOWN_OPTION = auto()
    """The command has no such option (the option as written)."""
    MISSING_CLASS = auto()
    """The module has no such class (module, class)."""
    UNDOTTED_CLASS = auto()
    """The class path has no module (class path)."""
    MISSING_MODULE = auto()
    """There is no such module (module)."""
    WRONG_KIND = auto()
    """The class is not of the kind that the argument takes (name of the base class)."""
    ABSTRACT_CLASS = auto()
    """The class is abstract or a protocol, without objects (class path, empty if it is the value)."""
    REQUIRED = auto()
    """Arguments are missing (their names, separated by ", ")."""
    CHOICE = auto()
    """The value is none of a few (the choices as Python literals, separated by ", ")."""
    TYPE = auto()
    """The value is of another type (name of the type)."""
    OTHER = auto()
    """Nothing that is known (no details)."""


@dataclass
class Complaint:
    """Represents one leaf of a message.

    Attributes:
        text: What jsonargparse says.
        key: Where, as on the command line.
        owner: Class path of the innermost class it is about; None for the command itself.
        depth: Number of keys and classes above it.
        indent: Column of its line.
        given: The value, as far as it is short.
    """

    text: str
    key: str
    owner: str | None
    depth: int
    indent: int
    given: str | None = None

    @property
    def subject(self) -> Subject:
        """Return what the complaint is about."""
        return self._understood[0]

    @property
    def details(self) -> tuple[str, ...]:
        """Return the details named in the text, as :class:`Subject` lists them."""
        return self._understood[1]

    @property
    def _understood(self) -> tuple[Subject, tuple[str, ...]]:
        for subject, pattern in _PATTERNS:
            if match := pattern.fullmatch(self.text):
                return subject, match.groups()
        return Subject.OTHER, ()


_PATTERNS = tuple(
    (subject, re.compile(pattern, re.DOTALL))
    for subject, pattern in (
        (Subject.UNKNOWN_ARGUMENT, r"Option '(.+)' is not accepted"),
        (Subject.UNKNOWN_ARGUMENT, r"Subcommand '\w+' does not accept option '(.+)'"),
        (Subject.UNKNOWN_FIELD, r"Group '(.+)' does not accept option '(.+)'"),
        (Subject.UNKNOWN_OPTION, r"unrecognized arguments: (\S+).*"),
        (Subject.MISSING_CLASS, r"module '(.+)' has no attribute '(.+)'"),
        (Subject.UNDOTTED_CLASS, r"Expected a dot import path string: (.+)"),
        (Subject.MISSING_MODULE, r"No module named '(.+)'"),
        (Subject.WRONG_KIND, r"Import path (?:\S+ )?does not correspond to a subclass of (\w+)"),
        (Subject.WRONG_KIND, r"Type .* expects a .*to be a subclass of <class '(?:[^'\n]*\.)?(\w+)'>\.?"),
        (Subject.ABSTRACT_CLASS, r"Expected an instantiatable class, but (\S*?) ?is (?:abstract|a protocol)"),
        (Subject.REQUIRED, r"the following arguments are required: (.+)"),
        (Subject.CHOICE, r"Expected a typing\.Literal\[(.+)\]"),
        (Subject.TYPE, r"Expected (?:an? )?<class '(?:[^'\n]*\.)?(\w+)'>"),
    )
)
_KEY = re.compile(r'Parser key "([^"]+)"[^:]*: *(.*)')
_CLASS = re.compile(r"Problem with given class_path '([^']+)':")
_GIVEN = re.compile(r"Given value: (.*)")
_NESTED = re.compile(r"NestedArg\(key='.*?', val='?(.*?)'?\)")
_VALUE = ". Got value: "
_NULL = "Expected a <class 'NoneType'>"
_NOISE = re.compile(
    r"|Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Given value type: .*"
    r"|Expected a path but .* either not accessible or invalid|Expected a <class 'NoneType'>"
)


def deepest_complaints(message: str) -> list[Complaint]:
    """Return the innermost complaints of a message, which are about the user's input; empty if there are none."""
    found = _complaints(message)
    depth = max((complaint.depth for complaint in found), default=0)
    return [complaint for complaint in found if complaint.depth == depth]


def allows_none(message: str, complaint: Complaint) -> bool:
    """Return True if a message expects null as well where it has a complaint."""
    return f"\n{' ' * complaint.indent}- {_NULL}" in message


def _complaints(message: str) -> list[Complaint]:
    """Return the leaves of a message in order."""
    path: list[tuple[int, str, str]] = []  # indentation, "key" or "class", name
    found: list[Complaint] = []
    goes_on = False  # whether the next line may belong to the last complaint
    for line in message.splitlines():
        indent, dash, text = re.fullmatch(r"( *)(- )?(.*)", line).groups()  # type: ignore[union-attr]
        column = len(indent)
        if given := _GIVEN.fullmatch(text):
            for complaint in found:
                if complaint.given is None and complaint.indent > column:
                    complaint.given = _short(given[1])
            continue
        if _NOISE.fullmatch(text):
            goes_on = False
            continue
        while path and path[-1][0] >= column:
            path.pop()
        if opened := _KEY.fullmatch(text):
            path.append((column, "key", opened[1]))
            text, column = opened[2], column + 1
            goes_on = False
        elif opened := _CLASS.fullmatch(text):
            path.append((column, "class", opened[1]))
            goes_on = False
            continue
        if not text:
            continue
        if goes_on and not dash:
            found[-1].text += f"\n{text}"
            continue
        text, _, value = text.partition(_VALUE)
        owner = next((name for _, kind, name in reversed(path) if kind == "class"), None)
        found.append(Complaint(text, _dotted(path), owner, len(path), column, _short(value) if value else None))
        goes_on = True
    return found


def _dotted(path: Iterable[tuple[int, str, str]]) -> str:
    """Return the dotted key, with ``init_args`` between a class and its argument."""
    return ".".join(name if kind == "key" else "init_args" for _, kind, name in path)


def _short(value: str) -> str | None:
    """Return a given value if it is a single value; jsonargparse wraps values of keys within a class."""
    if nested := _NESTED.fullmatch(value):
        value = nested[1]
    return None if "Namespace(" in value or value.startswith("{") or len(value) > 80 else value


def remedy(message: str) -> str:
    """Return what to say after a message of Lightning's that names no option; nothing after other messages."""
    return next((remedy for part, remedy in _REMEDIES.items() if part in message), "")


_NO_ACCELERATOR = " Give --trainer.accelerator=auto or cpu."
_REMEDIES = {
    "`devices` selected with `CPUAcc": " Give --trainer.devices=auto or 1.",
    "No supported gpu backend found": _NO_ACCELERATOR,
    "the accelerator is not available": _NO_ACCELERATOR,
    "'torch_xla": _NO_ACCELERATOR,
    "`tensorboard` nor": f" {how_to_install('tensorboard')}",
}
