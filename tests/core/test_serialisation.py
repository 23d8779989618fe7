"""Values become plain configurations and come back; nothing else is built."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Flag, IntEnum
from functools import partial

import pytest
import torch
from jsonargparse import ArgumentError, ArgumentParser

from fedlightning import algorithms
from fedlightning.algorithms import Algorithm, FedAvg, FedMM
from fedlightning.channel import Channel, TopK
from fedlightning.core.serialisation import (
    CheckpointError,
    NotPlainError,
    Trust,
    UntrustedClassError,
    from_config,
    rebuild,
    to_config,
)
from fedlightning.data import CIFAR10
from fedlightning.local import LocalSteps
from fedlightning.oracle import Vectorized
from fedlightning.proximal import L1, SquaredL2, Sum
from fedlightning.tasks import MDD


@pytest.mark.parametrize(
    "value", [FedMM(lr=[0.1, 0.2], mu=2.0), Vectorized(chunk_size=3), MDD(gamma=2.0), 3, "x", None]
)
def test_round_trip(value):
    plain = to_config(value)
    again = from_config(plain)
    assert to_config(again) == plain
    assert type(again) is type(value)


class Level(IntEnum):
    low = 1


class Parts(Flag):
    body = 1
    head = 2


@pytest.mark.parametrize("value", [Level.low, Parts.body, Parts.body | Parts.head])
def test_members_of_enums_come_back(value):
    plain = to_config(value)
    assert isinstance(plain, dict)
    assert from_config(plain, Trust(named=(type(value),))) is value
    with pytest.raises(UntrustedClassError):
        from_config(plain)


def test_partials_and_classes_become_class_paths():
    config = to_config(FedAvg(0.1, local_optimizer=partial(torch.optim.SGD, momentum=0.9)))
    assert config["init_args"]["local_optimizer"] == {
        "class_path": "torch.optim.sgd.SGD",
        "init_args": {"momentum": 0.9},
    }
    assert to_config(torch.optim.Adam) == {"class_path": "torch.optim.adam.Adam"}


def test_partials_come_back_as_partials_and_tuples_as_tuples():
    again = from_config(to_config(FedAvg(0.1, local_optimizer=partial(torch.optim.SGD, momentum=0.9))))
    assert again.local_optimizer.func is torch.optim.SGD
    assert again.local_optimizer.keywords == {"momentum": 0.9}
    assert from_config(to_config(algorithms.FedCP(0.1))).heads == algorithms.FedCP(0.1).heads
    nested = {"regularizer": {"body": Sum(L1(0.1), SquaredL2(0.2)), "head": None}}
    assert to_config(from_config(to_config(nested))) == to_config(nested)


@pytest.mark.parametrize(
    "path",
    [
        "os.system",
        "subprocess.Popen",
        "builtins.eval",
        "canary",
        "",
        ".L1",
        "fedlightning.proximal.",
        "fedlightning.proximal..L1",
        "fedlightning.proximal.os",
        "fedlightning.federation.client_states.os.system",
        "fedlightning.federation.client_states.tempfile",
        "fedlightning.__main__.main",
        "fedlightning.cli.FederatedCLI",
        "fedlightning.cli.main",
        "fedlightning.data.MNIST",
        "fedlightning.data.module.Path",
        "fedlightning.tasks.Classification",
        "fedlightning.compare.run.Run",
        "fedlightning.callbacks.LastCheckpoint",
        "fedlightning.oracle.predictions._PredictionsModule",
        "fedlightning.oracle.base.nn",
        "fedlightning.oracle.nowhere.Sequential",
        "torch.save",
        "torch.nn.init.kaiming_normal_",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.DataParallel",
        "torch.nn.modules.module.torch",
        "torch.optim.sys",
        "torch.optim.optimizer.functools",
        "torch.optim.lr_scheduler.warnings.sys.modules",
        3,
        None,
        ["fedlightning.oracle.Sequential"],
    ],
)
def test_other_class_paths_are_refused(path):
    with pytest.raises(UntrustedClassError, match=r"^x.y names the class .* may not choose; nothing of it was"):
        from_config({"class_path": path, "init_args": {}}, place="x.y")


@pytest.mark.parametrize("path", ["torch.optim.SGD", "torch.optim.sgd.SGD", "torch.optim.lr_scheduler.StepLR"])
def test_optimizers_and_schedulers_are_partials(path):
    assert from_config({"class_path": path, "init_args": {"x": 1}}).keywords == {"x": 1}


def test_every_public_component_of_the_package_may_be_named():
    """Classes that a configuration can hold; networks, algorithms, oracles, ..."""
    from fedlightning import local, models, oracle, participation, proximal

    for package in (algorithms, local, models, oracle, participation, proximal):
        for name, value in vars(package).items():
            kinds = (
                Algorithm,
                torch.nn.Module,
                oracle.ClientBatching,
                participation.Participation,
                proximal.Regularizer,
            )
            if isinstance(value, type) and issubclass(value, (*kinds, local.LocalSolver, local.StoppingRule)):
                assert Trust().find(f"{package.__name__}.{name}", "here") is value
                assert Trust().find(f"{value.__module__}.{name}", "here") is value


def test_values_that_do_not_fit_say_where():
    config = {"class_path": "fedlightning.algorithms.FedAvg", "init_args": {"rate": 0.1}}
    with pytest.raises(CheckpointError, match=r"^hp.a: fedlightning.algorithms.FedAvg cannot be made .*'rate'"):
        from_config({"a": config}, place="hp")
    with pytest.raises(CheckpointError, match=r"^hp.init_args is a list, expected a dict of arguments"):
        from_config({**config, "init_args": [1]}, place="hp")


@pytest.mark.parametrize("said", [True, 1, 1.0, "yes", [1], [[]], {"a": 1}])
def test_nothing_is_fetched(said, monkeypatch):
    asked = []
    monkeypatch.setattr("fedlightning.models.MobileNetV2Features.__init__", lambda self, **given: asked.append(given))
    from_config({"class_path": "fedlightning.models.MobileNetV2Features", "init_args": {"download": said}})
    assert asked == [{"download": False}]
    data = rebuild(CIFAR10, {"root": "nowhere", "download": said}, {})
    assert data.download is False
    assert rebuild(CIFAR10, {"root": "nowhere", "download": said}, {"download": True}).download is True


class Link:
    def __init__(self, download: float = 1.0):
        self.download = download


class Fetching(CIFAR10):
    """Hands on what it is given."""

    def __init__(self, root, **options):
        super().__init__(root, **options)


def test_what_users_call_download_is_theirs_unless_it_fetches():
    trust = Trust(named=(Link,))
    config = {"class_path": f"{__name__}.Link", "init_args": {"download": 12.5}}
    assert from_config(config, trust).download == 12.5
    assert rebuild(Fetching, {"root": "nowhere", "download": 1}, {}).download is False


def test_what_a_channel_does_to_broadcasts_is_no_download():
    channel = Channel(download=[TopK(0.5)])
    assert from_config(to_config(channel)) == channel


@pytest.mark.parametrize(
    "value", [lambda: 0, torch.zeros(2), torch.nn.Linear(1, 1), partial(lambda: 0), {Level.low: 1}]
)
def test_what_has_no_plain_form(value):
    with pytest.raises(NotPlainError):
        to_config(value)


@pytest.mark.parametrize("name", ["FIAELT", "FedDR", "FedPD", "FedADMM", "FedADMMGong", "FedSplit"])
def test_types_of_splitting_methods_are_known_to_the_command_line(name):
    """Solvers and rules arrive by class path, checked."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--algorithm", type=Algorithm)
    weight = next(f.name for f in fields(getattr(algorithms, name)) if f.name in ("beta", "eta", "sigma", "rho", "s"))
    solver = {
        "class_path": "fedlightning.local.LocalSteps",
        "init_args": {"lr": [0.1, 0.2], "optimizer": "torch.optim.SGD"},
    }
    config = {"class_path": f"fedlightning.algorithms.{name}", "init_args": {weight: [2.0, 3.0], "solver": solver}}
    made = parser.instantiate_classes(parser.parse_object({"algorithm": config})).algorithm
    assert isinstance(made.solver, LocalSteps)
    assert getattr(made, weight) == [2.0, 3.0]
    assert from_config(to_config(replace(made, solver=LocalSteps(lr=0.1)))).solver.lr == 0.1
    with pytest.raises(ArgumentError, match="solver"):
        parser.parse_object({"algorithm": {**config, "init_args": {weight: 2.0, "solver": 3}}})
