"""A node builds the task that the command line builds, and its own data."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from lightning.fabric import seed_everything

from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, TopK
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.remote.run_config import LocalWork, RunConfig
from fedlightning.flower.allowed_classes import AllowedClasses, RefusedClassError
from fedlightning.flower.built import built_data, built_task, enter
from fedlightning.flower.node_config import NodeConfig
from tests.support.hospital import Offset

HOSPITAL = "tests.support.hospital"
FED_AVG = {"class_path": "fedlightning.algorithms.FedAvg", "init_args": {"lr": 0.1}}


def built(seed=3, path=f"{HOSPITAL}.Offset", **arguments):
    run = RunConfig({"class_path": path, "init_args": {"algorithm": FED_AVG, **arguments}}, seed)
    return built_task(run, AllowedClasses(("fedlightning", HOSPITAL)))


def config(**changes):
    data = {"class_path": f"{HOSPITAL}.Records", "init_args": changes}
    return NodeConfig("a", "localhost:1", [0], data)


def test_the_task_begins_where_it_does_elsewhere_with_the_same_seed():
    seed_everything(3, verbose=False)
    expected = Offset(FedAvg(lr=0.1)).state_dict()
    found = built().state_dict()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert not torch.equal(built(seed=4).state_dict()["offset"], expected["offset"])


def test_arguments_become_what_they_are_annotated_as():
    optimizer = {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}}
    task = built(server_optimizer=optimizer, weighting="samples")
    assert task.federation_options.weighting == "samples"
    assert isinstance(task.algorithm, FedAvg)


@pytest.mark.parametrize("place", ["client", "download"])
def test_a_channel_is_built_as_its_run_says(place):
    top = {"class_path": "fedlightning.channel.TopK", "init_args": {"fraction": 0.5}}
    task = built(channel={"class_path": "fedlightning.channel.Channel", "init_args": {place: [top]}})
    assert task.federation_options.channel == Channel(**{place: [TopK(0.5)]})


@pytest.mark.parametrize("hidden", ["{class_path: subprocess.Popen, init_args: {args: 'true'}}", "subprocess.Popen"])
def test_a_text_does_not_become_an_object(hidden):
    with pytest.raises(RefusedClassError, match=r"names subprocess\.Popen"):
        built(path=f"{HOSPITAL}.Tumour", marker=hidden)


def test_short_names_are_looked_at_too():
    """Parsers know classes by their names alone, once they are imported."""
    with pytest.raises(RefusedClassError, match="Tumour: it is no dotted path"):
        built(path="Tumour")


def test_what_cannot_be_built_is_said():
    with pytest.raises(InvalidValueError, match=r"model cannot be built: .*no_such_argument"):
        built(no_such_argument=1)
    with pytest.raises(InvalidValueError, match=r"model cannot be built: .*weighting"):
        built(weighting="other")
    with pytest.raises(ValueError, match=r"server_clip=-1\.0\): expected > 0"):
        built(server_clip=-1.0)
    with pytest.raises(InvalidValueError, match=r"data cannot be built: .*no_such_argument"):
        built_data(config(no_such_argument=1))


def test_a_run_says_how_much_clients_compute_and_the_node_may_keep_its_seed():
    data = built_data(config(local_steps=3), seed=5, work=LocalWork(batch_size=2, local_steps=7))
    assert (data.batch_size, data.local_steps, data.local_epochs, data.seed) == (2, 7, 1, 5)
    assert built_data(config(seed=1), seed=5).seed == 1


def test_epochs_of_a_run_take_the_place_of_a_nodes_steps():
    data = built_data(config(local_steps=3), work=LocalWork(local_epochs=2))
    assert (data.local_steps, data.local_epochs) == (None, 2)


def test_modules_and_files_are_found_in_the_folder_of_the_node(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "before")
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "ward_of_a_node.py").write_text(
        "from tests.support.hospital import Records\nclass Ward(Records):\n    pass\n"
    )
    enter(folder)
    data = built_data(NodeConfig("a", "localhost:1", [0], {"class_path": "ward_of_a_node.Ward"}))
    assert type(data).__name__ == "Ward"
