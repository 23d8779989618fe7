"""A federated quadratic problem with a personal block whose answer is known in closed form.

    minimise over u and v_1, ..., v_N:  mean_i f_i(u, v_i),   f_i(w) = 1/2 w'H_i w + q_i'w,   w = (u, v_i)

With H_i = [[A_i, B_i], [B_i', D_i]] and q_i = (a_i, d_i), the best v_i at a given u is -D_i^-1 (B_i'u + d_i). What is
left for u are the Schur complements S_i = A_i - B_i D_i^-1 B_i' with offsets a_i - B_i D_i^-1 d_i: one linear system.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require_argument
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.checks.fit_checks import require_its_number_of_clients
from fedlightning.tasks.quadratic_saddle import gram


class PersonalQuadratic(FederatedLightningModule):
    """Solves a quadratic problem with a shared and a personal block; a client's one sample is its number."""

    personal_parameters = ("v",)
    higher_is_better: ClassVar[dict[str, bool]] = {"distance": False, "personal_distance": False}

    def __init__(
        self,
        algorithm: Algorithm,
        num_clients: int = 8,
        dim_shared: int = 5,
        dim_personal: int = 3,
        heterogeneity: float = 1.0,
        problem_seed: int = 0,
        **federation: Any,
    ) -> None:
        """Draw the clients' matrices and offsets, and the start.

        Args:
            algorithm: What clients and server do.
            num_clients: Number N of clients, as in the data.
            dim_shared: Length of the shared block u.
            dim_personal: Length of the personal block v.
            heterogeneity: How much clients differ; 0 makes all alike.
            problem_seed: Equal seeds, equal problems.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        for name, size in (("num_clients", num_clients), ("dim_shared", dim_shared), ("dim_personal", dim_personal)):
            require_argument(self, name, size, at_least=1, whole=True)
        require_argument(self, "heterogeneity", heterogeneity, at_least=0.0)
        draw = torch.Generator().manual_seed(derive_seed(problem_seed, 0))
        draw_own = torch.Generator().manual_seed(derive_seed(problem_seed, 1))
        dim = dim_shared + dim_personal
        self.u = nn.Parameter(torch.randn(dim_shared, generator=draw))
        self.v = nn.Parameter(torch.randn(dim_personal, generator=draw))

        def varied(*shape: int) -> Tensor:
            common = torch.randn(*shape, generator=draw)
            return common + heterogeneity * torch.randn(num_clients, *shape, generator=draw_own)

        self.register_buffer("matrix", 0.5 * torch.eye(dim) + gram(varied(dim, dim)), persistent=False)
        self.register_buffer("offset", varied(dim), persistent=False)
        self.matrix: Tensor
        self.offset: Tensor

    def on_fit_start(self) -> None:
        """Make sure that the data have the same number of clients."""
        require_its_number_of_clients(self, len(self.matrix))

    def objective(self, batch: Tensor) -> Tensor:
        """Return f_i; ``batch [B]`` repeats the client's number."""
        w = torch.cat([self.u, self.v])
        matrix, offset = (problem.index_select(0, batch).mean(0) for problem in (self.matrix, self.offset))
        return w @ (matrix @ w / 2 + offset)

    @property
    def solution(self) -> tuple[Tensor, Tensor]:
        """Return the minimiser: u ``[dim_shared]`` and all v_i ``[N, dim_personal]``, float64."""
        n = len(self.u)
        matrix, offset = self.matrix.double(), self.offset.double().unsqueeze(2)
        a, b, d = matrix[:, :n, :n], matrix[:, :n, n:], matrix[:, n:, n:]
        schur = a - b @ torch.linalg.solve(d, b.mT)
        rest = offset[:, :n] - b @ torch.linalg.solve(d, offset[:, n:])
        u = torch.linalg.solve(schur.mean(0), -rest.mean(0))
        v = -torch.linalg.solve(d, b.mT @ u + offset[:, n:])
        return u.squeeze(1), v.squeeze(2)

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Log the distances of a client's blocks to the solution."""
        u, v = self.solution
        shared = (self.u - u.to(self.u)).norm()
        self.log("distance", shared, batch_size=len(batch))
        self.log("personal_distance", (self.v - v[batch[0]].to(self.v)).norm(), batch_size=len(batch))
