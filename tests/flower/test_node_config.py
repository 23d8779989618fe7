"""A node's config is read as it was written, and refused by name, value and remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.core.errors import InvalidValueError, MissingFileError
from fedlightning.flower.node_config import NodeConfig, read_node_config, write_node_config

DATA = {"class_path": "fedlightning.data.DigitsOfSizes", "init_args": {"batch_size": 8}}
VALUES = {"name": "hospital-a", "superlink": "127.0.0.1:8443", "clients": [4, 1], "data": DATA}


def written(folder, **changed):
    file = folder / "node.yaml"
    file.write_text(yaml.safe_dump({**VALUES, **changed}))
    return file


def test_a_config_comes_back_as_it_was_written(tmp_path):
    full = NodeConfig(
        "a_1.b",
        "[::1]:8443",
        {7: 1, 5: 0},
        DATA,
        root_certificates="certificates/ca.crt",
        private_key="/etc/fedlightning/node.key",
        classes=["fedlightning", "my_hospital.tasks.Tumour"],
        states="/var/lib/states",
        accelerator="cpu",
        precision="bf16-mixed",
        port=9600,
        longest_answer=7200.0,
    )
    for config in (full, NodeConfig(**VALUES)):
        write_node_config(config, tmp_path / "node.yaml")
        again = read_node_config(tmp_path / "node.yaml")
        assert again == replace(config, classes=list(config.classes))
        assert again.folder == tmp_path


def test_paths_count_from_the_folder_of_the_file(tmp_path, monkeypatch):
    written(tmp_path, private_key="/keys/node.key")
    monkeypatch.chdir(tmp_path)
    config = read_node_config("node.yaml")
    assert config.states_folder == tmp_path / "states"
    assert config.certificates_file == tmp_path / "ca.crt"
    assert str(config.key_file) == "/keys/node.key"


def test_clients_are_listed_in_the_order_of_the_data_or_mapped_to_it():
    assert NodeConfig(**VALUES).places == {4: 0, 1: 1}
    assert NodeConfig(**{**VALUES, "clients": {4: 3, 1: 0}}).places == {4: 3, 1: 0}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"name": "a b"}, "name='a b': expected up to 63 letters"),
        ({"name": "../a"}, r"name='\.\./a': expected"),
        ({"name": 7}, "name=7: expected a text"),
        ({"superlink": "https://there:8443"}, "superlink='https://there:8443': expected host:port"),
        ({"superlink": "there:70000"}, "superlink='there:70000': expected host:port"),
        ({"superlink": "there"}, "superlink='there': expected host:port"),
        ({"clients": []}, "a node has at least one client"),
        ({"clients": [1, 1]}, "1 is there twice"),
        ({"clients": {1: 0, 2: 0}}, "0 is there twice"),
        ({"clients": [True]}, r"clients=\[True\]: expected the numbers"),
        ({"clients": "01"}, "clients='01': expected the numbers"),
        ({"clients": 3}, "clients=3: expected the numbers"),
        ({"data": "my.Data"}, "data='my.Data': expected class_path and init_args"),
        ({"data": {**DATA, "other": 1}}, "expected class_path and init_args"),
        ({"data": {"class_path": "my.Data", "init_args": [1]}}, r"data.init_args=\[1\]: expected arguments by name"),
        ({"classes": "fedlightning"}, "classes='fedlightning': expected a list"),
        ({"classes": ["a..b"]}, "expected a list of class paths"),
        ({"states": ""}, "states='': expected a text"),
        ({"accelerator": "quantum"}, "accelerator='quantum': expected one of auto, cpu"),
        ({"precision": "16-mixed"}, "precision='16-mixed': expected 32-true or bf16-mixed, or null .* its trainer"),
        ({"port": 0}, "port=0: expected a whole number from 1 to 65535"),
        ({"port": "9500"}, "port='9500': expected a whole number"),
        ({"longest_answer": 0}, r"longest_answer=0\): expected > 0, or null"),
        ({"longest_answer": "1h"}, r"longest_answer='1h'\): expected a number"),
        ({"insecure": True}, "there is no key 'insecure'. There are name, superlink"),
    ],
)
def test_wrong_values_are_named_with_their_file(changed, why, tmp_path):
    with pytest.raises(InvalidValueError, match=rf"node\.yaml: .*{why}"):
        read_node_config(written(tmp_path, **changed))


def test_what_is_missing_is_named(tmp_path):
    file = tmp_path / "node.yaml"
    with pytest.raises(MissingFileError, match=r"node\.yaml: no such file\. Expected a node's config"):
        read_node_config(file)
    file.write_text(yaml.safe_dump({name: value for name, value in VALUES.items() if name != "data"}))
    with pytest.raises(InvalidValueError, match=r"node\.yaml: 'data' is missing"):
        read_node_config(file)


def test_certificate_and_key_are_there_and_the_key_is_the_owners_alone(tmp_path):
    config = read_node_config(written(tmp_path))
    with pytest.raises(MissingFileError, match=r"root_certificates=ca\.crt: there is no file .*/ca\.crt\. Copy the"):
        config.require_credentials()
    (tmp_path / "ca.crt").write_text("certificate")
    with pytest.raises(MissingFileError, match=r"private_key=node\.key: there is no file"):
        config.require_credentials()
    (tmp_path / "node.key").write_text("key")
    (tmp_path / "node.key").chmod(0o640)
    with pytest.raises(InvalidValueError, match=r"others on this machine may read the key\. Run chmod 600"):
        config.require_credentials()
    (tmp_path / "node.key").chmod(0o600)
    config.require_credentials()
