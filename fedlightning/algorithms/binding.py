"""Algorithms with schedules, which are bound again in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedlightning.core.in_force import in_force, scheduled
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.proximal.composite import Composite

if TYPE_CHECKING:
    from fedlightning.algorithms.base import Algorithm, AlgorithmT


@dataclass(frozen=True)
class Binding:
    """Keeps what an algorithm with schedules was bound to.

    Attributes:
        given: The algorithm with its schedules, as the user gave it.
        space: Names and blocks of the parameters.
        like: Gives dtype and device of vectors.
        regularizer: Regularizers of the shared parameters; None for none.
    """

    given: Algorithm
    space: ParameterSpace
    like: Tensor
    regularizer: Composite | None

    @property
    def varies_step_sizes_alone(self) -> bool:
        """Return whether nothing but step sizes varies, so that a local step is compiled once for all rounds."""
        return all(name.rpartition(".")[2].startswith("lr") for name in scheduled(self.given))

    def of(self, bound: AlgorithmT) -> AlgorithmT:
        """Return a bound algorithm, which goes on from the next round with the schedules of this one."""
        object.__setattr__(bound, "binding", self)
        return bound


def in_round(algorithm: AlgorithmT, rounds: int) -> AlgorithmT:
    """Return an algorithm with the hyper-parameters of one round, numbers in place of schedules.

    It is a pure function: server and clients, in whatever processes, and resumed runs all find the same.

    Args:
        algorithm: Bound or not.
        rounds: Number of rounds done before the round, from 0.

    Returns:
        The algorithm itself if nothing varies; a bound algorithm if it is bound.

    Raises:
        ValueError: If a schedule gives a value that the hyper-parameter may not have.
    """
    if algorithm.given is None:
        return in_force(algorithm, rounds)
    binding = algorithm.binding
    if binding is None:
        return algorithm
    now: AlgorithmT = in_force(binding.given, rounds)  # type: ignore[assignment]
    return binding.of(now.bind(binding.space, binding.like, binding.regularizer))
