"""Federated adversarial domain adaptation (Shen et al., FedMM, 2022; Peng et al., 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require_instance
from fedlightning.data.domains import SOURCE
from fedlightning.metrics import DomainConfusion
from fedlightning.models.extractors import DigitFeatures, init_truncated_normal
from fedlightning.plotting.pictures import feature_map, prediction_grid
from fedlightning.tasks.adversaries import DANN, Adversary
from fedlightning.tasks.base import FederatedLightningModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Batch = dict[str, Tensor]


class AccuracyOfSome(MulticlassAccuracy):
    """Computes an accuracy that is NaN where there is no sample, as of a domain that the data lack, in place of 0."""

    def compute(self) -> Tensor:
        """Return the share of correct samples, a scalar."""
        share: Tensor = super().compute()
        hits: Any = self.tp
        return share if bool((hits + self.fn).sum()) else torch.full_like(share, torch.nan)


class DomainAdaptation(FederatedLightningModule):
    """Learns classes from labelled source samples, for unlabelled target samples, against an adversary.

    The objective of a sample is CE(label) - nu * risk if it is from the source and -nu * risk if it is from the
    target; f_i is its mean over the client's samples. A client without source samples simply has no class term, and the
    mean over clients does not depend on how the samples are shared out.
    """

    max_parameters = ("adversary",)

    def __init__(
        self,
        algorithm: Algorithm,
        features: nn.Module | None = None,
        feature_dim: int | None = None,
        adversary: Adversary | None = None,
        classes: int = 10,
        hidden: int = 100,
        **federation: Any,
    ) -> None:
        """Store the networks, or build the default ones, and set up the metrics.

        Args:
            algorithm: What clients and server do.
            features: Maps images ``[B, ...]`` to features ``[B, F]``; null for :class:`DigitFeatures`.
            feature_dim: F; null to read it from ``features.out_features``.
            adversary: Defines the network that is maximised over, and its risk; null for :class:`DANN`.
            classes: Number C of classes.
            hidden: Width of the classifier's two hidden layers; 0 makes it linear.
            federation: Arguments of :class:`FederatedLightningModule`.

        Raises:
            ValueError: If the feature dimension is neither given nor known.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.features = DigitFeatures() if features is None else features
        width = getattr(self.features, "out_features", None) if feature_dim is None else feature_dim
        if not isinstance(width, int):
            raise InvalidValueError(
                f"{type(self.features).__name__} has no out_features: give feature_dim, the length of a feature vector."
            )
        self.classifier: nn.Module = nn.Linear(width, classes)
        if hidden:
            layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()]
            self.classifier = nn.Sequential(*layers, nn.Linear(hidden, classes))
        self.classifier.apply(init_truncated_normal)
        self.game = DANN() if adversary is None else adversary
        require_instance(f"{type(self).__name__}(adversary", self.game, Adversary, "DANN(nu=1.0)")
        self.adversary = self.game.head(width, classes)
        self.metrics = nn.ModuleDict(
            {
                stage: MetricCollection(
                    {
                        "source_accuracy": AccuracyOfSome(classes, average="micro"),
                        "target_accuracy": AccuracyOfSome(classes, average="micro"),
                        "domain_confusion": DomainConfusion(),
                    },
                    prefix=f"{stage}_",
                    compute_groups=False,
                )
                for stage in ("val", "test")
            }
        )
        self._shown: list[Batch] = []

    def forward(self, image: Tensor) -> Tensor:
        """Return the class logits ``[B, C]``."""
        return self.classifier(self.features(image))  # type: ignore[no-any-return]

    def objective(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean of class loss (source samples only) minus nu times the adversary's risk."""
        label, domain = batch["label"], batch["domain"]
        features = self.features(batch["image"])
        logits = self.classifier(features)
        is_source = (domain == SOURCE).to(logits.dtype)
        class_loss = (is_source * F.cross_entropy(logits, label.clamp(min=0), reduction="none")).mean()
        risk = self.game.risk(self.adversary, features, logits, domain).mean()
        return {"loss": class_loss - self.game.nu * risk, "class_loss": class_loss, "adversary_risk": risk}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the accuracy in both domains, and how well the features hide the domain."""
        self._evaluate("val", batch)
        if len(self._shown) < 1 or batch_idx == 0:
            self._shown = [batch]
        elif sum(len(shown["label"]) for shown in self._shown) < 4096:
            self._shown.append(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the same metrics as in validation, on the test data."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the predicted classes ``[B]``."""
        return self(batch["image"]).argmax(1)  # type: ignore[no-any-return]

    def _evaluate(self, stage: str, batch: Batch) -> None:
        metrics: Any = self.metrics[stage]
        label, domain = batch["label"], batch["domain"]
        features = self.features(batch["image"])
        logits = self.classifier(features)
        for name, members in (("source_accuracy", domain == SOURCE), ("target_accuracy", domain != SOURCE)):
            if members.any():
                metrics[name].update(logits[members], label[members])
        metrics["domain_confusion"].update(self.game.source_probability(self.adversary, features, logits), domain)
        self.log_dict(dict(metrics.items()), prog_bar=stage == "val", batch_size=len(label))

    def pictures(self) -> dict[str, Figure]:
        """Draw predictions on source and target samples, and the features' first two principal components."""
        if not self._shown:
            return {}
        joined = {name: torch.cat([shown[name] for shown in self._shown]) for name in self._shown[0]}
        with torch.no_grad():
            features = self.features(joined["image"])
            predicted = self.classifier(features).argmax(1)
        return {
            "predictions": prediction_grid(joined["image"], joined["label"], predicted, joined["domain"]),
            "features": feature_map(features, joined["domain"], joined["label"]),
        }
