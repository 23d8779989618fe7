"""Nodes are registered once, by name, and can be refused again."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.flower.deployment.flower_commands import FlowerError
from fedlightning.flower.deployment.registration import Registration
from tests.support.deployment import Flower, federation_in

KNOWN = FlowerError("flwr supernode register: [code: 23] Public key already in use")


def made(tmp_path, *answers):
    return Flower(federation_in(tmp_path / "f"), answers)


def test_all_nodes_are_registered_under_their_names(tmp_path):
    flower = made(tmp_path, {"node-id": 2**63 + 1}, {"node-id": 12})
    assert Registration(flower).add() == {"a": True, "b": True}
    assert flower.asked == [
        ("supernode", "register", str(flower.server.public_key(node)), "--name", node) for node in "ab"
    ]
    assert Registration(flower).ids == {"a": str(2**63 + 1), "b": "12"}


def test_a_node_that_is_known_stays_so(tmp_path):
    flower = made(tmp_path, {"node-id": 11}, KNOWN)
    assert Registration(flower).add(["a"]) == {"a": True}
    assert Registration(flower).add(["a"]) == {"a": False}
    assert Registration(flower).ids == {"a": "11"}


def test_a_key_that_somebody_else_registered_is_not_passed_over(tmp_path):
    with pytest.raises(FlowerError, match="already in use"):
        Registration(made(tmp_path, KNOWN)).add(["a"])


def test_a_link_that_has_forgotten_its_nodes_gets_them_anew(tmp_path):
    flower = made(tmp_path, {"node-id": 11}, {"node-id": 21})
    Registration(flower).add(["a"])
    assert Registration(flower).add(["a"]) == {"a": True}
    assert Registration(flower).ids == {"a": "21"}


def test_a_node_is_refused_from_now_on(tmp_path):
    flower = made(tmp_path, {"node-id": 11}, {"node-id": 12}, {})
    Registration(flower).add()
    Registration(flower).remove(["a"])
    assert flower.asked[-1] == ("supernode", "unregister", "11")
    assert Registration(flower).ids == {"b": "12"}
    with pytest.raises(InvalidValueError, match=r"--nodes a: it is not registered. Registered are b"):
        Registration(flower).remove(["a"])


def test_unknown_nodes_and_missing_keys_are_named(tmp_path):
    flower = made(tmp_path)
    with pytest.raises(InvalidValueError, match=r"--nodes c: no such node in this federation. There are a, b"):
        Registration(flower).add(["c"])
    flower.server.public_key("b").unlink()
    with pytest.raises(MissingFileError, match=r"b.pub: no such file. It is node.pub"):
        Registration(flower).add()
    assert flower.asked == []
