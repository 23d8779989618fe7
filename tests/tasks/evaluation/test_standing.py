"""Weights that are changed after a fit: clients are evaluated with them as they are, and they stay."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback
from torch.nn.utils import prune

from fedlightning.algorithms import Ditto, FedAlt, FedAvg
from tests.support.evaluated import Own, held_out_data, messages, plain_loader, two_rounds
from tests.support.situations import Wearables
from tests.support.small import Normed, clients, trainer


class Alike(Own):
    """Evaluated client by client, with the one model of all."""

    personal_parameters = ()
    per_client_evaluation = True


def everything(task):
    return {name: value.clone() for name, value in task.state_dict().items()}


def losses(models):
    """Validation losses, each of a client's model on the client's data."""
    with torch.no_grad():
        found = [model.objective(data.tensors) for model, data in zip(models, clients(seed=7), strict=True)]
    return torch.stack(found)


def halve(task):
    with torch.no_grad():
        task.line.weight.mul_(0.5)


def loaded(task):
    task.load_state_dict(Alike(FedAvg(0.05)).state_dict())


def pruned(task):
    prune.l1_unstructured(task.line, "weight", 0.5)
    prune.remove(task.line, "weight")


@pytest.mark.parametrize("change", [halve, loaded, pruned])
def test_the_one_model_is_evaluated_as_it_is(change):
    task = Alike(FedAvg(0.05))
    fit = two_rounds(task, held_out_data())
    change(task)
    expected, before = losses([task] * 4), everything(task)
    assert messages(lambda: fit.validate(task, held_out_data(), verbose=False)) == []
    torch.testing.assert_close(task.client_metrics["val_loss"], expected)
    torch.testing.assert_close(everything(task), before, rtol=0, atol=0)


@pytest.mark.parametrize("algorithm", [FedAlt(0.05), Ditto(0.05)])
def test_clients_own_models_have_the_shared_parameters_as_they_are(algorithm):
    task = Own(algorithm)
    fit = two_rounds(task, held_out_data())
    offsets = [task.personalize(i).offset.item() for i in range(4)]
    kept = [task.personalize(i) for i in range(4)]
    halve(task)
    if isinstance(algorithm, FedAlt):
        for model in kept:
            halve(model)
    before = everything(task)
    with pytest.warns(UserWarning, match=r"'line\.weight' was changed since the last round\. Clients' models are"):
        fit.validate(task, held_out_data(), verbose=False)
    torch.testing.assert_close(task.client_metrics["val_loss"], losses(kept))
    torch.testing.assert_close(everything(task), before, rtol=0, atol=0)
    with pytest.warns(UserWarning, match="what clients keep, whole models among it, is that of the rounds"):
        own = task.personalize(2)
    torch.testing.assert_close(own.state_dict(), kept[2].state_dict())
    assert own.offset.item() == offsets[2]
    task.predict_client = 2
    with pytest.warns(UserWarning, match="was changed"):
        (first, *_) = fit.predict(task, plain_loader())
    torch.testing.assert_close(first, kept[2](next(iter(plain_loader()))[0]).detach())
    torch.testing.assert_close(everything(task), before, rtol=0, atol=0)


def test_a_client_that_does_not_exist_is_refused():
    task = Own(FedAlt(0.05))
    two_rounds(task, held_out_data())
    halve(task)
    with pytest.warns(UserWarning, match="was changed"), pytest.raises(IndexError, match="client=9: the federation"):
        task.personalize(9)


def test_a_weight_that_is_gone_is_named():
    task = Own(FedAlt(0.05))
    two_rounds(task, held_out_data())
    prune.l1_unstructured(task.line, "weight", 0.5)
    with pytest.warns(UserWarning, match="was changed"), pytest.raises(RuntimeError, match=r"has no 'line\.weight'"):
        trainer().validate(task, held_out_data(), verbose=False)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_weights_that_a_checkpoint_has_rounded_are_no_change(precision, tmp_path):
    two_rounds(Own(FedAlt(0.05)), held_out_data(), precision=precision).save_checkpoint(tmp_path / "run.ckpt")
    loaded = Own.load_from_checkpoint(tmp_path / "run.ckpt")
    assert messages(lambda: trainer().validate(loaded, held_out_data(), verbose=False)) == []
    assert messages(lambda: loaded.personalize(0)) == []
    halve(loaded)
    with pytest.warns(UserWarning, match="was changed"):
        loaded.personalize(0)


def test_rounding_by_the_user_is_a_change():
    task = Alike(FedAvg(0.05))
    fit = two_rounds(task, held_out_data())
    task.to(torch.bfloat16).float()
    expected, before = losses([task] * 4), everything(task)
    fit.validate(task, held_out_data(), verbose=False)
    torch.testing.assert_close(task.client_metrics["val_loss"], expected)
    torch.testing.assert_close(everything(task), before, rtol=0, atol=0)


class Averages(Callback):
    """Puts other weights into the task while it is validated."""

    def on_validation_epoch_start(self, trainer, pl_module):
        self.before = everything(pl_module)
        halve(pl_module)

    def on_validation_end(self, trainer, pl_module):
        self.expected = losses([pl_module] * 4)
        pl_module.load_state_dict(self.before)


def test_weights_that_a_callback_puts_in_within_a_fit_are_evaluated():
    task, averages = Alike(FedAvg(0.05)), Averages()
    two_rounds(task, held_out_data(), callbacks=[averages])
    torch.testing.assert_close(task.client_metrics["val_loss"], averages.expected)


def test_a_predicting_client_that_does_not_exist_is_refused():
    task = Own(FedAlt(0.05))
    fit = two_rounds(task, held_out_data())
    halve(task)
    task.predict_client = 9
    with pytest.warns(UserWarning, match="was changed"), pytest.raises(IndexError, match="client=9: the federation"):
        fit.predict(task, plain_loader())


def test_running_statistics_are_those_of_now():
    class Alone(Normed):
        per_client_evaluation = True

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))

    task = Alone(FedAvg(0.05))
    fit = two_rounds(task, held_out_data())
    task.net[1].running_mean.add_(1.0)
    task.eval()
    expected, before = losses([task] * 4), everything(task)
    fit.validate(task, held_out_data(), verbose=False)
    torch.testing.assert_close(task.client_metrics["val_loss"], expected)
    torch.testing.assert_close(everything(task), before, rtol=0, atol=0)


def test_of_several_architectures_the_one_that_is_shown_stays():
    class Worn(Wearables):
        def predict_step(self, batch, batch_idx):
            return self.line(self.sensor(batch[0]))

    task = Worn(FedAvg(0.05))
    fit = two_rounds(task, held_out_data())
    with torch.no_grad():
        next(task.parameters()).mul_(0.5)
    before = everything(task)
    with pytest.warns(UserWarning, match="Clients' models are those of the rounds"):
        fit.predict(task, held_out_data())
    torch.testing.assert_close(everything(task), before, rtol=0, atol=0)
