"""The conditional policy network of FedCP."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from fedlightning.core.errors import InvalidValueError


class ConditionalPolicy(nn.Module):
    """Splits features between two heads, sample by sample (Zhang et al., KDD 2023).

    A fully connected layer with layer normalisation and ReLU gives two numbers a feature; their softmax is how much of
    it goes to the one head and to the other. It sees features times the unit vector of what a client's head looks for.
    """

    def __init__(self, features: int) -> None:
        """Build the layers.

        Args:
            features: Number K of features.
        """
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 2 * features), nn.LayerNorm(2 * features), nn.ReLU())

    def forward(self, features: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of each head; both sum to ``features``.

        Args:
            features: ``[B, K]``.
            context: The client's vector ``[K]``, of any length.
        """
        scores: Tensor = self.layers(features * F.normalize(context, dim=0))
        own, common = scores.view(len(features), 2, -1).softmax(1).unbind(1)
        return own * features, common * features


def head_context(head: nn.Module) -> Tensor:
    """Return the sum over classes of a head's weights, multiplied through all linear layers.

    Args:
        head: Linear layers from features to logits; biases and what lies between the layers are left out.

    Returns:
        ``[K]``, detached.

    Raises:
        ValueError: If the head has no linear layer.
    """
    weights = [layer.weight for layer in head.modules() if isinstance(layer, nn.Linear)]
    if not weights:
        raise InvalidValueError(f"{type(head).__name__} has no nn.Linear, so it says nothing of its features.")
    *below, top = weights
    context = top.detach().sum(0)
    for weight in reversed(below):
        context = context @ weight.detach()
    return context
