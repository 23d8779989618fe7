"""Groups of commands, such as ``fedlightning node``: help and misspelt names, answered before heavy imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from fedlightning.cli.parser import ComparisonParser
from fedlightning.core.misspelt import did_you_mean

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


@dataclass(frozen=True)
class Command:
    """Describes a command of a group.

    Attributes:
        about: What it does.
        add_arguments: Adds its arguments to a parser.
        carry_out: Carries it out, given what the group makes of the arguments; heavy packages are imported here.
        takes_changes: Whether it takes options of a run's config.
    """

    about: str
    add_arguments: Callable[[ArgumentParser], None]
    carry_out: Callable[..., None]
    takes_changes: bool = False


def chosen(
    group: str, args: Sequence[str], commands: Mapping[str, Command], text: str
) -> tuple[Command, ComparisonParser, list[str]]:
    """Return the command that arguments name, a parser of its arguments, and what is left for it to parse.

    The process ends here where help is asked for, or no such command is there.

    Args:
        group: Name of the group, such as ``node``.
        args: The arguments after the group's name.
        commands: The commands of the group, by name.
        text: The group's help.
    """
    if not args or args[0] in ("-h", "--help"):
        print(text, end="")
        raise SystemExit(0 if args else 2)
    name, *rest = args
    if name not in commands:
        refuse(f"{group} {name}: no such command.{did_you_mean(name, commands)} There are {', '.join(commands)}.")
    command = commands[name]
    parser = ComparisonParser(prog=f"fedlightning {group} {name}", description=command.about)
    command.add_arguments(parser)
    return command, parser, rest


def refuse(message: str) -> NoReturn:
    """End the process with a mistake in one line."""
    print(f"fedlightning: {message}", file=sys.stderr)
    raise SystemExit(2)
