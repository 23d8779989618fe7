"""Which algorithms need sums over clients alone, so that a server may add up masked updates and never see one."""

from __future__ import annotations

import re
from dataclasses import fields, replace

import pytest
import torch

from fedlightning.algorithms.base import PerClient
from fedlightning.oracle import Autocast
from tests.support.cases import CASES
from tests.support.federations import loop_for, quadratic, rounds_of
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "how-to" / "compression.md").read_text()
LISTED = {
    row: set(re.findall(r"`(\w+)`", cell))
    for row, cell in re.findall(r"^\| (sums alone|single updates) \| (.*) \|$", PAGE, re.M)
}


def mixed(answer, draw):
    """The answer with other updates of every client, the sum over the clients being the same."""
    assert len(answer.client_ids) > 1
    changed = {}
    for each in fields(answer.update) if answer.update is not None else ():
        value = getattr(answer.update, each.name)
        noise = torch.randn(value.shape, generator=draw, dtype=value.dtype)
        changed[each.name] = value + noise - noise.mean(0)
    return replace(answer, update=replace(answer.update, **changed)) if changed else answer


def server_after(algorithm, mixing, rounds=4):
    """The server's state after some rounds of cohorts of four among six, as one vector for each field."""
    loop = loop_for(quadratic(algorithm))
    train, draw = loop.runner.train, torch.Generator().manual_seed(0)

    def watched(request, cohort):
        for answer in train(request, cohort):
            yield mixed(answer, draw) if mixing else answer

    loop.runner.train = watched
    for batch in rounds_of(algorithm, rounds, size=4):
        loop.run(batch, Autocast("cpu"))
    found = {}
    for each in fields(loop.state):
        value = getattr(loop.state, each.name)
        parts = (value.default, value.values) if isinstance(value, PerClient) else (value,)
        found[each.name] = torch.cat([torch.as_tensor(part, dtype=torch.float64).flatten() for part in parts])
    return found


def needs_sums_alone(name):
    algorithm = CASES[name].algorithm()
    before, after = (server_after(algorithm, mixing) for mixing in (False, True))
    return all(torch.allclose(before[each], after[each], rtol=1e-9, atol=1e-9) for each in before)


@pytest.mark.parametrize("name", CASES)
def test_the_page_says_whether_the_next_state_depends_on_sums_alone(name):
    row = "sums alone" if needs_sums_alone(name) else "single updates"
    assert name.split()[0] in LISTED[row]


def test_every_algorithm_is_in_one_row_of_the_page():
    assert LISTED["sums alone"].isdisjoint(LISTED["single updates"])
    assert LISTED["sums alone"] | LISTED["single updates"] == {name.split()[0] for name in CASES}
