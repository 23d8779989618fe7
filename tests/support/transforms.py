"""Small channels for tests: parts that do something simple, with memory, reports and random numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from fedlightning.channel import Aggregation, Exchange, Release, Sent, Transform


def exchange(*client_ids, **changes):
    """An exchange of a federation of ten clients, of which four are asked."""
    return replace(Exchange(round=2, phase=0, seed=5, cohort=4, num_clients=10, client_ids=list(client_ids)), **changes)


def sent(**values):
    """What clients send, dense."""
    bits = {name: torch.full((len(each),), 8.0 * each.element_size() * each.shape[1]) for name, each in values.items()}
    return Sent(values, {name: each.double() for name, each in bits.items()})


@dataclass(frozen=True)
class Halved(Transform):
    """Sends half of the update and of what was held back before, with half the bits, and reports the norm held back."""

    def apply(self, sent, memory, exchange, purpose):
        whole = {name: value + memory[name] for name, value in sent.values.items()}
        after = {name: value / 2 for name, value in whole.items()}
        held = torch.stack([value.norm(dim=1) for value in after.values()]).sum(0)
        bits = {name: value / 2 for name, value in sent.bits.items()}
        return Sent(after, bits, {**sent.reports, "held": held}), after

    def memory(self, like):
        return {name: torch.zeros_like(value) for name, value in like.items()}

    def public(self):
        return {"mean_held": torch.zeros(())}

    def publish(self, public, reports, exchange, purpose):
        return {"mean_held": reports["held"].to(public["mean_held"])}


@dataclass(frozen=True)
class Jitter(Transform):
    """Adds random numbers of each client, scaled by what the server has told."""

    scale: float = 0.01

    def apply(self, sent, memory, exchange, purpose):
        senders = exchange.client_ids or [None]
        drawn = {client: exchange.generator(client, purpose, torch.device("cpu")) for client in senders}
        values = {
            name: value
            + self.scale
            * torch.stack([torch.randn(value.shape[1], generator=drawn[client], dtype=value.dtype) for client in drawn])
            for name, value in sent.values.items()
        }
        return replace(sent, values=values), {}


@dataclass(frozen=True)
class Middle(Aggregation):
    """The coordinatewise mean of the smallest and the largest."""

    def aggregate(self, rows):
        return torch.cat([(block.amin(0) + block.amax(0)) / 2 for block in rows.blocks()])


@dataclass(frozen=True)
class Shift(Release):
    """Adds a random number, the same to all entries."""

    scale: float = 0.01

    def apply(self, values, aggregated):
        generator = aggregated.exchange.generator(None, aggregated.purpose, torch.device("cpu"))
        shift = self.scale * float(torch.randn((), generator=generator))
        return {name: value + shift for name, value in values.items()}
