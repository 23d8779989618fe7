"""Composite bilinear saddle point problems with a duality gap in closed form (FeDualEx, A.1 and A.2).

All clients hold the same f; what differs is the noise each of them sees in every query of its operator. The
regularisers belong to the problem, so the algorithm must take them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.precision import at_least_float32
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require_argument
from fedlightning.metrics.structure import numerical_rank, share_of_nonzeros
from fedlightning.proximal import L1, Nuclear, Regularizer
from fedlightning.tasks.base import FederatedLightningModule


class Bilinear(FederatedLightningModule):
    """Solves min_x max_y <A x - b, y> + ψ(x) - ψ(y); the data are :class:`ClientNumbers`."""

    max_parameters = ("y",)

    def __init__(
        self,
        algorithm: Algorithm,
        regularizer: Regularizer,
        dim_x: int,
        dim_y: int,
        noise: float,
        seed: int,
        **federation: Any,
    ) -> None:
        """Draw the matrix A ``[dim_y, dim_x]`` from U[-1, 1]."""
        super().__init__(algorithm, regularizer=regularizer, max_regularizer=regularizer, **federation)
        for name, size in (("dim_x", dim_x), ("dim_y", dim_y)):
            require_argument(self, name, size, at_least=1, whole=True)
        require_argument(self, "noise", noise, at_least=0.0)
        self.ball = regularizer
        self.noise = noise
        self.register_buffer("matrix", _uniform((dim_y, dim_x), derive_seed(seed, 0)), persistent=False)
        self.matrix: Tensor
        self.offset: Tensor
        self.x: nn.Parameter
        self.y: nn.Parameter

    def objective(self, batch: Tensor) -> Tensor:
        """Return <A x - b, y>, with noise of the given deviation on every element of the operator."""
        value = ((self.matrix @ self.x - self.offset) * self.y).sum()
        if self.noise:
            value = value + self.noise * (torch.randn_like(self.x) * self.x).sum()
            value = value + self.noise * (torch.randn_like(self.y) * self.y).sum()
        return value

    @abstractmethod
    def duality_gap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return max over y' of phi(x, y') minus min over x' of phi(x', y), a scalar >= 0 for feasible points."""

    @abstractmethod
    def structure(self) -> dict[str, Tensor]:
        """Return by name what the regulariser is meant to bring about, such as shares of non-zeros."""

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the duality gap and the structure."""
        self._evaluate("")

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the same values as in validation."""
        self._evaluate("test_")

    def _evaluate(self, prefix: str) -> None:
        x, y = at_least_float32(self.x), at_least_float32(self.y)
        found = {"gap": self.duality_gap(x, y), **self.structure()}
        self.log_dict({f"{prefix}{name}": value.float() for name, value in found.items()}, batch_size=1)


class BilinearL1(Bilinear):
    """Solves the problem for vectors, with the l1 norm in an l-infinity ball (FeDualEx, equation in A.1, Figure 4)."""

    def __init__(
        self,
        algorithm: Algorithm,
        dim_x: int = 600,
        dim_y: int = 300,
        weight: float = 0.1,
        radius: float = 0.05,
        noise: float = 0.1,
        problem_seed: int = 0,
        **federation: Any,
    ) -> None:
        """Draw A and b from U[-1, 1], and the start from U[-radius, radius].

        Args:
            algorithm: What clients and server do; one that takes regularisers.
            dim_x: Length m of the min block.
            dim_y: Length n of the max block.
            weight: lambda > 0 of the l1 norms.
            radius: D > 0, bound of the absolute values.
            noise: Standard deviation sigma of the noise on each element of every operator query.
            problem_seed: Equal seeds, equal A and b; the start follows the run's own seed.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        super().__init__(algorithm, L1(weight, radius), dim_x, dim_y, noise, problem_seed, **federation)
        self.save_hyperparameters()
        self.weight, self.radius = weight, radius
        self.register_buffer("offset", _uniform((dim_y,), derive_seed(problem_seed, 1)), persistent=False)
        self.x = nn.Parameter(torch.empty(dim_x).uniform_(-radius, radius))
        self.y = nn.Parameter(torch.empty(dim_y).uniform_(-radius, radius))

    def duality_gap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return D ||(|Ax-b| - lambda)+||_1 + lambda ||x||_1 + D ||(|A'y| - lambda)+||_1 + <b,y> + lambda ||y||_1."""
        matrix, offset = self.matrix.to(x), self.offset.to(x)
        against_y = ((matrix @ x - offset).abs() - self.weight).clamp(min=0).sum()
        against_x = ((matrix.mT @ y).abs() - self.weight).clamp(min=0).sum()
        norms = self.weight * (x.abs().sum() + y.abs().sum())
        return self.radius * (against_y + against_x) + norms + offset @ y

    def structure(self) -> dict[str, Tensor]:
        """Return the shares of non-zeros in both blocks together and in each."""
        return {
            "nonzeros": share_of_nonzeros(torch.cat([self.x, self.y])),
            "nonzeros_x": share_of_nonzeros(self.x),
            "nonzeros_y": share_of_nonzeros(self.y),
        }


class BilinearNuclear(Bilinear):
    """Solves the problem for matrices, with the nuclear norm in a spectral ball (FeDualEx, A.2, Figure 5)."""

    def __init__(
        self,
        algorithm: Algorithm,
        dim_x: int = 600,
        dim_y: int = 300,
        columns: int = 20,
        weight: float = 0.1,
        radius: float = 0.05,
        noise: float = 0.1,
        problem_seed: int = 0,
        **federation: Any,
    ) -> None:
        """Draw A and half of the columns of B from U[-1, 1], the others zero; the start from U[-1, 1], projected.

        Args:
            algorithm: What clients and server do; one that takes regularisers.
            dim_x: Rows m of X.
            dim_y: Rows n of Y.
            columns: Columns p of both; B has rank p / 2.
            weight: lambda > 0 of the nuclear norms.
            radius: D > 0, bound of the singular values.
            noise: Standard deviation sigma of the noise on each element of every operator query.
            problem_seed: Equal seeds, equal A and B; the start follows the run's own seed.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        super().__init__(algorithm, Nuclear(weight, radius), dim_x, dim_y, noise, problem_seed, **federation)
        self.save_hyperparameters()
        self.weight, self.radius = weight, radius
        offset = _uniform((dim_y, columns), derive_seed(problem_seed, 1))
        offset[:, columns // 2 :] = 0
        self.register_buffer("offset", offset, persistent=False)
        self.x = nn.Parameter(self.ball.project(torch.empty(dim_x, columns).uniform_(-1, 1)))
        self.y = nn.Parameter(self.ball.project(torch.empty(dim_y, columns).uniform_(-1, 1)))

    def duality_gap(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gap as for vectors, with singular values for absolute values and trace(B'Y) for <b, y>."""
        matrix, offset = self.matrix.to(x), self.offset.to(x)
        against_y = (torch.linalg.svdvals(matrix @ x - offset) - self.weight).clamp(min=0).sum()
        against_x = (torch.linalg.svdvals(matrix.mT @ y) - self.weight).clamp(min=0).sum()
        norms = self.weight * (torch.linalg.svdvals(x).sum() + torch.linalg.svdvals(y).sum())
        gap: Tensor = self.radius * (against_y + against_x) + norms + (offset * y).sum()
        return gap

    def structure(self) -> dict[str, Tensor]:
        """Return the numerical ranks of X and Y."""
        return {"rank_x": numerical_rank(self.x), "rank_y": numerical_rank(self.y)}


def _uniform(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.empty(shape).uniform_(-1, 1, generator=torch.Generator().manual_seed(seed))
