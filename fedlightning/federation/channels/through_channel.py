"""What a server receives of the answers of one phase where updates pass through a channel."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, PerClient
from fedlightning.channel.base import Aggregated
from fedlightning.channel.channel import Channel
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.federation.aggregation import BUFFERS, CohortMean
from fedlightning.federation.all_rows import AllRows
from fedlightning.federation.channels.differences import Differences, accumulated, counts_of, squared_norms_of
from fedlightning.federation.channels.passage import ATTACK, RELEASE, exchange_of
from fedlightning.federation.processes import Processes
from fedlightning.federation.protocol import Answer, Request, Roster


class ThroughChannel(CohortMean):
    """Puts the differences of a cohort together as a channel says, and adds what the server knows again."""

    def __init__(
        self,
        roster: Roster,
        by_samples: bool,
        request: Request,
        channel: Channel,
        algorithm: Algorithm,
        whole: Tensor | None = None,
    ) -> None:
        """Start without answers.

        Args:
            roster: Gives the clients' weights.
            by_samples: Whether clients are weighted by their numbers of samples.
            request: What the clients were asked, with terms.
            channel: The channel of the phase.
            algorithm: The algorithm, for messages.
            whole: Which averaged buffers are whole numbers, ``[b]``; None if none is.
        """
        self._exchange = exchange_of(request)
        heaviest = roster.largest_weight(by_samples)
        rows = AllRows(channel, self._exchange, ATTACK, whole, heaviest) if channel.needs_rows else None
        super().__init__(roster, by_samples, request.buffers, rows)
        self._rows = rows
        self._channel = channel
        # With noise the divisor tells nothing of who counts; what a rule returns is no sum.
        self._divides_by_asked = channel.adds_noise and channel.averages
        self._algorithm = algorithm
        self._differences = Differences(algorithm, request)
        self._ranges: dict[str, tuple[float, float]] = {}
        self._values: dict[str, Tensor] | None = None

    def add(self, answer: Answer) -> None:
        """Add the answer of one chunk of clients.

        Raises:
            ValueError: If the server would have to add noise to what it receives of each client.
        """
        super().add(answer)
        update = answer.update
        if update is not None and self._channel.acts_on_cohort:
            self._refuse_fields_of_each_client(type(update))
        if self._channel.adds_noise:
            _refuse_squared_norms(self._algorithm, update)
        for name in counts_of(update):
            value = getattr(update, name)
            low, high = self._ranges.get(name, (float("inf"), -float("inf")))
            self._ranges[name] = min(low, float(value.amin())), max(high, float(value.amax()))

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Add up the answers of all processes."""
        super().gather(processes, device)
        if processes.count > 1:
            self._reports.gather(processes, device)
            everywhere = processes.collect((self.bits, self._ranges))
            self.bits = sum(bits for bits, _ in everywhere)
            for _, ranges in everywhere:
                for name, (low, high) in ranges.items():
                    lowest, highest = self._ranges.get(name, (low, high))
                    self._ranges[name] = min(low, lowest), max(high, highest)

    def update(self) -> Any:
        """Return the update as the server receives it; None if the clients send none."""
        received = super().update()
        if received is None:
            return None
        values = {each.name: getattr(received, each.name) for each in fields(received)}
        return replace(received, **{name: self._known_added(type(received), name, v) for name, v in values.items()})

    def reports(self) -> dict[str, Tensor]:
        """Return the means over the cohort of what clients reported for the server's part of the channel."""
        return {name: self._mean(name) for name in self._reports}

    @property
    def passed(self) -> bool:
        """Whether clients sent anything through the channel."""
        return bool(list(self._updates))

    def _mean(self, name: str) -> Tensor:
        """Return the mean of a report; under noise, over all clients that were asked."""
        return self._reports.sum(name) / self._exchange.divisor if self._divides_by_asked else self._reports.mean(name)

    def _value(self, name: str, over_all: bool = False) -> Tensor:
        if self._values is None:
            self._values = self._put_together()
        return self._values[name]

    def _put_together(self) -> dict[str, Tensor]:
        """Return what the server has of each field, after the channel's last part."""
        counts = counts_of(self._update_type)
        if self._rows is not None:
            self._rows.finish(self.accepted, counts, squared_norms_of(self._update_type))
        divisors = {name: self._divisor(name) for name in self._updates}
        values = {
            name: self._updates.sum(name) / divisors[name]
            if self._divides_by_asked or self._is_over_all(name)
            else self._updates.mean(name)
            for name in self._updates
        }
        if self._channel.adds_noise:
            values |= {name: torch.full_like(values[name], self._common(name)) for name in counts}
            values |= self._released({name: v for name, v in values.items() if name not in counts}, divisors)
        return values

    def _released(self, values: dict[str, Tensor], divisors: dict[str, float]) -> dict[str, Tensor]:
        shapes = {name: value.shape for name, value in values.items()}
        flat = {name: value.reshape(-1) for name, value in values.items()}
        update = self._update_type
        exchange = replace(self._exchange, accumulated=accumulated(self._algorithm, update))
        bound = self._channel.transform.bound(None, list(flat), exchange)
        for place, release in enumerate(self._channel.server):
            aggregated = Aggregated(
                exchange,
                {name: divisors[name] for name in flat},
                bound,
                derive_seed(RELEASE, place),
                self._channel.transform.spent,
            )
            flat = dict(release.apply(flat, aggregated))
        return {name: flat[name].view(shape) for name, shape in shapes.items()}

    def _divisor(self, name: str) -> float:
        """Return what the sum over clients is divided by."""
        if self._is_over_all(name):
            return self._roster.total_weight(self._by_samples)
        return self._exchange.divisor if self._divides_by_asked else self._updates.weight

    def _is_over_all(self, name: str) -> bool:
        declared = () if self._update_type is None else fields(self._update_type)
        return name != BUFFERS and any(each.name == name and each.metadata.get("over") == "all" for each in declared)

    def _common(self, name: str) -> float:
        """Return a count that all clients of the cohort have in common.

        Raises:
            InvalidValueError: If they have not.
        """
        low, high = self._ranges[name]
        if low != high:
            raise InvalidValueError(
                f"Clients of one cohort sent '{name}' from {low:g} to {high:g}, which would reach the server's state "
                "without noise. With noise every client takes as many local steps: set the data module's local_steps."
            )
        return low

    def _known_added(self, update_type: type[Any], name: str, value: Any) -> Any:
        if not isinstance(value, PerClient):
            return self._differences.added(update_type, name, value)
        clients = value.client_ids.tolist()
        values = self._differences.added(update_type, name, value.values, clients)
        weights = self._roster.weights(clients, self._by_samples).to(values)
        mean = torch.tensordot(weights, values, dims=1) / weights.sum()
        return PerClient(mean, value.client_ids, values)

    def _refuse_fields_of_each_client(self, update_type: type[Any]) -> None:
        own = [each.name for each in fields(update_type) if each.metadata.get("over") == "none"]
        if own:
            raise InvalidValueError(
                f"{type(self._algorithm).__name__} lets the server receive '{own[0]}' of every client by itself, so an "
                "aggregate, attackers or noise at the server would not reach it. Use transforms of clients alone, "
                "Channel(client=[...])."
            )


def _refuse_squared_norms(algorithm: Algorithm, update: Any) -> None:
    for name, of in squared_norms_of(update).items():
        raise InvalidValueError(
            f"{type(algorithm).__name__} sends '{name}', the squared norm of '{of}', which would reach the server's "
            "state without noise. Choose an algorithm whose updates have none, such as FedAvg."
        )
