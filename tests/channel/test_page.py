"""The page on channels names what the algorithms declare, and its code runs."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from types import ModuleType

import pytest

from fedlightning.federation.channels.differences import is_count
from fedlightning.federation.protocol import Stamp
from fedlightning.federation.remote.expectations import Expectations
from tests.support.cases import CASES
from tests.support.federations import loop_for, quadratic
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "channel.md").read_text()
ROWS = dict(re.findall(r"^\| `(\w+)` \| (`\w+`: .*) \|$", PAGE, re.MULTILINE))
CHANGES = {"FedPD": {"p": 0.0}, "FeDualEx": {"output": "ergodic"}}  # sends something in every round; all that it can


def declared(name):
    """What the updates of an algorithm declare, as the page writes it."""
    loop = loop_for(quadratic(CASES[name].algorithm(**CHANGES.get(name, {}))))
    for phase in range(len(loop.algorithm.phases)):
        update = Expectations(lambda: loop.algorithm, 0).of(loop.server.request(Stamp(0, phase), seed=1)).update
        for each in fields(update):
            near = each.metadata.get("relative_to")
            yield f"`{each.name}`: {'count' if is_count(each) else f'`{near}`' if near else 'increment'}"


def test_every_algorithm_has_a_row():
    assert set(ROWS) == {case.make.__name__ for case in CASES.values()}


@pytest.mark.parametrize("make", sorted({case.make.__name__ for case in CASES.values()}))
def test_the_row_says_what_is_declared(make):
    names = [name for name, case in CASES.items() if case.make.__name__ == make]
    assert set(ROWS[make].split(", ")) == {each for name in names for each in declared(name)}


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_the_code_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    page = ModuleType("page_on_channels")  # classes of the page are found where they say they are
    monkeypatch.setitem(sys.modules, page.__name__, page)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "docs/channel.md", "exec"), vars(page))
    (said,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert capsys.readouterr().out.endswith(said)
