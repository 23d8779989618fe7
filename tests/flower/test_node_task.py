"""The task of a run at a node, placed as the run says."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.federation.remote.run_config import RunConfig
from fedlightning.flower.allowed_classes import AllowedClasses
from fedlightning.flower.node_task import placed_task

ALGORITHM = {"class_path": "fedlightning.algorithms.FedAPM", "init_args": {"lr": 0.05}}
MODEL = {"class_path": "tests.support.archive.Dose", "init_args": {"algorithm": ALGORITHM}}
ALLOWED = AllowedClasses(("fedlightning", "tests.support.archive"))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32-true", torch.float32), ("64-true", torch.float64), ("bf16-mixed", torch.float32)]
)
def test_parameters_have_the_precision_of_the_run(precision, dtype):
    task, fabric = placed_task(RunConfig(MODEL, 3, precision), ALLOWED)
    assert {parameter.dtype for parameter in task.parameters()} == {dtype}
    assert fabric.device == torch.device("cpu")


def test_a_module_steps_by_its_own_optimizer():
    module = {"class_path": "tests.support.lit.Lit"}
    algorithm = {"class_path": "fedlightning.algorithms.FedAvg"}
    model = {"class_path": "fedlightning.Federated", "init_args": {"module": module, "algorithm": algorithm}}
    task, _ = placed_task(RunConfig(model, 3), AllowedClasses(("fedlightning", "tests.support.lit")))
    assert task.algorithm.lr == 0.05
