"""Synthetic(alpha, beta): the classification problem of Li et al. (FedProx, MLSys 2020), also that of FIAELT."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedlightning.core.validation import require, require_argument
from fedlightning.data.federation import Federation
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import TensorData

FEATURES = 60
CLASSES = 10


class Synthetic(FederatedDataModule):
    """Makes clients whose models and inputs differ by a chosen amount: 60 features, 10 classes, no download.

    Client k holds n_k = floor(lognormal(4, 2)) + 50 samples, y = argmax softmax(W_k x + b_k), where

    * the entries of W_k and b_k are N(u_k, 1) with u_k ~ N(0, alpha),
    * x ~ N(v_k, Sigma) with Sigma diagonal, Sigma_jj = j^-1.2, the entries of v_k are N(B_k, 1) with B_k ~ N(0, beta).

    The second argument of N is a variance. As defined, u_k moves all logits of a sample alike, so that alpha never
    changes a label: models differ from client to client by their own draws, inputs by those and by beta. Of every
    client's samples 90 % are for training; the rest, pooled, is both validation and test data.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        iid: bool = False,
        num_clients: int = 30,
        problem_seed: int = 0,
        **options: Any,
    ) -> None:
        """Set how much clients differ.

        Args:
            alpha: Variance >= 0 of u_k, from client to client.
            beta: Variance >= 0 of B_k, from client to client.
            iid: One W and b, N(0, 1), and v = 0 for all; alpha and beta then play no part.
            num_clients: Number N of clients.
            problem_seed: Equal seeds, equal data.
            options: Arguments of :class:`FederatedDataModule`.

        Raises:
            ValueError: If a variance is negative or there are no clients.
        """
        super().__init__(**options)
        self.alpha = alpha
        self.beta = beta
        self.iid = iid
        self._num_clients = num_clients
        self.problem_seed = problem_seed
        require(self, "alpha", "beta", at_least=0.0)
        require_argument(self, "num_clients", num_clients, at_least=1, whole=True)
        require(self, "problem_seed", at_least=0, whole=True)

    def build(self) -> Federation:
        """Draw the samples of all clients."""
        draw = np.random.default_rng(self.problem_seed)
        sizes = np.floor(draw.lognormal(4, 2, self._num_clients)).astype(int) + 50
        deviation = np.arange(1, FEATURES + 1) ** -0.6
        shared = draw.normal(0, 1, (FEATURES + 1, CLASSES))
        train, held = [], []
        for n in sizes.tolist():
            u, b = draw.normal(0, self.alpha**0.5), draw.normal(0, self.beta**0.5)
            own = draw.normal(u, 1, (FEATURES + 1, CLASSES))
            centre = draw.normal(b, 1, FEATURES)
            weights, mean = (shared, np.zeros(FEATURES)) if self.iid else (own, centre)
            x = mean + deviation * draw.normal(0, 1, (n, FEATURES))
            y = (x @ weights[:-1] + weights[-1]).argmax(1)
            cut = int(0.9 * n)
            train.append((x[:cut], y[:cut]))
            held.append((x[cut:], y[cut:]))
        offsets = torch.tensor([0, *(len(y) for _, y in train)]).cumsum(0)
        test = _pool(held)
        return Federation(_pool(train), Partition(torch.arange(int(offsets[-1])), offsets), val=test, test=test)


def _pool(parts: list[tuple[np.ndarray, np.ndarray]]) -> TensorData:
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    return TensorData((torch.from_numpy(x).float(), torch.from_numpy(y)))
