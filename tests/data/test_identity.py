"""Telling federations apart."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.data import IID, Federation, MixedTensorData, Partition, PersonalDigits, TensorData
from fedlightning.data.identity import difference, identity_of
from tests.support.small import Line, clients, trainer
from tests.support.with_gaps import Listed


def digits(num_clients=3, **options):
    return PersonalDigits(IID(num_clients), **{"batch_size": 20, "local_steps": 1, "seed": 1, **options})


def test_federations_are_told_apart():
    trained = digits()
    assert digits(local_steps=3).differs_from(trained.identity) is None  # the same partition
    other = digits(seed=2)
    told = other.differs_from(trained.identity)
    mine, theirs = (data.federation.partition.digest for data in (other, trained))
    assert mine != theirs
    assert f"trained on a federation of 3 clients (partition {theirs}, seed 1)" in told
    assert f"the data are a federation of 3 clients (partition {mine}, seed 2). Give the same data" in told
    assert told.endswith("seed=1 (command line: --seed_everything 1).")


def test_what_is_held_out_tells_federations_apart():
    assert "3 clients" in digits(test_share=0.3).differs_from(digits().identity)
    assert "the data are a federation of 4 clients" in digits(4).differs_from({"clients": 3, "seed": 1})


@pytest.mark.parametrize("stored", [{}, {"seed": 5}, {"clients": 3}])
def test_checkpoints_that_do_not_say_are_trusted(stored):
    assert digits().differs_from(stored) is None


def test_a_global_model_is_evaluated_on_any_data(tmp_path):
    fit = trainer(max_steps=1)
    fit.fit(Line(), FederatedDataModule.from_datasets(clients(), val=clients()[0], batch_size=4, local_steps=1))
    fit.save_checkpoint(tmp_path / "x.ckpt")
    other = FederatedDataModule.from_datasets(clients(3), val=clients()[1], batch_size=4, local_steps=1)
    assert "of 4 clients" in other.differs_from(torch.load(tmp_path / "x.ckpt")["federation"]["data"])
    assert trainer().validate(Line(), other, ckpt_path=tmp_path / "x.ckpt", verbose=False)[0]["val_loss"] > 0


X = torch.arange(10.0).view(5, 2)


def identity(dataset, sizes=(2, 3)):
    return identity_of(Federation(dataset, Partition.of(torch.arange(5).split(list(sizes)))), seed=4)


def test_samples_tell_equal_partitions_apart():
    known = identity(TensorDataset(X))
    assert difference(known, identity(TensorDataset(X))) is None
    assert difference(known, identity(TensorDataset(X * (1 + 1e-6)))) is None  # computed on another machine
    said = difference(known, identity(TensorDataset(X + 1)))
    assert said.startswith("What the clients keep was trained on a federation of 2 clients (partition ")
    assert "seed 4) of other samples. Give the same data with the same options." in said
    assert "of other samples" not in difference(known, identity(TensorDataset(X), sizes=(3, 2)))


def test_a_sample_is_summed_up_with_cosines():
    """x @ cos(1, 2, ...) of each client's first sample: [0, 1] of client 0, [4, 5] of client 1."""
    cos = torch.tensor([1.0, 2.0], dtype=torch.float64).cos()
    expected = [float(cos[1]), float(4 * cos[0] + 5 * cos[1])]
    assert identity(TensorDataset(X))["samples"] == pytest.approx(expected)
    mixed = MixedTensorData([TensorData(X[:2, :1]), TensorData(X[2:])])
    assert identity(mixed)["samples"] == pytest.approx([0.0, expected[1]])


def test_samples_that_are_no_tensors_are_not_looked_at():
    listed = identity(Listed(TensorDataset(X)))
    assert listed["samples"] is None
    assert difference(identity(TensorDataset(X)), listed) is None


def test_some_of_many_clients_are_looked_at():
    many = Federation(TensorDataset(torch.arange(1000.0)), Partition.of(torch.arange(1000).split(1)))
    assert len(identity_of(many, seed=0)["samples"]) == 63  # every sixteenth
