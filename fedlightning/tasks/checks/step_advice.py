"""What a task can set in place of Lightning's optimizers and clipping, for messages that refuse those."""

from __future__ import annotations

from typing import Any

from fedlightning.federation.remedies import client_options

_SERVER = "server_optimizer, server_scheduler and server_clip"


def server_moves(task: Any) -> bool:
    """Return whether a task may have server optimizer, scheduler and clipping beside its algorithm and regularizer."""
    return bool(task.algorithm.primal and not task.federation_options.regularizes)


def clip_options(task: Any) -> list[str]:
    """Return the options that clip clients' gradients and the global model's move, as keys of the command line."""
    of_clients = client_options(task.algorithm).get("local_clip")
    return [key for key in (of_clients, "model.server_clip" if server_moves(task) else None) if key is not None]


def step_advice(task: Any) -> dict[str, str]:
    """Return clauses that say what to set in place of what Lightning calls by the names of the keys.

    They name options that the task and its algorithm have, and no others.

    Args:
        task: The task that is to be fitted.
    """
    name = type(task.algorithm).__name__
    of_clients = client_options(task.algorithm)
    owner = "the algorithm's solver" if any(".solver." in key for key in of_clients.values()) else "the algorithm"
    listed = _listed([key.rpartition(".")[2] for key in of_clients.values()])
    clients = f"the clients' with {listed} of {owner}" if of_clients else ""
    server = f"the server's with the task's arguments {_SERVER}" if server_moves(task) else ""
    steps = ", ".join(filter(None, (clients, server)))
    itself = f"{name}{' with a regularizer' if task.algorithm.primal else ''} moves the global model by itself alone"
    return {
        "optimizers": f"set {steps}" if steps else f"{name} chooses its steps itself",
        "server_optimizer": f"set {server}" if server else itself,
        "server_scheduler": "server_scheduler is stepped once a round" if server else itself,
        "clips": f"{_clips_clients(name, of_clients.get('local_clip'), owner)}, "
        + ("server_clip of the task clips the global model's move" if server else "and " + itself),
    }


def _clips_clients(name: str, key: str | None, owner: str) -> str:
    if key is None:
        return f"{name} has no option that clips clients' gradients as local_clip of FedAvg does"
    option = key.rpartition(".")[2]
    return f"{option} of {owner} ({option}=1.0) clips every client's gradients"


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
