"""The client half of an algorithm, for clients of one architecture."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from fedlightning.algorithms.adaptation import AdaptsInUse
from fedlightning.algorithms.base import Phase, Reply
from fedlightning.algorithms.binding import in_round
from fedlightning.channel.channel import Channels
from fedlightning.core.modules import in_evaluation_mode
from fedlightning.core.parameter_space import read
from fedlightning.core.tree import map_tensors
from fedlightning.federation.buffers import are_whole
from fedlightning.federation.channels.passage import Passage
from fedlightning.federation.client_states import Before, StatesByField
from fedlightning.federation.clients.at_rest import AtRest
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.clients.client_update import Received, Updates
from fedlightning.federation.clients.independence import Independence
from fedlightning.federation.clients.oracle_selection import OracleSelection
from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.sampling.cohort import Chunk, Cohort
from fedlightning.oracle import (
    Autocast,
    ClientBatching,
    Cost,
    GradientOracle,
    Objective,
    ObjectiveError,
    Sequential,
    Vectorized,
)
from fedlightning.oracle.base import Evaluate
from fedlightning.oracle.effects.guard import Guard
from fedlightning.oracle.effects.look import Look
from fedlightning.oracle.threads import limited


class ClientGroup:
    """Does the work of clients of one architecture, many at a time.

    New client states are pending until the server has accepted the answer that belongs to them.

    Attributes:
        table: What the clients keep from one round to the next.
        objective: Evaluates the task.
        alone: Why clients must be computed one by one; None if they need not be.
        has_joined: Whether :meth:`join` has found out which buffers the objective changes.
    """

    def __init__(self, table: ClientTable, drift: Tensor | None = None, channels: Channels | None = None) -> None:
        """Start before the first round.

        Args:
            table: What the clients keep; its task has the objective.
            drift: Indices of the point's elements over which the drift is measured; None for all.
            channels: What happens to updates on their way; None for nothing.
        """
        self.table = table
        self.objective = Objective(table.task, table.space, Autocast(table.start_personal.device.type))
        self.alone: str | None = None
        self.has_joined = False
        self._rewritten, self._left = frozenset[str](), frozenset[str]()
        self._independence = Independence(table)
        self._full_calls: dict[int, int] = {}  # gradients on all data that a chunk last took, by phase
        self._drift, self._channels = drift, channels
        self._received, self._updates = Received(None), Updates(table)
        self._at_rest = AtRest(self.objective.name, table.space)
        self._pending: list[tuple[Stamp, list[int], StatesByField]] = []
        self._earlier: list[tuple[int, Before]] = []  # round, and clients before one of its phases, if not the last

    # ---- joining -----------------------------------------------------------------------------------------------------

    def use(self, autocast: Autocast) -> None:
        """Set the precision of all evaluations from now on."""
        self.objective.autocast = autocast

    def of_architecture(self, name: str) -> ClientGroup:
        """Return this group, which has clients of one architecture only."""
        return self

    @contextmanager
    def active(self, client: int) -> Iterator[ClientGroup]:
        """Yield this group, to which every client belongs."""
        yield self

    def join(self, chunk: Chunk, num_clients: int) -> tuple[Cost, float]:
        """Evaluate the objective for a chunk's first client, to find the buffers it changes, the cost and the loss.

        Args:
            chunk: Holds the client's data.
            num_clients: N.

        Returns:
            The cost of one client's gradient, and the client's loss.

        Raises:
            ObjectiveError: If the objective fails.
        """
        table, autocast = self.table, self.objective.autocast
        first = Objective(table.task, table.space.of_active(table.task), autocast)
        look = self._look(first, chunk)
        table.begin(look.buffers, num_clients)
        self.objective = Objective(table.task, table.space, autocast)
        self.objective.rest = first.rest
        self.objective.changes_batch = look.changes_batch
        self.objective.draws = look.draws
        self.objective.draws_in_python = look.draws_in_python
        self.objective.hooks_tensors = look.hooks_tensors
        self.alone = look.alone
        self.objective.keeps_values = bool(look.rewritten)
        self._rewritten, self._left = look.rewritten, look.left
        self.has_joined = True
        numbers = table.start_personal
        free = torch.cuda.mem_get_info(numbers.device)[0] if numbers.device.type == "cuda" else None
        dim = table.space.shared.dim + table.space.personal.dim
        return Cost(dim, numbers.element_size(), look.activation_bytes, free), look.loss

    def look_again(self, chunk: Chunk, request: Request) -> None:
        """Check whether the objective has begun to keep state in Python, and update :attr:`alone`."""
        self.alone = self._look(self.objective, chunk, request.point).alone

    # ---- training ----------------------------------------------------------------------------------------------------

    def answers(self, request: Request, cohort: Cohort, selection: OracleSelection) -> Iterator[Answer]:
        """Yield the answers of a cohort's clients, chunk by chunk; new client states are pending.

        Raises:
            ObjectiveError: If the objective fails for a client with every oracle.
        """
        if not self.has_joined and len(cohort):  # this process had no client in the first cohort
            self.join(cohort.preview(1), self.table.states.num_clients)
            selection.check_alone(self, cohort.preview(2), request)
        self.table.algorithm = in_round(self.table.algorithm, request.stamp.round)
        if isinstance(self.table.algorithm, AdaptsInUse):
            self.table.evaluating = in_evaluation_mode(self.table.task)
        phase = self.table.algorithm.phases[request.stamp.phase]
        whole = None if self._channels is None else are_whole(self.table, self.table.task)
        passage = Passage.through(self._channels, self.table.algorithm, request, whole)
        self._received = Received(request.message)
        self._independence.require(cohort, request, selection)
        evaluators = _Evaluators(self.objective, phase, cohort, self._full_calls.get(request.stamp.phase, 1))
        if isinstance(selection.oracle, Sequential):  # clients may differ, and some were looked at before
            self.objective.rest.forget()
        with limited(selection.oracle.threads_inside(self.objective)):
            for chunk in cohort.chunks(selection.chunk_size, selection.oracle.at_a_time):
                answers = self._answers_of(chunk, request, evaluators, selection)
                yield from answers if passage is None else passage.sent(answers, self.table.states, self._pending)
                self._at_rest.look(self.table.algorithm, self.objective.rest, chunk.ids, request.point)
        self._independence.tell(selection)

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Keep the pending states of clients whose answers the server has accepted, and drop all others.

        Args:
            accepted: Round and phase of each accepted answer, by client.

        Returns:
            Whether any client state has changed in a way that :meth:`undo` does not take back.
        """
        pending, self._pending = self._pending, []
        last = len(self.table.algorithm.phases) - 1
        present = max((stamp.round for stamp in (*accepted.values(), *(stamp for stamp, *_ in pending))), default=0)
        self._earlier = [(index, before) for index, before in self._earlier if index >= present]
        changed = False
        for stamp, ids, states in pending:
            kept = [place for place, client in enumerate(ids) if accepted.get(client) == stamp]
            if not kept:
                continue
            clients = [ids[place] for place in kept]
            if stamp.phase < last:
                self._earlier.append((stamp.round, self.table.states.before(clients)))
            whole = len(kept) == len(ids)
            own = states if whole else {name: values[kept] for name, values in states.items()}
            self.table.states.write(clients, own)
            changed |= stamp.phase == last
        return changed

    def undo(self, index: int) -> None:
        """Drop pending states, and put clients back to where they were before the phases of a round."""
        self._pending = []
        earlier, self._earlier = self._earlier, []
        for round_index, before in reversed(earlier):
            if round_index == index:
                self.table.states.restore(before)

    @contextmanager
    def errors_named(self, client_ids: Sequence[int]) -> Iterator[None]:
        """Add the client's id to an error of the objective, which knows only a place among ``client_ids``."""
        try:
            yield
        except ObjectiveError as error:
            raise error.named(self.objective.name, client_ids) from error.__cause__

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _look(self, objective: Objective, chunk: Chunk, point: Tensor | None = None) -> Look:
        """Evaluate the objective for a chunk's first client, by default at the task's present parameters."""
        data = map_tensors(lambda leaf: leaf[0], next(chunk.minibatches()).data)
        self._independence.show(data)
        at = read(self.table.space.shared, self.table.task, like=self.table.start_personal) if point is None else point
        with self.errors_named(chunk.ids):
            return Look.at(objective, at, self.table.start_personal, data)

    def _answers_of(
        self, chunk: Chunk, request: Request, evaluators: _Evaluators, selection: OracleSelection
    ) -> Iterator[Answer]:
        """Yield the answers of a chunk's clients, in parts if the chunk has become too large for the present oracle."""
        waiting = deque([chunk])
        while waiting:
            part = waiting.popleft()
            if len(part) > selection.chunk_size:
                waiting.extendleft(reversed(part.parts(selection.chunk_size)))
                continue
            answer = self._attempt(part, request, evaluators, selection)
            if answer is None:
                waiting.appendleft(part)
            else:
                yield answer
                del answer  # the next part may need the memory, which was short

    def _attempt(
        self, chunk: Chunk, request: Request, evaluators: _Evaluators, selection: OracleSelection
    ) -> Answer | None:
        """Return the answer of a chunk's clients; None if the attempt failed and another oracle was chosen.

        Nothing of a failed attempt is left after the return, because its error would hold all that filled the memory.
        """
        if isinstance(selection.oracle, Sequential):  # the last resort, whose clients may keep in Python what they like
            with self.errors_named(chunk.ids):
                reply, oracle = self._reply(request, chunk, evaluators, selection.oracle)
            selection.report_given_up(self.objective.autocast.on_cpu)
            return self._answer(request, chunk, reply, oracle)
        guard = evaluators.guard(self._rewritten, self._left, batched := isinstance(selection.oracle, Vectorized))
        try:
            with guard.without_what_others_left():
                reply, oracle = self._reply(request, chunk, evaluators, selection.oracle)
            why = guard.objection(batched)
            if why is None:
                selection.report_given_up(self.objective.autocast.on_cpu)
                return self._answer(request, chunk, reply, oracle)
            if batched:
                selection.leave_batching(self.objective.autocast.on_cpu, why)
            return None
        except ObjectiveError as error:
            if not selection.fall_back(error, len(chunk), self.objective.autocast.on_cpu):
                with suppress(ObjectiveError):
                    guard.restore()
                raise error.named(self.objective.name, chunk.ids) from error.__cause__
            guard.restore()
        except (RuntimeError, MemoryError) as error:  # memory may be short for points and states as well
            if not selection.fall_back(error, len(chunk), self.objective.autocast.on_cpu):
                raise
        return None

    def _reply(
        self, request: Request, chunk: Chunk, evaluators: _Evaluators, batching: ClientBatching
    ) -> tuple[Reply, GradientOracle]:
        """Compute the reply of a chunk's clients."""
        request = replace(request, message=self._received.message)
        reply, oracle = self._updates.of(request, chunk.ids, chunk, *evaluators.of(batching, len(chunk)))
        self._full_calls[request.stamp.phase] = oracle.full_calls
        return reply, oracle

    def _answer(self, request: Request, chunk: Chunk, reply: Reply, oracle: GradientOracle) -> Answer:
        """Turn a reply into an answer to the server; new client states stay here as pending."""
        states, sound = self.table.new_states(reply, oracle)
        tally = {f"train_{name}": value for name, value in oracle.tally.means().items()}
        point = reply.point
        drift = {} if point is None else {"drift": _distances(point, request.point, self._drift)}
        answer = Answer(
            request.stamp,
            chunk.ids,
            reply.update,
            self.table.buffers.changes(oracle.buffers, request.buffers),
            {**reply.log, **drift},
            tally,
            oracle.tally.counted(),
            per_client=tuple(reply.log),
            sound=sound,
        )
        if states:
            self._pending.append((request.stamp, chunk.ids, states))
        return answer


