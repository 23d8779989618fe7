"""``fedlightning node forget`` asks before it removes anything, and takes no answer for a no."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from fedlightning.cli import main
from tests.support.paths import ROOT


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("terminal", "typed", "options", "expected"),
    [
        (Terminal, "y\n", [], True),
        (Terminal, "Yes\n", [], True),
        (Terminal, "\n", [], False),
        (Terminal, "n\n", [], False),
        (io.StringIO, "y\n", [], False),
        (io.StringIO, "", ["--yes"], True),
    ],
)
def test_nothing_is_removed_without_a_yes(terminal, typed, options, expected, monkeypatch, capsys):
    found = pytest.importorskip("fedlightning.flower.node_forget", exc_type=ImportError, reason="no Flower here")
    heard = []

    def forget(config, names, agrees):
        heard.append((config, names, agrees("Forget it?")))

    monkeypatch.setattr(found, "forget", forget)
    monkeypatch.setattr("sys.stdin", terminal(typed))
    main(["node", "forget", "--config=n.yaml", "--federation", "ab", "cd", *options])
    assert heard == [("n.yaml", ["ab", "cd"], expected)]
    assert ("Nobody can answer here: add --yes." in capsys.readouterr().out) is (
        terminal is io.StringIO and not options
    )


def test_help_needs_neither_torch_nor_flower():
    script = (
        "import sys\nfrom fedlightning.cli import main\n"
        "for args in (['forget', '--help'], ['forget'], ['forget', '--config=x', '--runn=a']):\n"
        "    try:\n        main(['node', *args])\n    except SystemExit:\n        pass\n"
        "print(sorted({'torch', 'lightning', 'flwr'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "[]", run.stderr
    assert "Remove what the node keeps" in run.stdout
