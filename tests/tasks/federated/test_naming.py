"""Name prefixes are those of the module, wherever they are given."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlightning import federate
from fedlightning.algorithms import FedAvg, FedBABU, FedDR
from fedlightning.core.errors import InvalidValueError
from fedlightning.local import SGD, LocalSteps
from fedlightning.proximal import L1
from fedlightning.tasks.federated.naming import ModuleNames
from tests.support.lit import made
from tests.support.small import regression_data, trainer


def test_prefixes_of_the_module_become_those_of_the_task():
    names = ModuleNames(made())
    given = ["head", "body.0", "module.head", "module"]
    assert names.prefixes(given, "max_parameters") == ("module.head", "module.body.0", "module.head", "module")
    assert names.prefixes("head", "max_parameters") == "head"
    assert names.keys({"head": 1, "default": 2}, "lr") == {"module.head": 1, "default": 2}
    assert names.keys(3, "lr") == 3
    assert names.options({"drift_parameters": ["head"], "buffers": "local"}) == {
        "drift_parameters": ("module.head",),
        "buffers": "local",
    }


def test_a_misspelt_prefix_is_answered_with_the_names_of_the_module():
    for argument in ("max_parameters", "personal_parameters"):
        with pytest.raises(
            InvalidValueError, match=rf"{argument}: 'hed' matches no trainable.* Did you mean 'head'\? .*'body', 'head'"
        ):
            federate(made(), FedAvg, **{argument: ["hed"]})


@pytest.mark.parametrize(
    ("algorithm", "options", "argument"),
    [
        (FedAvg({"haed": 0.1, "default": 0.2}), {}, "lr"),
        (FedDR(1.0, solver=LocalSteps(0.1, optimizer=SGD(momentum={"haed": 0.9, "default": 0.0}))), {}, "momentum"),
        (FedBABU(0.1, head="haed"), {}, "head"),
        (FedDR(1.0, solver=LocalSteps(0.1)), {"regularizer": {"haed": L1(0.1)}}, "regularizer"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_names_of_the_module(algorithm, options, argument):
    with pytest.raises(
        InvalidValueError,
        match=rf"^{argument}: 'haed' matches no trainable.* Did you mean 'head'\? .*'body', 'head'\.$",
    ):
        federate(made(), algorithm, **options)


def test_hyper_parameters_by_prefix_are_translated_within_parts():
    names = ModuleNames(made())
    plain = FedAvg(0.1)
    assert names.hyper_parameters(plain) is plain
    optimizer = SGD(momentum={"head": 0.9, "default": 0.0})
    algorithm = names.hyper_parameters(
        FedDR(1.0, solver=LocalSteps(lr={"head": 0.1, "body": 0.2}, optimizer=optimizer))
    )
    assert algorithm.solver.lr == {"module.head": 0.1, "module.body": 0.2}
    assert algorithm.solver.optimizer.momentum == {"module.head": 0.9, "default": 0.0}


def test_a_step_size_by_prefix_moves_what_it_names():
    module, start = made(), made()
    task = federate(module, FedAvg({"head": 0.1, "body": 1e-12}), drift_parameters=["head"])
    trainer(max_steps=1).fit(task, regression_data())
    assert (module.head.weight - start.head.weight).abs().max() > 0.01
    assert (module.body[0].weight - start.body[0].weight).abs().max() < 1e-9


def test_a_head_by_prefix_is_the_modules():
    module, start = made(), made()
    trainer(max_steps=1, limit_val_batches=0).fit(federate(module, FedBABU(0.1, head="head")), regression_data())
    assert torch.equal(module.head.weight, start.head.weight)
    assert not torch.equal(module.body[0].weight, start.body[0].weight)
    assert ModuleNames(module).hyper_parameters(FedBABU(0.1, head=None)).head is None


@dataclass(frozen=True, eq=False)
class OfHead(FedBABU):
    """Has another default, declared as of any dataclass."""

    head: str | None = "head"


def test_a_prefix_stays_one_in_a_subclass_that_declares_it_again():
    assert ModuleNames(made()).hyper_parameters(OfHead(0.1)).head == "module.head"
