"""A run names what a node allows, and nothing else, however it is written."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import torch

from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.remote.run_config import RunConfig
from fedlightning.flower.allowed_classes import AllowedClasses, RefusedClassError
from fedlightning.flower.built import built_task
from fedlightning.tasks.base import FederatedLightningModule

HOSPITAL = "tests.support.hospital"
STORAGE = "fedlightning.federation.client_states.MemoryMapped"
FED_AVG = {"class_path": "fedlightning.algorithms.FedAvg", "init_args": {"lr": 0.1}}


def require(config, *classes):
    AllowedClasses(classes or ("fedlightning",)).require(config, FederatedLightningModule)


def task(path=f"{HOSPITAL}.Tumour", **arguments):
    return {"class_path": path, "init_args": {"algorithm": FED_AVG, **arguments}}


@pytest.mark.parametrize(
    "config",
    [
        {"class_path": "fedlightning.tasks.Classification", "init_args": {"algorithm": FED_AVG}},
        {"class_path": "fedlightning.Federated"},
        {"class_path": "torch.nn.Linear"},
        {"class_path": "torch.nn.modules.linear.Linear"},
        {"class_path": "torch.optim.Adam"},
        {"class_path": "torch.optim.lr_scheduler.StepLR"},
        {"class_path": "fedlightning.models.LeNet5"},
        {"class_path": "fedlightning.proximal.L1"},
        {"names": ["line.weight", "network.0", "average", "1e-3", "a.b.c", "", "{", "- [", "x: y"]},
    ],
    ids=lambda config: str(config.get("class_path", "texts")),
)
def test_what_tasks_consist_of_is_allowed(config):
    require(config)


def test_what_is_listed_is_allowed_by_either_name():
    for entry in (HOSPITAL, f"{HOSPITAL}.Tumour", "tests"):
        require(task(), "fedlightning", entry)
    require(task(f"{HOSPITAL}.Line"), "fedlightning", f"{HOSPITAL}.Line")  # it is defined in another module
    require(task("tests.support.small.Line"), "fedlightning", f"{HOSPITAL}.Line")
    require(task(activation=f"{HOSPITAL}.negative"), "fedlightning", HOSPITAL)
    require(task(activation="torch.nn.functional.relu"), "fedlightning", HOSPITAL, "torch.nn.functional")
    require(task(activation="torch.tanh"), "fedlightning", HOSPITAL, "torch.tanh")
    require(task(activation="fedlightning.callbacks.LastCheckpoint"), "fedlightning", HOSPITAL,
            "fedlightning.callbacks.LastCheckpoint")  # fmt: skip
    require(task(marker="tests.no_module.at_all"), "fedlightning", "tests")  # a text


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (task("os.system"), "os.system"),
        (task(marker={"class_path": "subprocess.Popen"}), "subprocess.Popen"),
        (task(marker=[{"deep": {"class_path": "subprocess.Popen"}}]), "subprocess.Popen"),
        (task(marker={"class_path": f"{HOSPITAL}.Popen"}), f"{HOSPITAL}.Popen"),
        (task(marker={"class_path": f"{HOSPITAL}.Line"}), f"{HOSPITAL}.Line"),
        (task(activation="os.system"), "os.system"),
        (task(activation="builtins.eval"), "builtins.eval"),
        (task(activation="torch.load"), "torch.load"),
        (task(activation="torch.hub.load"), "torch.hub.load"),
        (task(activation="torch.nn.functional.relu"), "torch.nn.functional.relu"),
        (task(activation="torch.optim.lr_scheduler.warnings.warn"), "torch.optim.lr_scheduler.warnings.warn"),
        (task(activation=f"{HOSPITAL}.Tumour.load_from_checkpoint"), f"{HOSPITAL}.Tumour.load_from_checkpoint"),
        (task(marker={"class_path": "torch.nn.parallel.DataParallel"}), "torch.nn.parallel.DataParallel"),
        (task(marker={"class_path": "Popen"}), "Popen"),
        (task(marker={"class_path": ["subprocess.Popen"]}), "subprocess.Popen"),
        (task(marker="{class_path: subprocess.Popen}"), "subprocess.Popen"),
        (task(marker='{"\\x63lass_path": "subprocess.Popen"}'), "subprocess.Popen"),
        (task(marker='["{class_path: subprocess.Popen}"]'), "subprocess.Popen"),
        (task(marker=torch.load), "torch.serialization.load"),
        (task(marker={"dict_kwargs": {"class_path": "subprocess.Popen"}}), "subprocess.Popen"),
        (task(marker={"class_path": "fedlightning.callbacks.LastCheckpoint"}), "fedlightning.callbacks.LastCheckpoint"),
        (task(marker={"class_path": "fedlightning.data.Digits"}), "fedlightning.data.Digits"),
        (
            task(client_storage={"class_path": STORAGE, "init_args": {"folder": "/elsewhere"}}),
            "fedlightning.federation.client_states.MemoryMapped",
        ),
        (task(activation="fedlightning.cli.main"), "fedlightning.cli.main"),
        (task(activation="fedlightning.__main__.main"), "fedlightning.__main__.main"),
        (task(activation=f"{HOSPITAL}.__builtins__"), f"{HOSPITAL}.__builtins__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_anything_else_is_refused(config, name):
    with pytest.raises(RefusedClassError) as refusal:
        require(config, "fedlightning", f"{HOSPITAL}.Tumour", HOSPITAL)
    for part in (name, f"This node's list has fedlightning, {HOSPITAL}.Tumour", "'classes' in node.yaml"):
        assert part in str(refusal.value)


def test_a_run_has_nothing_downloaded():
    network = {"class_path": "fedlightning.models.MobileNetV2Features", "init_args": {"download": True}}
    for config in (network, str(network)):
        with pytest.raises(RefusedClassError, match=r"model.*\.download=True: a run may not have a node fetch"):
            require(task(activation=config), "fedlightning", HOSPITAL)
    require(task(activation={**network, "init_args": {"download": False}}), "fedlightning", HOSPITAL)
    for arguments in ({"dict_kwargs": {"download": [1]}}, {"download": [1]}):
        with pytest.raises(RefusedClassError, match=r"\.download=\[1\]: a run may not have a node fetch"):
            require(task(channel={"class_path": "fedlightning.channel.Channel", **arguments}), "fedlightning", HOSPITAL)


def test_broadcasts_may_go_through_a_channel():
    def through(*transforms):
        return task(channel={"class_path": "fedlightning.channel.Channel", "init_args": {"download": list(transforms)}})

    require(through(), "fedlightning", HOSPITAL)
    require(through({"class_path": "fedlightning.channel.TopK"}), "fedlightning", HOSPITAL)
    with pytest.raises(RefusedClassError, match=r"subprocess\.Popen"):
        require(through({"class_path": "subprocess.Popen"}), "fedlightning", HOSPITAL)


@pytest.mark.parametrize("entry", ["torch", "torch.optim", HOSPITAL, f"{HOSPITAL}.Tumour", "torch.nn.Linear.forward"])
def test_what_is_listed_is_there(entry):
    AllowedClasses(["fedlightning", entry]).require_there()


@pytest.mark.parametrize("entry", ["no_hospital", "no_hospital.Task", f"{HOSPITAL}.Tumor", "tests.no_module.Task"])
def test_an_entry_that_is_nowhere_is_named(entry):
    with pytest.raises(InvalidValueError, match=rf"classes: {entry} is not at this node .*node\.yaml"):
        AllowedClasses(["fedlightning", entry]).require_there()


def test_without_the_package_on_the_list_nothing_of_it_runs():
    with pytest.raises(
        RefusedClassError, match=r"model\.algorithm names fedlightning\.algorithms\.FedAvg: it is not on"
    ):
        require(task(), HOSPITAL)


def test_nothing_is_imported_that_is_not_listed(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for config in ({"class_path": "trap.Task"}, task(activation="trap.function"), task(marker="{a: trap.function}")):
        with pytest.raises(RefusedClassError, match="names trap"):
            require(config, "fedlightning", HOSPITAL)
    assert "trap" not in sys.modules


@pytest.mark.parametrize(
    "text",
    [
        "{class_path: trap.Task, init_args: {x: &a 1, y: *a}}",
        "{class_path: trap.Task, class_path: trap.Task}",
        '{"class_path": "trap.Task", "class_path": "trap.Task"}',
        "class_path:\ttrap.Task",
        '{\n\t"class_path":\t"trap.Task"\n}',
        "- &a trap.Task\n- *a",
    ],
)
def test_what_only_some_readers_take_for_a_mapping_is_refused(text, tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for argument in ("algorithm", "marker"):
        run = RunConfig(task(**{argument: text}), 0)
        with pytest.raises(RefusedClassError, match=r"not all read alike|names trap"):
            built_task(run, AllowedClasses(["fedlightning", HOSPITAL]))


@pytest.mark.parametrize("address", ["file://{}", "local://{}", "simplecache::file://{}", "ftp://elsewhere{}"])
def test_addresses_are_not_a_runs_to_read(address, tmp_path):
    file = tmp_path / "algorithm.yaml"
    file.write_text("class_path: fedlightning.algorithms.FedAvg\ninit_args: {lr: 0.1}")
    run = RunConfig(task(algorithm=address.format(file)), 0)
    with pytest.raises(RefusedClassError, match=r"model\.algorithm=.* is an address"):
        built_task(run, AllowedClasses(["fedlightning", HOSPITAL]))


def test_what_is_not_installed_is_named():
    with pytest.raises(RefusedClassError, match=r"names my_hospital\.Tumour: it is not installed here .* server's"):
        require({"class_path": "my_hospital.Tumour"}, "my_hospital")


def test_files_of_the_node_are_not_a_runs_to_read(tmp_path, monkeypatch):
    (tmp_path / "network.yaml").write_text("class_path: subprocess.Popen")
    (tmp_path / "scans").mkdir()
    monkeypatch.chdir(tmp_path)
    for path in ("network.yaml", "./network.yaml", "scans"):
        with pytest.raises(RefusedClassError, match=r"model\.marker=.* is a file or folder in the folder of this node"):
            require(task(marker=path), "fedlightning", HOSPITAL)
    for text in ("other.yaml", "organisation/model"):
        require(task(marker=text), "fedlightning", HOSPITAL)


@pytest.mark.parametrize("path", ["{}/{}", "~/{1}", "~", "../{1}", "scans/../../{1}", "C:\\{1}", "\\\\{1}", "/"])
def test_a_run_does_not_learn_what_is_on_the_node_s_machine(path, tmp_path):
    """What leads out of the node's folder is refused in the same words, whether it is there or not."""
    (tmp_path / "present").touch()
    said = []
    for name in ("present", "missing"):
        with pytest.raises(RefusedClassError) as refusal:
            require(task(marker=path.format(tmp_path, name)), "fedlightning", HOSPITAL)
        said.append(str(refusal.value).replace(name, "it"))
    assert said[0] == said[1]
    assert "is a path, whether anything is there or not" in said[0]
