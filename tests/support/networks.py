"""Small networks for personalised classification and features for them."""

from __future__ import annotations

import torch

from fedlightning.models import AudioVideoNet, HARNet, ImageTextNet, PersonalMLP, TwoLayerCNN

SMALL = {
    "PersonalMLP": (lambda: PersonalMLP(12, 5, 3), (1, 3, 4), ("head",)),
    "TwoLayerCNN": (lambda: TwoLayerCNN(1, 8, 3, hidden=6), (1, 8, 8), ("head",)),
    "ImageTextNet": (lambda: ImageTextNet(3, 7, 6, width=4, heads=2, dropout=0.0), (), ("image", "text")),
    "AudioVideoNet": (lambda: AudioVideoNet(3, 6, 7, widths=(3, 4, 5), heads=2), (), ("audio", "video")),
    "HARNet": (lambda: HARNet(3, widths=(3, 4, 5), heads=2), (6, 16), ("acc.conv",)),
}


def features(name, shape, draw):
    if name == "ImageTextNet":
        return {"image": torch.randn(8, 7, generator=draw), "text": torch.randn(8, 3, 6, generator=draw)}
    if name == "AudioVideoNet":
        return {"audio": torch.randn(8, 9, 6, generator=draw), "video": torch.randn(8, 3, 7, generator=draw)}
    return torch.randn(8, *shape, generator=draw)
