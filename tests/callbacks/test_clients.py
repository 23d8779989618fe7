"""Evaluation client by client against every client's model taken out by hand."""

from __future__ import annotations

import warnings
from functools import partial
from typing import ClassVar

import pytest
import torch
import torchmetrics
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_auroc, multiclass_f1_score

from fedlightning import BatchedEvaluationTask, FederatedDataModule, federate
from fedlightning.algorithms import Ditto, FedALA, FedAlt, FedAvg, FedMM, pFedMe
from fedlightning.data import IID, Digits, PersonalDigits
from fedlightning.metrics.present_auroc import PresentClassesAUROC
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification, PersonalizedClassification, RobustClassification
from tests.support.evaluated import CLIENTS, Own, digits, fitted, held_out_data, plain_loader, task, two_rounds
from tests.support.lit import Lit
from tests.support.small import Line, Personal, clients, regression_data, trainer

PERCENTILES = ("_p10", "_p50", "_p90")


def by_hand(model, data, part="val"):
    """Accuracy, F1, AUC and loss of every client, on all its samples at once."""
    federation = data.federation
    partition = getattr(federation, f"{part}_partition")
    rows = []
    for i, index in enumerate(partition):
        x, y = federation.val[index]
        own = model(i) if callable(model) and not isinstance(model, nn.Module) else model.personalize(i)
        with torch.no_grad():
            logits = own.network(x)
        areas = multiclass_auroc(logits.softmax(1), y, 10, average="none")
        present = torch.bincount(y, minlength=10) > 0
        rows.append(
            [
                multiclass_accuracy(logits, y, 10, average="micro"),
                multiclass_f1_score(logits, y, 10, average="macro"),
                areas[present].mean(),
                F.cross_entropy(logits, y),
            ]
        )
    return dict(zip(["accuracy", "f1", "auc", "loss"], torch.tensor(rows).T, strict=True))


def check(logged, values, prefix="val"):
    for name, own in values.items():
        worst = own.max() if name == "loss" else own.min()
        wanted = {"": own.mean(), "_std": own.std(correction=0), "_worst": worst}
        for suffix, value in wanted.items():
            torch.testing.assert_close(torch.as_tensor(logged[f"{prefix}_{name}{suffix}"]), value)


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_metrics_are_those_of_torchmetrics_on_every_clients_own_model():
    model, data = task(), digits()
    fit = fitted(model, data)
    values = by_hand(model, data)
    check(fit.callback_metrics, values)
    torch.testing.assert_close(model.client_metrics["val_accuracy"], values["accuracy"])
    assert values["accuracy"].std() > 0
    check(fit.test(model, data, verbose=False)[0], by_hand(model, data, "test"), "test")
    check(fit.validate(model, data, verbose=False)[0], values)


@pytest.mark.filterwarnings("ignore:No positive samples")
@pytest.mark.parametrize(
    "algorithm", [Ditto(0.1), pFedMe(0.1, lam=5.0), FedALA(0.1)], ids=["Ditto", "pFedMe", "FedALA"]
)
def test_personal_models_and_the_global_one_are_evaluated(algorithm):
    model, data = task(algorithm, personal=()), digits(permute_labels=False)
    fit = fitted(model, data)
    assert (model.personalize(0).network.head.weight - model.network.head.weight).abs().max() > 1e-3
    check(fit.callback_metrics, by_hand(model, data))
    check(fit.callback_metrics, by_hand(lambda i: model, data), "val_global")


@pytest.mark.filterwarnings("ignore:No positive samples")
@pytest.mark.parametrize("together", [True, False], ids=["side by side", "one by one"])
def test_the_global_model_is_evaluated_beside_personal_blocks_as_trained(together, monkeypatch):
    if not together:
        monkeypatch.setattr(PersonalizedClassification, "evaluated_together", lambda self, stage: 1)
    model, data = task(Ditto(0.1), personal=("head",)), digits(permute_labels=False)

    def joined(i):
        own = model.personalize(i)
        shared = {k: v for k, v in model.network.state_dict().items() if not k.startswith("head")}
        assert len(own.network.load_state_dict(shared, strict=False).missing_keys) == 2  # the head's
        return own

    fit = fitted(model, data)
    check(fit.callback_metrics, by_hand(model, data))
    check(fit.callback_metrics, by_hand(joined, data), "val_global")


