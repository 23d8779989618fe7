"""The page on schedules: its examples run, and its tables are those of the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields

import pytest
import yaml
from jsonargparse import ArgumentParser

from fedlightning import algorithms, local
from fedlightning.algorithms import Algorithm
from fedlightning.core.in_force import in_force
from fedlightning.core.schedule import varies_by_round, why_constant
from fedlightning.local import LocalSolver, StoppingRule
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "schedules.md").read_text()


def classes_of(module, *bases):
    """Public classes of which objects can be made, by name, without aliases."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, bases) and not getattr(value, "__abstractmethods__", None)
    ]
    return sorted({value.__name__: value for value in found}.items(), key=lambda item: item[0].lower())


def is_number(field):
    return re.match(r"(Per\w+|float|int)\b", str(field.type)) is not None


def row(name, cls):
    own = [field for field in fields(cls) if field.init and is_number(field)]
    varying = ", ".join(f"`{field.name}`" for field in own if varies_by_round(field))
    reasons: dict[str, list[str]] = {}
    for field in own:
        if not varies_by_round(field):
            why = "" if str(field.type).startswith("int") else f": {why_constant(field)}"
            reasons.setdefault(why, []).append(f"`{field.name}`")
    constant = "; ".join(f"{', '.join(names)}{why}" for why, names in reasons.items())
    return f"| `{name}` | {varying} | {constant} |"


TABLES = {
    "algorithms": classes_of(algorithms, Algorithm),
    "local": classes_of(local, LocalSolver, StoppingRule),
}


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_those_of_the_code(table):
    _, _, *rows = re.search(rf"<!-- table: {table} -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)[1].splitlines()
    expected = [row(name, cls) for name, cls in TABLES[table] if any(is_number(field) for field in fields(cls))]
    assert rows == expected, "\n" + "\n".join(expected)


@pytest.mark.parametrize("table", TABLES)
def test_every_number_that_stays_the_same_has_a_reason_of_its_own(table):
    for name, cls in TABLES[table]:
        for field in fields(cls):
            if field.init and is_number(field) and not varies_by_round(field):
                assert "PerRound" not in why_constant(field), f"{name}.{field.name}"


def test_every_float_is_decided_on():
    """No hyper-parameter is plainly a float: it varies, or says why it does not."""
    for _, cls in (*TABLES["algorithms"], *TABLES["local"]):
        for field in fields(cls):
            if str(field.type).startswith("float") and field.init:
                assert "constant" in field.metadata, f"{cls.__name__}.{field.name}"
            assert field.default is not MISSING or field.default_factory is not MISSING or is_number(field)


def test_examples_run():
    made: dict[str, object] = {}
    exec(re.search(r"<!-- test: schedules -->\n```python\n(.*?)```", PAGE, re.DOTALL)[1], made)
    after = {name: [in_force(value, r).lr for r in (0, 100)] for name, value in made.items() if hasattr(value, "lr")}
    assert after["constant"] == [0.1, 0.1]
    assert after["exponential"] == pytest.approx([0.1, 0.1 * 0.998**100])
    assert after["by_block"] == [[0.1, 0.02], [pytest.approx(0.1 * 0.99**100), 0.02]]
    assert after["both"] == [0.1, 0.01]
    assert after["as_in_torch"] == pytest.approx([0.1, 0.0001])
    assert after["by_function"] == pytest.approx([0.1, 0.1 / 101**0.5])
    assert after["warmed_up"][0] == pytest.approx(0.1 / 6)


def test_the_configuration_is_valid():
    text = re.search(r"<!-- test: schedule in a config -->\n```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--algorithm", type=Algorithm)
    given = yaml.safe_load(text)["model"]["init_args"]["algorithm"]
    made = parser.instantiate_classes(parser.parse_object({"algorithm": given})).algorithm
    assert [in_force(made, rounds).lr for rounds in (0, 99, 100, 150)] == [0.1, 0.1, 0.01, 0.001]
