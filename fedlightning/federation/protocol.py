"""The messages that pass between server and clients, and the transport that carries them.

The server half (:class:`~fedlightning.federation.server.FederatedServer`) sees no data and no client state. The client
half (:class:`~fedlightning.federation.clients.client.ClientRunner`) sees no server state. Everything that passes
between the halves is defined here, as plain dataclasses of tensors and numbers. A :class:`Transport` decides where the
clients run: in this process, in several processes, or on machines of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import PerClient
from fedlightning.core.arrivals import Arrivals
from fedlightning.core.parameter_space import Layout
from fedlightning.federation.processes import Processes
from fedlightning.federation.terms import Terms
from fedlightning.oracle import Autocast
from fedlightning.participation import Recruitment


class Stamp(NamedTuple):
    """Identifies the exchange that an answer belongs to, by round and phase."""

    round: int
    phase: int


@dataclass(frozen=True)
class Moment:
    """Says when clients compute, as the server's Trainer counts; clients on other machines have none.

    Attributes:
        epoch: Number of the epoch, from 0.
        batch_idx: Number of the round in its epoch, from 0.
        step: Number of rounds before.
    """

    epoch: int = 0
    batch_idx: int = 0
    step: int = 0


@dataclass(frozen=True)
class Precision:
    """Says in which numbers clients evaluate the objective, wherever they do so.

    Attributes:
        dtype: Compute dtype of autocast; None leaves autocast off.
        scale: Factor of the loss during the backward pass (16-bit floats); the resulting gradients are unscaled.
    """

    dtype: torch.dtype | None = None
    scale: float = 1.0

    def on(self, device: torch.device) -> Autocast:
        """Return the mixed precision of an objective that runs on a device."""
        return Autocast(device.type, self.dtype, self.scale)


@dataclass(frozen=True)
class Invitation:
    """Says which clients are asked in one phase of a round.

    Attributes:
        client_ids: Clients of this process that will answer.
        answering: Number of clients that will answer, over all processes; 0 if too few do, which skips the round.
        contacted: Number of clients that the server sends its message to, over all processes.
        seed: Seed of the exchange.
        recruitment: Whom to invite where nobody knows beforehand who will answer; None where ``client_ids`` will.
        expected: Mean number of clients that are asked in such a phase; None for the number in this one.
        seconds: Virtual seconds that the phase takes; None without a virtual clock.
        arrivals: From which models the clients started, over all processes; None if from the newest one.
    """

    client_ids: Sequence[int]
    answering: int
    contacted: int
    seed: int
    recruitment: Recruitment | None = None
    expected: float | None = None
    seconds: float | None = None
    arrivals: Arrivals | None = None

    @property
    def asked(self) -> int:
        """The number of clients that are asked, as it is known beforehand."""
        return self.contacted or self.answering


@dataclass(frozen=True)
class Request:
    """Carries what the server sends in one phase of a round, the same for all clients.

    Attributes:
        stamp: Round and phase, each from 0.
        seed: Seed of this exchange; a client's random numbers depend on this seed and the client's id alone.
        message: The algorithm's broadcast, a dataclass.
        point: The global model ``[d]``, from which clients measure their drift.
        buffers: The server's values of the averaged buffers, ``[b]``.
        buffer_names: Names of these buffers, which a client that joins late must find to be its own.
        precision: Precision of the objective.
        moment: When the round takes place.
        terms: What clients have to know of the channel; None without one.
    """

    stamp: Stamp
    seed: int
    message: Any
    point: Tensor
    buffers: Tensor
    buffer_names: tuple[str, ...] = ()
    precision: Precision = Precision()
    moment: Moment = Moment()
    terms: Terms | None = None

    def to(self, *client_ids: int) -> Request:
        """Return the request as it is sent to some clients, without what belongs to other clients."""
        if self.message is None:
            return self
        values = {each.name: getattr(self.message, each.name) for each in fields(self.message)}
        own = {name: value.only(*client_ids) for name, value in values.items() if isinstance(value, PerClient)}
        return replace(self, message=replace(self.message, **own)) if own else self

    def placed(self, device: torch.device) -> Request:
        """Return the request with its tensors on a device."""

        def moved(value: Any) -> Any:
            if isinstance(value, PerClient):
                return PerClient(*(getattr(value, each.name).to(device) for each in fields(value)))
            return value.to(device) if isinstance(value, Tensor) else value

        message = self.message
        if message is not None:
            message = replace(message, **{each.name: moved(getattr(message, each.name)) for each in fields(message)})
        terms = None if self.terms is None else self.terms.to(device)
        return replace(self, message=message, point=moved(self.point), buffers=moved(self.buffers), terms=terms)


@dataclass(frozen=True)
class Answer:
    """Carries what S clients send back: one client on a machine of its own, a chunk of the cohort in a simulation.

    Attributes:
        stamp: Round and phase of the request that is answered.
        client_ids: Ids of the clients.
        update: The algorithm's update, a dataclass with fields ``[S, ...]``; None if nothing is sent. With a channel,
            its fields are what has become of their differences from what the server knows.
        buffers: Changes of the averaged buffers, ``[S, b]``.
        metrics: Values that the algorithm logs, and the drift, ``[S]`` each.
        tally: Mean losses and further scalars of the objective, ``[S]`` each.
        evaluated: Which clients have evaluated the objective, so that the tally counts, ``[S]`` bool; None if all have.
        per_client: Names of the metrics that are logged for every client, not only as a mean.
        sound: Which clients' new states are finite, ``[S]`` bool; None if all are.
        bits: Bits that each client's update takes on the wire, ``[S]`` float64; None without a channel.
        reports: Numbers for the server's part of a channel, ``[S]`` each.
    """

    stamp: Stamp
    client_ids: list[int]
    update: Any
    buffers: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    tally: Mapping[str, Tensor] = field(default_factory=dict)
    evaluated: Tensor | None = None
    per_client: tuple[str, ...] = ()
    sound: Tensor | None = None
    bits: Tensor | None = None
    reports: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> Answer:
        """Return the answer with its tensors on a device."""

        def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to(device) for name, tensor in tensors.items()}

        def placed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        update = self.update
        if update is not None:
            sent = {each.name: getattr(update, each.name) for each in fields(update)}
            update = replace(update, **moved({k: v for k, v in sent.items() if isinstance(v, Tensor)}))
        return replace(
            self,
            update=update,
            buffers=self.buffers.to(device),
            metrics=moved(self.metrics),
            tally=moved(self.tally),
            evaluated=placed(self.evaluated),
            sound=placed(self.sound),
            reports=moved(self.reports),
        )


@dataclass(frozen=True)
class EvaluationRequest:
    """Asks clients to measure models on data of their own; the same for all clients.

    Attributes:
        stage: ``val`` or ``test``: the data to evaluate on.
        point: The global model, ``[d]``. Clients evaluate it as it is or combined with what they keep themselves.
            None where clients share the server's task and no round has changed it.
        buffers: The server's values of the buffers that are averaged, ``[b]``; None before the first round.
        precision: Precision of the evaluation, for clients on other machines.
        moment: When it takes place, for clients on other machines.
    """

    stage: str
    point: Tensor | None = None
    buffers: Tensor | None = None
    precision: Precision = Precision()
    moment: Moment = Moment()

    def to(self, device: torch.device) -> EvaluationRequest:
        """Return the request with its tensors on a device."""
        point, buffers = (None if each is None else each.to(device) for each in (self.point, self.buffers))
        return replace(self, point=point, buffers=buffers)


@dataclass(frozen=True)
class ClientValues:
    """Holds the values of one metric, by client.

    Attributes:
        client_ids: Ids of S clients.
        values: The metric of each client, ``[S]``.
        samples: How many samples each value is taken over, ``[S]``.
        higher_is_better: Whether larger values are better; None if neither the task nor the metric says so.
        nan_is_undefined: Whether NaN says that the metric is undefined for a client, as an AUROC is where all labels
            are equal. Otherwise NaN is a result, and spoils the mean.
        prog_bar: Whether the mean is shown in the progress bar.
        metric: Dotted name, in the task, of the metric of torchmetrics that ``sums`` belong to; empty for a number.
        sums: What the metric is computed from, ``[S, ...]`` by the name of its state, where clients on other machines
            measure the one model of all: the metric over the samples of all clients is that of the sums added up.
        logger: Whether loggers get what is reported of it.
    """

    client_ids: list[int]
    values: Tensor
    samples: Tensor
    higher_is_better: bool | None = None
    nan_is_undefined: bool = False
    prog_bar: bool = False
    metric: str = ""
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    logger: bool = True

    @property
    def defined(self) -> Tensor:
        """Return the values of the clients for whom the metric is defined."""
        return self.values[~self.values.isnan()] if self.nan_is_undefined else self.values

    def spread(self, num_clients: int) -> Tensor:
        """Return the values of all clients, ``[num_clients]``; NaN for clients that have none."""
        spread = torch.full((num_clients,), torch.nan)
        spread[self.client_ids] = self.values
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
class Parameter:
    """Describes one tensor of the shared model, without its values.

    Attributes:
        name: Dotted name in the task.
        shape: Its shape.
        dtype: Its dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def described(layout: Layout, task: nn.Module) -> tuple[Parameter, ...]:
    """Return names, shapes and dtypes of the parameters in a layout, which a task holds."""
    held = dict(task.named_parameters())
    return tuple(
        Parameter(name, tuple(shape), held[name].dtype) for name, shape in zip(layout.names, layout.shapes, strict=True)
    )


