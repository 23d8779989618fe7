"""Which evaluation data a task gets: pooled, or client by client."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Ditto, FedAvg
from fedlightning.data import ClientLoader, Federation, Partition, TensorData
from fedlightning.data.evaluation import PooledLoader
from fedlightning.data.evaluation_loaders import EvaluationLoaders
from tests.support.four_clients import Slow
from tests.support.small import Line, Normed, clients, regression_data, trainer
from tests.support.with_gaps import OwnLine, with_gaps


def test_evaluation_in_batches():
    val = TensorDataset(torch.arange(10.0)[:, None], torch.arange(10))
    data = FederatedDataModule.from_datasets(
        [val], val=val, test=Slow((torch.zeros(5, 1), torch.zeros(5))), eval_batch_size=4
    )
    assert [len(batch[0]) for batch in data.val_dataloader()] == [4, 4, 2]
    assert [len(batch["x"]) for batch in data.test_dataloader()] == [4, 1]


def test_prediction_skips_clients_without_test_samples():
    task, fit, data = OwnLine(FedAvg(0.05)), trainer(max_steps=2), with_gaps()
    fit.fit(task, data)
    assert sum(len(part) for part in fit.predict(task, data)) == 22
    task.predict_client = 2
    with pytest.raises(ValueError, match="predict_client=2: this client has no test samples"):
        fit.predict(task, data)


def test_a_process_without_clients_to_evaluate_is_refused_before_the_others_wait():
    given = clients(4)
    data = FederatedDataModule.from_datasets(given, val=[given[0], None, given[2], None])
    task = OwnModels()
    for rank in (0, 1):
        data.trainer = SimpleNamespace(lightning_module=task, world_size=2, global_rank=rank)
        with pytest.raises(ValueError, match=r"2 clients, and none of them is with one of the 2 processes"):
            data.val_dataloader()
    data.trainer = SimpleNamespace(lightning_module=task, world_size=1, global_rank=0)
    assert [part.client for (part,) in data.val_dataloader().batches] == [0, 2]


class OwnModels(nn.Module):
    """A task whose clients have models of their own."""

    evaluated_models = ("own",)

    def evaluated_together(self, stage):
        return 1


class TwoModels(OwnModels):
    """A task whose clients have models of their own beside the global one."""

    evaluated_models = ("own", "global")
    personal_parameters = ("head",)

    def __init__(self, predict_client=None, per_client_evaluation=False):
        super().__init__()
        self.predict_client = predict_client
        self.per_client_evaluation = per_client_evaluation


NUMBERS = TensorData(torch.arange(8))
PARTITION = Partition.of([[1, 2], [], [5]], allow_empty=True)
HELD = {"test": NUMBERS, "test_partition": PARTITION}


def loaders(task=None, rank=0, num_processes=1, **held_out):
    federation = Federation(NUMBERS, Partition.of([[0], [3, 4], [6]]), **held_out)
    return EvaluationLoaders(federation, 4, 0, task, rank, num_processes)


def numbers(loader):
    return [batch.tolist() for batch in loader]


def test_the_global_model_gets_what_clients_hold():
    given = loaders(val=NUMBERS, val_partition=PARTITION)
    assert numbers(given.val()) == [[1, 2, 5]]
    assert numbers(given.train()) == [[0, 3, 4, 6]]  # and none that are nobody's, or for validation
    assert given.test() == given.predict() == []


def test_models_of_clients_get_their_samples():
    given = loaders(TwoModels(), val=NUMBERS, val_partition=PARTITION)
    assert isinstance(given.val(), ClientLoader)
    assert numbers(given.val()) == [[1, 2], [1, 2], [5], [5]]
    assert numbers(given.train()) == [[0], [0], [3, 4], [3, 4], [6], [6]]


def test_processes_evaluate_the_clients_whose_states_they_hold():
    held = {"test": NUMBERS, "test_partition": Partition.of([[1], [2], [5]])}
    assert [numbers(loaders(TwoModels(), rank, 2, **held).predict()) for rank in (0, 1)] == [[[1], [5]], [[2]]]


def test_one_client_predicts_with_its_own_model():
    assert numbers(loaders(TwoModels(predict_client=2), **HELD).predict()) == [[5]]
    with pytest.raises(IndexError, match="predict_client=3: the federation has clients 0 to 2"):
        loaders(TwoModels(predict_client=3), **HELD).predict()
    with pytest.raises(ValueError, match="predict_client=2 with 2 processes: the client's model lies in one of them"):
        loaders(TwoModels(predict_client=2), num_processes=2, **HELD).predict()


def test_predictions_with_the_personal_parameters_of_the_start_are_announced():
    with pytest.warns(UserWarning, match="TwoModels: the data to predict are nobody's"):
        assert numbers(loaders(TwoModels(), predict=NUMBERS).predict()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert isinstance(loaders(TwoModels(predict_client=0), predict=NUMBERS).predict(), PooledLoader)


def test_data_that_do_not_say_whose_they_are_go_to_the_global_model():
    with pytest.warns(UserWarning, match="Give val as a list, one data set a client, .* evaluated with the personal"):
        assert numbers(loaders(TwoModels(), val=NUMBERS).val()) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(ValueError, match=r"or set test_partition in the data module's Federation\.$"):
        loaders(TwoModels(per_client_evaluation=True), test=NUMBERS).test()


class Validated(Normed):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch))


@pytest.mark.parametrize(
    ("task", "evaluated"),
    [
        (lambda: Line(Ditto(0.05)), "The global model is evaluated"),
        (lambda: Validated(buffers="local"), "The global model is evaluated with the buffers of the start"),
    ],
    ids=["Ditto", "local buffers"],
)
def test_of_clients_with_models_of_their_own_it_is_the_global_one_that_is_told(task, evaluated):
    with pytest.warns(UserWarning, match=rf"do not say which val samples each client holds\. .*\. {evaluated}\.$"):
        trainer(max_steps=1).fit(task(), regression_data())


class Plain(LightningModule):
    """Knows nothing of federations."""

    def predict_step(self, batch, batch_idx):
        return batch[1]


def test_any_lightning_module_predicts():
    data = FederatedDataModule.from_datasets(clients(), test=clients()[0], eval_batch_size=8)
    predicted = trainer().predict(Plain(), data)
    assert torch.equal(torch.cat(predicted), clients()[0].tensors[1])


@pytest.mark.parametrize(("run", "missing"), [("validate", "val"), ("test", "test"), ("predict", "test")])
def test_missing_data_that_were_asked_for_are_told(run, missing):
    data = FederatedDataModule.from_datasets(clients(), batch_size=4)
    with pytest.warns(UserWarning, match=f"The data module has no {missing} data: nothing to {run}. Give {missing} to"):
        getattr(trainer(), run)(OwnLine(FedAvg(0.05)), data)


@pytest.mark.filterwarnings("error:The data module has no")
def test_a_fit_goes_without_validation():
    trainer(max_steps=1).fit(OwnLine(FedAvg(0.05)), FederatedDataModule.from_datasets(clients(), batch_size=4))


def test_float64_samples_are_evaluated_in_the_parameters_dtype_on_every_way():
    wide = [TensorDataset(*(leaf.double() for leaf in part.tensors)) for part in clients()]
    for cls, held in ((OwnLine, wide), (Line, wide[0])):
        task, fit = cls(FedAvg(0.05)), trainer(max_steps=2)
        data = FederatedDataModule.from_datasets(wide, val=held, test=held, rounds_per_epoch=2, validate_train=True)
        fit.fit(task, data)
        assert fit.callback_metrics["val_loss"].isfinite()
        assert {each.dtype for each in fit.predict(task, data)} == {torch.float32}
