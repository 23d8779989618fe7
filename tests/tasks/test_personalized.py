"""Personalised classification: learning, names of parts, and the quadratic problem's own validation."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAPM, FedAvg, FedSim
from fedlightning.data import IID, PersonalDigits
from fedlightning.oracle import Vectorized
from fedlightning.tasks import ClientNumbers, PersonalizedClassification, PersonalQuadratic
from tests.small import trainer


def accuracy(algorithm, personal):
    torch.manual_seed(0)
    task = PersonalizedClassification(algorithm, personal=personal, oracle=Vectorized())
    data = PersonalDigits(IID(6), batch_size=20, local_steps=20, val_share=0.2)
    fit = trainer(max_steps=15, val_check_interval=15, check_val_every_n_epoch=None)
    fit.fit(task, data)
    return float(fit.callback_metrics["val_accuracy"])


def test_personal_heads_learn_what_one_model_for_all_cannot():
    assert accuracy(FedAPM(0.2), ("head",)) > 0.85
    assert accuracy(FedSim(0.2), ("head",)) > 0.85
    assert accuracy(FedAvg(0.2), ()) < 0.4


def test_unknown_parts_are_named():
    task = PersonalizedClassification(FedSim(0.1), personal=("haed",))
    with pytest.raises(ValueError, match=r"personal_parameters: 'network\.haed' matches no trainable parameter"):
        trainer().fit(task, PersonalDigits())


def test_nothing_shared_is_refused():
    task = PersonalizedClassification(FedSim(0.1), personal=("body", "head"))
    with pytest.raises(ValueError, match="nothing to federate"):
        trainer().fit(task, PersonalDigits())


def test_the_quadratic_problem_logs_distances_of_both_blocks():
    task = PersonalQuadratic(FedAPM(0.15, rho=2.0), clients=4)
    fit = trainer(max_steps=150, val_check_interval=150, check_val_every_n_epoch=None, precision="64-true")
    fit.fit(task, ClientNumbers(4, local_steps=5, rounds_per_epoch=150))
    assert fit.callback_metrics["distance"] < 1e-6
    assert fit.callback_metrics["personal_distance_worst"] < 1e-6
