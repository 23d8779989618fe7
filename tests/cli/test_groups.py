"""The groups of commands answer help and misspelt names alike."""

from __future__ import annotations

import pytest

from fedlightning.cli.groups import Command, chosen, refuse


def add_arguments(parser):
    parser.add_argument("--clients", type=int)


COMMANDS = {"start": Command("Start it.", add_arguments, print)}


def test_a_command_is_found_with_its_arguments():
    command, parser, rest = chosen("ward", ["start", "--clients=3"], COMMANDS, "help")
    assert command is COMMANDS["start"]
    assert rest == ["--clients=3"]
    assert parser.parse_args(rest).clients == 3
    assert parser.prog == "fedlightning ward start"


@pytest.mark.parametrize(("args", "code"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_help_is_of_the_group(args, code, capsys):
    with pytest.raises(SystemExit) as ended:
        chosen("ward", args, COMMANDS, "what it has")
    assert (ended.value.code, capsys.readouterr().out) == (code, "what it has")


def test_a_misspelt_command_is_named(capsys):
    with pytest.raises(SystemExit) as ended:
        chosen("ward", ["strat"], COMMANDS, "help")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == "fedlightning: ward strat: no such command. Did you mean 'start'? There are start.\n"


def test_a_mistake_ends_the_process_in_a_line(capsys):
    with pytest.raises(SystemExit) as ended:
        refuse("no")
    assert (ended.value.code, capsys.readouterr().err) == (2, "fedlightning: no\n")
