"""A Flower client in the server's process, for the drivers of Flower and of its baselines."""

from __future__ import annotations

from flwr.server.client_proxy import ClientProxy


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
