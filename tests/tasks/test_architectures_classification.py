"""Clients with other resolutions, other classes, other normalisation: trained, evaluated, saved and resumed."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from fedlightning.algorithms import Ditto, FedAlt, FedAPM, FedAvg, pFedMe
from fedlightning.models import Chain, PerArchitecture
from fedlightning.tasks import Classification, PersonalizedClassification
from tests.support.architectures import BY_SIZE, CLIENTS, by_hand, digits, fitted, separate, task
from tests.support.evaluated import OneByOne
from tests.support.small import trainer
from tests.support.with_gaps import Listed


@pytest.mark.parametrize("cls", [PersonalizedClassification, type("One", (OneByOne, PersonalizedClassification), {})])
@pytest.mark.parametrize("algorithm", [FedAlt(0.1), FedAPM(0.1), FedAvg(0.1), Ditto(0.1), pFedMe(0.1, lam=5.0)])
def test_every_client_is_evaluated_with_its_own_variant(algorithm, cls):
    model, data = task(algorithm, cls), digits()
    before = deepcopy(model.network.camera.state_dict())
    fitted(model, data)
    logged = trainer().validate(model, data, verbose=False)[0]
    for name, values in by_hand(model, data).items():
        torch.testing.assert_close(model.client_metrics[name], values)
    assert ("val_global_accuracy" in logged) == isinstance(algorithm, Ditto | pFedMe)
    for name, tensor in model.network.camera.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert model.network.camera.active == "fine"


def test_prediction_as_one_client_and_as_everyone():
    model, data = task(), digits()
    fit = fitted(model, data)
    everyone = fit.predict(model, data)
    federation = data.federation
    expected = [
        model.personalize(i).eval()(federation.test[index][0]).argmax(1)
        for i, index in enumerate(federation.test_partition)
    ]
    for ours, theirs in zip(everyone, expected, strict=True):
        assert torch.equal(ours, theirs)
    model.predict_client = 3
    (ours,) = fit.predict(model, data)
    assert torch.equal(ours, expected[3])


def state(model):
    simulation = model.run.simulation
    return [simulation.server.point, *(simulation.models([i])[1][0] for i in range(CLIENTS))]


@pytest.mark.filterwarnings("ignore:Hyper-parameter 'network'")
def test_a_run_resumes_bit_for_bit_from_a_checkpoint(tmp_path):
    whole = task()
    fitted(whole, digits(), 4)
    first = task()
    fitted(first, digits(), 2).save_checkpoint(tmp_path / "half.ckpt")
    second = task()
    fit = trainer(max_steps=4, limit_val_batches=0)
    fit.fit(second, digits(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    for ours, theirs in zip(state(second), state(whole), strict=True):
        assert torch.equal(ours, theirs)
    seen = trainer().validate(task(), digits(), ckpt_path=tmp_path / "half.ckpt", verbose=False, weights_only=True)[0]
    assert seen == trainer().validate(first, digits(), verbose=False)[0]


def test_data_sets_of_several_shapes_are_dealt_however_they_are_held():
    models = [task(FedAlt(0.1)) for _ in range(3)]
    for model, data in zip(models, (digits(), separate(), separate(Listed)), strict=True):
        fitted(model, data)
        trainer().validate(model, data, verbose=False)
    for other in models[1:]:
        for ours, theirs in zip(state(other), state(models[0]), strict=True):
            assert torch.equal(ours, theirs)
        torch.testing.assert_close(other.client_metrics["val_loss"], models[0].client_metrics["val_loss"])


def normed(track=True):
    def camera(pixels):
        norm = nn.BatchNorm1d(12) if track else nn.LayerNorm(12)
        return Chain({"linear": nn.Linear(pixels, 12), "norm": norm})

    cameras = PerArchitecture({"fine": camera(64), "coarse": camera(16)}, BY_SIZE)
    return Chain({"flatten": nn.Flatten(), "camera": cameras, "head": nn.Linear(12, 10)})


@pytest.mark.filterwarnings("ignore:Hyper-parameter 'network'")
@pytest.mark.parametrize("buffers", ["local", "average"])
def test_batch_statistics_of_a_variant_stay_with_its_clients(tmp_path, buffers):
    net = normed()
    whole, data = task(net=net, buffers=buffers), digits()
    fitted(whole, data, 3).save_checkpoint(tmp_path / "last.ckpt")
    trainer().validate(whole, data, verbose=False)
    for name, values in by_hand(whole, data).items():
        torch.testing.assert_close(whole.client_metrics[name], values)
    means = [whole.personalize(i).network.camera.norm.running_mean for i in range(CLIENTS)]
    assert len({tuple(mean.tolist()) for mean in means}) == CLIENTS
    first = task(net=net, buffers=buffers)
    fitted(first, digits(), 1).save_checkpoint(tmp_path / "one.ckpt")
    second = task(net=net, buffers=buffers)
    trainer(max_steps=3, limit_val_batches=0).fit(second, digits(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    for ours, theirs in zip(state(second), state(whole), strict=True):
        assert torch.equal(ours, theirs)
    for i, mean in enumerate(means):
        assert torch.equal(second.personalize(i).network.camera.norm.running_mean, mean)


def test_samples_of_several_shapes_are_not_evaluated_as_one_data_set():
    with pytest.raises(ValueError, match="client by client"):
        trainer(max_steps=1).fit(Classification(FedAvg(0.1)), digits())
