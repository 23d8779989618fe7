"""Clients with other resolutions, other classes, other normalisation: trained, evaluated, saved and resumed."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from fedlightning import FederatedDataModule
from fedlightning.algorithms import Ditto, FedAlt, FedAPM, FedAvg, pFedMe
from fedlightning.data import IID, DigitsOfSizes, MixedTensorData, TensorData
from fedlightning.models import Chain, PerArchitecture
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification, PersonalizedClassification
from tests.support.small import trainer
from tests.tasks.test_batched_evaluation import OneByOne

CLIENTS = 5
SIZES = [8, 4, 8, 4, 8]
CHOICE = ["fine" if size == 8 else "coarse" for size in SIZES]


def network():
    camera = PerArchitecture({"fine": nn.Linear(64, 12), "coarse": nn.Linear(16, 12)}, CHOICE)
    return Chain(
        {
            "flatten": nn.Flatten(),
            "camera": camera,
            "relu": nn.Sequential(nn.ReLU(), nn.Dropout(0.2)),
            "head": nn.Linear(12, 10),
        }
    )


def digits(**options):
    defaults = {"batch_size": 10, "local_steps": 3, "participation": Uniform(size=3), "val_share": 0.2}
    return DigitsOfSizes([8, 4], partitioner=IID(CLIENTS), **{**defaults, **options})


def task(algorithm=None, cls=PersonalizedClassification, net=None, **options):
    torch.manual_seed(1)
    algorithm = FedAPM(0.1) if algorithm is None else algorithm
    net = network() if net is None else deepcopy(net)
    return cls(algorithm, net, **{"personal": ["camera"], "oracle": Vectorized(), **options})


def fitted(model, data, rounds=3, **options):
    fit = trainer(max_steps=rounds, limit_val_batches=0, **options)
    fit.fit(model, data)
    return fit


def by_hand(model, data, classes=10):
    """Accuracy, F1 and loss of every client's own model."""
    federation = data.federation
    rows = []
    for i, index in enumerate(federation.val_partition):
        x, y = federation.val[index]
        own = model.personalize(i).eval()
        with torch.no_grad():
            logits = own(x)
        padded = F.pad(logits.softmax(1), (0, classes - logits.shape[1]))
        accuracy = multiclass_accuracy(padded, y, classes, average="micro")
        rows.append([accuracy, multiclass_f1_score(padded, y, classes, average="macro"), F.cross_entropy(logits, y)])
    return dict(zip(["val_accuracy", "val_f1", "val_loss"], torch.tensor(rows).T, strict=True))


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


def test_one_clients_model_is_a_plain_module(tmp_path):
    model, data = task(), digits()
    fitted(model, data)
    for client, size in ((0, 8), (1, 4)):
        own = model.personalize(client).network.eval()
        assert isinstance(own.camera, nn.Linear)
        torch.save(own.state_dict(), tmp_path / "client.pt")
        plain = nn.Sequential(nn.Flatten(), nn.Linear(size * size, 12), nn.ReLU(), nn.Linear(12, 10))
        saved = torch.load(tmp_path / "client.pt", weights_only=True)
        plain.load_state_dict(dict(zip(plain.state_dict(), saved.values(), strict=True)))
        x = torch.randn(3, 1, size, size)
        assert torch.equal(plain(x), own(x))
    assert isinstance(model.network.camera, PerArchitecture)


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


class Listed(Dataset):
    """Not held as tensors."""

    def __init__(self, part):
        self.part = part

    def __len__(self):
        return len(self.part)

    def __getitem__(self, i):
        return self.part[i]


def separate(wrap=lambda part: part):
    """The same kind of clients, given one by one."""
    federation = digits().federation

    def sets(partition):
        return [wrap(TensorDataset(*federation.train[index])) for index in partition]

    return FederatedDataModule.from_datasets(
        sets(federation.partition),
        val=sets(federation.val_partition),
        test=sets(federation.test_partition),
        batch_size=10,
        local_steps=3,
        participation=Uniform(size=3),
    )


def test_data_sets_of_several_shapes_are_dealt_however_they_are_held():
    models = [task(FedAlt(0.1)) for _ in range(3)]
    for model, data in zip(models, (digits(), separate(), separate(Listed)), strict=True):
        fitted(model, data)
        trainer().validate(model, data, verbose=False)
    for other in models[1:]:
        for ours, theirs in zip(state(other), state(models[0]), strict=True):
            assert torch.equal(ours, theirs)
        torch.testing.assert_close(other.client_metrics["val_loss"], models[0].client_metrics["val_loss"])


