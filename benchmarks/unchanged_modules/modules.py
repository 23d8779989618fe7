"""LightningModules of other packages as they are installed, with tiny data of the shapes they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Module:
    """One module.

    Attributes:
        package: Where it is installed from.
        make: Makes it, with dropout off, so that plain training draws the same numbers: none.
        samples: ``(number, generator) -> tensors [number, ...]`` in the structure of its batches.
        options: Further arguments of ``federate``.
        weights_only: False if the module writes more than tensors and plain values into checkpoints.
    """

    package: str
    make: Callable[[], Any]
    samples: Callable[[int, torch.Generator], Any]
    options: dict[str, Any] = field(default_factory=dict)
    weights_only: bool | None = None


def boring() -> Any:
    from lightning.pytorch.demos.boring_classes import BoringModel

    return BoringModel()


def transformer() -> Any:
    from lightning.pytorch.demos.transformer import LightningTransformer

    module = LightningTransformer(vocab_size=50)
    module.prepare_data = lambda: None  # a plain Trainer would fetch WikiText-2
    return without_dropout(module)


def classification() -> Any:
    from torchgeo.trainers import ClassificationTask

    return ClassificationTask(model="resnet18", in_channels=4, num_classes=5, lr=1e-3)


def segmentation() -> Any:
    from torchgeo.trainers import SemanticSegmentationTask

    return SemanticSegmentationTask(model="unet", backbone="resnet18", in_channels=4, num_classes=3, lr=1e-3)


def regression() -> Any:
    from torchgeo.trainers import RegressionTask

    return RegressionTask(model="resnet18", in_channels=4, num_outputs=1, lr=1e-3)


def sequence_classifier() -> Any:
    from sequence_classifier import SequenceClassifier

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 16}
    depth = {"num_hidden_layers": 2, "num_attention_heads": 2}
    return without_dropout(SequenceClassifier("bert", num_labels=3, **sizes, **depth))


def linear_classifier() -> Any:
    from lightly.utils.benchmarking import LinearClassifier

    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 32), nn.BatchNorm1d(32), nn.ReLU())
    return LinearClassifier(backbone, batch_size_per_device=16, feature_dim=32, num_classes=5, topk=(1, 2))


def deterministic_regression() -> Any:
    from lightning_uq_box.uq_methods import DeterministicRegression

    return DeterministicRegression(mlp(1), nn.MSELoss(), optimizer=partial(torch.optim.Adam, lr=0.01))


def mean_and_variance() -> Any:
    from lightning_uq_box.uq_methods import MVERegression

    return MVERegression(mlp(2), burnin_epochs=1, optimizer=partial(torch.optim.AdamW, lr=0.01))


def quantiles() -> Any:
    from lightning_uq_box.uq_methods import QuantileRegression

    return QuantileRegression(mlp(3), optimizer=partial(torch.optim.SGD, lr=0.01, momentum=0.9))


def n_beats() -> Any:
    from pytorch_forecasting import NBeats

    options = {
        "widths": [16, 16],
        "num_blocks": [1, 1],
        "num_block_layers": [2, 2],
        "expansion_coefficient_lengths": [3, 7],
    }
    return NBeats.from_dataset(series(target_alone=True), learning_rate=1e-3, optimizer="adam", dropout=0.0, **options)


def temporal_fusion_transformer() -> Any:
    from pytorch_forecasting import TemporalFusionTransformer

    options = {"hidden_size": 8, "attention_head_size": 2, "hidden_continuous_size": 4, "dropout": 0.0}
    return TemporalFusionTransformer.from_dataset(series(), learning_rate=1e-3, optimizer="adam", **options)


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, outputs))


def without_dropout(module: nn.Module) -> nn.Module:
    for each in module.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
        if isinstance(each, nn.MultiheadAttention):
            each.dropout = 0.0
    return module


def series(target_alone: bool = False, number: int = 64, generator: torch.Generator | None = None) -> Any:
    """A data set of pytorch-forecasting: windows of noisy sines."""
    import pandas as pd
    from pytorch_forecasting import TimeSeriesDataSet

    length = 18
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    phase = torch.rand(number, 1, generator=generator) * 6
    values = torch.sin(torch.arange(length) / 3 + phase) + 0.1 * torch.randn(number, length, generator=generator)
    frame = pd.DataFrame(
        {
            "series": [str(i) for i in range(number) for _ in range(length)],
            "time": list(range(length)) * number,
            "value": values.flatten().numpy(),
        }
    )
    known = {} if target_alone else {"time_varying_known_reals": ["time"]}
    return TimeSeriesDataSet(
        frame,
        time_idx="time",
        target="value",
        group_ids=["series"],
        max_encoder_length=12,
        min_encoder_length=12,
        max_prediction_length=6,
        min_prediction_length=6,
        time_varying_unknown_reals=["value"],
        target_normalizer=None,
        scalers={},
        **known,
    )


def windows(target_alone: bool, number: int, generator: torch.Generator) -> Any:
    loader = series(target_alone, number, generator).to_dataloader(train=False, batch_size=number)
    x, (target, _) = next(iter(loader))
    weight = torch.ones(number) if target_alone else torch.ones_like(target)
    return {name: value for name, value in x.items() if isinstance(value, Tensor)}, (target, weight)


def tokens(number: int, generator: torch.Generator) -> Any:
    text = torch.randint(0, 50, (number, 13), generator=generator)
    return text[:, :-1], text[:, 1:]


def labelled_tokens(number: int, generator: torch.Generator) -> Any:
    lengths = torch.randint(4, 13, (number, 1), generator=generator)
    return {
        "input_ids": torch.randint(0, 50, (number, 12), generator=generator),
        "attention_mask": (torch.arange(12) < lengths).long(),
        "labels": torch.randint(0, 3, (number,), generator=generator),
    }


def images(number: int, generator: torch.Generator, key: str, target: Callable[..., Tensor]) -> Any:
    return {"image": torch.randn(number, 4, 32, 32, generator=generator), key: target(number, generator)}


def labelled(number: int, generator: torch.Generator) -> Any:
    return torch.randn(number, 3, 8, 8, generator=generator), torch.randint(0, 5, (number,), generator=generator)


def table(number: int, generator: torch.Generator) -> Any:
    x = torch.randn(number, 6, generator=generator)
    return {"input": x, "target": x.sum(1, keepdim=True) + 0.1 * torch.randn(number, 1, generator=generator)}


def _classes(number: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 5, (number,), generator=generator)


def _masks(number: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 3, (number, 32, 32), generator=generator)


def _numbers(number: int, generator: torch.Generator) -> Tensor:
    return torch.randn(number, 1, generator=generator)


_FORECASTING = {"without_hooks": ["on_after_backward"]}  # logs gradients if asked to

MODULES = {
    "BoringModel": Module("lightning", boring, lambda n, g: torch.randn(n, 32, generator=g)),
    "LightningTransformer": Module("lightning", transformer, tokens),
    "ClassificationTask": Module("torchgeo", classification, partial(images, key="label", target=_classes)),
    "SemanticSegmentationTask": Module("torchgeo", segmentation, partial(images, key="mask", target=_masks)),
    "RegressionTask": Module("torchgeo", regression, partial(images, key="label", target=_numbers)),
    "NBeats": Module("pytorch-forecasting", n_beats, partial(windows, True), _FORECASTING, False),
    "TemporalFusionTransformer": Module(
        "pytorch-forecasting", temporal_fusion_transformer, partial(windows, False), _FORECASTING, False
    ),
    "SequenceClassifier": Module("transformers", sequence_classifier, labelled_tokens),
    "LinearClassifier": Module("lightly", linear_classifier, labelled),
    "DeterministicRegression": Module("lightning-uq-box", deterministic_regression, table),
    "MVERegression": Module("lightning-uq-box", mean_and_variance, table),
    "QuantileRegression": Module("lightning-uq-box", quantiles, table),
}
