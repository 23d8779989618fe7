"""Causal language modelling over clients, of the whole model or of adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.metrics.perplexity import TokenPerplexity
from fedlightning.tasks.batched_evaluation import BatchedEvaluationTask
from fedlightning.tasks.tokens import IGNORED, require_tokens, targets_of

Batch = Mapping[str, Tensor]


class LanguageModelling(BatchedEvaluationTask):
    """Trains a network to predict the next token, and measures perplexity and accuracy.

    A batch is a dict with ``input_ids [B, T]``, usually ``attention_mask [B, T]`` (1 for tokens, 0 for padding), and
    ``labels [B, T]`` where not all tokens are to be learnt: -100 leaves a token out. Parameters that do not require
    gradients, such as a model below adapters, stay as they are and never travel.
    """

    higher_is_better: ClassVar[dict[str, bool]] = {"loss": False, "accuracy": True}

    def __init__(
        self, algorithm: Algorithm, network: nn.Module, personal: Sequence[str] = (), **federation: Any
    ) -> None:
        """Store the network, and choose what stays on the clients.

        Args:
            algorithm: What clients and server do.
            network: Maps ``input_ids`` and ``attention_mask``, given by name, to logits ``[B, T, V]`` or to an object
                with these as ``logits``: a :class:`~fedlightning.models.CausalLM`, or any model of transformers.
            personal: Dotted names within the names of trainable parameters, which stay on the clients: ``lora_B`` for
                this factor of all adapters, ``own`` for an adapter of this name, ``layers.0`` for a layer.
            federation: Arguments of :class:`~fedlightning.FederatedLightningModule`.

        Raises:
            TypeError: If ``personal`` is no list of names.
            ValueError: If a name is in no trainable parameter's.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.network = network
        self.personal_parameters = _prefixes(personal, network)
        self.perplexity = nn.ModuleDict(
            {stage: TokenPerplexity() for stage in ("val", "test", "local_train", "global_train")}
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the logits of the next tokens, ``[B, T, V]``."""
        output = self.network(input_ids=input_ids, attention_mask=attention_mask)
        return getattr(output, "logits", output)  # type: ignore[no-any-return]

    def on_fit_start(self) -> None:
        """Make sure that the network knows all tokens."""
        require_tokens(self, getattr(self.network, "vocab_size", None))

    def objective(self, batch: Batch) -> Tensor:
        """Return the cross entropy, averaged over the tokens of the minibatch that count; 0 if none does."""
        targets = targets_of(batch)
        losses = self._losses(self._logits(batch), targets)
        return losses.sum() / (targets != IGNORED).sum().clamp(min=1)

    def predictions(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of every token but the first, and whether it is the likeliest one, ``[B, T - 1]``."""
        targets, logits = targets_of(batch), self._logits(batch)
        return {"loss": self._losses(logits, targets).float(), "correct": logits.argmax(-1) == targets}

    def evaluate(self, stage: str, batch: Batch, predictions: Mapping[str, Tensor]) -> None:
        """Log loss, perplexity and accuracy, each a mean over tokens."""
        counts = targets_of(batch) != IGNORED
        tokens = int(counts.sum())
        if not tokens:
            return
        loss, correct = (predictions[name][counts].float().mean() for name in ("loss", "correct"))
        perplexity: Any = self.perplexity[stage]
        perplexity.update(predictions["loss"], counts)
        self.log(f"{stage}_loss", loss, batch_size=tokens)
        self.log(f"{stage}_accuracy", correct, batch_size=tokens)
        self.log(f"{stage}_perplexity", perplexity, prog_bar=stage == "val", batch_size=tokens)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the likeliest next token after every token, ``[B, T]``."""
        return self(batch["input_ids"], batch.get("attention_mask")).argmax(-1)  # type: ignore[no-any-return]

    def _logits(self, batch: Batch) -> Tensor:
        """Return the logits of all tokens but the first, ``[B, T - 1, V]``."""
        return self(batch["input_ids"], batch.get("attention_mask"))[:, :-1]  # type: ignore[no-any-return]

    def _losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="none")
        return flat.view(targets.shape)


def _prefixes(personal: Sequence[str], network: nn.Module) -> tuple[str, ...]:
    """Return the prefixes, within the task, that end where a name in ``personal`` ends in a trainable parameter's."""
    if isinstance(personal, str) or not isinstance(personal, Sequence):
        raise InvalidTypeError(f"LanguageModelling(personal={personal!r}): expected a list of names.")
    trainable = [f"network.{name}" for name, value in network.named_parameters() if value.requires_grad]
    found: dict[str, None] = {}
    for name in personal:
        ends = [(each, f"{each}.".find(f".{name}.")) for each in trainable]
        prefixes = [each[: place + 1 + len(name)] for each, place in ends if place >= 0]
        if not prefixes:
            parts = sorted({part for each in trainable for part in each.split(".")})
            raise InvalidValueError(
                f"LanguageModelling(personal=[{name!r}]): no trainable parameter has this in its name. Their names are "
                f"made of: {', '.join(parts)}."
            )
        found.update(dict.fromkeys(prefixes))
    return tuple(found)
