"""A client's own model at its node, from the files of the node and without the server."""

from __future__ import annotations

from pathlib import Path

from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.client_states import StatesByField
from fedlightning.federation.protocol import EvaluationRequest
from fedlightning.federation.remote.sent_model import SentModel, last_sent_model
from fedlightning.federation.remote.store import KeptStates, StoreError
from fedlightning.tasks.base import FederatedLightningModule


def personalized_at_node(
    task: FederatedLightningModule, folder: Path, client: int, run: str = ""
) -> tuple[FederatedLightningModule, SentModel]:
    """Return a copy of a task with one client's own model, as :meth:`FederatedLightningModule.personalize` does.

    Nothing is locked or written, so the node may work meanwhile.

    Args:
        task: The task of the node's last run, which has not been trained.
        folder: Folder of the states of the node's clients.
        client: Number of the client in the federation.
        run: Name of the run that the task is of.

    Returns:
        The copy, and the global model that the client's model was made from.

    Raises:
        StoreError: If the node has no global model of this run yet, or no state of the client to go with it.
    """
    sent, states = _read(folder, client)
    if sent.run != run:
        raise StoreError(
            f"The global model in {folder} is of a run before the present one, whose server has sent none yet. "
            "Wait for its first round."
        )
    simulation = task.run.simulation
    if sent.point.shape != simulation.server.point.shape:
        raise StoreError(
            f"The global model in {folder} has {len(sent.point)} parameters, that of {type(task).__name__} "
            f"{len(simulation.server.point)}: it is of another run. Have the server send the model of this one."
        )
    if sent.buffers is not None:
        table = simulation.runner.clients.of_architecture(TaskArchitectures(task).of(client)).table
        table.begin(sent.changed[client], client + 1)
        if states is not None:
            table.states.write([client], {name: value[None] for name, value in states.items()})
    like = simulation.server.point
    buffers = None if sent.buffers is None else sent.buffers.to(like.device)
    return task.run.personalized(client, EvaluationRequest("", sent.point.to(like), buffers)), sent


def _read(folder: Path, client: int) -> tuple[SentModel, StatesByField | None]:
    """Return the last model, and the client's state that goes with it; the node may write another one in between."""
    kept = KeptStates(folder)
    while True:
        sent = last_sent_model(folder)
        try:
            return sent, kept.states(sent.federation, sent.standing(client))
        except StoreError:
            if last_sent_model(folder).rounds == sent.rounds:  # nothing has come in between
                raise
