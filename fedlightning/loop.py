"""The round loop: phases, cohorts, uploads, client states. Independent of Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedlightning.aggregation import WeightedMean, finite_clients
from fedlightning.algorithms.base import Algorithm, Phase, Reply
from fedlightning.clients import ClientStates, Rows, Storage
from fedlightning.config import UntrustedClassError, class_path, from_config, to_config
from fedlightning.data.cohort import Chunk, Cohort, RoundBatch
from fedlightning.nested import map_tensors
from fedlightning.oracle import (
    Auto,
    Autocast,
    BatchedError,
    CohortOracle,
    Cost,
    Objective,
    ObjectiveError,
    Oracle,
    Sequential,
    Vectorized,
)
from fedlightning.oracle.auto import limited
from fedlightning.oracle.check import STEPS, Sample, SelfCheck, fastest_that_agrees, in_words, ladder
from fedlightning.oracle.look import Look
from fedlightning.oracle.randomness import python_generators_restored, python_state
from fedlightning.oracle.side_effects import released, undone
from fedlightning.processes import OneProcess, Processes
from fedlightning.proximal import Composite
from fedlightning.resume import Dependencies
from fedlightning.seeding import derive_seed
from fedlightning.space import ParameterSpace, read
from fedlightning.variants import VariantChoice

Weighting = Literal["uniform", "samples"]
Buffers = Literal["average", "local"]
When = Literal["first", "off"] | int
"""In which rounds the oracle is checked: the first of a fit, none, or the first and every n-th."""


class RoundRejectedError(RuntimeError):
    """No client of a cohort returned finite numbers; all states are those before the round."""


@dataclass(frozen=True)
class RoundResult:
    """What a round did.

    Attributes:
        metrics: Values to log, means over the cohort.
        clients: What the algorithm logs of every client of the cohort, ``[S]`` each: those this process computed.
        undone: Whether the server's state is that before the round.
        overflow: Whether that is because 16-bit gradients overflowed; otherwise too few clients answered.
    """

    metrics: Mapping[str, Tensor | float]
    clients: Mapping[str, Tensor] = field(default_factory=dict)
    undone: bool = False
    overflow: bool = False


@dataclass
class _Outcome:
    """What a cohort returned in one phase, as far as its chunks have been computed."""

    uploads: WeightedMean = field(default_factory=WeightedMean)
    logs: WeightedMean = field(default_factory=WeightedMean)
    tallies: WeightedMean = field(default_factory=WeightedMean)
    replies: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: list[tuple[str, list[int], Rows]] = field(default_factory=list)
    up: Any = None
    floats_up: int = 0
    asked: int = 0
    left_out: list[int] = field(default_factory=list)
    overflow: bool = False


@dataclass
class Kind:
    """What depends on the variant of clients' personal parts; without variants all clients are of one kind.

    Attributes:
        space: Parameters by block; the shared ones are the same for all kinds.
        algorithm: Bound to them.
        personal: Personal block of the start, ``[p]``.
        buffers: Buffers of the start, ``[b]``, once the objective was seen.
        objective: Evaluates the task, from the first round of such a client on.
        alone: Why clients must be computed one by one, if they must.
    """

    space: ParameterSpace
    algorithm: Algorithm
    personal: Tensor
    buffers: Tensor | None = None
    objective: Objective | None = None
    alone: str | None = None


class RoundLoop:
    """Carries out communication rounds of one algorithm on one task.

    Attributes:
        algorithm: Bound to the task's parameters.
        space: The task's parameters by block.
        server: The algorithm's server state.
        buffers: The server's values of the buffers the objective changes, ``[b]``.
        oracle: How operators are computed; in the first round a fixed choice replaces an open one.
        upload: Floats sent from clients to the server since the start, all clients together.
        download: Floats sent from the server to clients.
        settled: Whether the states are those before a round; the task sets it once it has followed a round. A
            checkpoint written in between would repeat the round from the states after it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: nn.Module,
        space: ParameterSpace,
        oracle: Oracle,
        weighting: Weighting = "uniform",
        buffers: Buffers = "average",
        storage: Storage | None = None,
        processes: Processes | None = None,
        psi: Composite | None = None,
        report: Callable[[str], None] = lambda _: None,
        drift_parameters: Sequence[str] = (),
        self_check: When = "first",
    ) -> None:
        """Begin at the task's present parameters.

        Args:
            algorithm: What clients and server do.
            task: A module with ``objective(batch)``.
            space: Its parameters by block.
            oracle: How operators are computed.
            weighting: Clients count alike, or by their numbers of samples.
            buffers: What becomes of buffers the objective changes (BatchNorm's statistics): averaged like parameters,
                but for those of personal layers, or all kept by each client (FedBN).
            storage: Where client states lie.
            processes: Processes that share the cohorts.
            psi: Regularisers of the shared parameters.
            report: Receives messages for the user.
            drift_parameters: Name prefixes of the shared parameters whose drift is logged; of all if empty.
            self_check: When the oracle is compared with evaluation client by client.
        """
        self.space = space
        self.oracle = oracle
        self.upload = 0
        self.download = 0
        self._task = task
        self._weighting = weighting
        self._buffer_policy = buffers
        self._storage = storage
        self._processes = OneProcess() if processes is None else processes
        self._report = report
        self._self_check = self_check
        self._ladder: list[Oracle] = [oracle]
        start = read(space.shared, task)
        start = start.to(torch.promote_types(start.dtype, torch.float32))  # duals of a 16-bit model stay exact
        self._start = start
        self._psi = psi
        self._unbound = algorithm
        self._autocast = Autocast(start.device.type)
        self._choice = VariantChoice(task)
        self._variants: list[str] = []
        self._kinds: dict[str, Kind] = {}
        self._changed: tuple[str, ...] | None = None
        self._buffers_by_kind = bool(self._choice) and buffers == "local"
        if self._buffers_by_kind and not isinstance(self._processes, OneProcess):
            raise ValueError("buffers='local' with Variants runs in one process only: use one device.")
        first = self.kind(self._choice.first)
        self.space, self.algorithm = first.space, first.algorithm
        self.server = self.algorithm.init_server(start.clone())
        self._client_state = self.algorithm.init_client(start.clone())
        self.buffers = start.new_empty(0)
        self._travels = torch.empty(0, dtype=torch.long, device=start.device)  # places of the buffers that are averaged
        drifting = space.shared.columns(drift_parameters, "drift_parameters") if drift_parameters else None
        self._drifting = None if drifting is None else drifting.to(start.device)
        self._cost: Cost | None = None
        self._clients: ClientStates | None = None
        self._own: dict[str, ClientStates] = {}
        self._named: set[int] = set()  # clients that a warning has named
        self.settled = True

    @property
    def point(self) -> Tensor:
        """The global model ``[d]``."""
        return self.algorithm.point(self.server)

    @property
    def clients(self) -> ClientStates:
        """All client states: the algorithm's; personal blocks and local buffers too, if all have the same shape."""
        if self._clients is None:
            raise RuntimeError("Client states exist from the first round on.")
        return self._clients

    @property
    def has_clients(self) -> bool:
        """Whether client states exist yet."""
        return self._clients is not None

    def move_to(self, z: Tensor) -> None:
        """Put the server at ``z [d]``, where a server optimizer took the global model."""
        self.server = self.algorithm.with_point(self.server, z)

    def client_state(self, rows: Rows) -> Any:
        """Stored rows as the algorithm's client state; None for a stateless algorithm."""
        if self._client_state is None:
            return None
        return type(self._client_state)(**{name: rows[_STATE + name] for name in _tensors(self._client_state)})

    def kind(self, variant: str) -> Kind:
        """What depends on the variant."""
        if variant not in self._kinds:
            with self._choice.chosen(variant):
                space = self.space.at_hand(self._task) if self._choice else self.space
                self._kinds[variant] = Kind(
                    space,
                    self._unbound.bind(space, self._start, self._psi),
                    read(space.personal, self._task, like=self._start),
                )
            if self._changed is not None and not self._buffers_by_kind:
                space.restrict_buffers(self._changed)
        return self._kinds[variant]

    def models(self, clients: Sequence[int], own: bool = True) -> tuple[Tensor, Tensor, Tensor | None]:
        """Shared parameters ``[S, d]``, personal blocks ``[S, p]`` and buffers ``[S, b]`` of clients' models.

        Args:
            clients: Clients of one variant.
            own: Their own models; else the global one, beside their personal blocks and local buffers.

        Returns:
            The three; None for buffers that are still the task's own.
        """
        variant = self._choice.of(clients[0])
        point, personal, buffers = self.start(variant)
        point, personal = (t.expand(len(clients), -1) for t in (point, personal))
        if self._clients is None:  # before the first round all stand at the start
            return point, personal, None
        stored = self._rows(variant, clients)
        points = self.algorithm.own_point(self.server, self.client_state(stored)) if own else None
        if points is not None:  # who never took part has no model beside the global one
            point = torch.where(self._clients.has_seen(clients).to(points.device)[:, None], points, point)
        return (
            point,
            stored.get(_PERSONAL, personal),
            None if buffers is None else self._with_own(buffers.expand(len(clients), -1), stored),
        )

    def start(self, variant: str) -> tuple[Tensor, Tensor, Tensor | None]:
        """The global model ``[1, d]`` with a variant's personal block of the start, like :meth:`models`."""
        kind = self.kind(variant)
        if self._clients is None:
            return self.point[None], kind.personal[None], None
        personal = self._own.get(variant, self._clients).template.get(_PERSONAL, kind.personal)
        known = kind.buffers if self._buffers_by_kind else self.buffers
        return self.point[None], personal[None], None if known is None else known[None]

    @torch.no_grad()
    def run(self, batch: RoundBatch, autocast: Autocast, undo_overflow: bool = False) -> RoundResult:
        """One communication round.

        Args:
            batch: The round's cohorts, on the device.
            autocast: Mixed precision of the objective.
            undo_overflow: Leave every state as it was if any client returns a non-finite number (loss scaling).

        Raises:
            RoundRejectedError: If no client of a cohort returned finite numbers.
        """
        device = self.buffers.device
        sent = self.upload, self.download
        generators = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        with generators, python_generators_restored(), released(self._task):
            self._autocast = autocast
            for kind in self._kinds.values():
                if kind.objective is not None:
                    kind.objective.autocast = autocast
            if batch.cohorts[0]:
                self._get_ready(batch)
            before, drawn = (self.server, self.buffers), python_state()
            try:
                with limited(self.oracle.threads), self._constant_buffers():
                    result = self._phases(batch, undo_overflow)
                self.settled = False
            except BaseException:  # an interrupt in the middle of a round leaves the state before it
                self.server, self.buffers = before
                self.upload, self.download = sent
                raise
            if result.undone:
                self.server, self.buffers = before
            if isinstance(self.oracle, Vectorized) and python_state() != drawn:
                self.oracle = self._ladder[-1]
                self._report(
                    f"oracle: took {in_words(self.oracle, autocast.on_cpu)} from the next round on: the objective has "
                    "begun to draw random numbers from Python or NumPy, in this round the same for clients side by side"
                )
        return result if result.overflow else replace(result, metrics={**result.metrics, **self._traffic(sent)})

    @contextmanager
    def _constant_buffers(self) -> Iterator[None]:
        """Make sure that no client writes into a buffer that all share.

        Raises:
            ObjectiveError: If the objective has begun to write into a buffer that it did not write before.
        """
        tracked = {name for kind in self._kinds.values() for name in kind.space.buffers.names}
        held = {
            name: (id(buffer), buffer._version)
            for name, buffer in self._task.named_buffers()
            if name not in tracked and not buffer.is_inference()
        }
        yield
        for name, buffer in self._task.named_buffers():
            if name in held and held[name] != (id(buffer), buffer._version):
                raise ObjectiveError(
                    f"{type(self._task).__name__}.objective has begun to write into the buffer '{name}', which it left "
                    "alone in the first round, so that it counts as a constant of all clients. Write into it in every "
                    "call, from the first on (its own value, while nothing changes)."
                )

    def _phases(self, batch: RoundBatch, undo_overflow: bool) -> RoundResult:
        """The phases of a round, as far as clients answer and 16-bit gradients do not overflow."""
        metrics: dict[str, Tensor | float] = {}
        clients: dict[str, Tensor] = {}
        for number, (phase, cohort) in enumerate(zip(self.algorithm.phases, batch.cohorts, strict=True)):
            if not cohort:
                self._skip(batch.index, number, cohort)
                return RoundResult({"skipped": 1.0}, undone=True)
            outcome = self._ask(number, phase, cohort)
            if undo_overflow and self._total(outcome.overflow):
                return RoundResult(metrics, undone=True, overflow=True)
            metrics |= self._commit(phase, cohort, outcome)
            clients |= {name: torch.cat(values) for name, values in outcome.replies.items()}
        return RoundResult(metrics, clients)

    def _skip(self, index: int, number: int, cohort: Cohort) -> None:
        """Too few clients answered: nothing changes, but what was sent was sent."""
        phases = self.algorithm.phases
        which = f" in phase {number + 1} of {len(phases)}" if len(phases) > 1 else ""
        warnings.warn(
            f"Round {index} was skipped: of {cohort.invited} clients invited{which}, too few answered. "
            "Invite more, allow more retries, or lower at_least.",
            RuntimeWarning,
            stacklevel=2,
        )
        self.download += self._floats_down(phases[number].down(self.server)) * cohort.invited

    def _floats_down(self, message: Any) -> int:
        """Floats of a download: the message, and the buffers that travel with it."""
        return _floats(message) + len(self._travels)

    def _traffic(self, before: tuple[int, int]) -> dict[str, float]:
        """Floats and bytes sent so far and in this round, all clients together."""
        width = self.buffers.element_size()
        return {
            "upload": float(self.upload),
            "download": float(self.download),
            "upload_bytes": float(self.upload * width),
            "download_bytes": float(self.download * width),
            "round_upload": float(self.upload - before[0]),
            "round_download": float(self.download - before[1]),
            "round_upload_bytes": float((self.upload - before[0]) * width),
            "round_download_bytes": float((self.download - before[1]) * width),
        }

    def _ask(self, number: int, phase: Phase, cohort: Cohort) -> _Outcome:
        """Send the message of one of the phases to the cohort and collect the replies; no state changes."""
        assert self._cost is not None
        down, z = _copied(phase.down(self.server)), self.point
        calls = 1 if phase.data == "full" else cohort.steps()
        outcome = _Outcome()
        for chunk in cohort.chunks(self.oracle.chunk(self._cost)):
            with self._choice.chosen(chunk.variant):
                kind = self._seen(chunk)
                assert kind.objective is not None
                client = phase.client if kind.algorithm is self.algorithm else kind.algorithm.phases[number].client
                reply, oracle = self._answer(client, down, kind, chunk, cohort, calls, phase.data == "both")
            self._collect(outcome, chunk, reply, oracle, z)
        self.download += self._floats_down(down) * max(cohort.invited, self._total(outcome.asked))
        self.upload += self._total(outcome.floats_up)
        return outcome

    def _answer(
        self,
        client: Callable[[Any, Any, CohortOracle], Reply],
        down: Any,
        kind: Kind,
        chunk: Chunk,
        cohort: Cohort,
        calls: int,
        both: bool,
    ) -> tuple[Reply, CohortOracle]:
        """What a chunk's clients reply, by the next slower way if this one fails."""
        assert kind.objective is not None
        stored = self._rows(chunk.variant, chunk.ids)
        while True:
            oracle = CohortOracle(
                chunk,
                self.oracle.evaluator(kind.objective, calls),
                buffers=self._with_own(self.buffers.expand(len(chunk), -1), stored),
                personal=stored.get(_PERSONAL),
                generator=torch.Generator().manual_seed(derive_seed(cohort.seed, chunk.ids[0], 1)),
                evaluate_full=self.oracle.evaluator(kind.objective, 1) if both else None,
                seeds=[derive_seed(cohort.seed, client, 2) for client in chunk.ids],
                averaged=self._travels,
            )
            try:
                return client(down, self.client_state(stored), oracle), oracle
            except ObjectiveError as error:
                if self.oracle == self._ladder[-1] or not isinstance(error, BatchedError):
                    raise _of_client(error, kind.objective.name, chunk.ids) from error.__cause__
                self._give_way(str(error).splitlines()[0])

    def _give_way(self, why: str) -> None:
        """Go on with the next slower way; other processes follow before the next round."""
        on_cpu = self._autocast.on_cpu
        slower = self._ladder[self._ladder.index(self.oracle) + 1]
        self._report(f"oracle: took {in_words(slower, on_cpu)}: with {in_words(self.oracle, on_cpu)} {why}")
        self.oracle = slower

    def _collect(self, outcome: _Outcome, chunk: Chunk, reply: Reply, oracle: CohortOracle, z: Tensor) -> None:
        """Add one chunk's replies; clients that sent non-finite numbers are left out."""
        self._require_reply(reply, len(chunk))
        sent = {} if reply.up is None else _tensors(reply.up)
        if len(self._travels):
            sent[_BUFFERS] = (oracle.buffers - self.buffers)[:, self._travels]
        rows = self._changed_rows(reply, oracle)
        finite = finite_clients({**sent, **{f"row {name}": row for name, row in rows.items()}})
        weights = chunk.sizes if self._weighting == "samples" else torch.ones_like(chunk.sizes)
        counted = torch.ones_like(weights) if finite is None else finite.to(weights.dtype)
        outcome.uploads.add(sent, weights * counted)
        tally = {f"train_{name}": value for name, value in oracle.tally().items()}
        if tally:
            outcome.tallies.add(tally, counted * oracle.evaluated())
        logs = dict(reply.log)
        if reply.point is not None:
            moved = reply.point - z
            logs["drift"] = (moved if self._drifting is None else moved[:, self._drifting]).norm(dim=1)
        outcome.logs.add(logs, counted)
        for name, value in reply.log.items():
            outcome.replies.setdefault(name, []).append(value)
        kept = range(len(chunk)) if finite is None else finite.nonzero().flatten().tolist()
        rows = rows if finite is None else {name: row[finite] for name, row in rows.items()}
        outcome.rows.append((chunk.variant, [chunk.ids[i] for i in kept], rows))
        outcome.up = reply.up
        outcome.floats_up += sum(value.numel() for value in sent.values())
        outcome.asked += len(chunk)
        outcome.left_out += [] if finite is None else [chunk.ids[i] for i in (~finite).nonzero().flatten().tolist()]
        outcome.overflow |= finite is not None

    def _commit(self, phase: Phase, cohort: Cohort, outcome: _Outcome) -> dict[str, Tensor | float]:
        """Turn the replies into new server and client states."""
        asked = self._total(outcome.asked)
        for mean in (outcome.uploads, outcome.logs, outcome.tallies):
            mean.gather(self._processes, self.buffers.device)
        if outcome.uploads.weight == 0:
            raise RoundRejectedError(
                f"All {asked} clients of the cohort returned NaN or infinite numbers. "
                "The round was rejected: server and client states are those before it. "
                "Lower lr, clip gradients, or look at the clients' data."
            )
        self._name(outcome.left_out)
        total_weight = float(cohort.clients if self._weighting == "uniform" else cohort.samples)
        before = self.server
        after = phase.server(self.server, outcome.uploads.message(outcome.up, total_weight))
        self._require_state(before, after, phase)
        self.server = after
        if len(self._travels):
            self.buffers = self.buffers.index_add(0, self._travels, outcome.uploads.mean(_BUFFERS))
        self._write(phase, before, outcome.rows)
        answered = outcome.logs.weight
        return {**outcome.tallies.means(), **outcome.logs.means(), "clients": answered, "left_out": asked - answered}

    def _name(self, clients: list[int]) -> None:
        """Warn of clients that are left out of a mean: of every client once, of the first ten by name."""
        new = [client for client in dict.fromkeys(clients) if client not in self._named]
        shown = new[: max(0, _NAMED_CLIENTS - len(self._named))]
        self._named.update(new)
        if not shown:
            return
        rest = f" and {len(new) - len(shown)} others" if len(new) > len(shown) else ""
        last = "" if len(self._named) < _NAMED_CLIENTS else " Further clients are not named."
        warnings.warn(
            f"NaN or infinite numbers came from client {', '.join(map(str, shown))}{rest}: left out of the mean "
            "whenever they do; 'left_out' counts them. Look at their data, lower lr, or set local_clip."
            f"{last}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _require_reply(self, reply: Any, clients: int) -> None:
        """Make sure that what an algorithm's client function returned is a reply of so many clients.

        Raises:
            TypeError: If it is something else.
            ValueError: If a field has another length.
        """
        name = f"{type(self.algorithm).__name__}.client"
        if not isinstance(reply, Reply):
            raise TypeError(
                f"{name} returned a {type(reply).__name__}; expected "
                "Reply(up=message, rows=new client states or None, point=local points)."
            )
        for part, message in {"up": reply.up, "rows": reply.rows}.items():
            if message is None:
                continue
            if not is_dataclass(message) or isinstance(message, type):
                raise TypeError(
                    f"{name} returned Reply({part}={type(message).__name__}); expected an object of a frozen dataclass "
                    "of tensors [S, ...], e.g. fedlightning.algorithms.base.Point(w)."
                )
            for field_name, tensor in _tensors(message).items():
                if tensor.shape[:1] != (clients,):
                    raise ValueError(
                        f"{name} returned {part}.{field_name} of shape {list(tensor.shape)}; expected "
                        f"[{clients}, ...], one row for each of the S={clients} clients."
                    )

    def _require_state(self, before: Any, after: Any, phase: Phase) -> None:
        """Make sure that what an algorithm's server function returned is a state like the one before.

        Raises:
            TypeError: If it is of another class.
            ValueError: If a tensor has another shape.
        """
        name = f"{type(self.algorithm).__name__}.{getattr(phase.server, '__name__', 'server')}"
        if type(after) is not type(before):
            raise TypeError(
                f"{name} returned a {type(after).__name__}; expected a {type(before).__name__} as init_server does."
            )
        old, new = _tensors(before), _tensors(after)
        for field_name, tensor in new.items():
            if field_name in old and tensor.shape != old[field_name].shape:
                raise ValueError(
                    f"{name} returned {field_name} of shape {list(tensor.shape)}; expected "
                    f"{list(old[field_name].shape)} as before the round."
                )

    def _write(self, phase: Phase, server: Any, chunks: list[tuple[str, list[int], Rows]]) -> None:
        """Keep the new rows; those of the algorithm go to whom the phase routes them."""
        ids, rows = self._gathered(chunks, lambda name: not self._choice or name.startswith(_STATE))
        self.settled = self.settled and not rows and not self._choice
        if phase.route is None:
            self.clients.write(ids, rows)
        else:
            state = {name: row for name, row in rows.items() if name.startswith(_STATE)}
            self.clients.write(phase.route(server, ids), state)
            self.clients.write(ids, {name: row for name, row in rows.items() if name not in state})
        if self._choice:
            for variant in self._variants:
                own = [chunk for chunk in chunks if chunk[0] == variant]
                if not own and self._buffers_by_kind:
                    continue
                table = self._table(variant)
                if not own:  # its clients may be with other processes
                    own = [
                        (variant, [], {name: row.new_empty((0, *row.shape)) for name, row in table.template.items()})
                    ]
                table.write(*self._gathered(own, lambda name: not name.startswith(_STATE)))

    def _gathered(
        self, chunks: list[tuple[str, list[int], Rows]], kept: Callable[[str], bool]
    ) -> tuple[list[int], Rows]:
        """Some fields of the chunks' rows, of all processes."""
        ids = [client for _, own, _ in chunks for client in own]
        names = [name for name in chunks[0][2] if kept(name)]
        if not names:
            return [], {}
        return self._processes.gather_rows(
            ids, {name: torch.cat([rows[name] for _, _, rows in chunks]) for name in names}
        )

    def _table(self, variant: str) -> ClientStates:
        """Personal blocks and local buffers of a variant's clients, where clients differ."""
        if variant not in self._own:
            kind = self.kind(variant)
            self._own[variant] = ClientStates(
                self._own_template(kind, self.buffers if kind.buffers is None else kind.buffers),
                self.clients.clients,
                self._storage,
            )
        return self._own[variant]

    def _rows(self, variant: str, clients: Sequence[int]) -> Rows:
        """All rows of clients of a variant."""
        rows = self.clients.rows(clients)
        return rows | self._own[variant].rows(clients) if variant in self._own else rows

    def _changed_rows(self, reply: Reply, oracle: CohortOracle) -> Rows:
        rows: Rows = {} if reply.rows is None else {_STATE + name: t for name, t in _tensors(reply.rows).items()}
        if oracle.personal is not None:
            rows[_PERSONAL] = oracle.personal
        if oracle.buffers.shape[1] > len(self._travels):
            rows[_BUFFERS] = oracle.buffers
        return rows

    def _with_own(self, buffers: Tensor, stored: Rows) -> Tensor:
        """The server's ``buffers [S, b]``, with the clients' own where these stay with them."""
        if _BUFFERS not in stored:
            return buffers
        own = stored[_BUFFERS]
        return own.index_copy(1, self._travels, buffers[:, self._travels]) if len(self._travels) else own

    def _total(self, count: int) -> int:
        return int(self._processes.sum(torch.tensor(count, device=self.buffers.device)))

    def _get_ready(self, batch: RoundBatch) -> None:
        """Look at the objective in the first round; see to it that the oracle agrees with plain evaluation."""
        if self._cost is None:
            self._prepare(batch)
            self._ladder = ladder(self.oracle, self._autocast.on_cpu)
            return
        self.oracle = self._ladder[self._processes.largest(self._ladder.index(self.oracle))]
        if isinstance(self.oracle, Vectorized) and self._is_due(batch.index):
            turn = batch.index // int(self._self_check)
            chunk = batch.cohorts[0].apart(turn, self.oracle.chunk(self._cost))
            with self._choice.chosen(chunk.variant):
                kind = self._seen(chunk)
                kind.alone = self._look_at(kind, chunk).alone
                found = self.oracle  # of a kind that was not seen before, just checked
                self.oracle = self._agreed(
                    self._agreeing(kind, chunk, found) if isinstance(found, Vectorized) else found
                )

    def _is_due(self, index: int) -> bool:
        """Whether a round after the first is one to check the oracle in."""
        return isinstance(self._self_check, int) and index % self._self_check == 0

    def _prepare(self, batch: RoundBatch) -> None:
        """Look at the objective once: which buffers it changes, what it costs, how it is best computed."""
        cohort = batch.cohorts[0]
        if self._clients is not None and self._clients.clients != cohort.clients:
            raise ValueError(
                f"The checkpoint holds a federation of {self._clients.clients} clients, the data have "
                f"{cohort.clients}. Resume with the data it was trained on."
            )
        self._variants = sorted({self._choice.of(i) for i in range(cohort.clients)}) if self._choice else []
        chunk = cohort.preview(1)
        with self._choice.chosen(chunk.variant):
            kind, cost = self._look(chunk)
            if self._clients is None:
                self._clients = ClientStates(self._template(kind), cohort.clients, self._storage)
            if isinstance(self.oracle, Auto | Vectorized):
                self.oracle = self._chosen(kind, cost, cohort)
        self._cost = cost

    def _chosen(self, kind: Kind, cost: Cost, cohort: Cohort) -> Oracle:
        """A fixed oracle in place of an open one, the same in all processes, that agrees with plain evaluation."""
        assert kind.objective is not None
        wanted = self.oracle if isinstance(self.oracle, Vectorized) else Vectorized()
        size = -self._processes.largest(-wanted.chunk(cost))  # memory may differ between devices
        open_choice = isinstance(self.oracle, Auto)
        if open_choice:
            size = min(size, self._processes.largest(len(cohort)))
        fixed = replace(wanted, chunk_size=size)
        self._ladder = ladder(fixed, self._autocast.on_cpu)
        batched: Oracle = fixed
        if size > 1 or not open_choice:
            batched = self._agreed(self._agreeing(kind, cohort.apart(0, size), fixed))
        if not isinstance(self.oracle, Auto):
            return batched
        if self._self_check != "off" and self._processes.largest(kind.alone is not None):
            return self._ladder[-1]  # trials would change what the objective remembers
        try:
            with undone(self._task):
                trial = self.oracle.choose(
                    kind.objective,
                    cohort.steps(),
                    partial(self._arguments, kind, cohort),
                    batched if isinstance(batched, Vectorized) and size > 1 else None,
                )
        except ObjectiveError as error:
            ids = [deal.id for deal in cohort.deals]
            raise _of_client(error, kind.objective.name, ids) from error.__cause__
        if isinstance(batched, Vectorized):  # else a line has said what was taken, and why
            self._report(f"oracle: {trial.report}")
        return self._processes.agree(trial.oracle)

    def _agreeing(self, kind: Kind, chunk: Chunk, oracle: Vectorized) -> Oracle:
        """The oracle, or the fastest slower one that agrees with plain evaluation."""
        assert kind.objective is not None
        on_cpu = self._autocast.on_cpu
        found: Oracle = oracle
        why = None if self._self_check == "off" else kind.alone
        if why is not None:
            found = self._ladder[-1]
        elif self._self_check != "off":
            try:
                check = SelfCheck(kind.objective, self._sample(kind, chunk))
            except ObjectiveError as error:
                raise _of_client(error, kind.objective.name, chunk.ids) from error.__cause__
            hooked = kind.objective.hooks_tensors and not oracle.compile  # compiled, the whole gradient is below vmap
            begin = replace(oracle, backward="vmap") if hooked else oracle
            found, why = fastest_that_agrees(begin, on_cpu, check)
        if why is not None:
            self._report(f"oracle: took {in_words(found, on_cpu)}: {why}")
        return found

    def _agreed(self, oracle: Oracle) -> Oracle:
        """The slowest of the processes' ways; all processes ask."""
        agreed = self._ladder[self._processes.largest(self._ladder.index(oracle))]
        if agreed != oracle:
            self._report(f"oracle: took {in_words(agreed, self._autocast.on_cpu)}, as another process must")
        return agreed

    def _sample(self, kind: Kind, chunk: Chunk) -> Sample:
        """The first steps of the first and the last client of a chunk, or of the only one."""
        ends = sorted({0, len(chunk) - 1})
        places = torch.tensor(ends, device=self.buffers.device)
        data = [map_tensors(lambda leaf: leaf[places], batch.data) for batch in islice(chunk.minibatches(), STEPS)]
        return Sample(*self._points(kind, len(places)), data, [chunk.ids[place] for place in ends])

    def _seen(self, chunk: Chunk) -> Kind:
        """The kind of a chunk's clients, ready to compute with; its variant is at hand."""
        kind = self.kind(chunk.variant)
        if kind.objective is None:
            self._look(chunk)
            if isinstance(self.oracle, Vectorized):  # other processes follow before the next round
                self.oracle = self._agreeing(kind, chunk, self.oracle)
        if self._choice:
            self._table(chunk.variant)  # its rows begin here
        return kind

    def _look(self, chunk: Chunk) -> tuple[Kind, Cost]:
        """Evaluate the first client's first minibatch; its variant is at hand."""
        kind = self.kind(chunk.variant)
        space = kind.space.at_hand(self._task)
        objective = Objective(self._task, space, self._autocast)
        look = self._look_at(kind, chunk, objective)
        self._take_buffers(chunk.variant, kind, look.buffers)
        kind.objective = Objective(self._task, kind.space, self._autocast)
        kind.objective.changes_batch = look.changes_batch
        kind.objective.draws_in_python = look.draws_in_python
        kind.alone = look.alone
        kind.objective.hooks_tensors = look.hooks_tensors
        device = self.point.device
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        dim = len(self.point) + len(kind.personal)
        return kind, Cost(dim, self.point.element_size(), look.activation_bytes, free)

    def _look_at(self, kind: Kind, chunk: Chunk, objective: Objective | None = None) -> Look:
        """What the evaluation of a chunk's first client shows."""
        objective = kind.objective if objective is None else objective
        assert objective is not None
        data = map_tensors(lambda leaf: leaf[0], next(chunk.minibatches()).data)
        try:
            return Look.at(objective, self.point, kind.personal, data)
        except ObjectiveError as error:
            raise _of_client(error, objective.name, chunk.ids) from error.__cause__

    def _take_buffers(self, variant: str, kind: Kind, changed: tuple[str, ...]) -> None:
        """Keep the buffers the objective changes, and no others."""
        if self._buffers_by_kind:
            kind.space.restrict_buffers(changed)
            if kind.buffers is None:
                kind.buffers = read(kind.space.buffers, self._task, like=self.buffers)
            return
        varying = [name for name in changed for part in self._choice.names if name.startswith(f"{part}.")]
        if not varying and self._changed is not None:
            varying = sorted(set(changed) ^ set(self._changed))
        if varying:
            raise ValueError(
                f"Clients of variant '{variant}' change buffer '{varying[0]}', which other clients do not have or do "
                "not change, so it cannot be averaged. Set buffers to 'local', or use layers without running "
                "statistics (GroupNorm, LayerNorm)."
            )
        self._changed = changed
        for each in self._kinds.values():
            each.space.restrict_buffers(changed)
        if self._clients is None:
            self._set_buffers(kind.space, read(kind.space.buffers, self._task, like=self.buffers))

    def _set_buffers(self, space: ParameterSpace, values: Tensor) -> None:
        """The server's values of a space's buffers, and which of them are averaged."""
        self.buffers = values
        travels = torch.zeros(len(values), dtype=torch.bool) if self._buffer_policy == "local" else ~space.stay()
        self._travels = travels.nonzero().flatten().to(values.device)

    def _arguments(self, kind: Kind, cohort: Cohort, clients: int) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Builds arguments of an evaluator for ``clients`` clients.

        If too few of the cohort share the first client's architecture, the last of them is repeated.
        """
        chunk = cohort.preview(clients)
        places = torch.arange(clients, device=self.buffers.device).clamp(max=len(chunk) - 1)
        data = map_tensors(lambda leaf: leaf[places], next(chunk.minibatches()).data)
        return *self._points(kind, clients), data

    def _points(self, kind: Kind, clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """The present point, personal block and buffers, a copy for each of so many clients."""
        buffers = self.buffers if kind.buffers is None else kind.buffers
        point, personal, own = (vector.expand(clients, -1).clone() for vector in (self.point, kind.personal, buffers))
        return point, personal, own

    def _template(self, kind: Kind) -> Rows:
        """The rows all clients have."""
        rows = {} if self._client_state is None else _tensors(self._client_state)
        template = {_STATE + name: tensor for name, tensor in rows.items()}
        return template if self._choice else template | self._own_template(kind, self.buffers)

    def _own_template(self, kind: Kind, buffers: Tensor | None) -> Rows:
        """The rows that depend on the variant."""
        template = {_PERSONAL: kind.personal} if kind.space.personal.dim else {}
        if buffers is not None and len(buffers) > len(self._travels):
            template[_BUFFERS] = buffers
        return template

    def state_dict(self) -> dict[str, Any]:
        """All a later run needs to continue bit for bit, in plain types."""
        return {
            "server": {f.name: getattr(self.server, f.name) for f in fields(self.server)},
            "clients": None if self._clients is None else self._clients.state_dict(),
            "buffers": {"names": list(self.space.buffers.names), "values": self.buffers},
            "variants": {variant: self._variant_state(variant) for variant in self._own},
            "oracle": to_config(self.oracle),
            "depends_on": self._dependencies.values,
            "upload": self.upload,
            "download": self.download,
        }

    def _carried_over(self, server: Any, before: Algorithm, stored: Mapping[str, Any]) -> Any:
        """The server state of a run with other hyper-parameters, as it is with these."""
        mean = self.client_state(self.clients.mean()) if self._weighting == "uniform" else None
        carried = self.algorithm.carried_over(server, before, mean)
        if carried is None:
            raise self._dependencies.refusal(stored)
        then, now = self._dependencies.compared(stored)
        self._report(f"resumed with {now} in place of {then}: the server state was made to fit.")
        return carried

    @property
    def _dependencies(self) -> Dependencies:
        return Dependencies(self._unbound, self.algorithm, self._weighting)

    def _variant_state(self, variant: str) -> dict[str, Any]:
        kind = self.kind(variant)
        own = None if kind.buffers is None else {"names": list(kind.space.buffers.names), "values": kind.buffers}
        return {"clients": self._own[variant].state_dict(), "buffers": own}

    def _load_variants(self, states: Mapping[str, Any]) -> None:
        for variant, state in states.items():
            kind = self.kind(variant)
            if state["buffers"] is not None:
                kind.space.restrict_buffers(state["buffers"]["names"])
                kind.buffers = state["buffers"]["values"].to(self._start)
            self._table(variant).load_state_dict(state["clients"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict` of a loop of the same algorithm and task.

        Raises:
            ValueError: If a state's fields or shapes differ from this task's, or it was computed with other
                hyper-parameters and is worth nothing with these.
        """
        device = self.buffers.device
        computed_with = state.get("depends_on", {})
        before = self._dependencies.algorithm_of(
            computed_with, lambda given: given.bind(self.space, self._start, self._psi), self._start
        )
        start = self.server if before is self.algorithm else before.init_server(self._start.clone())
        expected = {f.name: getattr(start, f.name) for f in fields(start)}
        shapes = {name: _shape(value) for name, value in expected.items()}
        found = {name: _shape(value) for name, value in state["server"].items()}
        if shapes != found:
            raise ValueError(
                f"The checkpoint's server state has {found}, this task and algorithm have {shapes}. "
                "Resume with the model and algorithm it was trained with."
            )
        like = self.point.dtype
        server = type(start)(**{name: _to(value, device, like) for name, value in state["server"].items()})
        self.upload, self.download = state["upload"], state["download"]
        if state["clients"] is None:  # no round yet: nothing depends on anything
            self.server = server if before is self.algorithm else self.server
            return
        if not self._buffers_by_kind:
            self._changed = tuple(state["buffers"]["names"])
            self.space.restrict_buffers(self._changed)
            self._set_buffers(self.space, state["buffers"]["values"].to(device, like))
        self._clients = ClientStates(
            self._template(self.kind(self._choice.first)), state["clients"]["clients"], self._storage
        )
        self._clients.load_state_dict(state["clients"])
        self.server = server if before is self.algorithm else self._carried_over(server, before, computed_with)
        self._load_variants(state.get("variants", {}))
        stored = self._stored_oracle(state["oracle"])
        if isinstance(self.oracle, Auto) and isinstance(stored, Vectorized | Sequential):
            self.oracle = stored
        elif isinstance(self.oracle, Vectorized) and isinstance(stored, Vectorized) and self.oracle.chunk_size is None:
            self.oracle = replace(self.oracle, chunk_size=stored.chunk_size)

    def _stored_oracle(self, config: Mapping[str, Any]) -> Oracle:
        """The oracle of a checkpoint, one of this package; the user's own is as it was given to this run."""
        path = config.get("class_path")
        if path == class_path(type(self.oracle)) and not path.startswith(f"{__package__}."):
            return self.oracle
        if not str(path).startswith(f"{__package__}.oracle."):
            raise UntrustedClassError(
                f"federation.oracle names the class {path!r}, which a checkpoint may not choose; nothing of it was "
                "imported or run. If it is the oracle of your own that the run was made with, give it again: oracle=..."
            )
        stored = from_config(config, place="federation.oracle")
        if not isinstance(stored, Oracle):
            raise UntrustedClassError(f"federation.oracle is a {type(stored).__name__}, expected an oracle.")
        return stored


def _of_client(error: ObjectiveError, name: str, ids: Sequence[int]) -> ObjectiveError:
    """The error of an objective, with the client it failed for."""
    if error.place is None:
        return error
    return ObjectiveError(f"{name}.objective failed for client {ids[error.place]}: {error}")


_NAMED_CLIENTS = 10
_STATE = "state."
_PERSONAL = "personal"
_BUFFERS = "buffers"


def _tensors(message: Any) -> dict[str, Tensor]:
    return {f.name: value for f in fields(message) if isinstance(value := getattr(message, f.name), Tensor)}


def _copied(message: Any) -> Any:
    """A message that its receivers may do with as they like; the server's state stays as it is."""
    if message is None:
        return None
    received = copy(message)
    for name, tensor in _tensors(message).items():
        object.__setattr__(received, name, tensor.clone())
    return received


def _floats(message: Any) -> int:
    return 0 if message is None else sum(tensor.numel() for tensor in _tensors(message).values())


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _to(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None)
