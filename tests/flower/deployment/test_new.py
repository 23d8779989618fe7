"""A new federation has its folders, whose secrets are where they belong, and nothing is ever overwritten."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import re
import stat
from inspect import signature

import yaml
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.address import Address
from fedlightning.flower.deployment.certificates import hosts_of
from fedlightning.flower.deployment.federation_file import Federation
from fedlightning.flower.deployment.new import NewFederation
from fedlightning.flower.node_config import read_node_config
from tests.support.deployment import federation_in, simulation

SECRETS = {"server/ca.key", "server/server.key", "nodes/a/node.key", "nodes/b/node.key"}


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_every_file_is_where_it_belongs(tmp_path):
    federation_in(tmp_path / "f", "fed.example.org:443")
    node = {"node.yaml", "node.key", "node.pub", "ca.crt"}
    assert files(tmp_path / "f") == {
        *(f"server/{name}" for name in ("federation.yaml", "run.yaml", "ca.crt", "ca.key", "server.crt", "server.key")),
        *("server/nodes/a.pub", "server/nodes/b.pub", "server/app/pyproject.toml"),
        *("server/services/fedlightning-digits-link.service", "server/proxy/fedlightning-digits.conf"),
        *(f"nodes/{each}/{name}" for each in "ab" for name in node),
        *(f"nodes/{each}/services/fedlightning-digits-node-{each}.service" for each in "ab"),
    }


def test_secrets_are_for_their_owner_alone(tmp_path):
    federation_in(tmp_path / "f")
    folder = tmp_path / "f"
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in files(folder)}
    assert {name for name, mode in modes.items() if mode == 0o600} == SECRETS
    assert {name for name in modes if "PRIVATE KEY" in (folder / name).read_text()} == SECRETS
    for each in ("server", "server/link", "server/runs", "nodes/a", "nodes/b"):
        assert stat.S_IMODE((folder / each).stat().st_mode) == 0o700


def test_each_node_has_a_key_of_its_own(tmp_path):
    server = federation_in(tmp_path / "f")
    public = {}
    for node in "ab":
        home = tmp_path / "f" / "nodes" / node
        private = load_ssh_private_key((home / "node.key").read_bytes(), None)
        public[node] = load_ssh_public_key(server.public_key(node).read_bytes())
        assert private.public_key() == public[node] == load_ssh_public_key((home / "node.pub").read_bytes())
        assert (home / "ca.crt").read_bytes() == server.authority.read_bytes()
    assert public["a"] != public["b"]


def test_node_configs_are_read_by_nodes(tmp_path):
    federation_in(tmp_path / "f", "fed.example.org:443")
    configs = {node: read_node_config(tmp_path / "f" / "nodes" / node / "node.yaml") for node in "ab"}
    for config in configs.values():
        config.require_credentials()
        assert config.superlink == "fed.example.org:443"
        assert config.data == simulation(tmp_path / "f").node_data()
        assert config.classes == ["fedlightning"]
    assert {node: config.places for node, config in configs.items()} == {"a": {0: 0, 1: 1}, "b": {2: 2}}
    assert configs["a"].port != configs["b"].port


def test_the_certificate_has_all_names_of_the_link(tmp_path):
    federation = Federation("digits", Address("fed.example.org", 443), Address("127.0.0.1", 8443), {"a": (0, 1, 2)})
    server = NewFederation(federation, simulation(tmp_path), ("192.0.2.7",)).write(tmp_path / "f")
    assert hosts_of(server.certificate) == ["fed.example.org", "192.0.2.7", "127.0.0.1", "localhost", "::1"]


def test_a_federation_on_one_machine_has_no_proxy(tmp_path):
    server = federation_in(tmp_path / "f", "127.0.0.1:8443")
    assert list(server.proxy.iterdir()) == []
    assert str(server.federation.listen) == "127.0.0.1:8443"


def test_files_name_the_folder_where_it_lies_in_the_end(tmp_path):
    server = federation_in(tmp_path / "f", "fed.example.org:443")
    for file in (*server.services.iterdir(), *server.proxy.iterdir()):
        assert str(server.path) in file.read_text()
        assert ".new" not in file.read_text()


def test_the_run_is_the_simulation_s(tmp_path):
    server = federation_in(tmp_path / "f")
    assert yaml.safe_load(server.run_file.read_text()) == simulation(tmp_path / "f").run(3)


def test_a_folder_with_anything_in_it_is_refused_and_untouched(tmp_path):
    federation_in(tmp_path / "f")
    before = {name: (tmp_path / "f" / name).read_bytes() for name in files(tmp_path / "f")}
    with pytest.raises(InvalidValueError, match=r"it exists. A federation's keys are never overwritten"):
        federation_in(tmp_path / "f")
    assert {name: (tmp_path / "f" / name).read_bytes() for name in files(tmp_path / "f")} == before
    (tmp_path / "empty").mkdir()
    federation_in(tmp_path / "empty")


def test_nothing_is_left_of_a_federation_that_could_not_be_made(tmp_path):
    federation = Federation("digits", Address("a.org", 443), Address("127.0.0.1", 8443), {"a": (0, 1)})
    with pytest.raises(InvalidValueError, match="they have 2 clients, and the simulation has"):
        NewFederation(federation, simulation(tmp_path / "f")).write(tmp_path / "f")
    with pytest.raises(InvalidValueError, match="nginx cannot read"):
        federation_in(tmp_path / "a$b", "a.org:443")
    assert {path.name for path in tmp_path.iterdir()} == {"few.yaml"}


def test_the_run_s_file_names_the_sections_that_there_are(tmp_path):
    from fedlightning.federation.remote.checks import AnswerChecks
    from fedlightning.federation.remote.run_config import LocalWork
    from fedlightning.federation.remote.silence import Silence
    from fedlightning.federation.transport.remote import Deadlines

    server = federation_in(tmp_path / "f")
    head = " ".join(line[2:] for line in server.run_file.read_text().splitlines() if line.startswith("# "))
    for name, section in {
        "work": LocalWork,
        "deadlines": Deadlines,
        "checks": AnswerChecks,
        "silence": Silence,
    }.items():
        listed = re.search(rf"\b{name} \(([^)]*)\)", head)[1].split(", ")
        assert listed[: len(signature(section).parameters)] == list(signature(section).parameters)
