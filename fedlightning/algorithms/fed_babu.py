"""FedBABU (Oh, Kim, Yun, ICLR 2022, Algorithm 1): the body is trained, the head is fine-tuned where a model is used.

Client, K times:  w <- w - lr * g_i(w) in all but the head,  from w = z
Server:           z <- mean(w) in all but the head
In use:           w_i <- w_i - lr_own * g_i(w_i) in the head alone, from w_i = z,
                  ``personal_passes`` times over the minibatches of a round

The head keeps its random start in every round, so all bodies are trained for the same one: bit for bit, whatever a
channel's noise or the rounding of a mean would make of it. Weight decay of a server optimizer alone moves it. Clients
keep nothing: validation, test, prediction and ``personalize`` fine-tune the head on the client's training data, and
look at the model without fine-tuning as the global one (the paper's initial accuracy).

With a max block the operator is the gradient: a head may be a part of either block.

Symbols: theta_ext -> z outside the head; theta_cls -> the head; eta -> lr; tau -> local_epochs of the data; tau_f ->
personal_passes.

Departures: the head travels with the body, unchanged, and counts in upload and download; its gradient counts in the
norm that ``local_clip`` limits. A task's personal block is trained along with the body and not fine-tuned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlightning.algorithms.adaptation import AdaptsInUse
from fedlightning.algorithms.base import Point, per_block
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.parameter_space import ParameterSpace, PerBlock
from fedlightning.core.per_block import name_prefix
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.proximal.composite import Composite


@dataclass(frozen=True, eq=False)
class FedBABU(FedAvg, AdaptsInUse):
    """Averages bodies below a head that stays at its start, and fine-tunes the head on every client where it is used.

    Args:
        lr: Local step size eta > 0 of the body: one number, ``[min, max]`` or by name prefix.
        head: Name prefix of the head, which is shared; null trains the whole model and fine-tunes all of it (FedAvg).
        lr_own: Size > 0 of the steps of fine-tuning: one number, ``[min, max]`` or by name prefix.
        personal_passes: How often fine-tuning goes through the minibatches of a round.
        local_optimizer: Elementwise torch optimizer for the body in place of plain gradient steps.
    """

    head: str | None = name_prefix("network.head")
    lr_own: PerBlock = per_block(0.01, constant="models are used with it after training, too")
    personal_passes: int = 5

    in_head: ClassVar[Any] = 1.0
    """1 where a shared parameter is fine-tuned and 0 elsewhere, ``[d]``, set by :meth:`bind`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_step_size(self, "lr_own")
        require(self, "personal_passes", at_least=1)
        if not isinstance(self.head, str | None):
            raise InvalidTypeError(f"FedBABU(head={self.head!r}): expected the name of a shared head, or null.")

    def bind(self, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None) -> FedBABU:
        """Return a bound copy whose head has a step size of zero.

        Raises:
            ValueError: If no or every shared parameter belongs to the head, or for the reasons of the base class.
        """
        bound = super().bind(space, like, regularizer)
        if self.head is not None:
            in_head = like.new_zeros(space.shared.dim)
            in_head[space.shared.columns([self.head], "FedBABU(head=...)").to(like.device)] = 1
            if bool(in_head.all()):
                raise InvalidValueError(
                    f"FedBABU(head={self.head!r}): all shared parameters are in the head, and none would be trained. "
                    "The head is shared: name it here, and leave it out of personal_parameters."
                )
            object.__setattr__(bound, "in_head", in_head)
            lr: Any = bound.lr
            object.__setattr__(bound, "lr", lr * (1 - in_head))
        return bound

    def server_update(self, server: Point, update: Point) -> Point:
        """Move to the mean of the local points, in all but the head."""
        if self.head is None:
            return update
        return Point(torch.where(self.in_head == 1, server.z, update.z))

    def adapted(self, w: Tensor, oracle: GradientOracle) -> tuple[Tensor, Tensor | None]:
        """Take steps of the head alone from the points ``w [S, d]``."""
        for _ in range(self.personal_passes):
            for batch in oracle.batches():
                g = oracle.shared_gradient(w, oracle.personal, batch)
                w = batch.keep(w - self.lr_own * self.in_head * g, w)
        return w, oracle.personal
