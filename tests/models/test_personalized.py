"""Shapes, parameter counts, and training of the parts under vmap as one by one."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAPM
from fedlightning.data import TensorData
from fedlightning.models import AttentionPooling, AudioVideoNet, HARNet, ImageTextNet, ResNet18, TwoLayerCNN
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import PersonalizedClassification
from tests.support.networks import SMALL, features
from tests.support.small import trainer


def test_sizes_of_the_papers_networks():
    cnn = TwoLayerCNN()
    assert cnn.head[0].in_features == 2048
    assert cnn(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    har = HARNet(classes=12)
    assert har(torch.randn(2, 6, 128)).shape == (2, 12)
    x = torch.randn(2, 6, 128)
    torch.testing.assert_close(har({"acc": x[:, :3].mT, "gyro": x[:, 3:].mT}), har(x))
    assert [tuple(har.acc.conv[i].weight.shape) for i in (0, 3, 6)] == [(32, 3, 5), (64, 32, 5), (128, 64, 5)]
    assert har.head[0].in_features == 6 * 128


def test_networks_on_features():
    image_text = ImageTextNet(classes=8)
    assert image_text({"image": torch.randn(2, 1280), "text": torch.randn(2, 5, 512)}).shape == (2, 8)
    assert image_text.head[0].in_features == 4 * 64
    audio_video = AudioVideoNet(classes=6)
    assert audio_video({"audio": torch.randn(2, 24, 80), "video": torch.randn(2, 5, 1280)}).shape == (2, 6)
    assert [audio_video.audio.conv[i].out_channels for i in (0, 3, 6)] == [32, 64, 128]


def test_resnet_keeps_the_resolution_of_small_images():
    small, large = ResNet18(classes=100), ResNet18(classes=7, size=224)
    assert small.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 100)
    assert small.body.conv1.stride == (1, 1)
    assert large.body.conv1.stride == (2, 2)
    assert sum(p.numel() for p in large.body.parameters()) == 11_176_512


def test_resnet_with_group_normalisation_has_no_buffers_and_vectorizes():
    network = ResNet18(classes=5, groups=32)
    assert not list(network.buffers())
    assert sum(p.numel() for p in network.body.parameters()) == 11_176_512 - 64 * 3 * (49 - 9)
    x, y = torch.randn(2, 2, 3, 8, 8), torch.tensor([[0, 1], [2, 3]])
    parameters = {name: torch.stack([p.detach(), 1.01 * p.detach()]) for name, p in network.named_parameters()}

    def loss(own, x, y):
        return F.cross_entropy(functional_call(network, own, (x,)), y)

    batched = vmap(grad(loss))(parameters, x, y)
    single = grad(loss)({name: p[1] for name, p in parameters.items()}, x[1], y[1])
    for name in ("body.conv1.weight", "body.layer4.1.bn2.weight", "head.weight"):
        torch.testing.assert_close(batched[name][1], single[name], rtol=1e-3, atol=1e-5)


def test_attention_takes_weighted_means():
    pooling = AttentionPooling(3, heads=2)
    x = torch.randn(4, 7, 3)
    weights = torch.stack([pooling.score(x[i]).softmax(0) for i in range(4)])
    expected = [[sum(weights[i, t, h] * x[i, t] for t in range(7)) for h in range(2)] for i in range(4)]
    torch.testing.assert_close(pooling(x), torch.stack([torch.cat(means) for means in expected]))
    torch.testing.assert_close(pooling(torch.ones(1, 7, 3)), torch.ones(1, 6))


@pytest.mark.parametrize("name", SMALL)
def test_training_under_vmap_is_training_one_by_one(name):
    make, shape, personal = SMALL[name]
    draw = torch.Generator().manual_seed(0)
    sets = [TensorData((features(name, shape, draw), torch.arange(8) % 3)) for _ in range(3)]
    ends = []
    for oracle in (Vectorized(), Sequential()):
        torch.manual_seed(0)
        task = PersonalizedClassification(FedAPM(0.1), make(), personal=personal, classes=3, oracle=oracle)
        data = FederatedDataModule.from_datasets(sets, val=sets, batch_size=4, local_steps=2)
        fit = trainer(max_steps=2, precision="64-true")
        fit.fit(task, data)
        ends.append(torch.cat([p.flatten() for i in range(3) for p in task.personalize(i).parameters()]))
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-10)
