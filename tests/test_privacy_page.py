"""What the page on privacy says is sent and kept is what the algorithms send and keep."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from fedlightning.oracle import Autocast
from tests.support.cases import CASES
from tests.support.federations import loop_for, personal_quadratic, rounds_of
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "federation-privacy.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \|.*\| (.*?) \|$", re.MULTILINE)
TABLE = {name: tuple(set(re.findall(r"`(\w+)`", cell)) for cell in cells) for name, *cells in ROW.findall(PAGE)}
VARIANTS = {"FedMM over all": "FedMM"}


def names_of(message):
    return {field.name for field in fields(message)} if message is not None else set()


def sent_and_kept(case):
    """The names in the messages and states of clients over some rounds of a run with personal parameters."""
    algorithm = case.personal_algorithm()
    loop = loop_for(personal_quadratic(algorithm, **case.problem))
    sent, train = set(), loop.runner.train

    def watched(request, cohort):
        for answer in train(request, cohort):
            sent.update(names_of(answer.update))
            yield answer

    loop.runner.train = watched
    for batch in rounds_of(algorithm, 6):
        loop.run(batch, Autocast("cpu"))
    return sent, names_of(loop.algorithm.init_client(loop.point))


def test_every_algorithm_has_a_row():
    assert set(TABLE) == {VARIANTS.get(name, name) for name in CASES}


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*VARIANTS, *VARIANTS.values())])
def test_the_row_names_what_is_sent_and_kept(name):
    assert TABLE[name] == sent_and_kept(CASES[name])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_row_of_variants_names_all_of_them(name):
    both = [sent_and_kept(CASES[each]) for each in (name, VARIANTS[name])]
    assert TABLE[VARIANTS[name]] == tuple(set.union(*each) for each in zip(*both, strict=True))
    assert both[0] != both[1]
