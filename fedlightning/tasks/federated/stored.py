"""What a checkpoint keeps of a module, so that it can be made again."""

from __future__ import annotations

from typing import Any

from fedlightning.core.serialisation import NotPlainError, class_path, to_config


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
