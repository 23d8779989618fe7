"""Flower's clients and server in one process, for the drivers of Flower and of its baselines."""

from __future__ import annotations

from flwr.common import parameters_to_ndarrays
from flwr.server import SimpleClientManager
from flwr.server.client_proxy import ClientProxy

from problem import CLIENTS, ROUNDS


class InProcess(ClientProxy):
    """Hands messages to a client that is made anew for each, as in Flower's simulation."""

    def __init__(self, cid, make):
        super().__init__(cid)
        self.make = make

    def fit(self, ins, timeout, group_id=None):
        return self.make().fit(ins)

    def get_properties(self, ins, timeout, group_id=None):
        return self.make().get_properties(ins)

    def get_parameters(self, ins, timeout, group_id=None):
        return self.make().get_parameters(ins)

    def evaluate(self, ins, timeout, group_id=None):
        return self.make().evaluate(ins)

    def reconnect(self, ins, timeout, group_id=None):
        raise NotImplementedError("The client is in this process.")


def point(make_server, make_strategy, makes, job):
    """Where all rounds lead.

    Args:
        make_server: Returns a server for ``client_manager`` and ``strategy``.
        make_strategy: Returns a strategy for what all of them are given here.
        makes: Returns each client.
        job: What is run.
    """
    clients = SimpleClientManager()
    for number, make in enumerate(makes):
        clients.register(InProcess(str(number), make))
    strategy = make_strategy(
        fraction_fit=job.cohort / CLIENTS,
        fraction_evaluate=0.0,
        min_available_clients=CLIENTS,
        accept_failures=False,
    )
    server = make_server(client_manager=clients, strategy=strategy)
    server.set_max_workers(1)
    server.fit(ROUNDS, timeout=None)
    return parameters_to_ndarrays(server.parameters)[0]