@pytest.mark.filterwarnings("ignore:No positive samples")
@pytest.mark.parametrize("plain", [False, True], ids=["side by side", "one by one"])
def test_every_client_is_evaluated_on_its_training_data_too(plain):
    if plain:
        model = Classification(Ditto(0.1), network=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    else:
        model = task(Ditto(0.1), personal=())
    data = digits(permute_labels=False, validate_train=True)
    fit = fitted(model, data)
    names = ("accuracy", "f1", "loss")
    for place, part in (("val", data.federation.val), ("train", data.federation.train)):
        partition = data.federation.val_partition if place == "val" else data.federation.partition
        for prefix, of in (("own", model.personalize), ("global", lambda i: model)):
            rows = []
            for i, index in enumerate(partition):
                x, y = part[index]
                with torch.no_grad():
                    logits = of(i).network(x)
                scores = multiclass_accuracy(logits, y, 10, average="micro"), multiclass_f1_score(logits, y, 10)
                rows.append([*scores, F.cross_entropy(logits, y)])
            logged = {"val": {"own": "val", "global": "val_global"}, "train": {"own": "local_train"}}
            values = dict(zip(names, torch.tensor(rows).T, strict=True))
            check(fit.callback_metrics, values, logged[place].get(prefix, "global_train"))
    assert not [name for name in fit.callback_metrics if "dataloader_idx" in name]


@pytest.mark.filterwarnings("ignore:limit_val_batches ends the evaluation")
def test_an_evaluation_cut_short_leaves_nothing_behind():
    data = digits(eval_batch_size=10)  # several batches a client
    model = Classification(FedALA(0.1), network=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    fit = fitted(model, data, num_sanity_val_steps=0)
    whole = fit.validate(model, data, verbose=False)[0]
    trainer(limit_val_batches=2).validate(model, data, verbose=False)
    assert fit.validate(model, data, verbose=False)[0] == whole


def test_a_client_whose_loss_is_not_finite_is_not_passed_over():
    class Diverging(OwnLine):
        def validation_step(self, batch, batch_idx):
            loss = self.objective(batch)
            self.log("val_loss", loss * (torch.nan if self.ill(loss) else 1.0), batch_size=len(batch[1]))

    model, data = Diverging(FedAvg(0.05)), own_data()
    model.ill = lambda loss: False
    fit = fitted(model, data)
    first = float(fit.callback_metrics["val_loss"])
    model.ill = lambda loss: bool(loss > first)
    assert torch.isnan(torch.tensor(fit.validate(model, data, verbose=False)[0]["val_loss"]))
    assert 0 < model.client_metrics["val_loss"].isnan().sum() < 4


def test_who_never_took_part_is_evaluated_with_the_global_model():
    model, data = task(Ditto(0.1), personal=()), digits(participation=Uniform(size=1), permute_labels=False)
    fitted(model, data, max_steps=2)
    seen = set(model.run.simulation.runner.clients.table.states.seen)
    assert 0 < len(seen) < CLIENTS
    for client in range(CLIENTS):
        same = torch.equal(model.personalize(client).network.head.weight, model.network.head.weight)
        assert same == (client not in seen)


@pytest.mark.filterwarnings("ignore:.*begins at round 1 again")
def test_a_second_fit_goes_on_with_every_clients_model():
    data = digits()
    model = task()
    fitted(model, data, max_steps=8)
    before = [model.personalize(i).network.head.weight.clone() for i in range(CLIENTS)]
    fitted(model, digits(participation=Uniform(size=1)), max_steps=1, val_check_interval=1)
    after = [model.personalize(i).network.head.weight for i in range(CLIENTS)]
    assert sum(torch.equal(a, b) for a, b in zip(before, after, strict=True)) == CLIENTS - 1


@pytest.mark.filterwarnings("ignore:.*begins at round 1 again")
def test_a_second_fit_from_other_weights_begins_anew():
    model, data = task(), digits()
    fitted(model, data)
    one = digits(participation=Uniform(size=1))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.network.body[1].weight.zero_()
    with pytest.warns(UserWarning, match="was changed since the last round"):
        trainer().validate(model, data, verbose=False)
    model.network.body[1].weight.data.zero_()
    with pytest.warns(UserWarning, match="given up: the task's parameters or its algorithm were changed"):
        fitted(model, one, max_steps=1, val_check_interval=1)
    heads = [model.personalize(i).network.head.weight for i in range(CLIENTS)]
    assert sum(torch.equal(head, start["network.head.weight"]) for head in heads) == CLIENTS - 1


def test_weights_that_are_changed_after_loading_are_no_clients_models(tmp_path):
    model, data = task(), digits()
    fitted(model, data).save_checkpoint(tmp_path / "run.ckpt")
    loaded = PersonalizedClassification.load_from_checkpoint(tmp_path / "run.ckpt")
    trainer().validate(loaded, data, verbose=False)
    changed = PersonalizedClassification.load_from_checkpoint(tmp_path / "run.ckpt")
    changed.network.body[1].weight.data.zero_()
    with pytest.warns(
        UserWarning, match=r"'network\.body\.1\.weight' was changed since the last round\. Clients' models"
    ):
        trainer().validate(changed, data, verbose=False)


def test_models_and_data_of_different_federations_are_not_put_together(tmp_path):
    model, data = task(), digits()
    fit = fitted(model, data)
    fit.save_checkpoint(tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match=r"trained on a federation of 5 clients .*the data are a federation of 4"):
        fit.validate(model, PersonalDigits(IID(4)), verbose=False)
    with pytest.raises(ValueError, match="--seed_everything 0"):
        trainer().validate(task(), digits(seed=1), ckpt_path=tmp_path / "run.ckpt", verbose=False)
    loaded = PersonalizedClassification.load_from_checkpoint(tmp_path / "run.ckpt")
    loaded.personalize(1)
    with pytest.raises(ValueError, match="--seed_everything 0"):
        trainer().test(loaded, digits(seed=1), verbose=False)
    with pytest.raises(ValueError, match="--seed_everything 0"):
        fitted(loaded, digits(seed=1))
    fitted(loaded.personalize(1).train(), digits(seed=1), max_steps=1, val_check_interval=1)  # a plain start
    with pytest.raises(ValueError, match="--seed_everything 0"):
        trainer(max_steps=5).fit(task(), digits(seed=1), ckpt_path=tmp_path / "run.ckpt")
    with pytest.raises(ValueError, match=r"written by .*FedAPM, this run uses .*FedAlt.*clients' own models"):
        trainer().validate(task(FedAlt(0.1)), digits(), ckpt_path=tmp_path / "run.ckpt", verbose=False)


def test_the_task_holds_the_global_model_after_validation():
    model = task(Ditto(0.1), personal=())
    fitted(model, digits())
    point = torch.cat([p.detach().flatten() for p in model.network.parameters()])
    torch.testing.assert_close(point, model.server_state.z)


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_metrics_in_groups_are_computed_client_by_client():
    model = Classification(Ditto(0.1), network=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    data = digits(permute_labels=False)
    fit = fitted(model, data)
    values = by_hand(model, data)
    check(fit.callback_metrics, {name: values[name] for name in ("accuracy", "f1", "loss")})


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_one_global_model_is_evaluated_client_by_client_for_comparison():
    model, data = task(FedAvg(0.1), personal=()), digits()
    fit = fitted(model, data)
    check(fit.callback_metrics, by_hand(lambda i: model, data))
    assert "val_global_accuracy" not in fit.callback_metrics


def test_a_checkpoint_is_validated_like_the_run_that_wrote_it(tmp_path):
    model, data = task(), digits()
    fit = fitted(model, data)
    seen = {name: float(value) for name, value in fit.callback_metrics.items() if name.startswith("val")}
    fit.save_checkpoint(tmp_path / "run.ckpt")
    again = trainer().validate(task(), digits(), ckpt_path=tmp_path / "run.ckpt", verbose=False, weights_only=True)[0]
    assert again == seen
    loaded = PersonalizedClassification.load_from_checkpoint(tmp_path / "run.ckpt", weights_only=True)
    assert torch.equal(loaded.personalize(3).network.head.weight, model.personalize(3).network.head.weight)
    assert loaded.personal_parameters == ("network.head",)


class OwnLine(Personal):
    """A user's task: ordinary validation that logs numbers."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.line(batch[0]).squeeze(1) + self.offset


def own_data(**options):
    options = {"batch_size": 4, "local_steps": 3, "seed": 1, "eval_batch_size": 5, **options}
    return FederatedDataModule.from_datasets(clients(), val=clients(seed=7), test=clients(seed=8), **options)


def test_users_validation_runs_once_a_client():
    model, data = OwnLine(FedAvg(0.05)), own_data()
    fit = fitted(model, data)
    losses = []
    for i, part in enumerate(clients(seed=7)):
        with torch.no_grad():
            losses.append(model.personalize(i).objective(part.tensors))
    losses = torch.stack(losses)
    assert losses.std() > 0
    logged = fit.callback_metrics
    torch.testing.assert_close(logged["val_loss"], losses.mean())
    torch.testing.assert_close(logged["val_loss_min"], losses.min())
    torch.testing.assert_close(logged["val_loss_max"], losses.max())
    assert "val_loss_worst" not in logged
    assert model.offset.item() == 0.0


class Gathers(OwnLine):
    """Adds up what its steps find, as many modules do, and logs it at the end."""

    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.total = getattr(self, "total", 0.0) + self.offset.item()

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.log("val_total", self.total)


MIXED = "'val_total' is logged at the end of an evaluation of clients' own models and of the global one"


def test_what_steps_gather_of_own_and_global_models_is_not_mixed_without_a_word():
    fit = partial(fitted, Gathers(Ditto(0.05, lam=0.1)), own_data())
    with pytest.warns(UserWarning, match=MIXED):
        fit()


@pytest.mark.filterwarnings(f"error:{MIXED}")
def test_what_steps_gather_of_one_kind_of_model_needs_no_word():
    assert "val_total" in fitted(Gathers(FedAvg(0.05)), own_data()).callback_metrics


class Hooked(OwnLine):
    """Looks at its offset in the steps, and in the hooks before and after them."""

    def __init__(self, algorithm):
        super().__init__(algorithm)
        self.seen = {"before": [], "in": [], "after": []}

    def look(self, where):
        self.seen[where].append(self.offset.item())

    def on_validation_batch_start(self, *args):
        self.look("before")

    def validation_step(self, batch, batch_idx):
        self.look("in")
        self.log("val_in", self.offset)

    def on_validation_batch_end(self, *args):
        self.look("after")
        self.log("val_after", self.offset)

    on_test_batch_start, test_step, on_test_batch_end = (
        on_validation_batch_start,
        validation_step,
        on_validation_batch_end,
    )
    on_predict_batch_start = on_validation_batch_start

    def predict_step(self, batch, batch_idx):
        self.look("in")
        return batch[0]

    def on_predict_batch_end(self, *args):
        self.look("after")


class Looks(Callback):
    """Looks at the offset in hooks of a callback."""

    def on_validation_batch_start(self, trainer, task, *args):
        task.look("before")

    def on_validation_batch_end(self, trainer, task, *args):
        task.look("after")


@pytest.mark.parametrize("algorithm", [FedAvg(0.05), Ditto(0.05, lam=0.1)])
@pytest.mark.parametrize("run", ["validate", "test", "predict"])
def test_hooks_of_a_batch_meet_the_model_of_its_client(run, algorithm):
    task, data = Hooked(algorithm), own_data(eval_batch_size=50)
    fit = fitted(task, data)
    task.seen = {name: [] for name in task.seen}
    values = getattr(fit, run)(task, datamodule=data)
    assert len(set(task.seen["in"])) >= 4  # one a client
    assert task.seen["before"] == task.seen["in"] == task.seen["after"]
    assert task.offset.item() == 0.0  # the start's again
    if run != "predict":
        (logged,) = values
        assert {name.replace("after", "in"): value for name, value in logged.items() if "after" in name} == {
            name: value for name, value in logged.items() if "val_in" in name or "global_in" in name
        }
        assert "val_after_std" in logged


def test_hooks_of_callbacks_meet_it_too():
    task, data = Hooked(FedAvg(0.05)), own_data(eval_batch_size=50)
    fitted(task, data)
    task.seen = {name: [] for name in task.seen}
    trainer(callbacks=[Looks()]).validate(task, data)
    assert task.seen["before"] == [each for each in task.seen["in"] for _ in range(2)] == task.seen["after"]


class LogsBesideGroups(BatchedEvaluationTask, OwnLine):
    """Evaluates clients side by side, and logs something of its own after each batch."""

    def predictions(self, batch):
        return self.line(batch[0]).squeeze(1) + self.offset

    def evaluate(self, stage, batch, predictions):
        self.log(f"{stage}_mean", predictions.mean())

    def on_validation_batch_end(self, *args):
        self.log("val_beside", 1.0)

    validation_step, test_step = BatchedEvaluationTask.validation_step, BatchedEvaluationTask.test_step


def test_what_a_hook_logs_of_several_clients_at_once_is_told():
    fit = partial(fitted, LogsBesideGroups(FedAvg(0.05)), own_data(eval_batch_size=50))
    with pytest.warns(UserWarning, match="'val_beside' is logged by a hook for a batch of several clients"):
        fit()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"limit_val_batches": 1}, "limit_val_batches ends the evaluation within client 0's data: neither it nor"),
        ({"limit_val_batches": 3}, "limit_val_batches ends the evaluation within client 1's data"),
        ({"fast_dev_run": True}, "fast_dev_run ends the evaluation within client 0's data"),
        ({"limit_val_batches": 2}, None),
        ({}, None),
    ],
)
def test_a_limit_within_a_clients_data_is_told(options, told, recwarn):
    data = held_out_data(eval_batch_size=6)  # two batches a client
    trainer(max_steps=2, **options).fit(Own(FedAvg(0.05)), data)
    found = [str(warning.message) for warning in recwarn if "ends the evaluation" in str(warning.message)]
    assert [told in each for each in found] == [True] if told else not found


def test_prediction_as_one_client_and_as_everyone():
    model, data = OwnLine(FedAvg(0.05)), own_data(eval_batch_size=50)
    fit = fitted(model, data)
    everyone = fit.predict(model, data)
    parts = clients(seed=8)
    expected = [model.personalize(i).predict_step(part.tensors, 0) for i, part in enumerate(parts)]
    assert len(everyone) == len(parts)
    for ours, theirs in zip(everyone, expected, strict=True):
        torch.testing.assert_close(ours, theirs.detach())
    assert model.predicted_clients == [0, 1, 2, 3]
    model.predict_client = 2
    (ours,) = fit.predict(model, data)
    torch.testing.assert_close(ours, expected[2].detach())
    x = torch.ones(3, 6)
    pooled = FederatedDataModule.from_datasets(clients(), test=torch.utils.data.TensorDataset(x, torch.zeros(3)))
    (ours,) = fit.predict(model, pooled)
    torch.testing.assert_close(ours, model.personalize(2).predict_step((x, None), 0).detach())
    assert model.offset.item() == 0.0
    model.predict_client = 9
    with pytest.raises(IndexError, match="predict_client=9: the federation has clients 0 to 3"):
        fit.predict(model, data)


def test_an_interrupted_prediction_leaves_the_global_model():
    class Failing(OwnLine):
        def predict_step(self, batch, batch_idx):
            raise RuntimeError("stop")

    model, data = Failing(Ditto(0.05)), own_data()
    fit = fitted(model, data)
    weight = model.line.weight.clone()
    with pytest.raises(RuntimeError, match="stop"):
        fit.predict(model, data)
    assert torch.equal(model.line.weight, weight)
    assert model.offset.item() == 0.0


def test_clients_for_whom_a_metric_is_undefined_are_counted_out():
    class Judged(OwnLine):
        def __init__(self, algorithm):
            super().__init__(algorithm)
            self.metric = PresentClassesAUROC(2)

        def validation_step(self, batch, batch_idx):
            x, y = batch
            one_class = torch.zeros(len(y), dtype=torch.long)
            self.metric.update(torch.ones(len(y), 2) / 2, one_class if x[0, 0] > self.threshold else (y > 0).long())
            self.log("val_auc", self.metric)

    model, data = Judged(FedAvg(0.05)), own_data(eval_batch_size=50)
    federation = data.federation
    model.threshold = torch.stack([federation.val[own][0][0, 0] for own in federation.val_partition]).sort().values[1]
    fit = fitted(model, data)
    assert fit.callback_metrics["val_auc_defined"] == 2
    assert fit.callback_metrics["val_auc"] == 0.5
    model.threshold = torch.tensor(-99.0)
    assert torch.isnan(torch.tensor(fit.validate(model, data, verbose=False)[0]["val_auc"]))


def test_steps_that_do_not_tell_the_loaders_apart_are_not_mixed():
    class Same(OwnLine):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

    model, data = Same(Ditto(0.05)), own_data(validate_train=True)
    fit = fitted(model, data)
    names = {"val_loss", "val_global_loss", "val_loss/dataloader_idx_1", "global_val_loss/dataloader_idx_1"}
    assert {name for name in fit.callback_metrics if "_loss" in name} - {"train_loss"} == {
        f"{name}{end}" for name in names for end in ("", "_std", "_min", "_max", *PERCENTILES)
    }
    train = [model.personalize(i).objective(part.tensors).item() for i, part in enumerate(clients())]
    assert float(fit.callback_metrics["val_loss/dataloader_idx_1"]) == pytest.approx(sum(train) / 4)


def test_one_clients_model_is_saved_as_a_plain_module(tmp_path):
    model = task()
    fitted(model, digits())
    torch.save(model.personalize(1).network.state_dict(), tmp_path / "client.pt")
    plain = task().network
    plain.load_state_dict(torch.load(tmp_path / "client.pt", weights_only=True))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(plain(x), model.personalize(1)(x))
    with pytest.warns(UserWarning, match="answers with the shared parameters and the personal ones of the start"):
        assert not torch.equal(plain(x), model(x))


class Failing(OwnLine):
    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch))
        if not self.trainer.sanity_checking and batch_idx == 4:
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore:.*KeyboardInterrupt")
def test_an_interrupted_validation_leaves_the_global_model():
    model = Failing(FedAvg(0.05))
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fitted(model, own_data())
    assert model.offset.item() == 0.0
    assert model.evaluation_session.evaluation is None


class Once(Callback):
    """Interrupts the first evaluation after its first batch."""

    done = False

    def on_validation_batch_end(self, *_):
        if not self.done:
            self.done = True
            raise KeyboardInterrupt

    on_test_batch_end = on_validation_batch_end


@pytest.mark.filterwarnings("ignore:.*KeyboardInterrupt")
@pytest.mark.parametrize(
    "make", [Classification, partial(RobustClassification, penalty=0.1)], ids=["metric", "batches"]
)
def test_an_interrupted_evaluation_of_pooled_data_leaves_no_samples_behind(make):
    data = Digits(IID(3), eval_batch_size=100)
    torch.manual_seed(0)
    task = make(FedAvg(0.05))
    expected = trainer().validate(task, data, verbose=False)

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer(callbacks=[Once()]).validate(task, data, verbose=False)
    assert trainer().validate(task, data, verbose=False) == expected


class Totals(Line):
    """Counts rounds in a metric."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.total = torchmetrics.SumMetric()

    def on_train_batch_end(self, *_):
        self.total.update(1.0)


@pytest.mark.filterwarnings("ignore:.*KeyboardInterrupt")
def test_a_fit_that_is_interrupted_in_validation_keeps_its_training_metrics():
    task = Totals()
    run = trainer(callbacks=[Once()], max_steps=5, num_sanity_val_steps=0)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.fit(task, regression_data())
    assert task.total.compute() == 5


def test_data_that_do_not_say_whose_samples_they_are():
    with pytest.warns(UserWarning, match="do not say which val samples each client holds"):
        fitted(OwnLine(FedAvg(0.05)), regression_data())
    with pytest.raises(ValueError, match="val_partition"):
        fitted(task(FedAvg(0.1), personal=()), FederatedDataModule.from_datasets(clients(), val=clients()[0]))
    with pytest.raises(ValueError, match="a list of 3 data sets for 4 clients"):
        FederatedDataModule.from_datasets(clients(), val=clients()[:3]).setup()


def test_without_models_of_their_own_lists_are_pooled():
    fit = fitted(Line(FedAvg(0.05), dropout=0.0), own_data())
    assert "val_loss_std" not in fit.callback_metrics
    pooled = FederatedDataModule.from_datasets(
        clients(), val=torch.utils.data.ConcatDataset(clients(seed=7)), batch_size=4, local_steps=3, seed=1
    )
    torch.manual_seed(0)
    first = fitted(Line(FedAvg(0.05), dropout=0.0), own_data()).callback_metrics["val_loss"]
    torch.manual_seed(0)
    second = fitted(Line(FedAvg(0.05), dropout=0.0), pooled).callback_metrics["val_loss"]
    torch.testing.assert_close(first, second)


def test_worst_is_never_the_best_client():
    class Judged(Own):
        higher_is_better: ClassVar = {"r": True, "val_loss": False}

    plain, judged = (make(FedAlt(0.05), oracle=Vectorized()) for make in (Own, Judged))  # one oracle, whose bits repeat
    judged.load_state_dict(plain.state_dict())
    logged = two_rounds(plain, held_out_data()).callback_metrics
    known = two_rounds(judged, held_out_data()).callback_metrics
    r, loss = plain.client_metrics["val_r"], plain.client_metrics["val_loss"]
    assert r.std() > 0
    assert {name for name in logged if name.startswith("val_r")} == {
        f"val_r{end}" for end in ("", "_std", "_min", "_max", *PERCENTILES)
    }
    assert (logged["val_r_min"], logged["val_r_max"]) == (r.min(), r.max())
    assert {name for name in known if name.startswith("val_r")} == {
        f"val_r{end}" for end in ("", "_std", "_worst", *PERCENTILES)
    }
    assert known["val_r_worst"] == r.min()
    assert known["val_loss_worst"] == loss.max()


def test_metrics_that_know_no_direction_get_both_ends():
    class Undecided(Own):
        def __init__(self, algorithm):
            super().__init__(algorithm)
            self.mean = torchmetrics.MeanMetric()

        def validation_step(self, batch, batch_idx):
            self.mean(batch[1])
            self.log("val_mean", self.mean)

    logged = two_rounds(Undecided(FedAlt(0.05)), held_out_data()).callback_metrics
    assert {name for name in logged if name.startswith("val_mean_")} == {
        "val_mean_std",
        "val_mean_min",
        "val_mean_max",
        *(f"val_mean{end}" for end in PERCENTILES),
    }


def test_a_task_that_leaves_the_evaluation_of_clients_out_is_refused():
    class Bare(Own):
        def configure_callbacks(self):
            return []

    with pytest.raises(TypeError, match=r"Bare\.configure_callbacks leaves out EvaluateClients"):
        two_rounds(Bare(FedAlt(0.05)), held_out_data())


def test_ready_made_tasks_say_which_way_their_losses_go():
    class Scored(BatchedEvaluationTask):
        higher_is_better: ClassVar = {"mse": False}
        personal_parameters = ("offset",)

        def __init__(self, algorithm):
            super().__init__(algorithm, oracle=Vectorized())
            self.line, self.offset = nn.Linear(6, 1), nn.Parameter(torch.zeros(1))

        def predictions(self, batch):
            return self.line(batch[0]).squeeze(1) + self.offset

        def objective(self, batch):
            return (self.predictions(batch) - batch[1]).square().mean()

        def evaluate(self, stage, batch, scores):
            self.log(f"{stage}_mse", (scores - batch[1]).square().mean(), batch_size=len(scores))

    for algorithm in (FedAlt(0.05), FedALA(0.05), FedMM(0.05, mu=1.0)):
        task = Scored(algorithm)
        logged = two_rounds(task, held_out_data()).callback_metrics
        assert logged["val_mse_worst"] == task.client_metrics["val_mse"].max()


class Computes(Own):
    """Logs what its metric computes, from all batches since it was reset."""

    def __init__(self, how):
        super().__init__(FedAvg(0.05))
        self.error, self.how, self.updates = torchmetrics.MeanAbsoluteError(), how, 0

    def validation_step(self, batch, batch_idx):
        x, y = batch
        if self.how in ("reset", "more updates"):
            self.error.reset()
        if self.how == "last batch" and len(y) == 5:
            return
        self.error.update(self(x), y)
        if self.how == "more updates":  # with every batch
            self.updates += 1
            for _ in range(self.updates):
                self.error.update(self(x), y)
        self.log("val_error", self.found(), batch_size=len(y))

    def found(self):
        if self.how == "metric":
            return self.error
        error = self.error.compute()
        return {"item": error.item, "times": lambda: 100 * error}.get(self.how, lambda: error)()


def test_the_value_of_a_metric_so_far_is_no_clients_own():
    data = held_out_data(eval_batch_size=20)
    with pytest.raises(ValueError, match=r"'val_error' is what MeanAbsoluteError.compute\(\) returned, .* self.log\("):
        two_rounds(Computes("compute"), data, num_sanity_val_steps=0)
    with pytest.raises(ValueError, match="'val_error' is what"):
        two_rounds(Computes("last batch"), held_out_data(eval_batch_size=5), num_sanity_val_steps=0)
    tasks = [Computes(how) for how in ("metric", "reset", "more updates")]
    for each in tasks[1:]:
        each.load_state_dict(tasks[0].state_dict())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*MeanAbsoluteError")
        for each in tasks:
            two_rounds(each, data)
    for each in tasks[1:]:
        torch.testing.assert_close(each.client_metrics["val_error"], tasks[0].client_metrics["val_error"])


class ComputesSideBySide(BatchedEvaluationTask):
    """Evaluates several clients a batch, and logs what its metric computes, from all clients so far."""

    personal_parameters = ("offset",)
    per_client_evaluation = True

    def __init__(self):
        super().__init__(FedAlt(0.05))
        self.line, self.offset = nn.Linear(6, 1, bias=False), nn.Parameter(torch.zeros(1))
        self.error = torchmetrics.MeanAbsoluteError()

    def predictions(self, batch):
        return self.line(batch[0]).squeeze(1) + self.offset

    def objective(self, batch):
        return (self.predictions(batch) - batch[1]).square().mean()

    def evaluate(self, stage, batch, scores):
        self.error.update(scores, batch[1])
        self.log(f"{stage}_error", self.error.compute(), batch_size=len(scores))


def test_a_metric_over_clients_side_by_side_is_no_clients_own():
    task = ComputesSideBySide()
    with pytest.raises(ValueError, match=r"'val_error' is what MeanAbsoluteError\.compute\(\) returned"):
        two_rounds(task, held_out_data(), num_sanity_val_steps=0)


def test_metrics_are_left_as_they_were():
    task = Computes("reset")
    two_rounds(task, held_out_data(eval_batch_size=20))
    assert "reset" not in vars(task.error)


@pytest.mark.parametrize("how", ["item", "times"])
def test_what_is_made_of_the_value_of_a_metric_so_far_is_told(how):
    with pytest.warns(UserWarning, match=r"Computes calls MeanAbsoluteError\.compute\(\) while a client is evaluated"):
        two_rounds(Computes(how), held_out_data(eval_batch_size=20), num_sanity_val_steps=0)


class Plain(LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(6, 1)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.line(batch[0]).square().mean())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.line(batch[0])


@pytest.mark.parametrize("first", [Line, lambda: federate(Lit(), FedAvg)])
def test_a_trainer_runs_ordinary_modules_and_other_tasks_after_a_task(first):
    fit, plain = trainer(max_steps=2), Plain()
    fit.fit(first(), regression_data(rounds_per_epoch=2))
    (found,) = fit.validate(plain, plain_loader(), verbose=False)
    assert found == trainer().validate(plain, plain_loader(), verbose=False)[0]
    fit.test(plain, plain_loader(), verbose=False)
    torch.testing.assert_close(fit.predict(plain, plain_loader()), trainer().predict(plain, plain_loader()))
    other = Line()
    fit.fit_loop.epoch_loop.max_steps = 4
    fit.fit(other, regression_data(rounds_per_epoch=2))
    assert other.run.rounds == 4


class Quiet(Own):
    def validation_step(self, batch, batch_idx):
        self.log("val_loud", self.objective(batch), batch_size=len(batch[1]))
        self.log("val_quiet", self.objective(batch), batch_size=len(batch[1]), logger=False)


def test_what_loggers_shall_not_get_is_for_callbacks_alone(tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    fit = two_rounds(Quiet(FedAlt(0.05)), held_out_data(), logger=logger, log_every_n_steps=1)
    assert {"val_quiet", "val_quiet_std", "val_quiet_p50"} <= fit.callback_metrics.keys()
    header = (tmp_path / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"val_loud", "val_loud_std"} <= set(header)
    assert not [name for name in header if name.startswith("val_quiet")]
