"""Labels that a classifier has no output for."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg, FedSim
from fedlightning.models import PersonalMLP
from fedlightning.tasks import Classification, FedRoD, PersonalizedClassification
from tests.support.personal_data import counted
from tests.support.small import trainer


@pytest.mark.parametrize("task", [Classification, PersonalizedClassification])
def test_labels_without_an_output_are_refused_before_training(task):
    labels = torch.arange(12) % 11
    data = FederatedDataModule.from_datasets([TensorDataset(torch.zeros(12, 1, 8, 8), labels)], local_steps=1)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(ValueError, match=r"labels 0 to 10, but the model has 10 outputs, .* classes=11"):
        trainer(max_steps=1).fit(task(FedAvg(0.1), network=network), data)


@pytest.mark.parametrize("make", [PersonalizedClassification, FedRoD])
def test_outputs_beside_other_numbers_of_classes_are_refused(make):
    wrong = rf"{make.__name__}\(classes=6\): the training data have labels 0 to 9, but the model has 6 outputs"
    with pytest.raises(ValueError, match=wrong):
        trainer().fit(make(FedSim(0.1), PersonalMLP(64, 8), classes=6), counted())
    with pytest.raises(ValueError, match=r"val data have label \d, the network has 2 outputs.*Give .* or more"):
        trainer().fit(make(FedSim(0.1), PersonalMLP(64, 8, 2)), counted())
