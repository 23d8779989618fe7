"""A federated saddle point problem whose answers are known in closed form.

f_i(x, y) = 1/2 x'A_i x + x'B_i y - 1/2 y'C_i y + a_i'x - c_i'y,  strongly convex in x, strongly concave in y.

The operator is affine, g_i(z) = G_i z + q_i with G_i = [[A_i, B_i], [-B_i', C_i]] and q_i = (a_i, c_i), so the saddle
of the mean solves one linear system, and the point where local steps drift to solves another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require_argument
from fedlightning.data.federation import Federation
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import TensorData
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.checks.fit_checks import require_its_number_of_clients


def gram(factor: Tensor) -> Tensor:
    """Return F F' / n of factors ``[..., n, n]``, symmetric to the last digit even where products are not."""
    product = factor @ factor.mT / max(1, factor.shape[-1])
    return (product + product.mT) / 2


class QuadraticSaddle(FederatedLightningModule):
    """Solves a quadratic saddle point problem; a client's one sample is its number (:class:`ClientNumbers`)."""

    max_parameters = ("y",)

    def __init__(
        self,
        algorithm: Algorithm,
        num_clients: int = 8,
        dim_x: int = 5,
        dim_y: int = 3,
        heterogeneity: float = 1.0,
        noise: float = 0.0,
        problem_seed: int = 0,
        **federation: Any,
    ) -> None:
        """Draw the clients' matrices and offsets, and the start.

        Args:
            algorithm: What clients and server do.
            num_clients: Number N of clients, as in the data.
            dim_x: Length of the min block.
            dim_y: Length of the max block; 0 makes it a minimisation problem.
            heterogeneity: How much clients differ; 0 makes all alike.
            noise: Standard deviation of the noise on each entry of every operator query.
            problem_seed: Equal seeds, equal problems.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.noise = noise
        require_argument(self, "num_clients", num_clients, at_least=1, whole=True)
        require_argument(self, "dim_x", dim_x, at_least=1, whole=True)
        require_argument(self, "dim_y", dim_y, at_least=0, whole=True)
        require_argument(self, "heterogeneity", heterogeneity, at_least=0.0)
        require_argument(self, "noise", noise, at_least=0.0)
        draw = torch.Generator().manual_seed(derive_seed(problem_seed, 0))
        draw_own = torch.Generator().manual_seed(derive_seed(problem_seed, 1))
        self.x = nn.Parameter(torch.randn(dim_x, generator=draw))
        self.y = nn.Parameter(torch.randn(dim_y, generator=draw))
        dim = dim_x + dim_y

        def varied(*shape: int) -> Tensor:
            common = torch.randn(*shape, generator=draw)
            return common + heterogeneity * torch.randn(num_clients, *shape, generator=draw_own)

        matrix = torch.zeros(num_clients, dim, dim)
        matrix[:, :dim_x, :dim_x] = torch.eye(dim_x) + 0.5 * gram(varied(dim_x, dim_x))
        matrix[:, dim_x:, dim_x:] = torch.eye(dim_y) + 0.5 * gram(varied(dim_y, dim_y))
        coupling = varied(dim_x, dim_y)
        matrix[:, :dim_x, dim_x:] = coupling
        matrix[:, dim_x:, :dim_x] = -coupling.mT
        self.register_buffer("matrix", matrix, persistent=False)
        self.register_buffer("offset", varied(dim), persistent=False)
        self.matrix: Tensor
        self.offset: Tensor

    def on_fit_start(self) -> None:
        """Make sure that the data have the same number of clients."""
        require_its_number_of_clients(self, len(self.matrix))

    def objective(self, batch: Tensor) -> Tensor:
        """Return f_i; ``batch [B]`` repeats the client's number."""
        g = self.matrix.index_select(0, batch).mean(0)
        q = self.offset.index_select(0, batch).mean(0)
        if self.noise:
            q = q + self.noise * torch.randn_like(q)
        z, reflected = torch.cat([self.x, self.y]), torch.cat([self.x, -self.y])
        return reflected @ (g @ z / 2 + q)

    @property
    def solution(self) -> Tensor:
        """Return the saddle point of mean_i f_i, ``[dim_x + dim_y]``, float64."""
        saddle: Tensor = torch.linalg.solve(self.matrix.double().mean(0), -self.offset.double().mean(0))
        return saddle

    def drift_fixed_point(self, lr: float, local_steps: int) -> Tensor:
        """Return the fixed point of FedAvg (FedAvgGDA) with full participation, ``[dim_x + dim_y]``, float64.

        K steps of client i map z to z_i* + (I - lr G_i)^K (z - z_i*) with z_i* its own saddle; with
        P_i = I - (I - lr G_i)^K the mean of these maps has the fixed point (sum P_i)^-1 sum P_i z_i*.

        Args:
            lr: Local step size.
            local_steps: K.
        """
        matrix, offset = self.matrix.double(), self.offset.double()
        identity = torch.eye(matrix.shape[1], dtype=torch.float64, device=matrix.device)
        pull = identity - torch.linalg.matrix_power(identity - lr * matrix, local_steps)
        own = torch.linalg.solve(matrix, -offset)
        point: Tensor = torch.linalg.solve(pull.sum(0), (pull @ own.unsqueeze(2)).sum(0).squeeze(1))
        return point

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the distance to the saddle and the norm of the mean operator."""
        self._evaluate("")

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the same values as in validation."""
        self._evaluate("test_")

    def _evaluate(self, prefix: str) -> None:
        z = torch.cat([self.x, self.y])
        self.log(f"{prefix}distance", (z - self.solution.to(z)).norm(), batch_size=1)
        norm = (self.matrix.mean(0) @ z + self.offset.mean(0)).norm()
        self.log(f"{prefix}operator_norm", norm, batch_size=1)


class ClientNumbers(FederatedDataModule):
    """Gives every client one sample, its own number, for problems that live in the task."""

    def __init__(
        self, num_clients: int = 8, batch_size: int | None = None, local_steps: int = 10, **options: Any
    ) -> None:
        """Set the number of clients and how rounds are made.

        Args:
            num_clients: Number N of clients.
            batch_size: Null; there is one sample a client.
            local_steps: Local steps K a round.
            options: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(batch_size=batch_size, local_steps=local_steps, **options)
        self._num_clients = num_clients

    def build(self) -> Federation:
        """Give each client its number, for training and evaluation alike."""
        numbers = torch.arange(self._num_clients)
        data = TensorData(numbers)
        partition = Partition(numbers, torch.arange(self._num_clients + 1))
        return Federation(data, partition, val=data, test=data, val_partition=partition, test_partition=partition)
