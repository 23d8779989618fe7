"""The run has the simulation's task, algorithm and trainer; the nodes have its data; nothing is in both."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import yaml

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.simulation_config import SimulationConfig, class_paths, merged
from tests.support.deployment import simulation
from tests.support.paths import CONFIGS


def read(tmp_path, *contents):
    files = []
    for number, content in enumerate(contents):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump(content))
    return SimulationConfig.read(files)


ALGORITHM = {"class_path": "fedlightning.algorithms.FedAvg", "init_args": {"lr": 0.1}}
MODEL = {"class_path": "my.Task", "init_args": {"algorithm": ALGORITHM, "layers": [{"class_path": "torch.nn.Tanh"}]}}
DATA = {"class_path": "my.Data", "init_args": {"batch_size": 4, "participation": {"class_path": "P"}, "num_clients": 3}}


def test_task_and_algorithm_are_those_of_the_simulation(tmp_path):
    config = simulation(tmp_path / "x")
    base, algorithm = (
        yaml.safe_load((CONFIGS / f"classification/{name}.yaml").read_text()) for name in ("base", "fed_avg")
    )
    run, data = config.run(3), config.node_data()
    assert run["model"]["init_args"] == {**base["model"]["init_args"], **algorithm["model"]["init_args"]}
    assert {key: run["trainer"][key] for key in base["trainer"]} == {**base["trainer"], "max_steps": 2}
    assert run["data"] == {"participation": base["data"]["init_args"]["participation"]}
    assert data["class_path"] == "fedlightning.data.Digits"
    assert set(data["init_args"]) == {"partitioner", "batch_size", "local_epochs"}
    assert run["seed_everything"] == 0


def test_rounds_are_the_server_s_and_minibatches_the_nodes(tmp_path):
    config = read(
        tmp_path, {"model": MODEL, "data": DATA, "seed_everything": 7, "trainer": {"callbacks": "my.Callback"}}
    )
    assert config.run(3) == {
        "seed_everything": 7,
        "trainer": {
            "callbacks": ["my.Callback", {"class_path": "fedlightning.callbacks.RoundReport"}],
            "enable_progress_bar": False,
        },
        "model": MODEL,
        "data": {"participation": {"class_path": "P"}},
    }
    assert config.node_data() == {"class_path": "my.Data", "init_args": {"batch_size": 4, "num_clients": 3}}


def test_nodes_are_asked_for_the_classes_that_are_not_of_this_package(tmp_path):
    assert read(tmp_path, {"model": MODEL, "data": DATA}).classes == ["my.Task", "torch.nn.Tanh"]
    assert list(class_paths(MODEL)) == ["my.Task", "fedlightning.algorithms.FedAvg", "torch.nn.Tanh"]


def test_arguments_of_another_class_are_forgotten():
    first = {"a": {"class_path": "x.A", "init_args": {"p": 1, "q": {"r": 2}}}, "b": 1}
    same = merged(first, {"a": {"class_path": "x.A", "init_args": {"q": {"s": 3}}}})
    assert same == {"a": {"class_path": "x.A", "init_args": {"p": 1, "q": {"r": 2, "s": 3}}}, "b": 1}
    assert merged(first, {"a": {"init_args": {"p": 2}}})["a"]["init_args"] == {"p": 2, "q": {"r": 2}}
    assert merged(first, {"a": {"class_path": "x.B"}})["a"] == {"class_path": "x.B"}
    assert merged(first, {"a": "x.B"})["a"] == {"class_path": "x.B"}
    assert merged(first, {"a": "x.A", "b": None}) == {**first, "b": None}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"data": DATA}, "model.class_path is missing"),
        ({"model": MODEL}, "data.class_path is missing"),
        ({"model": {"class_path": "my.Task"}, "data": DATA}, "model.init_args.algorithm is missing"),
        ({"model": MODEL, "data": DATA, "ckpt_path": "x"}, "no use for 'ckpt_path'"),
    ],
)
def test_what_makes_no_federation_is_refused(content, why, tmp_path):
    with pytest.raises(InvalidValueError, match=why):
        read(tmp_path, content)


def test_nodes_have_as_many_clients_as_the_simulation(tmp_path):
    why = r"they have 4 clients, and the simulation has {}.num_clients=3. Give the nodes clients 0 to 2"
    with pytest.raises(InvalidValueError, match=why.format("data.init_args")):
        read(tmp_path, {"model": MODEL, "data": DATA}).run(4)
    with pytest.raises(InvalidValueError, match=why.format("data.init_args.partitioner.init_args")):
        simulation(tmp_path / "x").run(4)
