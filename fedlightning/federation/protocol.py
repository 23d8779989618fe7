"""What crosses the seam between server and clients, and the transport that carries it.

The server half (:class:`~fedlightning.federation.server.FederatedServer`) sees no data and no client state, the client
half (:class:`~fedlightning.federation.client.ClientRunner`) no server state. All that passes between them is here:
plain dataclasses of tensors and numbers. Where the clients run, in this process, in several, or on machines of their
own, is a :class:`Transport`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedlightning.federation.processes import Processes


class Stamp(NamedTuple):
    """The exchange an answer belongs to."""

    round: int
    phase: int


@dataclass(frozen=True)
class Invitation:
    """Who is asked in one phase of a round.

    Attributes:
        clients: Clients of this process that will answer.
        answering: How many will answer, over all processes; none if too few do, and then the round is skipped.
        contacted: How many the server sends its message to, over all processes.
        seed: Seed of the exchange.
    """

    clients: Sequence[int]
    answering: int
    contacted: int
    seed: int


@dataclass(frozen=True)
class Request:
    """What the server sends in one phase of a round, the same for all clients.

    Attributes:
        stamp: Round and phase, each from 0.
        seed: Seed of this exchange; a client's random numbers come from it and the client's id alone.
        message: The algorithm's broadcast, a dataclass.
        point: The global model ``[d]``, from which clients measure their drift.
        buffers: The server's values of the buffers that are averaged, ``[b]``.
    """

    stamp: Stamp
    seed: int
    message: Any
    point: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class Answer:
    """What S clients send back; S = 1 on a client's own machine, a chunk of the cohort in a simulation.

    Attributes:
        clients: Their ids.
        update: The algorithm's update, a dataclass with fields ``[S, ...]``; None if nothing is sent.
        buffers: Changes of the averaged buffers, ``[S, b]``.
        metrics: What the algorithm logs, ``[S]`` each.
        tally: Mean losses and scalars of the objective, ``[S]`` each.
        evaluated: Which clients have evaluated anything, so that their tally counts, ``[S]`` bool; None if all have.
        per_client: Names of those metrics whose every value is logged, not their mean alone.
        sound: Which clients' new states are finite, ``[S]`` bool; None if all are.
    """

    clients: list[int]
    update: Any
    buffers: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    tally: Mapping[str, Tensor] = field(default_factory=dict)
    evaluated: Tensor | None = None
    per_client: tuple[str, ...] = ()
    sound: Tensor | None = None


@dataclass(frozen=True)
class EvaluationRequest:
    """Asks clients to measure models on data of their own; the same for all clients.

    Attributes:
        stage: ``val`` or ``test``: the data to evaluate on.
        point: The global model, ``[d]``. Clients evaluate it as it is or combined with what they keep themselves.
            None where clients share the server's task and no round has changed it.
        buffers: The server's values of the buffers that are averaged, ``[b]``; None before the first round.
    """

    stage: str
    point: Tensor | None = None
    buffers: Tensor | None = None


@dataclass(frozen=True)
class ClientValues:
    """Holds the values of one metric, by client.

    Attributes:
        clients: Ids of S clients.
        values: The metric of each client, ``[S]``.
        samples: How many samples each value is taken over, ``[S]``.
        higher_is_better: Whether larger values are better; None if neither the task nor the metric says so.
        nan_is_undefined: Whether NaN says that the metric is undefined for a client, as an AUROC is where all labels
            are equal. Otherwise NaN is a result, and spoils the mean.
        prog_bar: Whether the mean is shown in the progress bar.
    """

    clients: list[int]
    values: Tensor
    samples: Tensor
    higher_is_better: bool | None = None
    nan_is_undefined: bool = False
    prog_bar: bool = False

    @property
    def defined(self) -> Tensor:
        """Return the values of the clients for whom the metric is defined."""
        return self.values[self.values.isfinite()] if self.nan_is_undefined else self.values

    def spread(self, num_clients: int) -> Tensor:
        """Return the values of all clients, ``[num_clients]``; NaN for clients that have none."""
        spread = torch.full((num_clients,), torch.nan)
        spread[self.clients] = self.values
        return spread


@dataclass(frozen=True)
class EvaluationAnswer:
    """Carries what clients measured: metrics by client, but neither predictions nor parameters.

    Attributes:
        metrics: Values of one client or several by the name the metric is logged under. A metric names its clients
            itself, as not every client need have a value.
    """

    metrics: Mapping[str, ClientValues]


@dataclass(frozen=True)
class Roster:
    """Who takes part in a run; fixed when it begins.

    Attributes:
        samples: Every client's number of samples, ``[N]``.
        buffers: Names of the buffers the clients' objectives change and the server averages.
        start_buffers: Their values at the start, ``[b]``.
    """

    samples: Tensor
    buffers: tuple[str, ...] = ()
    start_buffers: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def num_clients(self) -> int:
        """N."""
        return len(self.samples)

    def weights(self, client_ids: Sequence[int], by_samples: bool) -> Tensor:
        """How much each of ``clients`` counts in a mean, ``[S]``."""
        if not by_samples:
            return torch.ones(len(client_ids))
        return self.samples[list(client_ids)]

    def total_weight(self, by_samples: bool) -> float:
        """How much all N clients count together."""
        return float(self.samples.sum()) if by_samples else float(self.num_clients)


class Transport(Protocol):
    """Carries requests to clients and answers back."""

    @property
    def processes(self) -> Processes:
        """The processes that run this server side by side; each sees the answers of its own clients only."""

    def join(self) -> Roster:
        """The federation's clients, and which buffers change; asked before the first round."""

    def ask(self, request: Request, invited: Sequence[int]) -> Iterator[Answer]:
        """The answers of the invited clients, in an order that does not depend on who was fastest.

        Clients that are dead or late simply do not come.
        """

    def evaluate(self, request: EvaluationRequest, clients: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients measure of their models on data of their own, in any order.

        Clients without such data do not answer. No client state changes.
        """

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Say whose answers the server has accepted, and to what.

        These clients keep the state they computed for that round and phase. All others keep the one before.

        Returns:
            Whether the state of any client has changed.
        """
