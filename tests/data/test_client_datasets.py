"""Data sets of users' own, one a client."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg
from fedlightning.data import ClientDatasets
from tests.support.small import Line, clients, trainer
from tests.support.with_gaps import EMPTY, Listed, OwnLine, ScoredLine, with_gaps


@pytest.mark.parametrize("make", [OwnLine, ScoredLine])
@pytest.mark.parametrize(
    ("wrap", "empty"),
    [
        (lambda dataset: dataset, EMPTY),
        (Listed, Listed(EMPTY)),
        (lambda dataset: dataset, TensorDataset(torch.zeros(0))),
    ],
    ids=["tensors", "listed", "other-shape"],
)
def test_clients_without_evaluation_samples_are_not_looked_at(make, wrap, empty):
    task, fit = make(FedAvg(0.05)), trainer(max_steps=3)
    data = with_gaps(wrap, empty)
    fit.fit(task, data)
    (tested,) = fit.test(task, data, verbose=False)
    first, *_, last = clients(seed=7)
    with torch.no_grad():
        losses = [task.personalize(i).objective(part.tensors) for i, part in ((0, first), (3, last))]
    assert task.client_metrics["test_loss"].isnan().tolist() == [False, True, True, False]
    torch.testing.assert_close(task.client_metrics["test_loss"][[0, 3]], torch.stack(losses))
    assert tested["test_loss"] == pytest.approx(float(sum(losses)) / 2)


def test_without_models_of_their_own_those_who_have_samples_are_pooled():
    (tested,) = trainer().test(Line(FedAvg(0.05)), with_gaps(), verbose=False)
    assert tested["test_loss"] > 0
    assert len(with_gaps().federation.test) == 22


def test_lists_that_do_not_do_are_named():
    with pytest.raises(ValueError, match=r"^val: the data set is empty\. Give null for no val data\.$"):
        FederatedDataModule.from_datasets(clients(), val=TensorDataset(torch.zeros(0, 6), torch.zeros(0))).setup()
    with pytest.raises(ValueError, match=r"test: all 4 data sets are null or empty\. Give null for no"):
        FederatedDataModule.from_datasets(clients(), test=[None, EMPTY, None, EMPTY]).setup("fit")
    with pytest.raises(ValueError, match=r"train: Client 2 has no samples \(1 of 3 data sets are null or empty\)"):
        FederatedDataModule.from_datasets([*clients(2), None]).setup("fit")
    with pytest.raises(ValueError, match=r"val: a list of 2 data sets for 4 clients.*null for a client without"):
        FederatedDataModule.from_datasets(clients(), val=[None, EMPTY]).setup("fit")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"batch_size": -1}, "(batch_size=-1): expected >= 1, or null."),
        ({"seed": "a"}, "(seed='a'): expected a whole number, not 'a'."),
        ({"participation": 3}, "(participation=3): expected a Participation object, e.g. Uniform(size=10)."),
    ],
)
def test_options_are_those_of_what_the_user_called(option, said):
    class Mine(ClientDatasets):
        pass

    for make, name in ((FederatedDataModule.from_datasets, "FederatedDataModule.from_datasets"), (Mine, "Mine")):
        with pytest.raises((ValueError, TypeError)) as error:
            make(clients(), **option)
        assert str(error.value) == f"{name}{said}"


def test_one_data_set_is_for_the_global_model():
    val = clients()[0]
    federation = FederatedDataModule.from_datasets(clients(), val=val, test=clients()).federation
    assert federation.val is val
    assert federation.val_partition is None
    assert federation.test_partition.sizes.tolist() == [len(each) for each in clients()]


def test_the_data_module_remembers_what_it_was_given():
    given, val = clients(), clients()[0]
    data = FederatedDataModule.from_datasets(given, val=val, batch_size=3)
    assert isinstance(data, ClientDatasets)
    assert data.clients == given
    assert (data.val_dataset, data.test_dataset, data.batch_size) == (val, None, 3)
