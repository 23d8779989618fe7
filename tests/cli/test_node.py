"""``fedlightning node`` answers mistakes at once, and starts what it is told to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedlightning.cli import main
from fedlightning.cli.node import COMMANDS
from tests.support.paths import ROOT


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["node", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name:9} {command.about}\n" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["strat"], "node strat: no such command. Did you mean 'start'?"),
        (["start"], "--config"),
        (["start", "--confg=x"], "--confg"),
        (["start", "--config=x", "--insecure"], "--insecure"),
        (["forget"], "--config"),
    ],
)
def test_mistakes_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["node", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_and_mistakes_need_neither_torch_nor_flower():
    script = (
        "import sys\nfrom fedlightning.cli import main\n"
        "for args in (['--help'], ['start'], ['start', '--help'], ['strat']):\n"
        "    try:\n        main(['node', *args])\n    except SystemExit:\n        pass\n"
        "print(sorted({'torch', 'lightning', 'flwr'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr


def test_a_node_without_a_config_is_refused_in_one_line(tmp_path):
    pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
    with pytest.raises(SystemExit, match=r"fedlightning: .*node\.yaml: no such file. Expected a node's config"):
        main(["node", "start", "--config", str(tmp_path / "node.yaml")])
