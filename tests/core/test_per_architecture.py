"""Parts of a network by architecture: heads, one part or several, a client's model by itself."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning import algorithms as fl
from fedlightning.models import Chain, PerArchitecture
from tests.support.architectures import BY_SIZE, CLIENTS, by_hand, digits, fitted, task
from tests.support.federations import loop_for, run
from tests.support.ragged import CHOICE, ragged, rounds
from tests.support.small import trainer


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
    camera = PerArchitecture({"fine": nn.Linear(64, 12), "coarse": nn.Linear(16, 12)}, BY_SIZE)
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


def test_choice_by_a_function():
    algorithm = fl.FedSim(0.05)
    loops = [loop_for(ragged(algorithm, choice=choice)) for choice in (CHOICE, CHOICE.__getitem__)]
    first, second = (run(loop, rounds(algorithm, 2)) for loop in loops)
    assert torch.equal(first, second)
