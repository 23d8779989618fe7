"""The server half of a federation, which broadcasts messages and turns answers into a new server state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from itertools import count
from typing import Any, Literal

from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.channel.channel import Channels
from fedlightning.core.arrivals import Arrivals
from fedlightning.core.errors import FedlightningError, InvalidValueError
from fedlightning.federation.aggregation import CohortMean
from fedlightning.federation.buffers import finite_or_zero
from fedlightning.federation.channels.reception import Kept, Reception, require_same
from fedlightning.federation.client_columns import ClientColumn
from fedlightning.federation.processes import Processes
from fedlightning.federation.protocol import Answer, EvaluationRequest, Moment, Precision, Request, Roster, Stamp
from fedlightning.federation.remedies import LOOK_AT_DATA, smaller_steps
from fedlightning.federation.round_start import begun
from fedlightning.federation.server_functions import message_of, state_after
from fedlightning.federation.traffic import Traffic, floats
from fedlightning.federation.validation import LeftOutWarnings, name_of, shapes_of

Weighting = Literal["uniform", "samples"]


class RoundRejectedError(FedlightningError, RuntimeError):
    """No client of a cohort returned finite numbers; all states are those before the round."""


@dataclass(frozen=True)
class Outcome:
    """Reports the outcome of one phase.

    Attributes:
        accepted: Round and phase of the answers that count, by client, for the clients of this process.
        metrics: Values to log, means over the cohort.
        columns: What each client of this process reported, by name.
        overflow: Whether the phase changed nothing because some answers were not finite.
        shortage: Why the phase changed nothing where the channel's rule needs more updates; None if enough count.
    """

    accepted: Mapping[int, Stamp]
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)
    columns: Mapping[str, ClientColumn] = field(default_factory=dict)
    overflow: bool = False
    shortage: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """Holds what a round changes on the server.

    Attributes:
        state: The algorithm's server state.
        buffers: Values of the averaged buffers, ``[b]``; None before the clients have joined.
        traffic: Counts of the numbers sent.
        kept: What is kept for a channel; None without one.
    """

    state: Any
    buffers: Tensor | None
    traffic: Traffic
    kept: Kept | None = None


class FederatedServer:
    """Holds and updates the server's state, without seeing data or client states.

    Attributes:
        algorithm: Bound to the task's shared parameters, with the hyper-parameters of the last round that has begun.
        state: The algorithm's server state, a dataclass.
        buffers: Values of the averaged buffers, ``[b]``; None before the clients have joined.
        roster: The federation's clients; None before the first round of this run.
        traffic: Counts of the numbers sent since the start of the run.
        reception: The server's part of the channel that updates pass through; None without one.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        start: Tensor,
        weighting: Weighting = "uniform",
        channels: Channels | None = None,
        whole: Callable[[], Tensor | None] = lambda: None,
    ) -> None:
        """Start at a point.

        Args:
            algorithm: Bound to the task's shared parameters.
            start: The global model at the start, ``[d]``.
            weighting: How clients are weighted in means: all the same, or by their numbers of samples.
            channels: What happens to updates on their way; None for nothing.
            whole: Returns which averaged buffers are whole numbers, ``[b]``; None if none is.
        """
        self.algorithm = algorithm
        self.reception = None if channels is None else Reception(channels, whole)
        self.state = algorithm.init_server(start.clone())
        self.buffers: Tensor | None = None
        self.roster: Roster | None = None
        self.traffic = Traffic()
        self._by_samples = weighting == "samples"
        self._left_out = LeftOutWarnings(algorithm)

    @property
    def point(self) -> Tensor:
        """The global model, ``[d]``."""
        return self.algorithm.point(self.state)

    @property
    def hides_clients(self) -> bool:
        """Whether noise hides single clients, so that no mean of their states may reach the server without it."""
        return self.reception is not None and self.reception.adds_noise(len(self.algorithm.phases))

    def join(self, roster: Roster) -> None:
        """Take note of the clients that take part, and start with the roster's buffers if there are none yet."""
        if self.buffers is None:
            self.buffers = roster.start_buffers.to(self.point.device)
        self.roster = roster

    def move_to(self, z: Tensor) -> None:
        """Move the global model to ``z [d]``, a point that a server optimizer computed."""
        self.state = self.algorithm.with_point(self.state, z)

    def begin_round(self, index: int, arrivals: Arrivals | None = None) -> None:
        """Take over the hyper-parameters of a round, if some vary, and make the state fit them and the clients.

        Args:
            index: Number of the round, from 0.
            arrivals: From which models the clients of the round started; None if all start from the newest one.

        Raises:
            ValueError: If a schedule gives a value that the hyper-parameter may not have, if the state cannot be
                made to fit, or if the algorithm wants all clients to start from the newest model.
        """
        self.algorithm, self.state = begun(self.algorithm, self.state, index, arrivals)

    def request(
        self,
        stamp: Stamp,
        seed: int,
        precision: Precision | None = None,
        moment: Moment | None = None,
        asked: int = 0,
        expected: float | None = None,
    ) -> Request:
        """Build the request that is sent to every client of a cohort, once for each phase.

        Args:
            stamp: Round and phase.
            seed: Seed of the exchange.
            precision: Precision of the objective; None for that of the parameters.
            moment: When the round takes place.
            asked: Number of clients that are asked, for a channel.
            expected: Mean number of clients that are asked, likewise; None for ``asked``.
        """
        message = message_of(self.algorithm, stamp.phase, self.state)
        buffers = self.point.new_empty(0) if self.buffers is None else self.buffers
        names = () if self.roster is None else self.roster.buffers
        request = Request(
            stamp, seed, message, self.point, buffers, names, precision or Precision(), moment or Moment()
        )
        if self.reception is None or self.roster is None:
            return request
        return self.reception.prepared(request, self.roster, asked, expected)

    def evaluation_request(self, stage: str) -> EvaluationRequest:
        """Return what clients are sent to measure the present model, on their ``val`` or ``test`` data."""
        return EvaluationRequest(stage, self.point, self.buffers)

    def count_download(self, request: Request, contacted: int) -> None:
        """Count the numbers sent to all contacted clients, whether or not they answer."""
        self.traffic.download += (floats(request.message) + len(request.buffers)) * contacted
        if self.reception is not None:
            bits = self.reception.bits(request, contacted)
            dense = 8.0 * self.point.element_size() * (floats(request.message) + len(request.buffers)) * contacted
            whole, following = (dense, dense) if bits is None else bits
            self.traffic.whole_bits += whole
            self.traffic.following_bits += following

    def aggregate(
        self,
        request: Request,
        answers: Iterable[Answer],
        processes: Processes,
        invited: Sequence[int],
        contacted: int = 0,
        undo_overflow: bool = False,
    ) -> Outcome:
        """Turn the answers of a cohort into a new server state.

        Args:
            request: What the clients were asked.
            answers: Answers of this process's clients, as they arrive.
            processes: All processes that share the cohort; each has the answers of its own clients.
            invited: The invited clients of this process, in the order in which their answers are added up.
            contacted: Number of clients the request was sent to; if smaller, the number that answered counts.
            undo_overflow: Change nothing if any client returned a non-finite number (loss scaling).

        Raises:
            RoundRejectedError: If no client returned finite numbers, or the new global model is not finite.
            TypeError: If the algorithm returns a server state of another class.
            ValueError: If clients sent different names or shapes, or the new server state has other shapes.
        """
        assert self.roster is not None
        through = None
        if self.reception is not None:
            through = self.reception.cohort(request, self.roster, self._by_samples, self.algorithm)
        cohort = through or CohortMean(self.roster, self._by_samples, request.buffers)
        with closing(iter(answers)) as stream:  # type: ignore[type-var]
            for answer in in_order(expected(stream, request.stamp, invited), invited):
                cohort.add(answer)
                del answer  # the next clients may need the memory
        cohort.gather(processes, self.point.device)
        self.count_download(request, max(contacted, cohort.answered))
        self.traffic.upload += cohort.floats
        dense = 8.0 * self.point.element_size() * cohort.floats
        self.traffic.upload_bits += dense if through is None else through.bits
        if undo_overflow and not cohort.is_whole:
            return Outcome({}, overflow=True)
        shortage = None if self.reception is None else self.reception.shortage(request, cohort)
        if shortage is not None:
            self._left_out.warn(cohort.left_out)
            return Outcome({}, {"left_out": cohort.metrics()["left_out"]}, shortage=shortage)
        if cohort.is_empty:
            at_start = "" if request.stamp.round else "Is the objective finite at the initial parameters? "
            raise RoundRejectedError(
                f"All {cohort.answered} clients of the cohort returned NaN or infinite numbers. "
                f"The round was rejected: server and client states are those before it. {at_start}"
                f"{smaller_steps(self.algorithm, LOOK_AT_DATA)}"
            )
        self._left_out.warn(cohort.left_out)
        after = state_after(self.algorithm, request.stamp.phase, self.state, cohort.update())
        if not self.algorithm.point(after).isfinite().all():
            server_update = self.algorithm.phases[request.stamp.phase].server_update
            raise RoundRejectedError(
                f"{name_of(server_update, self.algorithm)} returned a global model with NaN or infinite numbers, "
                "although the clients' answers are finite. The round was rejected: server and client states are those "
                f"before it. {smaller_steps(self.algorithm, 'look at what it computes')}"
            )
        self.state = after
        change = cohort.buffers()
        if change is not None:
            assert self.buffers is not None
            self.buffers = finite_or_zero(self.buffers) + change
        if self.reception is not None and through is not None:
            self.reception.end(request, through)
        accepted = dict.fromkeys(cohort.accepted, request.stamp)
        return Outcome(accepted, cohort.metrics(), cohort.columns())

    def snapshot(self) -> Snapshot:
        """Return what is needed to undo a round or to pretend that it never happened."""
        kept = None if self.reception is None else self.reception.kept
        return Snapshot(self.state, self.buffers, self.traffic.copy(), kept)

    def undo(self, before: Snapshot) -> None:
        """Restore state and buffers; what was sent since then still counts."""
        self.state, self.buffers = before.state, before.buffers
        if self.reception is not None and before.kept is not None:
            self.reception.undo(before.kept)

    def restore(self, before: Snapshot) -> None:
        """Restore state, buffers and traffic, as if nothing had been sent since then."""
        self.undo(before)
        self.traffic = before.traffic.copy()

    def resume(self, state: Any, traffic: Traffic, buffers: Tensor | None) -> None:
        """Continue from the end of an earlier run.

        Args:
            state: The algorithm's server state, such as :meth:`stored_state` returns.
            traffic: Counts of the numbers sent until then.
            buffers: Values of the averaged buffers, ``[b]``; None if no round had been carried out.
        """
        self.state, self.traffic, self.buffers = state, traffic, buffers

    def state_dict(self) -> dict[str, Any]:
        """Return the server state and the traffic in plain types, for a checkpoint."""
        state = {each.name: getattr(self.state, each.name) for each in fields(self.state)}
        found = {"server": state, **self.traffic.state_dict(bits=self.reception is not None)}
        return found if self.reception is None else {**found, "channel": self.reception.state_dict()}

    def resume_channel(self, stored: Mapping[str, Any] | None) -> None:
        """Go on from what a :meth:`state_dict` holds for a channel; None if it holds nothing.

        Raises:
            ValueError: If the channel was another one.
        """
        require_same(stored, None if self.reception is None else self.reception.channels)
        if self.reception is not None and stored is not None:
            self.reception.load_state_dict(stored, self.point.device)

    def stored_state(self, stored: Mapping[str, Any], start: Any) -> Any:
        """Return the server state in a :meth:`state_dict`, without taking it over.

        Args:
            stored: What was saved, by a run of the same algorithm and model.
            start: The state at the start of that run, which gives classes and shapes.

        Returns:
            The stored server state, on this server's device and in its precision.

        Raises:
            ValueError: If fields or shapes differ.
        """
        shapes, found = shapes_of(start), shapes_of(start, stored["server"])
        if shapes != found:
            raise InvalidValueError(
                f"The checkpoint's server state has {found}, this task and algorithm have {shapes}. "
                "Resume with the model and algorithm it was trained with."
            )
        like = self.point
        return type(start)(**{name: _placed(value, like) for name, value in stored["server"].items()})


