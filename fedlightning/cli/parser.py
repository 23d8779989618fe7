"""Command-line parsers whose error messages take a line or two: the mistake, the value, the remedy."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from fedlightning.cli.complaints import no_argument, no_class, no_name, no_option, own_classes
from fedlightning.cli.kinds import base_class, dataclass_taken, is_of_kind, kinds_taken, wrong_kind
from fedlightning.cli.wording import Complaint, Subject, allows_none, deepest_complaints
from fedlightning.core.misspelt import did_you_mean

_COMMANDS = ("fit", "validate", "test", "predict")


class ComparisonParser(ArgumentParser):
    """Extends jsonargparse's parser to leave out the usage text before every error message."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the parser; abbreviated options (``--trainer.max_step``) count as misspelt."""
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def parse_args(self, args: Sequence[str] | None = None, *given: Any, **options: Any) -> Any:  # type: ignore[override]
        """Parse arguments; null reaches the classes within classes, to which jsonargparse hands it on as ``None``."""
        if args is not None and not self.exit_on_error:
            args = [f"{each.removesuffix('=None')}=null" if each.endswith("=None") else each for each in args]
        return super().parse_args(args, *given, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End the process with the message from :func:`plain`; nested parsers leave this to the outermost."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        print(f"fedlightning: {plain(message, parser)}", file=sys.stderr)
        self.exit(2)


def underscored(argument: str) -> str:
    """Replace dashes in an option's name by underscores: ``--budget-upload`` becomes ``--budget_upload``."""
    option, equals, value = argument.partition("=")
    return f"--{option[2:].replace('-', '_')}{equals}{value}" if option.startswith("--") else argument


def plain(message: str, parser: ArgumentParser | None = None) -> str:
    """Return the essential part of an error message of jsonargparse.

    Args:
        message: Of a parser, or of making the objects.
        parser: Whose arguments are proposed for unknown ones.

    Returns:
        One to three lines, or the message itself if nothing in it is understood.
    """
    deepest = deepest_complaints(message)
    if not deepest:
        return message.strip()
    first = next((complaint for complaint in deepest if complaint.subject is not Subject.TYPE), deepest[0])
    if first.subject is Subject.TYPE or _is_no_class(first, deepest):
        return _types(first, deepest, allows_none(message, first))
    if first.subject is Subject.CHOICE:
        return _choices(first, deepest)
    if first.subject in _EXPLANATIONS:
        return _EXPLANATIONS[first.subject](first, parser)
    where = _where(first) or (first.owner or "").rpartition(".")[2]
    return f"{where}: {first.text}" if where else first.text


def _where(complaint: Complaint, name: str = "") -> str:
    """Return ``key=value``, or the key alone if the value is a whole configuration.

    Nothing is left of the key where jsonargparse fails to make an object and names its class alone.
    """
    key = f"{complaint.key}.{name}" if name else complaint.key.removesuffix("init_args").removesuffix(".")
    return key if complaint.given is None or not key else f"{key}={complaint.given}"


def _is_no_class(complaint: Complaint, alike: Iterable[Complaint]) -> bool:
    """True if a number would do as well as a class, and what was given resembles no class."""
    if not any(each.subject is Subject.TYPE and each.details == ("float",) for each in alike):
        return False
    if complaint.subject is Subject.UNDOTTED_CLASS:
        return not did_you_mean(complaint.details[0], own_classes())
    return complaint.subject in (Subject.ABSTRACT_CLASS, Subject.OTHER)


def _types(complaint: Complaint, alike: Iterable[Complaint], none: bool) -> str:
    named = [each.details[0] for each in alike if each.subject is Subject.TYPE]
    types = dict.fromkeys(_TYPES.get(name, name) for name in named)
    example = f" such as [{complaint.given}]" if complaint.given and set(types) == {"list"} else ""
    return f"{_where(complaint)}: expected {' or '.join(types)}{example}{', or null' if none else ''}."


def _choices(complaint: Complaint, alike: Iterable[Complaint]) -> str:
    types = "".join(f", or {each.details[0]}" for each in alike if each.subject is Subject.TYPE)
    known = ast.literal_eval(f"[{complaint.details[0]}]")
    hint = did_you_mean(str(complaint.given), map(str, known))
    return f"{_where(complaint)}: expected one of {complaint.details[0]}{types}.{hint}"


_TYPES = {"Sequence": "list"}
"""What users call types whose names are Python's."""


def _unknown_argument(complaint: Complaint, parser: ArgumentParser | None) -> str:
    name = complaint.details[0]
    if complaint.owner is None:
        return no_option(name, name, _options(parser))
    owner = complaint.owner.rpartition(".")[2]
    return no_argument(_where(complaint, name), owner, name, _arguments_of(complaint.owner))


def _unknown_field(complaint: Complaint, parser: ArgumentParser | None) -> str:
    argument, name = complaint.details
    return _no_field(complaint, argument, name) or f"{_where(complaint)}: {complaint.text}"


def _no_field(complaint: Complaint, argument: str, name: str, value: str = "") -> str:
    """Return the message about a field that the dataclass of an argument has not; nothing if it takes no dataclass."""
    kind = None if complaint.owner is None else dataclass_taken(complaint.owner, argument)
    if kind is None:
        return ""
    where = f"{complaint.key.removesuffix('.init_args')}.init_args.{argument}.{name}{value and f'={value}'}"
    return no_argument(where, kind.__name__, name, [each.name for each in fields(kind)])


def _unrecognized(complaint: Complaint, parser: ArgumentParser | None) -> str:
    name, _, value = complaint.details[0].lstrip("-").partition("=")
    argument, _, field = name.rpartition(".")
    if argument and (message := _no_field(complaint, argument, field, value)):
        return message
    options = _options(parser)
    if "set" in options and name.partition(".")[0] in _OF_A_RUN:
        return (
            f"{complaint.details[0]}: no such argument. Values of all runs are given as --set {name}={value or '...'}."
        )
    return no_option(complaint.details[0], name, options)


_OF_A_RUN = ("trainer", "model", "data", "seed_everything")
"""What the arguments of a single run begin with."""


def _options(parser: ArgumentParser | None) -> list[str]:
    return [] if parser is None else [o.lstrip("-") for o in parser._option_string_actions if o.startswith("--")]


def _arguments_of(path: str) -> list[str]:
    """Return the names of a class's arguments, including the arguments passed on to base classes."""
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


def _unknown_class(complaint: Complaint, parser: ArgumentParser | None) -> str:
    module, name = complaint.details
    where = complaint.key.removesuffix(".init_args")
    if complaint.owner != f"{module}.{name}":
        return no_class(where, complaint.owner or name)
    public: Any = import_module(module)
    known = getattr(public, "__all__", [n for n in vars(public) if not n.startswith("_")])
    return no_name(where, module, name, known)


def _unknown_short_class(complaint: Complaint, parser: ArgumentParser | None) -> str:
    where, name = complaint.key.removesuffix(".init_args"), complaint.details[0]
    path = own_classes().get(name)
    kinds = [] if path is None or complaint.owner is None else kinds_taken(complaint.owner, where.rpartition(".")[2])
    if path is not None and kinds and not is_of_kind(path, kinds):
        return wrong_kind(f"{where}={name}", path, kinds[0])
    return no_class(where, name)


def _unknown_module(complaint: Complaint, parser: ArgumentParser | None) -> str:
    if complaint.owner is None:
        return complaint.text
    if not f"{complaint.owner}.".startswith(f"{complaint.details[0]}."):  # an import within the module it names
        return f"{complaint.key.removesuffix('.init_args')}={complaint.owner}: {complaint.text}."
    return no_class(complaint.key.removesuffix(".init_args"), complaint.owner)


def _wrong_kind(complaint: Complaint, parser: ArgumentParser | None) -> str:
    return wrong_kind(_where(complaint), complaint.given, complaint.details[0])


def _abstract_class(complaint: Complaint, parser: ArgumentParser | None) -> str:
    return base_class(_where(complaint), complaint.details[0] or complaint.given or "this")


def _required(complaint: Complaint, parser: ArgumentParser | None) -> str:
    names = complaint.details[0].split(", ")
    owner = "" if complaint.owner is None else f"{complaint.owner.rpartition('.')[2]} needs {complaint.details[0]}. "
    keys = (_option(f"{complaint.key}.{name}" if complaint.key else name) for name in names)
    config = "" if parser is not None and "config" not in _options(parser) else ", or a config (-c) that has it"
    return f"{owner}Give {' '.join(f'--{key}=...' for key in keys)}{config}."


def _option(key: str) -> str:
    """Return a key as the command line has it, without the subcommand."""
    head, _, rest = key.partition(".")
    return rest if head in _COMMANDS and rest else key


_EXPLANATIONS: dict[Subject, Callable[[Complaint, ArgumentParser | None], str]] = {
    Subject.UNKNOWN_ARGUMENT: _unknown_argument,
    Subject.UNKNOWN_FIELD: _unknown_field,
    Subject.UNKNOWN_OPTION: _unrecognized,
    Subject.MISSING_CLASS: _unknown_class,
    Subject.UNDOTTED_CLASS: _unknown_short_class,
    Subject.MISSING_MODULE: _unknown_module,
    Subject.WRONG_KIND: _wrong_kind,
    Subject.ABSTRACT_CLASS: _abstract_class,
    Subject.REQUIRED: _required,
}
