from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from jsonargparse import ArgumentError, ArgumentParser

from fedlightning import algorithms
from fedlightning.algorithms import Algorithm, FedAvg, FedMM
from fedlightning.config import NotPlainError, from_config, to_config
from fedlightning.local import LocalSteps
from fedlightning.oracle import Vectorized
from fedlightning.tasks import MDD


@pytest.mark.parametrize(
    "value", [FedMM(lr=[0.1, 0.2], mu=2.0), Vectorized(chunk_size=3), MDD(gamma=2.0), 3, "x", None]
)
def test_round_trip(value):
    plain = to_config(value)
    again = from_config(plain)
    assert to_config(again) == plain
    assert type(again) is type(value)


def test_partials_and_classes_become_class_paths():
    config = to_config(FedAvg(0.1, local_optimizer=partial(torch.optim.SGD, momentum=0.9)))
    assert config["init_args"]["local_optimizer"] == {
        "class_path": "torch.optim.sgd.SGD",
        "init_args": {"momentum": 0.9},
    }
    assert to_config(torch.optim.Adam) == {"class_path": "torch.optim.adam.Adam"}


@pytest.mark.parametrize("value", [lambda: 0, torch.zeros(2), torch.nn.Linear(1, 1), partial(lambda: 0)])
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