def expected(answers: Iterable[Answer], stamp: Stamp, invited: Sequence[int]) -> Iterator[Answer]:
    """Yield the answers that count, and warn of all others, which a network may bring.

    Args:
        answers: As they come in.
        stamp: Round and phase of the request.
        invited: The clients that were asked; each may answer once.
    """
    awaited = set(invited)
    for answer in answers:
        if answer.stamp != stamp:
            why = f"it answers phase {answer.stamp.phase + 1} of round {answer.stamp.round + 1}"
        elif awaited.issuperset(answer.client_ids):
            awaited.difference_update(answer.client_ids)
            yield answer
            del answer  # the next clients may need the memory
            continue
        else:
            why = "it came twice" if set(invited).issuperset(answer.client_ids) else "the client was not invited"
        warnings.warn(
            f"Round {stamp.round + 1}, phase {stamp.phase + 1}: an answer of client {answer.client_ids[0]} was "
            f"discarded, because {why}.",
            RuntimeWarning,
            stacklevel=2,
        )


def in_order(answers: Iterable[Answer], invited: Sequence[int]) -> Iterator[Answer]:
    """Yield answers in the order of the invitations, so that their sums have the same bits whoever was first.

    An answer waits for the clients invited before it, or for the end of the phase. Where answers come in this order, as
    they do in one process, none waits.

    Args:
        answers: As they come in, each of clients that were invited one after the other.
        invited: The invited clients in their order.
    """
    places = {client: place for place, client in enumerate(invited)}
    waiting: list[tuple[int, int, Answer]] = []
    following = 0
    order = count()
    for answer in answers:
        heappush(waiting, (places.get(answer.client_ids[0], len(places)), next(order), answer))
        del answer  # the next clients may need the memory
        while waiting and waiting[0][0] == following:
            following += len(waiting[0][2].client_ids)
            yield heappop(waiting)[2]
    while waiting:
        yield heappop(waiting)[2]


def _placed(value: Any, like: Tensor) -> Any:
    """Return a field of a stored state on the device and in the precision of ``like``."""
    if not isinstance(value, Tensor):
        return value
    return value.to(like.device, like.dtype if value.is_floating_point() else None)
