"""Which parameters the losses of clients depend on."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Rest:
    """Notes which parameters have a gradient, evaluation by evaluation, and which have none.

    An operator is a vector of all parameters, zero where there is no gradient. To the optimizers of torch it makes a
    difference whether a gradient is zero or missing.

    Attributes:
        without: Names of the parameters that had no gradient in some evaluation.
        having: Names of those that had one in some evaluation.
    """

    def __init__(self) -> None:
        """Start before the first evaluation."""
        self.without: set[str] = set()
        self.having: set[str] = set()
        self._accepted: set[str] = set()

    def note(self, names: Sequence[str], gradients: Sequence[Tensor | None]) -> set[str]:
        """Note the gradients of an evaluation; None stands for no gradient.

        Returns:
            Parameters without a gradient that :meth:`accept` was not told of.
        """
        missing = {name for name, gradient in zip(names, gradients, strict=True) if gradient is None}
        self.without |= missing
        self.having.update(names if not missing else set(names) - missing)
        return missing - self._accepted

    def accept(self, missing: set[str]) -> None:
        """Take it for right from now on that these parameters may have no gradient."""
        self._accepted |= missing

    def include(self, other: Rest) -> None:
        """Note what other evaluations have shown, too."""
        self.without |= other.without
        self.having |= other.having

    def forget(self) -> None:
        """Forget what evaluations have shown so far."""
        self.without.clear()
        self.having.clear()
