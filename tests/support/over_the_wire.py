"""A transport with one runner a client and every message as bytes: what a network does, without the network."""

from __future__ import annotations

import io
from copy import deepcopy
from dataclasses import fields, replace

import torch

from fedlightning.federation.loop import RoundLoop
from fedlightning.federation.processes import OneProcess
from fedlightning.federation.protocol import Invitation, Precision
from fedlightning.federation.sampling.cohort import RoundBatch
from tests.support.federations import loop_for


class OverTheWire:
    """Every client has a task, a runner and states of its own; nothing but bytes passes between it and the server."""

    def __init__(self, processes, runners, hostile=False):
        """Connect the runners; a hostile wire repeats answers, and brings old ones and those of nobody's invitation."""
        self.processes = processes
        self.runners = runners
        self.hostile = hostile
        self.bytes = 0
        self.former = None

    def receive(self, batch):
        for client, transport in self.runners.items():
            cohorts = tuple(
                replace(cohort, members=tuple(member for member in cohort.members if member.id == client))
                for cohort in batch.cohorts
            )
            transport.receive(RoundBatch(batch.index, cohorts, batch.samples))
        self.first = batch.cohorts[0].client_ids
        return [
            Invitation(cohort.client_ids, cohort.answering, cohort.contacted, cohort.seed) for cohort in batch.cohorts
        ]

    def join(self, precision):
        rosters = [self.travel(self.runners[client].join(precision)) for client in self.first]
        assert all(roster.buffers == rosters[0].buffers for roster in rosters)
        return rosters[0]

    def ask(self, request, invited):
        for client in reversed(invited):  # the last is the fastest
            for answer in self.runners[client].ask(self.travel(request.to(client)), [client]):
                yield from self.noise(answer)
                yield self.travel(answer)

    def noise(self, answer):
        """What comes before an answer on a hostile wire: an old one, somebody else's, and the same once before."""
        if not self.hostile:
            return
        wrong = replace(answer, update=map_fields(answer.update))
        former, self.former = self.former, wrong
        if former is not None and former.stamp != answer.stamp:
            yield self.travel(former)
            yield self.travel(replace(former, client_ids=answer.client_ids))
        yield self.travel(replace(wrong, client_ids=[1000 + answer.client_ids[0]]))
        yield self.travel(answer)

    def evaluate(self, request, clients):
        for client in clients:
            for answer in self.runners[client].evaluate(self.travel(request), [client]):
                yield self.travel(answer)

    def settle(self, accepted):
        changed = [transport.settle(self.travel(accepted)) for transport in self.runners.values()]
        return any(changed)

    def undo(self, index):
        for transport in self.runners.values():
            transport.undo(self.travel(index))

    def travel(self, message):
        buffer = io.BytesIO()
        torch.save(message, buffer)
        self.bytes += buffer.tell()
        buffer.seek(0)
        return torch.load(buffer, weights_only=False)


def map_fields(update):
    """The update with other numbers."""
    if update is None:
        return None
    return replace(update, **{each.name: getattr(update, each.name) + 1 for each in fields(update)})


class FederationOverTheWire:
    """A server, and each client on the other end of a wire with a copy of the task."""

    def __init__(self, task, num_clients, oracle, evaluators=None, hostile=False, **options):
        evaluators = {} if evaluators is None else evaluators
        self.clients = {
            client: loop_for(deepcopy(task), oracle, evaluator=evaluators.get(client), **options)
            for client in range(num_clients)
        }
        simulation = loop_for(task, oracle, **options)  # for its server alone
        self.server = simulation.server
        transports = {i: each.loop.transport for i, each in self.clients.items()}
        self.wire = OverTheWire(OneProcess(), transports, hostile)
        self.loop = RoundLoop(self.server, self.wire)

    def run(self, batch, autocast, undo_overflow=False):
        precision = Precision(autocast.dtype, autocast.scale)
        return self.loop.run(batch.index, self.wire.receive(batch), undo_overflow, precision)

    @property
    def point(self):
        return self.server.point

    def model(self, client):
        """A client's model, put together where its state lies."""
        return self.clients[client].runner.clients.table.models([client], self.point, self.server.buffers)
