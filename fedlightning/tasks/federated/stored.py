"""What a checkpoint keeps of a module, so that it can be made again."""

from __future__ import annotations

from typing import Any

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.in_force import in_force
from fedlightning.core.serialisation import NotPlainError, class_path, from_config, to_config
from fedlightning.core.validation import numbers_of_a_round

ALGORITHM_KEY = "federated_algorithm"
"""Where a checkpoint keeps the algorithm of the last fit, beside the hyper-parameter that may leave steps open."""
FROZEN_KEY = "federated_frozen"
"""Where a checkpoint keeps the names of the parameters that a fit left out, for which its states have no place."""
PLATEAU_KEY = "federated_plateau"
"""Where a checkpoint keeps the decisions of a scheduler that waits for a metric."""


def describe(module: Any) -> dict[str, Any]:
    """Return the class and the hyper-parameters of a module as the task's argument ``module``.

    Only a module that called ``save_hyperparameters`` with plain values can be made from them.

    Args:
        module: A LightningModule.

    Returns:
        The argument by its name; nothing if there is too little to make the module from.
    """
    own = {name: value for name, value in module.hparams.items() if not name.startswith("_")}
    if not own:
        return {}
    try:
        return {"module": {"class_path": class_path(type(module)), "init_args": to_config(own, "module")}}
    except NotPlainError:
        return {}


def stored_algorithm(algorithm: Algorithm) -> Any:
    """Return an algorithm in plain types, with the hyper-parameters of its first round; None if it has none."""
    try:
        return to_config(in_force(algorithm, 0), "algorithm")
    except NotPlainError:
        return None


def algorithm_of(stored: Any, present: Algorithm) -> Algorithm:
    """Return the algorithm of a checkpoint, whose states have the shapes that its steps need.

    Args:
        stored: What :func:`stored_algorithm` returned; None if nothing is stored.
        present: The task's algorithm, which stays if the checkpoint's is another one.

    Raises:
        CheckpointError: If no algorithm can be made from what is stored.
    """
    if stored is None or stored.get("class_path") != class_path(type(present)):
        return present
    with numbers_of_a_round():
        return from_config(stored, place=ALGORITHM_KEY)  # type: ignore[no-any-return]
