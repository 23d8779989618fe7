"""A federation of digits at two resolutions, and networks for them."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAPM
from fedlightning.data import IID, DigitsOfSizes
from fedlightning.models import Chain, PerArchitecture
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import PersonalizedClassification
from tests.support.small import trainer

CLIENTS = 5
SIZES = [8, 4, 8, 4, 8]
BY_SIZE = ["fine" if size == 8 else "coarse" for size in SIZES]


def network():
    camera = PerArchitecture({"fine": nn.Linear(64, 12), "coarse": nn.Linear(16, 12)}, BY_SIZE)
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
