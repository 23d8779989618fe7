"""Personalised classification: what it learns, and names of parts."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms import FedAPM, FedAvg, FedSim
from fedlightning.data import IID, PersonalDigits
from fedlightning.oracle import ObjectiveError, Vectorized
from fedlightning.tasks import FedCP, FedRoD, PersonalizedClassification
from tests.support.personal_data import counted
from tests.support.small import trainer


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


def test_samples_of_other_parts_are_refused():
    task = PersonalizedClassification(FedSim(0.1), personal=("head",), oracle=Vectorized())
    with pytest.raises(ObjectiveError, match=r"2 parts \(input, label\), the data have 3\. .*class_counts=False"):
        trainer().fit(task, counted(batch_size=20, local_steps=2))
    with pytest.raises(
        ObjectiveError, match=r"FedRoD takes samples of 3 parts \(input, label, class counts\), .*class_counts=True"
    ):
        trainer().fit(FedRoD(FedSim(0.1), oracle=Vectorized()), PersonalDigits(batch_size=20, local_steps=2))
    with pytest.raises(ValueError, match=r"FedCP takes samples of 2 parts .* have 1\."):
        FedCP(fl.FedCP(0.1)).objective(torch.zeros(2, 64))
