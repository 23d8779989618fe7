"""Commands that need a node's files alone answer mistakes at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedlightning.cli import main
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["export", "--config=x", "--client=0"], "--out"),
        (["export", "--config=x", "--client=a", "--out=m.pt"], "client=a: expected int"),
        (["export", "--config=x", "--client=0", "--out=m.pt", "--prt=network"], "--prt"),
        (["predict", "--config=x", "--out=p.pt"], "--client"),
        (["predict", "--config=x", "--client=0", "--out=p.pt", "--onn=val"], "--onn"),
    ],
)
def test_mistakes_are_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["node", *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_help_needs_neither_torch_nor_flower():
    script = (
        "import sys\nfrom fedlightning.cli import main\n"
        "for args in (['export', '--help'], ['predict', '--help'], ['export']):\n"
        "    try:\n        main(['node', *args])\n    except SystemExit:\n        pass\n"
        "print(sorted({'torch', 'lightning', 'flwr'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr
