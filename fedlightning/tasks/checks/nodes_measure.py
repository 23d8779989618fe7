"""What a task must not have where nodes validate and test in the server's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.data.remote import NodesLoader, RemoteClients

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

_STAGES = {"val": "validation", "test": "test"}
_HOOKS = ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")


def nodes_validate(data: Any) -> bool:
    """Return whether a data module leaves validation to the nodes."""
    return isinstance(data, RemoteClients) and isinstance(data.val_dataloader(), NodesLoader)


def require_measurable_at_nodes(task: FederatedLightningModule, stage: str) -> None:
    """Make sure that a task is validated or tested by its steps alone, which nodes carry out.

    Args:
        task: Attached to a trainer.
        stage: ``val`` or ``test``.

    Raises:
        TypeError: If it has a hook of an evaluation, which would see no data at the server and is not called at nodes.
        ValueError: If the Trainer limits the number of batches, which nodes do not know.
    """
    from fedlightning.tasks.base import FederatedLightningModule

    name, kind = _STAGES[stage], type(task).__name__
    for when in _HOOKS:
        hook = f"on_{name}_{when}"
        if hook in vars(task) or getattr(type(task), hook) is not getattr(FederatedLightningModule, hook):
            raise InvalidTypeError(
                f"{kind} has {hook}: at the server there are no batches of {name}, and nodes call {name}_step alone. "
                f"Do all of it in {name}_step, which may log metrics of torchmetrics; give the server data of its own: "
                f"RemoteClients({stage}=...); or go without: Trainer(limit_{stage}_batches=0)."
            )
    trainer: Any = task.trainer
    limit = getattr(trainer, f"limit_{stage}_batches")
    if type(limit) is int and not trainer.fast_dev_run:
        raise InvalidValueError(
            f"Trainer(limit_{stage}_batches={limit}): nodes measure all of their data. Leave it out, or set it to 0."
        )
