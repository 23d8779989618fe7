"""Federations of nodes whose tasks are Lightning's, for fits of a server's Trainer."""

from __future__ import annotations

import torch

from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.data.remote import RemoteClients
from fedlightning.federation.remote.node import NodeService
from fedlightning.federation.remote.shard import Shard
from fedlightning.federation.remote.store import GenerationStore
from fedlightning.federation.transport.remote import Deadlines, Remote
from fedlightning.tasks.evaluation.node_evaluation import NodeEvaluator
from fedlightning.tasks.federated import Federated
from tests.support.nodes import Wires

HOLDINGS = [[3, 1], [0, 2]]


def seeded(make):
    """A task, from the same random numbers each time."""
    torch.manual_seed(0)
    return make()


def lightning_node(task, data, client_ids, folder):
    """A node that trains and measures some of the clients of a data module."""
    if isinstance(task, Federated):
        task.configure_at_node()
    simulation, places = task.run.simulation, {client: client for client in client_ids}
    shard = Shard(data, task.algorithm.phases, places, TaskArchitectures(task).of)
    return NodeService(simulation, shard, GenerationStore(folder), NodeEvaluator(task, data, places))


def lightning_nodes(make, data, folder, holdings=HOLDINGS):
    """A carrier to nodes, each with a task of its own."""
    return Wires(
        {
            100 + number: lightning_node(seeded(make), data(), client_ids, folder / f"node-{number}")
            for number, client_ids in enumerate(holdings)
        }
    )


def server(make, carrier, participation=None, num_clients=4, rounds_per_epoch=2, **options):
    """A task whose clients are at the nodes of a carrier, and its data module."""
    task = seeded(make)
    task.run.connect = lambda simulation: Remote(carrier, simulation, num_clients, Deadlines(enrol=5.0))
    return task, RemoteClients(num_clients, participation, rounds_per_epoch, **{"seed": 1, **options})
