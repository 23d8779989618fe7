"""What the answer of a client must look like, worked out on the server without any data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Phase
from fedlightning.channel.channel import Channels
from fedlightning.core.errors import UsageError
from fedlightning.federation.channels.passage import Passage
from fedlightning.federation.client_states import ClientStates
from fedlightning.federation.clients.client_update import for_clients
from fedlightning.federation.protocol import Answer, Request
from fedlightning.federation.validation import tensors_of
from fedlightning.oracle import GradientOracle
from fedlightning.oracle.base import Blocks, Evaluation
from fedlightning.oracle.minibatch import Minibatch
from fedlightning.oracle.randomness import Randomness


@dataclass(frozen=True)
class Expectation:
    """Describes the answer of one client.

    Attributes:
        update: An update of the right class, names, shapes and dtypes, ``[1, ...]``; None if nothing is sent.
        buffers: Averaged buffers of the right shape and dtype, ``[1, b]``.
        metrics: Names of the values that the algorithm logs, and of the drift.
        per_client: Names of those that are logged for every client.
        reports: What is reported for a channel, and the only finite values that it may have, by name; None for the
            values of what may have any. None without a channel.
        bound: Largest norm of an update that has passed the channel; None if nothing bounds it.
        whole: Which averaged buffers pass by the channel, ``[b]``; None if none does.
    """

    update: Any
    buffers: Tensor
    metrics: frozenset[str]
    per_client: tuple[str, ...]
    reports: Mapping[str, Sequence[float] | None] | None = None
    bound: float | None = None
    whole: Tensor | None = None


class Expectations:
    """Lets the algorithm compute the update of an imaginary client, whose objective is ``|w|^2 / 2``.

    Shapes and dtypes of an update do not depend on data, so this is what every client's update has.
    """

    def __init__(
        self,
        algorithm: Callable[[], Algorithm],
        num_personal: int,
        channels: Channels | None = None,
        whole: Callable[[], Tensor | None] = lambda: None,
    ) -> None:
        """Work for an algorithm.

        Args:
            algorithm: Returns the server's algorithm, bound, with the hyper-parameters of the present round.
            num_personal: Length p of a client's personal block; 0 if there is none.
            channels: What happens to updates on their way; None for nothing.
            whole: Returns which averaged buffers are whole numbers, ``[b]``, and pass by the channel; None if none is.
        """
        self._whole = whole
        self._algorithm = algorithm
        self._num_personal = num_personal
        self._channels = channels

    def of(self, request: Request) -> Expectation:
        """Return what the answer to a request looks like.

        Raises:
            UsageError: If the algorithm cannot compute an update without data.
        """
        algorithm = self._algorithm()
        phase = algorithm.phases[request.stamp.phase]
        personal = request.point.new_zeros(1, self._num_personal) if self._num_personal else None
        oracle = GradientOracle(
            _Imaginary(phase, request.point), _evaluate, request.buffers[None], personal, _evaluate, seeds=[0]
        )
        oracle.steps_together = 0
        message = None if request.message is None else for_clients(request.message, [0])
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                reply = phase.client_update(message, _start(algorithm, request.point), oracle)
        except Exception as error:
            raise UsageError(
                f"What clients of {type(algorithm).__name__} send cannot be told without data "
                f"({type(error).__name__}: {error}), so answers from other machines could not be checked. Write "
                "client_update with the oracle's operators alone, without looking at batches."
            ) from error
        metrics = {*reply.log} | ({"drift"} if reply.point is not None else set())
        expected = Expectation(reply.update, request.buffers[None], frozenset(metrics), tuple(reply.log))
        whole = self._whole()
        passage = Passage.through(self._channels, algorithm, request, whole)
        if passage is None:
            return expected
        answer = Answer(request.stamp, [0], reply.update, torch.zeros_like(request.buffers)[None])
        sent, _ = passage.send(answer, ClientStates({}, 1))
        bound, allowed = passage.bound(answer), passage.reported()
        reports = {name: allowed.get(name) for name in sent.reports}
        return replace(expected, update=sent.update, buffers=sent.buffers, reports=reports, bound=bound, whole=whole)


class _Imaginary:
    """Stands for the data of one client with a single local step."""

    def __init__(self, phase: Phase, like: Tensor) -> None:
        self._count = phase.draws
        self.steps = like.new_full((1,), float(phase.draws))

    def __len__(self) -> int:
        return 1

    def minibatches(self) -> Iterator[Minibatch]:
        for _ in range(self._count):
            yield Minibatch.of(None)

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        yield torch.arange(1, device=self.steps.device), None


def _evaluate(
    w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
) -> Evaluation:
    """Return the gradients of ``(|w|^2 + |v|^2) / 2``."""
    g = w.new_empty(len(w), 0) if blocks == "personal" else w.clone()
    g_personal = v.new_empty(len(v), 0) if blocks == "shared" else v.clone()
    return Evaluation(g, g_personal, b, (w * w).sum(1) / 2)


def _start(algorithm: Algorithm, z: Tensor) -> Any:
    """Return the state of one client before its first round, fields ``[1, ...]``."""
    state = algorithm.init_client(z.clone())
    if state is None:
        return None
    return type(state)(**{name: value[None].clone() for name, value in tensors_of(state).items()})