def test_digits_of_sizes_are_the_digits():
    data, whole = digits(), DigitsOfSizes([8], partitioner=IID(CLIENTS), val_share=0.2)
    ours, theirs = data.federation, whole.federation
    assert isinstance(ours.train, MixedTensorData)
    for name in ("partition", "val_partition", "test_partition"):
        for i, (own, other) in enumerate(zip(getattr(ours, name), getattr(theirs, name), strict=True)):
            (x, y), (full, labels) = ours.train[own], theirs.train[other]
            assert torch.equal(y, labels)
            assert x.shape == (len(own), 1, SIZES[i], SIZES[i])
            torch.testing.assert_close(x, F.avg_pool2d(full, 8 // SIZES[i]), atol=1.01 / 255, rtol=0)
    with pytest.raises(ValueError, match="3 is none of 8, 4, 2, 1"):
        DigitsOfSizes([8, 3])


def test_clients_with_other_classes_have_other_heads():
    draw = torch.Generator().manual_seed(0)
    counts = [3, 5, 3, 4]

    def sets():
        return [TensorDataset(torch.randn(20, 6, generator=draw), torch.arange(20) % c) for c in counts]

    data = FederatedDataModule.from_datasets(sets(), val=sets(), test=sets(), batch_size=5, local_steps=2)
    heads = PerArchitecture({f"of{c}": nn.Linear(8, c) for c in sorted(set(counts))}, [f"of{c}" for c in counts])
    model = task(net=Chain({"body": nn.Linear(6, 8), "relu": nn.ReLU(), "head": heads}), personal=["head"], classes=5)
    fitted(model, data)
    trainer().validate(model, data, verbose=False)
    for name, values in by_hand(model, data, 5).items():
        torch.testing.assert_close(model.client_metrics[name], values)
    assert [len(model.personalize(i)(torch.zeros(1, 6))[0]) for i in range(4)] == counts


def test_two_parts_may_vary():
    camera = PerArchitecture({"fine": nn.Linear(64, 12), "coarse": nn.Linear(16, 12)}, CHOICE)
    head = PerArchitecture(
        {"ten": nn.Linear(12, 10), "twelve": nn.Linear(12, 12)}, ["ten", "twelve", "twelve", "ten", "ten"]
    )
    net = Chain({"flatten": nn.Flatten(), "camera": camera, "shared": nn.Linear(12, 12), "head": head})
    model, data = task(net=net, personal=["camera", "head"], classes=12), digits()
    fitted(model, data)
    trainer().validate(model, data, verbose=False)
    for name, values in by_hand(model, data, 12).items():
        torch.testing.assert_close(model.client_metrics[name], values)
    networks = [model.personalize(i).network for i in range(CLIENTS)]
    shapes = [(own.camera.in_features, own.head.out_features) for own in networks]
    assert shapes == [(64, 10), (16, 12), (64, 12), (16, 10), (64, 10)]


def normed(track=True):
    def camera(pixels):
        norm = nn.BatchNorm1d(12) if track else nn.LayerNorm(12)
        return Chain({"linear": nn.Linear(pixels, 12), "norm": norm})

    cameras = PerArchitecture({"fine": camera(64), "coarse": camera(16)}, CHOICE)
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


def test_mixed_positions_count_through_the_parts():
    parts = [TensorData((torch.arange(3).float(),)), TensorData((torch.arange(8).view(4, 2) + 10.0,))]
    mixed = MixedTensorData(parts)
    assert len(mixed) == 7
    assert mixed[1][0] == 1
    assert torch.equal(mixed[4][0], torch.tensor([12.0, 13.0]))
    source = mixed.source().place(torch.device("cpu"), torch.float64)
    index = torch.tensor([[[3, 5]], [[6, 4]]])
    step, everything = source.minibatches_and_all(index, [torch.arange(3, 6), torch.arange(4, 7)])
    (batch,) = step(0)
    assert torch.equal(batch[1], torch.tensor([[16.0, 17.0], [12.0, 13.0]], dtype=torch.float64))
    (whole,) = everything([0, 1])
    assert whole.shape == (2, 3, 2)
    assert torch.equal(source.minibatches(torch.tensor([[[2]]]))(0)[0], torch.tensor([[2.0]], dtype=torch.float64))
