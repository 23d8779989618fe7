"""A node forgets earlier federations when its owner agrees."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.node_config import NodeConfig, write_node_config
from fedlightning.flower.node_forget import forget

FIRST, SECOND, LAST = "a1" * 16, "a2" * 16, "b1" * 16


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "node.yaml"
    write_node_config(NodeConfig("a", "localhost:1", [0], {"class_path": "my.Data"}), file)
    for age, name in ((300, FIRST), (200, SECOND), (100, LAST)):
        model = tmp_path / "states" / name / "model.pt"
        model.parent.mkdir(parents=True)
        model.touch()
        os.utime(model, (model.stat().st_mtime - age,) * 2)
    return str(file)


def there(config):
    return {path.name for path in (os.scandir(os.path.join(os.path.dirname(config), "states"))) if path.is_dir()}


@pytest.mark.parametrize(
    ("names", "agreed", "left"),
    [
        ([], True, {LAST}),
        ([], False, {FIRST, SECOND, LAST}),
        (["a2"], True, {FIRST, LAST}),
        (["b"], True, {FIRST, SECOND}),
    ],
)
def test_earlier_federations_are_forgotten_after_a_question(names, agreed, left, config):
    asked, said = [], []
    forget(config, names, lambda question: asked.append(question) or agreed, said.append)
    assert there(config) == left
    (question,) = asked
    assert question.startswith("Forget ")
    assert said[2].endswith(" (used last)")
    assert said[-1] == ("Nothing was removed." if not agreed else f"Forgotten: {question[7:].split('?')[0]}")


@pytest.mark.parametrize(("name", "count"), [("a", 2), ("c", 0), ("", 0), ("../..", 0)])
def test_names_of_one_federation_each(name, count, config):
    with pytest.raises(InvalidValueError, match=f"federation={name}: .* which {count} begin with"):
        forget(config, [name], lambda question: True)
    assert there(config) == {FIRST, SECOND, LAST}


def test_nothing_is_asked_where_nothing_is_left_to_forget(config, tmp_path):
    said = []
    forget(config, [], lambda question: True, said.append)
    forget(config, [], lambda question: pytest.fail("asked"), said.append)
    assert said[-1] == "There is no earlier one to forget."
    forget(config, [LAST], lambda question: True, said.append)
    forget(config, [], lambda question: pytest.fail("asked"), said.append)
    assert said[-1] == f"{tmp_path / 'states'} keeps nothing of any federation."