@dataclass(frozen=True)
class Roster:
    """Lists the clients of a run; fixed when the run begins.

    Attributes:
        samples: Every client's number of samples, ``[N]``.
        buffers: Names of the buffers that the objective changes and the server averages.
        start_buffers: Initial values of these buffers, ``[b]``.
        start_loss: Loss of one client when the run begins, of which later losses are multiples; None if unknown.
        parameters: The shared parameters, in the order in which they make up the point.
        changed_buffers: Names of the buffers that the objective changes for every client, whoever keeps them.
        log_options: How values that the objective logs on other machines are reported, by name.
    """

    samples: Tensor
    buffers: tuple[str, ...] = ()
    start_buffers: Tensor = field(default_factory=lambda: torch.empty(0))
    start_loss: float | None = None
    parameters: tuple[Parameter, ...] = ()
    changed_buffers: tuple[str, ...] = ()
    log_options: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)

    @property
    def num_clients(self) -> int:
        """The number of clients, N."""
        return len(self.samples)

    def weights(self, client_ids: Sequence[int], by_samples: bool) -> Tensor:
        """Return the weights of the given clients in a mean, ``[S]``.

        Args:
            client_ids: The S clients.
            by_samples: Whether a client weighs its number of samples; otherwise every client weighs 1.
        """
        if not by_samples:
            return torch.ones(len(client_ids))
        return self.samples[list(client_ids)]

    def largest_weight(self, by_samples: bool) -> float:
        """Return the largest weight of a client."""
        return float(self.samples.max()) if by_samples else 1.0

    def total_weight(self, by_samples: bool) -> float:
        """Return the sum of the weights of all N clients."""
        return float(self.samples.sum()) if by_samples else float(self.num_clients)