CACHED_COLUMNS, CACHED_NUMBERS = 2**18, 2**20
"""Numbers of one client, and of several, whose differences are made at once."""


def _distances(points: Tensor, reference: Tensor, columns: Tensor | None) -> Tensor:
    """Return the distance of each point ``[S, d]`` from a reference ``[d]``, over some columns; None for all.

    Many differences are made in blocks that fit into the caches.
    """
    if columns is not None:
        points, reference = points[:, columns], reference[columns]
    if points.numel() <= CACHED_COLUMNS:
        return torch.linalg.vector_norm(points - reference, dim=1)  # type: ignore[no-any-return]
    parts, found = reference.split(CACHED_COLUMNS), []
    for several in points.split(max(CACHED_NUMBERS // len(reference), 1)):
        pairs = zip(several.split(CACHED_COLUMNS, dim=1), parts, strict=True)
        norms = torch.stack([torch.linalg.vector_norm(point - part, dim=1) for point, part in pairs])
        found.append(norms[0] if len(norms) == 1 else torch.linalg.vector_norm(norms, dim=0))
    return torch.cat(found)


class _Evaluators:
    """Makes what evaluates the chunks of a phase once: what one chunk records, the following replay."""

    def __init__(self, objective: Objective, phase: Phase, cohort: Cohort, full_calls: int) -> None:
        self._objective = objective
        self._data = phase.data
        self._cohort, self._full_calls = cohort, full_calls
        self._batching: ClientBatching | None = None
        self._made: tuple[Evaluate, Evaluate | None]
        self._guard: Guard | None = None

    def of(self, batching: ClientBatching, together: int) -> tuple[Evaluate, Evaluate | None]:
        """Return what evaluates minibatches and, in a phase that wants both, all data.

        Args:
            batching: The present oracle.
            together: Number of clients of a chunk.
        """
        if batching != self._batching:
            all_data, minibatches = self._cohort.calls(together, self._full_calls), self._cohort.calls(together)
            evaluate = batching.evaluator(self._objective, all_data if self._data == "full" else minibatches)
            on_all_data = batching.evaluator(self._objective, all_data) if self._data == "both" else None
            self._batching, self._made = batching, (evaluate, on_all_data)
        return self._made

    def guard(self, rewritten: Collection[str], left: Collection[str], batched: bool) -> Guard:
        """Return what watches the next chunk. An accepted chunk of clients side by side has left all as it was.

        Args:
            rewritten: Attributes that every evaluation writes anew.
            left: Those of them that are another tensor after every evaluation.
            batched: Whether clients are evaluated side by side.
        """
        if self._guard is None or not batched:
            self._guard = Guard(self._objective, rewritten, left)
        else:
            self._guard.begin()
        return self._guard
