"""The page of an algorithm says what its class says."""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING
from importlib import import_module

import pytest

pytest.importorskip("griffe", reason="needs the extra docs")

from fedlightning import algorithms
from website import results
from website.algorithms import fields, package, page, pages, table, takes_regularizers, with_links


def resolved(name):
    found = package()[name]
    return found.final_target if found.is_alias else found


@pytest.mark.parametrize("name", table())
def test_hyper_parameters_are_those_of_the_class(name):
    expected = {field.name for field in dataclasses.fields(getattr(algorithms, name)) if field.init}
    found = fields(resolved(name))
    assert {field for field, _, _ in found} == expected
    assert all(text for _, _, text in found), "a hyper-parameter is not described"


@pytest.mark.parametrize("name", table())
def test_defaults_are_those_of_the_class_as_one_would_write_them(name):
    cls = getattr(algorithms, name)
    shown = {field: default for field, default, _ in fields(resolved(name))}
    for field in dataclasses.fields(cls):
        if field.init:
            value = field.default if field.default_factory is MISSING else field.default_factory()
            written = shown[field.name]
            places = [vars(import_module(base.__module__)) for base in cls.__mro__]
            names = {key: each for place in reversed(places) for key, each in place.items()}
            assert (eval(written, names) if written else MISSING) == value or repr(eval(written, names)) == repr(value)
            assert "constant(" not in written


@pytest.mark.parametrize("name", table())
def test_regularisers_are_taken_as_the_class_says(name):
    assert takes_regularizers(resolved(name)) is getattr(algorithms, name).regularized


def test_every_algorithm_has_a_page_with_a_config():
    assert len(pages()) == len(table())
    without = [name for name in table() if name != "CDMA" and not results.configs_of(name)]
    assert without == []


def test_the_table_leads_to_the_pages():
    assert with_links("| `CDMA_ADA` | |") == "| [`CDMA_ADA`](algorithms/cdma-ada.md) | |"


def test_a_page_has_its_parts():
    text = page("SCAFFOLD")
    for part in (
        "## Method",
        "## Symbols",
        "## Departures",
        "## Hyper-parameters",
        "configs/classification/scaffold.yaml",
    ):
        assert part in text
    assert "| eta\\_l | `lr` |" in text
    assert "`SCAFFOLDS`" in text
