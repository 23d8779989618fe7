"""Docstrings become the Markdown that pages of algorithms show."""

from __future__ import annotations

import ast

import pytest

from tests.support.paths import ROOT
from website.docstrings import markdown, method, prose, symbols
from website.sources import code_page

MODULES = sorted(
    path
    for path in (ROOT / "fedlightning" / "algorithms").glob("*.py")
    if code_page(f"fedlightning/algorithms/{path.name}") not in (None, "api/algorithms.md")
)

DOCSTRING = """FedX (Doe, 2020): a method.

Client, K times:  w <- w - lr * g_i(w)
                  lam_i <- 0
Server:           z <- mean(w)

It is :class:`FedAvg` where ``mu`` < 1, and 2 * 3 [here].

Symbols: eta -> lr; x_i -> w of a
client.

Departures: none but *one*.
"""


def test_parts_are_told_apart():
    found = method(DOCSTRING)
    assert found.title == "FedX (Doe, 2020): a method."
    assert found.text == (
        "```text\nClient, K times:  w <- w - lr * g_i(w)\n                  lam_i <- 0\n"
        "Server:           z <- mean(w)\n```\n\n"
        "It is `FedAvg` where `mu` &lt; 1, and 2 \\* 3 \\[here\\]."
    )
    assert found.symbols == (("eta", "lr"), ("x_i", "w of a client"))
    assert found.departures == "none but \\*one\\*."


def test_a_sentence_before_an_update_stays_a_sentence():
    assert markdown("With all clients:\n        upload  u") == "With all clients:\n\n```text\n        upload  u\n```"


def test_lists_stay_lists():
    assert markdown("* CDMA-NC: a_t = 0\n* CDMA-ONE: a_t = 1") == "* CDMA-NC: a\\_t = 0\n* CDMA-ONE: a\\_t = 1"


def test_nothing_in_code_type_is_changed():
    assert prose("``a_b * [c] | <d>`` | x") == "`a_b * [c] | <d>` &#124; x"


def test_all_modules_of_algorithms_are_looked_at():
    assert len(MODULES) >= 30
    assert not {"base", "splitting", "__init__"} & {path.stem for path in MODULES}


def test_symbols_without_a_paragraph():
    assert symbols("") == ()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_algorithm_says_symbols_departures_and_an_update(path):
    found = method(ast.get_docstring(ast.parse(path.read_text())))
    assert found.symbols
    assert all(paper and here for paper, here in found.symbols)
    assert found.departures
    assert "```text" in found.text
