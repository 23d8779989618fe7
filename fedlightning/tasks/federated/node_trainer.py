"""What a module finds in the place of its Trainer at a node."""

from __future__ import annotations

from typing import Any

from fedlightning.core.errors import InvalidAttributeError, InvalidValueError
from fedlightning.federation.protocol import Moment
from fedlightning.tasks.federated.clipping import GradientClipping
from fedlightning.tasks.federated.optimizers import Configured


def require_known_at_nodes(configured: Configured, clipping: GradientClipping, module: Any) -> None:
    """Make sure that clients at nodes step as the server's module would have them.

    Args:
        configured: What the module's ``configure_optimizers`` returned.
        clipping: The limit of clients' gradients.
        module: The module.

    Raises:
        ValueError: If that depends on the Trainer, which nodes have not.
    """
    name = type(module).__name__
    if configured.schedulers:
        raise InvalidValueError(
            f"{name}.configure_optimizers returns a scheduler, which goes by the Trainer, and nodes have none. Leave "
            "it out there, and schedule the step size of the algorithm, as in FedAvg(lr=Milestones(...))."
        )
    if clipping.is_of_trainer:
        raise InvalidValueError(
            f"{clipping.given}: nodes have no Trainer to take the limit from. Give it to the task: "
            "federate(gradient_clip_val=...)."
        )


class NodeTrainer:
    """Knows round and epoch as the server's Trainer counts them, and nothing else.

    Attributes:
        lightning_module: The federated task.
        moment: When the clients compute.
        training: Whether a fit runs here; it runs at the server.
        logger: None, as values are logged at the server.
        loggers: None of them.
    """

    training = False
    logger = None

    def __init__(self, task: Any) -> None:
        """Stand for the Trainer of the module in a federated task."""
        self.lightning_module = task
        self.moment = Moment()
        self.loggers: list[Any] = []

    @property
    def current_epoch(self) -> int:
        """Return the number of the epoch, from 0."""
        return self.moment.epoch

    @property
    def global_step(self) -> int:
        """Return the number of rounds before this one."""
        return self.moment.step

    def __getattr__(self, name: str) -> Any:
        """Refuse what only a Trainer knows.

        Raises:
            AttributeError: Always.
        """
        raise InvalidAttributeError(
            f"self.trainer.{name}: a node has no Trainer. It knows self.current_epoch, self.global_step and batch_idx; "
            "give the module anything else as a hyper-parameter."
        )