class Transport(Protocol):
    """Carries requests to clients and answers back."""

    @property
    def processes(self) -> Processes:
        """The processes that run this server side by side; each sees only the answers of its own clients."""

    def join(self, precision: Precision) -> Roster:
        """Return the clients of the federation and the averaged buffers; called before the first round.

        Args:
            precision: Precision of the evaluation in which clients find out which buffers the objective changes.
        """

    def ask(self, request: Request, invited: Sequence[int]) -> Iterator[Answer]:
        """Yield the answers of the invited clients as they come; the server adds them up in the order of ``invited``.

        Answers of clients that are dead or late are missing. The server discards answers to other requests, repeated
        answers and those of clients that were not invited. What leaves the server's machine is :meth:`Request.to`.
        """

    def evaluate(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients measure of their models on data of their own, in any order.

        Clients without such data do not answer. No client state changes.
        """

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Tell the clients which answers the server has accepted.

        Clients keep the state computed for an accepted round and phase; all other clients keep their previous state.

        Args:
            accepted: Round and phase of each accepted answer, by client.

        Returns:
            Whether the state of any client has changed in a way that :meth:`undo` does not take back.
        """

    def undo(self, index: int) -> None:
        """Tell the clients that a round came to nothing before its last phase was settled.

        Clients drop what is pending, and go back to what they kept before the phases of that round.

        Args:
            index: Number of the round, from 0.
        """
