"""Data modules: settings, the data sets they build, and the loaders they give a trainer."""

from __future__ import annotations

import warnings

import pytest

from fedlightning import FederatedDataModule
from fedlightning.core.errors import FedlightningError
from fedlightning.data import Federation, Partition, TensorData
from fedlightning.participation import Uniform
from tests.support.four_clients import federation
from tests.support.lit import made
from tests.support.small import Line, clients, regression_data, trainer


def test_wrong_settings_are_named():
    for wrong in ({"batch_size": 0}, {"local_steps": 0}, {"local_epochs": 0}, {"rounds_per_epoch": 0}):
        ((name, _),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name}=0"):
            federation(**wrong)


def test_misspelt_options_and_a_collate_function_are_refused_with_a_remedy():
    with pytest.raises(TypeError, match=r"^from_datasets\(batchsize=\.\.\.\): .* Did you mean 'batch_size'\?$"):
        FederatedDataModule.from_datasets(clients(), batchsize=3)
    with pytest.raises(TypeError, match=r"^from_datasets\(collate_fn=.*Pad or collate in the data set"):
        FederatedDataModule.from_datasets(clients(), collate_fn=list)


def test_cohorts_larger_than_the_federation_are_refused_before_the_fit():
    with pytest.raises(ValueError, match=r"Uniform\(size=5\): the cohort is larger than the federation of 4 clients"):
        federation(participation=Uniform(5)).setup("fit")
    federation(participation=Uniform(5)).setup("test")


@pytest.mark.parametrize(("options", "said"), [({"local_epochs": 2}, 1), ({}, 0), ({"local_epochs": 1}, 0)])
def test_a_fit_says_which_of_two_lengths_of_a_round_is_used(options, said):
    data = federation(local_steps=3, **options)
    data.setup("test")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data.setup("fit")
    lines = [str(each.message) for each in caught]
    assert len(lines) == said
    assert all("local_steps=3 says how long" in line and "local_epochs=2 is not used" in line for line in lines)


def test_a_module_that_was_not_federated_is_sent_to_federate():
    with pytest.raises(
        TypeError, match=r"^Lit is no federated task, .* Fit fedlightning\.federate\(Lit\(\.\.\.\), algo"
    ):
        trainer().fit(made(), regression_data())
    trainer().validate(made(), regression_data(), verbose=False)


class Counted(FederatedDataModule):
    """Counts how often it is built."""

    built = 0

    def build(self):
        self.built += 1
        data = TensorData(clients()[0].tensors)
        return Federation(data, Partition.of([range(len(data))]), val=data)


def test_data_sets_are_built_once_when_they_are_needed():
    data = Counted(batch_size=4)
    assert data.built == 0
    assert data.num_clients == 1
    data.setup()
    data.train_dataloader()
    data.val_dataloader()
    assert data.built == 1


class Nowhere(FederatedDataModule):
    root = "no/such/folder"

    def build(self):
        raise FileNotFoundError("MNIST is not there.")


def test_a_folder_that_is_not_there_is_named_in_full():
    with pytest.raises(FileNotFoundError, match=r"MNIST is not there\. Looked in /.*/no/such/folder\.$"):
        Nowhere().setup()


class Unfinished(FederatedDataModule):
    """Lacks its method build."""


class Unmade(Counted):
    def __init__(self, size):  # without super().__init__()
        self.size = size


class Empty(FederatedDataModule):
    def build(self):
        pass


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            Unfinished(),
            r"^Unfinished has no build: write build\(self\), which returns a fedlightning\.data\.Federation",
        ),
        (Empty(), r"^Empty\.build returned a NoneType; expected a fedlightning\.data\.Federation"),
        (Unmade(3), r"^Unmade\.__init__ does not call super\(\)\.__init__\(\.\.\.\) of FederatedDataModule\. Call it"),
    ],
)
def test_what_a_data_module_lacks_is_named(data, said):
    for command in (lambda: trainer().fit(Line(), data), lambda: data.num_clients):
        with pytest.raises(FedlightningError, match=said):
            command()


def test_rounds_begin_where_the_trainer_stands():
    task, fit, data = Line(), trainer(max_steps=3), Counted(batch_size=4, local_steps=1, rounds_per_epoch=2)
    fit.fit(task, data)
    assert [batch.index for batch in data.train_dataloader()] == [3, 4]


def test_training_data_are_validated_beside_validation_data():
    val, train = Counted(validate_train=True).val_dataloader()
    assert len(val.dataset) == len(train.dataset)
