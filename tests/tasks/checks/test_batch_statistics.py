"""Layers with statistics of minibatches, in a federation of separate clients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import APFL, Ditto, FedALA, FedAlt, FedAvg
from tests.support.evaluated import messages, two_rounds
from tests.support.small import Line, Normed, clients, regression_data


def test_batch_statistics_of_one_repeated_sample_are_warned_of():
    one = TensorDataset(torch.randn(1, 6), torch.randn(1))
    data = FederatedDataModule.from_datasets([*clients()[:3], one], batch_size=4, local_steps=1)
    with pytest.warns(UserWarning, match="Client 3 holds one sample, of which a minibatch repeats copies: BatchNorm"):
        two_rounds(Normed(FedAvg(0.05)), data, max_steps=1)
    assert messages(lambda: two_rounds(Line(), data, max_steps=1)) == []


def test_synchronised_batch_statistics_are_refused():
    class Synchronised(Normed):
        def __init__(self):
            super().__init__()
            self.net[1] = nn.SyncBatchNorm(8)

    with pytest.raises(ValueError, match=r"Synchronised\.net\.1 is a SyncBatchNorm, which would mix the samples"):
        two_rounds(Synchronised())


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("algorithm", [Ditto(0.05), APFL(0.05), FedALA(0.05)], ids=lambda each: type(each).__name__)
def test_running_statistics_that_two_models_share_are_warned_of(algorithm, buffers):
    told = rf"{type(algorithm).__name__} keeps a model of each client's own .* Normed\.net\.1 has one set of"
    with pytest.warns(UserWarning, match=told):
        two_rounds(Normed(algorithm, buffers=buffers), regression_data())


def test_one_model_a_client_may_have_running_statistics():
    class OfTheBatch(Normed):
        def __init__(self, algorithm):
            super().__init__(algorithm)
            self.net[1] = nn.BatchNorm1d(8, track_running_stats=False)

    class Frozen(Normed):
        def __init__(self, algorithm):
            super().__init__(algorithm)
            self.net[1].eval()

    for task in (Normed(FedAlt(0.05), buffers="local"), OfTheBatch(Ditto(0.05)), Frozen(Ditto(0.05))):
        assert not [
            text for text in messages(lambda task=task: two_rounds(task, regression_data())) if "set of" in text
        ]
