"""Feature extractors: sizes, shapes, initial weights."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedlightning.models import DigitFeatures, MobileNetV2Features


@pytest.mark.parametrize(("layers", "expected"), [(2, 768), (3, 256)])
def test_digit_features(layers, expected):
    network = DigitFeatures(layers=layers)
    assert network.out_features == expected
    assert network(torch.zeros(2, 3, 28, 28)).shape == (2, expected)
    assert network[0].weight.detach().std().item() == pytest.approx(0.088, abs=0.005)  # N(0, 0.1) cut at 0.2
    assert network[0].weight.abs().max() <= 0.2
    with pytest.raises(ValueError, match="layers=4"):
        DigitFeatures(layers=4)
    with pytest.raises(ValueError, match="too small"):
        DigitFeatures(size=8)


def test_mobile_net_features(tmp_path):
    from torchvision.models import mobilenet_v2

    with pytest.raises(FileNotFoundError, match="no such file"):
        MobileNetV2Features(weights=str(tmp_path / "absent.pt"))
    reference = mobilenet_v2()
    torch.save(reference.state_dict(), tmp_path / "weights.pt")
    network = MobileNetV2Features(weights=str(tmp_path / "weights.pt")).eval()
    image = torch.randn(2, 3, 32, 32)
    expected = F.adaptive_avg_pool2d(reference.eval().features(image), 1).flatten(1)
    torch.testing.assert_close(network(image), expected)
