"""Who belongs to a federation is read as it was written, and refused with the client or node that is wrong."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import yaml

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.address import Address
from fedlightning.flower.deployment.federation_file import Federation, parse_nodes, require_name

PUBLIC, LOCAL = Address("fed.example.org", 8443), Address("127.0.0.1", 8444)


def federation(nodes, name="digits", address=PUBLIC, listen=LOCAL):
    return Federation(name, address, listen, nodes)


def test_nodes_are_given_by_ranges():
    nodes = parse_nodes(["a=0-3", "hospital-b=6,4", "c=5,7-8"])
    assert nodes == {"a": (0, 1, 2, 3), "hospital-b": (6, 4), "c": (5, 7, 8)}
    assert federation(nodes).num_clients == 9


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (["a"], "--nodes a: a node without clients"),
        (["a="], "--nodes a=: a node without clients"),
        (["a=x"], "--nodes a=x: 'x' is no client"),
        (["a=-1"], "'-1' is no client"),
        (["a=0,"], "'' is no client"),
        (["a=3-1"], "the range 3-1 is empty. Expected 1-3"),
        (["a=0", "a=1"], "node 'a' is given twice. Put its clients into one entry"),
        (["a/b=0"], "--nodes=a/b: expected up to 63 letters"),
    ],
)
def test_nodes_written_otherwise_are_refused(entries, why):
    with pytest.raises(InvalidValueError, match=why):
        parse_nodes(entries)


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ({"a": (0, 1), "b": (1, 2)}, "client 1 is at nodes 'a' and 'b'. A client is at one node, once"),
        ({"a": (0, 0)}, "client 0 is at node 'a' twice"),
        ({"a": (0,), "b": ()}, "node 'b' has no clients"),
        ({"a": (0,), "b": (2,)}, "client 1 is at no node, though client 2 is. Number the clients 0 to N-1"),
        ({}, "there are none"),
    ],
)
def test_every_client_is_at_one_node(nodes, why):
    with pytest.raises(InvalidValueError, match=why):
        federation(nodes)


def test_the_link_is_never_open_to_other_machines():
    with pytest.raises(
        InvalidValueError, match=r"listen=0.0.0.0:8443: other machines could reach the link's Control API"
    ):
        federation({"a": (0,)}, listen=Address("0.0.0.0", 8443))


def test_proxy_and_link_do_not_share_a_port():
    with pytest.raises(InvalidValueError, match="the proxy listens on port 8444 already"):
        federation({"a": (0,)}, address=Address("fed.example.org", 8444))
    federation({"a": (0,)}, address=LOCAL)  # no proxy


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "a" * 64, "ä"])
def test_names_stand_in_file_names_and_commands(name):
    with pytest.raises(InvalidValueError, match="expected up to 63 letters, digits and dashes"):
        require_name("--name", name)


def test_a_federation_comes_back_from_its_file(tmp_path):
    there = federation({"a": (0, 2), "b": (1,)}, listen=Address("::1", 8444))
    (tmp_path / "federation.yaml").write_text(there.to_yaml())
    assert Federation.read(tmp_path / "federation.yaml") == there


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_clients": 3}, "num_clients=3, but the nodes have 2"),
        ({"nodes": {"a": [0], "b": ["x"]}}, r"nodes: b: \['x'\]: expected a list of clients"),
        ({"nodes": {"a": 0}}, "nodes: a: 0: expected a list"),
        ({"nodes": [0]}, "'nodes' is missing or unknown"),
        ({"adress": "a"}, "'adress' is missing or unknown. Expected name, address"),
        ({"listen": "0.0.0.0:1"}, "federation.yaml: listen=0.0.0.0:1: other machines"),
        ({"address": "a"}, "federation.yaml: address=a: there is no port"),
    ],
)
def test_a_file_with_something_else_is_refused(change, why, tmp_path):
    content = yaml.safe_load(federation({"a": (0,), "b": (1,)}).to_yaml())
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump({**content, **change}))
    with pytest.raises(InvalidValueError, match=why):
        Federation.read(tmp_path / "federation.yaml")
