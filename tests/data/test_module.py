"""Data sets of users' own, one a client; telling federations apart."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedlightning import BatchedEvaluationTask, FederatedDataModule
from fedlightning.algorithms import FedAvg
from fedlightning.data import IID, Federation, Partition, PersonalDigits
from tests.support.small import Line, Personal, clients, trainer


class OwnLine(Personal):
    """Evaluated one client after the other."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.objective(batch), batch_size=len(batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.line(batch[0]).squeeze(1) + self.offset


class ScoredLine(BatchedEvaluationTask, Personal):
    """Evaluated side by side."""

    def predictions(self, batch):
        return self.line(batch[0]).squeeze(1) + self.offset

    def evaluate(self, stage, batch, scores):
        self.log(f"{stage}_loss", (scores - batch[1]).square().mean(), batch_size=len(scores))


class Listed(Dataset):
    """Samples one by one."""

    def __init__(self, dataset):
        self.samples = [dataset[i] for i in range(len(dataset))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


EMPTY = TensorDataset(torch.zeros(0, 6), torch.zeros(0))


def with_gaps(wrap=lambda dataset: dataset, empty=EMPTY):
    """Four clients, of whom the second and the third have nothing to evaluate."""
    first, *_, last = clients(seed=7)
    held = [wrap(first), None, empty, wrap(last)]
    return FederatedDataModule.from_datasets(
        clients(), val=held, test=held, batch_size=4, local_steps=2, eval_batch_size=8, seed=1
    )


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


def test_prediction_skips_clients_without_test_samples():
    task, fit, data = OwnLine(FedAvg(0.05)), trainer(max_steps=2), with_gaps()
    fit.fit(task, data)
    assert sum(len(part) for part in fit.predict(task, data)) == 22
    task.predict_client = 2
    with pytest.raises(ValueError, match="predict_client=2: this client has no test samples"):
        fit.predict(task, data)


def test_without_models_of_their_own_those_who_have_samples_are_pooled():
    (tested,) = trainer().test(Line(FedAvg(0.05)), with_gaps(), verbose=False)
    assert tested["test_loss"] > 0
    assert len(with_gaps().federation.test) == 22


def test_lists_that_do_not_do_are_named():
    with pytest.raises(ValueError, match=r"test: all 4 data sets are null or empty\. Give null for no"):
        FederatedDataModule.from_datasets(clients(), test=[None, EMPTY, None, EMPTY]).setup("fit")
    with pytest.raises(ValueError, match=r"train: Client 2 has no samples \(1 of 3 data sets are null or empty\)"):
        FederatedDataModule.from_datasets([*clients(2), None]).setup("fit")
    with pytest.raises(ValueError, match=r"val: a list of 2 data sets for 4 clients.*null for a client without"):
        FederatedDataModule.from_datasets(clients(), val=[None, EMPTY]).setup("fit")


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


def test_clients_without_training_samples_are_named():
    train = TensorDataset(torch.zeros(4, 2))
    partition = Partition.of([[0, 1], [], [2, 3], []], allow_empty=True)
    with pytest.raises(ValueError, match=r"2 of 4 clients have no training samples: 1, 3\. Leave such clients out"):
        Federation(train, partition)
    Federation(train, Partition.of([[0, 1], [2, 3]]), val=train, val_partition=partition)


def test_a_process_without_clients_to_evaluate_is_refused_before_the_others_wait():
    given = clients(4)
    data = FederatedDataModule.from_datasets(given, val=[given[0], None, given[2], None])
    task = SimpleNamespace(evaluated_models=("own",), evaluated_together=lambda stage: 1, named_modules=list)
    for rank in (0, 1):
        data.trainer = SimpleNamespace(lightning_module=task, world_size=2, global_rank=rank)
        with pytest.raises(ValueError, match=r"2 clients, and none of them is with one of the 2 processes"):
            data.val_dataloader()
    data.trainer = SimpleNamespace(lightning_module=task, world_size=1, global_rank=0)
    assert [part.client for (part,) in data.val_dataloader().batches] == [0, 2]
