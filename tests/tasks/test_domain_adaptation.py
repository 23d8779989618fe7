"""Domain adaptation, whole fits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg
from fedlightning.data import DigitsM, TensorData
from fedlightning.data.domains import SOURCE
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import DomainAdaptation
from tests.support.domains import ADVERSARIES, make
from tests.support.small import trainer


@pytest.mark.parametrize("name", ADVERSARIES)
def test_domain_adaptation_runs_and_is_watched(name, tmp_path):
    task = make(ADVERSARIES[name], oracle=Vectorized())
    data = DigitsM(local_steps=3, batch_size=8, rounds_per_epoch=2)
    fit = trainer(tmp_path, max_steps=2)
    fit.fit(task, data)
    for metric in ("val_source_accuracy", "val_target_accuracy", "val_domain_confusion"):
        assert 0 <= fit.callback_metrics[metric] <= 1
    for metric in ("train_class_loss", "train_adversary_risk", "drift", "dual_norm"):
        assert fit.callback_metrics[metric] > 0
    (tested,) = fit.test(task, data, verbose=False)
    assert set(tested) == {"test_source_accuracy", "test_target_accuracy", "test_domain_confusion"}
    assert torch.cat(fit.predict(task, data)).shape == (600,)
    pictures = task.pictures()
    assert set(pictures) == {"predictions", "features"}
    pictures["predictions"].savefig(tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ADVERSARIES)
def test_vectorized_and_sequential_agree(name):
    ends = []
    for oracle in (Vectorized(), Sequential()):
        task = make(ADVERSARIES[name], oracle=oracle).double()
        data = DigitsM(local_steps=3, batch_size=8, rounds_per_epoch=2)
        trainer(max_steps=2, precision="64-true", limit_val_batches=0).fit(task, data)
        ends.append(task.server_state.z)
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-10)


def test_features_of_unknown_length_are_asked_for():
    with pytest.raises(ValueError, match="Flatten has no out_features: give feature_dim"):
        DomainAdaptation(FedAvg(0.1), features=nn.Flatten())
    assert DomainAdaptation(FedAvg(0.1), features=nn.Flatten(), feature_dim=12, hidden=0).classifier.in_features == 12


@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric AccuracyOfSome was called before")
def test_a_domain_without_samples_has_no_accuracy():
    task = make(ADVERSARIES["DANN"])
    batch = DigitsM(local_steps=1, batch_size=8).federation.val[:]
    alone = TensorData({name: leaf[batch["domain"] != SOURCE] for name, leaf in batch.items()})
    own = FederatedDataModule.from_datasets([alone, alone], val=alone, batch_size=8, local_steps=1)
    found = trainer().validate(task, own, verbose=False)[0]
    assert math.isnan(found["val_source_accuracy"])
    assert 0 <= found["val_target_accuracy"] <= 1
