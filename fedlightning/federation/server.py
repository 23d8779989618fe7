"""The server half of a federation: what it broadcasts, and how answers become a new state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import FedlightningError
from fedlightning.federation.aggregation import CohortMean
from fedlightning.federation.processes import Processes
from fedlightning.federation.protocol import Answer, EvaluationRequest, Request, Roster, Stamp
from fedlightning.federation.traffic import Traffic, floats
from fedlightning.federation.validation import LeftOutWarnings, require_server_state

Weighting = Literal["uniform", "samples"]


class RoundRejectedError(FedlightningError, RuntimeError):
    """No client of a cohort returned finite numbers; all states are those before the round."""


@dataclass(frozen=True)
class Outcome:
    """What became of one phase.

    Attributes:
        accepted: Clients of this process whose answers count; they keep their new states.
        metrics: Values to log, means over the cohort.
        per_client: Values that are logged client by client, ``[S]`` each: those of this process.
        overflow: Whether some answers were not finite and the phase is to be repeated for that.
    """

    accepted: Mapping[int, Stamp]
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)
    per_client: Mapping[str, Tensor] = field(default_factory=dict)
    overflow: bool = False


class FederatedServer:
    """Holds what the server knows, and no data and no client state.

    Attributes:
        algorithm: Bound to the task's shared parameters.
        state: The algorithm's server state, a dataclass.
        buffers: Values of the buffers that are averaged, ``[b]``; None before the clients have said which there are.
        roster: The federation's clients; None before the first round of this run.
        traffic: Floats sent since the start.
    """

    def __init__(self, algorithm: Algorithm, start: Tensor, weighting: Weighting = "uniform") -> None:
        """Begin at a point.

        Args:
            algorithm: Bound to the task's shared parameters.
            start: The global model at the start, ``[d]``.
            weighting: Clients count alike, or by their numbers of samples.
        """
        self.algorithm = algorithm
        self.state = algorithm.init_server(start.clone())
        self.buffers: Tensor | None = None
        self.roster: Roster | None = None
        self.traffic = Traffic()
        self._by_samples = weighting == "samples"
        self._left_out = LeftOutWarnings()

    @property
    def point(self) -> Tensor:
        """The global model ``[d]``."""
        return self.algorithm.point(self.state)

    def join(self, roster: Roster) -> None:
        """Take note of who takes part."""
        if self.buffers is None:
            self.buffers = roster.start_buffers.to(self.point)
        self.roster = roster

    def move_to(self, z: Tensor) -> None:
        """Put the global model at ``z [d]``, where a server optimizer took it."""
        self.state = self.algorithm.with_point(self.state, z)

    def request(self, stamp: Stamp, seed: int) -> Request:
        """What is sent to every client of a cohort."""
        message = self.algorithm.phases[stamp.phase].broadcast(self.state)
        buffers = self.point.new_empty(0) if self.buffers is None else self.buffers
        return Request(stamp, seed, message, self.point, buffers)

    def evaluation_request(self, stage: str) -> EvaluationRequest:
        """Return what clients are sent to measure the present model, on their ``val`` or ``test`` data."""
        return EvaluationRequest(stage, self.point, self.buffers)

    def count_download(self, request: Request, contacted: int) -> None:
        """Count what was sent, to clients that answer and to those that do not."""
        self.traffic.download += (floats(request.message) + len(request.buffers)) * contacted

    def aggregate(
        self,
        request: Request,
        answers: Iterable[Answer],
        processes: Processes,
        contacted: int = 0,
        undo_overflow: bool = False,
    ) -> Outcome:
        """Turn the answers of a cohort into a new server state.

        Args:
            request: What the clients were asked.
            answers: Those of this process's clients, as they come in.
            processes: Have the others.
            contacted: Clients the request was sent to, at least those that answer.
            undo_overflow: Change nothing if any client returned a non-finite number (loss scaling).

        Raises:
            RoundRejectedError: If no client returned finite numbers.
        """
        assert self.roster is not None
        cohort = CohortMean(self.roster, self._by_samples)
        with closing(iter(answers)) as stream:  # type: ignore[type-var]
            for answer in stream:
                cohort.add(answer)
        cohort.gather(processes, self.point.device)
        self.count_download(request, max(contacted, cohort.answered))
        self.traffic.upload += cohort.floats
        if undo_overflow and not cohort.is_whole:
            return Outcome({}, overflow=True)
        if cohort.is_empty:
            raise RoundRejectedError(
                f"All {cohort.answered} clients of the cohort returned NaN or infinite numbers. "
                "The round was rejected: server and client states are those before it. "
                "Lower lr, clip gradients, or look at the clients' data."
            )
        self._left_out.warn(cohort.left_out)
        server_update = self.algorithm.phases[request.stamp.phase].server_update
        after = server_update(self.state, cohort.update())
        require_server_state(self.state, after, server_update, self.algorithm)
        self.state = after
        change = cohort.buffers()
        if change is not None:
            assert self.buffers is not None
            self.buffers = self.buffers + change
        accepted = dict.fromkeys(cohort.accepted, request.stamp)
        return Outcome(accepted, cohort.metrics(), cohort.per_client())

    def snapshot(self) -> tuple[Any, Tensor | None]:
        """What a round that is given up goes back to."""
        return self.state, self.buffers

    def restore(self, snapshot: tuple[Any, Tensor | None]) -> None:
        """Go back to a :meth:`snapshot`."""
        self.state, self.buffers = snapshot

    def state_dict(self) -> dict[str, Any]:
        """The server state in plain types."""
        state = {each.name: getattr(self.state, each.name) for each in fields(self.state)}
        return {"server": state, "upload": self.traffic.upload, "download": self.traffic.download}

    def load_state_dict(self, stored: Mapping[str, Any], start: Any) -> Any:
        """The server state of :meth:`state_dict`; it is not taken over yet.

        Args:
            stored: Of a run of the same algorithm and model.
            start: The state at the start of that run, which gives classes and shapes.

        Raises:
            ValueError: If fields or shapes differ.
        """
        expected = {each.name: getattr(start, each.name) for each in fields(start)}
        lengths = {each.name: each.metadata for each in fields(start)}
        shapes, found = _shapes(lengths, expected), _shapes(lengths, stored["server"])
        if shapes != found:
            raise ValueError(
                f"The checkpoint's server state has {found}, this task and algorithm have {shapes}. "
                "Resume with the model and algorithm it was trained with."
            )
        self.traffic = Traffic(stored["upload"], stored["download"])
        like = self.point
        return type(start)(**{name: _placed(value, like) for name, value in stored["server"].items()})


def _placed(value: Any, like: Tensor) -> Any:
    """A field of a stored state, on the device and in the precision of ``like``."""
    if not isinstance(value, Tensor):
        return value
    return value.to(like.device, like.dtype if value.is_floating_point() else None)


def _shapes(names: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """What must agree between two states: shapes of tensors, types of the rest.

    Args:
        names: The metadata of the state's fields, by name.
        values: The fields' values.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, Tensor):
            found[name] = type(value).__name__
        else:
            found[name] = ("any", *value.shape[1:]) if names.get(name, {}).get("any_length") else tuple(value.shape)
    return found
