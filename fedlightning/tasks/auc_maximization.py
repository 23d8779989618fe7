"""AUC maximisation as a minimax problem (Ying, Wen, Lyu, NIPS 2016; Xie et al., CDMA, AAAI 2023, Section 5.1).

With scores s in [0, 1], prior p of the positive class, and 1+ and 1- marking positive and negative samples

    F = (1 - p) (s - a)^2 1+  +  p (s - b)^2 1-  +  2 (1 + alpha) (p s 1-  -  (1 - p) s 1+)  -  p (1 - p) alpha^2

is minimised over the network, a and b and maximised over alpha. Its saddle maximises the AUC with the square surrogate
of all pairs, but is a mean over samples: clients need not see both classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import BinaryAUROC

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require_argument
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.tensors import as_tensor_data
from fedlightning.models import LogisticRegression
from fedlightning.tasks.base import FederatedLightningModule

Batch = tuple[Tensor, Tensor]


class AUCMaximization(FederatedLightningModule):
    """Trains any scoring network against the dual variable of the pairwise square loss."""

    max_parameters = ("alpha",)

    def __init__(
        self,
        algorithm: Algorithm,
        network: nn.Module | None = None,
        positive: int = 0,
        prior: float | None = None,
        **federation: Any,
    ) -> None:
        """Store the network, or build the default one, and set up the metrics.

        Args:
            algorithm: What clients and server do.
            network: Maps inputs ``[B, ...]`` to two logits ``[B, 2]``, whose softmax's second entry is the score, or to
                one ``[B, 1]``, whose sigmoid it is; null for logistic regression on 8 x 8 images.
            positive: Label of the positive class; all others are negative.
            prior: Share 0 < p < 1 of positive samples; null to count them in the clients' training data at the start of
                every fit: the mean of the clients' shares or, with ``weighting="samples"``, that of all their samples.
            federation: Arguments of :class:`FederatedLightningModule`.

        Raises:
            ValueError: If the prior is not inside (0, 1).
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        require_argument(self, "positive", positive, at_least=0, whole=True)
        require_argument(self, "prior", prior, optional=True, above=0.0, below=1.0)
        self.network = LogisticRegression(64, 2) if network is None else network
        self.positive = positive
        self.a = nn.Parameter(torch.zeros(()))
        self.b = nn.Parameter(torch.zeros(()))
        self.alpha = nn.Parameter(torch.zeros(()))
        self._counts_prior = prior is None
        self.register_buffer("prior", torch.tensor(torch.nan if prior is None else prior))
        self.prior: Tensor
        self.auc = nn.ModuleDict({stage: BinaryAUROC() for stage in ("val", "test", "global_train")})

    def on_fit_start(self) -> None:
        """Set the prior to the share of positive samples in the clients' training data, unless it was given.

        Raises:
            ValueError: If the training data are not tensors, so that it must be given.
        """
        if not self._counts_prior:
            return
        data: Any = getattr(self.trainer, "datamodule", None)
        tensors = as_tensor_data(data.federation.train) if isinstance(data, FederatedDataModule) else None
        if tensors is None:
            if not self.prior.isnan():  # counted before a checkpoint
                return
            raise InvalidValueError(
                "AUCMaximization(prior=None) counts labels of tensor data; give prior for other data sets."
            )
        partition = data.federation.partition
        positive = (tensors.tensors[1][partition.order] == self.positive).double()
        until = torch.cat([positive.new_zeros(1), positive.cumsum(0)])[partition.offsets]
        by_samples = self.federation_options.weighting == "samples"
        share = positive.mean() if by_samples else (until.diff() / partition.sizes).mean()
        if share in (0, 1):
            raise InvalidValueError(
                f"AUCMaximization(positive={self.positive}): a share {share:g} of the samples is positive."
            )
        self.prior.copy_(share)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores ``[B]``, in [0, 1]."""
        logits: Tensor = self.network(x)
        return logits.softmax(1)[:, 1] if logits.shape[1] == 2 else logits.sigmoid().squeeze(1)

    def objective(self, batch: Batch) -> Tensor:
        """Return the mean of F over the minibatch."""
        x, y = batch
        return self.saddle_value(self(x), y == self.positive)

    def saddle_value(self, score: Tensor, is_positive: Tensor) -> Tensor:
        """Return the mean of F at the present a, b and alpha.

        Args:
            score: ``[B]``.
            is_positive: ``[B]``, bool.
        """
        plus = is_positive.to(score.dtype)
        minus, p = 1 - plus, self.prior.to(score.dtype)
        squares = (1 - p) * (score - self.a).square() * plus + p * (score - self.b).square() * minus
        ranking = 2 * (1 + self.alpha) * (p * score * minus - (1 - p) * score * plus)
        return (squares + ranking).mean() - p * (1 - p) * self.alpha.square()

    @staticmethod
    def best_scalars(score: Tensor, is_positive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the saddle in a, b and alpha at fixed scores: mean scores by class, and the difference of both.

        Args:
            score: ``[n]``.
            is_positive: ``[n]``, bool; ``prior`` must be its share.
        """
        a, b = score[is_positive].mean(), score[~is_positive].mean()
        return a, b, b - a

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log AUC and loss of the global model, on training data too if the data module gives them."""
        self._evaluate(("val", "global_train")[dataloader_idx], batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the same metrics as in validation, on the test data."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the scores ``[B]``."""
        return self(batch[0])  # type: ignore[no-any-return]

    def _evaluate(self, stage: str, batch: Batch) -> None:
        metric: Any = self.auc[stage]
        x, y = batch
        score, is_positive = self(x), y == self.positive
        metric.update(score, is_positive)
        several: Any = {"batch_size": len(y), "add_dataloader_idx": False}
        self.log(f"{stage}_auc", metric, prog_bar=stage == "val", **several)
        self.log(f"{stage}_loss", self.saddle_value(score, is_positive), sync_dist=True, **several)
