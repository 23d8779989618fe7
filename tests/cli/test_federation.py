"""``fedlightning federation`` answers help and mistakes without Flower, and hands everything else on."""

from __future__ import annotations

import pytest

from fedlightning.cli import main
from fedlightning.cli.federation_commands import COMMANDS
from fedlightning.cli.groups import Command
from tests.support.commands import of

CONFIGS = of("classification", "fed_avg")


@pytest.fixture
def given(monkeypatch):
    """Commands that only keep what they were given."""
    kept = []
    for name, command in COMMANDS.items():
        silent = Command(command.about, command.add_arguments, kept.append, command.takes_changes)
        monkeypatch.setitem(COMMANDS, name, silent)
    return kept


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["federation", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_group_says_what_it_has(capsys):
    for arguments, code in (([], 2), (["--help"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(["federation", *arguments])
        assert ended.value.code == code
        said = capsys.readouterr().out
        assert all(command.about in said for command in COMMANDS.values())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["federation", name, "--help"])
    assert ended.value.code == 0
    assert f"usage: fedlightning federation {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nwe"], "federation nwe: no such command. Did you mean 'new'? There are new, link, register, run, watch"),
        (["new", "f", "--adress=a:1"], "--adress=a:1: no such argument. Did you mean 'address'?"),
        (["status", "f", "--detach"], "--detach: no such argument."),
        (["run", "f", "--detahc"], "--detahc: no such argument. Did you mean 'detach'?"),
        (["run", "f", "--deadlines.phaes=3"], "Deadlines has no argument 'phaes'. Did you mean 'phase'?"),
        (
            ["run", "f", "--trainer.max_steps"],
            "--trainer.max_steps: there is no value. Expected --trainer.max_steps=...",
        ),
        (["run", "f", "--trainer.max_steps", "3"], "there is no value. Expected --trainer.max_steps=..."),
        (["status", "f", "--trainer.max_steps=3"], "--trainer.max_steps=3: no such argument."),
        (["new", "f", "--nodes", "a=0", *CONFIGS], "address"),
        (["new", "f", "--address=a:1", "--nodes", "a=0", "--config=missing.yaml"], "missing.yaml: File does not exist"),
    ],
)
def test_mistakes_are_answered(arguments, said, capsys, given):
    assert said in refusal(capsys, *arguments)
    assert given == []


def test_mistakes_in_configs_are_found_before_anything_is_made(tmp_path, capsys, given):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "model: {init_args: {algorithm: {class_path: fedlightning.algorithms.FedAvg, init_args: {lrr: 1}}}}"
    )
    said = refusal(capsys, "new", "f", "--address=a:1", "--nodes", "a=0", *CONFIGS, f"--config={wrong}")
    assert "FedAvg has no argument 'lrr'. Did you mean 'lr'?" in said
    assert given == []


def test_new_gets_all_configs_and_nodes(given):
    main(["federation", "new", "f", "--address", "a:1", "--nodes", "a=0-3", "b=4", *CONFIGS])
    values = given[0].values
    assert values["nodes"] == ["a=0-3", "b=4"]
    assert [f"--config={each}" for each in values["config"]] == CONFIGS
    assert (values["folder"], values["address"], values["listen"], values["hosts"]) == ("f", "a:1", None, [])


def test_run_keeps_changes_of_the_run_apart(given):
    changes = ["--trainer.max_steps=3", "--deadlines.phase=5", "--model.init_args.algorithm.init_args.lr=0.1"]
    main(["federation", "run", changes[0], "f", "--ckpt-path=last", *changes[1:], "--detach"])
    assert given[0].changes == tuple(changes)
    assert given[0].values["ckpt_path"] == "last"
    assert given[0].values["detach"] is True
    main(["federation", "run", "f"])
    assert given[1].changes == ()
    assert given[1].values["ckpt_path"] is None
    assert given[1].values["detach"] is False
