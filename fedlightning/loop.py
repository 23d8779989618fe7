"""The round loop: phases, cohorts, uploads, client states. Independent of Lightning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from fedlightning.aggregation import WeightedMean, finite_clients
from fedlightning.algorithms.base import Algorithm, Phase, Reply
from fedlightning.clients import ClientStates, Rows, Storage
from fedlightning.config import UntrustedClassError, class_path, from_config, to_config
from fedlightning.data.cohort import Chunk, Cohort, RoundBatch
from fedlightning.nested import map_tensors
from fedlightning.oracle import Auto, Autocast, CohortOracle, Cost, Objective, Oracle, Sequential, Vectorized
from fedlightning.processes import OneProcess, Processes
from fedlightning.proximal import Composite
from fedlightning.seeding import derive_seed, seed_device
from fedlightning.space import ParameterSpace, read
from fedlightning.variants import VariantChoice

Weighting = Literal["uniform", "samples"]
Buffers = Literal["average", "local"]


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
    replies: dict[str, list[Tensor]] = field(default_factory=dict)
    rows: list[tuple[str, list[int], Rows]] = field(default_factory=list)
    up: Any = None
    floats_up: int = 0
    asked: int = 0
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
    """

    space: ParameterSpace
    algorithm: Algorithm
    personal: Tensor
    buffers: Tensor | None = None
    objective: Objective | None = None


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
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            self._autocast = autocast
            if self._cost is None and batch.cohorts[0]:
                self._prepare(batch)
            for kind in self._kinds.values():
                if kind.objective is not None:
                    kind.objective.autocast = autocast
            before = self.server, self.buffers
            try:
                result = self._phases(batch, undo_overflow)
                self.settled = False
            except BaseException:  # an interrupt in the middle of a round leaves the state before it
                self.server, self.buffers = before
                self.upload, self.download = sent
                raise
            if result.undone:
                self.server, self.buffers = before
        return result if result.overflow else replace(result, metrics={**result.metrics, **self._traffic(sent)})

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
        down, z = phase.down(self.server), self.point
        calls = 1 if phase.data == "full" else cohort.steps()
        outcome = _Outcome()
        for chunk in cohort.chunks(self.oracle.chunk(self._cost)):
            with self._choice.chosen(chunk.variant):
                kind = self._seen(chunk)
                assert kind.objective is not None
                seed_device(self.buffers.device, derive_seed(cohort.seed, chunk.ids[0]))  # run() restores the state
                stored = self._rows(chunk.variant, chunk.ids)
                oracle = CohortOracle(
                    chunk,
                    self.oracle.evaluator(kind.objective, calls),
                    buffers=self._with_own(self.buffers.expand(len(chunk), -1), stored),
                    personal=stored.get(_PERSONAL),
                    generator=torch.Generator().manual_seed(derive_seed(cohort.seed, chunk.ids[0], 1)),
                    evaluate_full=self.oracle.evaluator(kind.objective, 1) if phase.data == "both" else None,
                    seeds=[derive_seed(cohort.seed, client, 2) for client in chunk.ids],
                    averaged=self._travels,
                )
                client = phase.client if kind.algorithm is self.algorithm else kind.algorithm.phases[number].client
                reply = client(down, self.client_state(stored), oracle)
            self._collect(outcome, chunk, reply, oracle, z)
        self.download += self._floats_down(down) * max(cohort.invited, self._total(outcome.asked))
        self.upload += self._total(outcome.floats_up)
        return outcome

    def _collect(self, outcome: _Outcome, chunk: Chunk, reply: Reply, oracle: CohortOracle, z: Tensor) -> None:
        """Add one chunk's replies; clients that sent non-finite numbers are left out."""
        sent = {} if reply.up is None else _tensors(reply.up)
        if len(self._travels):
            sent[_BUFFERS] = (oracle.buffers - self.buffers)[:, self._travels]
        rows = self._changed_rows(reply, oracle)
        finite = finite_clients({**sent, **{f"row {name}": row for name, row in rows.items()}})
        weights = chunk.sizes if self._weighting == "samples" else torch.ones_like(chunk.sizes)
        counted = torch.ones_like(weights) if finite is None else finite.to(weights.dtype)
        outcome.uploads.add(sent, weights * counted)
        logs = {f"train_{name}": value for name, value in oracle.tally().items()} | dict(reply.log)
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
        outcome.overflow |= finite is not None

    def _commit(self, phase: Phase, cohort: Cohort, outcome: _Outcome) -> dict[str, Tensor | float]:
        """Turn the replies into new server and client states."""
        asked = self._total(outcome.asked)
        for mean in (outcome.uploads, outcome.logs):
            mean.gather(self._processes)
        if outcome.uploads.weight == 0:
            raise RoundRejectedError(
                f"All {asked} clients of the cohort returned NaN or infinite numbers. "
                "The round was rejected: server and client states are those before it. "
                "Lower lr, clip gradients, or look at the clients' data."
            )
        total_weight = float(cohort.clients if self._weighting == "uniform" else cohort.samples)
        before = self.server
        self.server = phase.server(self.server, outcome.uploads.message(outcome.up, total_weight))
        if len(self._travels):
            self.buffers = self.buffers.index_add(0, self._travels, outcome.uploads.mean(_BUFFERS))
        self._write(phase, before, outcome.rows)
        answered = outcome.logs.weight
        return {**outcome.logs.means(), "clients": answered, "left_out": asked - answered}

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
            assert kind.objective is not None
            if self._clients is None:
                self._clients = ClientStates(self._template(kind), cohort.clients, self._storage)
            calls = cohort.steps()
            if isinstance(self.oracle, Auto):
                load = partial(self._arguments, kind, cohort)
                trial = self.oracle.choose(kind.objective, cost, calls, load, len(cohort))
                self._report(f"oracle: {trial.report}")
                self.oracle = trial.oracle
            elif isinstance(self.oracle, Vectorized):
                self.oracle = replace(self.oracle, chunk_size=self.oracle.chunk(cost))
        self._cost = cost

    def _seen(self, chunk: Chunk) -> Kind:
        """The kind of a chunk's clients, ready to compute with; its variant is at hand."""
        kind = self.kind(chunk.variant)
        if kind.objective is None:
            self._look(chunk)
        if self._choice:
            self._table(chunk.variant)  # its rows begin here
        return kind

    def _look(self, chunk: Chunk) -> tuple[Kind, Cost]:
        """Evaluate the first client's first minibatch; its variant is at hand."""
        kind = self.kind(chunk.variant)
        space = kind.space.at_hand(self._task)
        objective = Objective(self._task, space, self._autocast)
        data = map_tensors(lambda leaf: leaf[0], next(chunk.minibatches()).data)
        before = {name: buffer.detach() for name, buffer in self._task.named_buffers()}
        saved: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        z = self.point
        personal = space.personal.views(kind.personal)
        shared = {name: view.detach().requires_grad_() for name, view in space.shared.views(z).items()}
        present = {name: before[name] for name in space.buffers.names}
        with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor), objective.autocast():
            _, _, after = objective(shared, personal, present, data)
        changed = [
            name for name, new in zip(space.buffers.names, after, strict=True) if not torch.equal(before[name], new)
        ]
        self._take_buffers(chunk.variant, kind, tuple(changed))
        kind.objective = Objective(self._task, kind.space, self._autocast)
        own = z.untyped_storage().data_ptr()
        activations = sum(size for pointer, size in saved.items() if pointer != own)
        free = torch.cuda.mem_get_info(z.device)[0] if z.device.type == "cuda" else None
        return kind, Cost(len(z) + len(kind.personal), z.element_size(), activations, free)

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
        """Of so many clients; if fewer are of the first one's kind, the last of these stands for the others."""
        chunk = cohort.preview(clients)
        batch = next(chunk.minibatches())
        places = torch.arange(clients, device=self.buffers.device).clamp(max=len(chunk) - 1)
        data = map_tensors(lambda leaf: leaf[places], batch.data)

        def rows(vector: Tensor) -> Tensor:
            return vector.expand(clients, -1).clone()

        buffers = self.buffers if kind.buffers is None else kind.buffers
        return rows(self.point), rows(kind.personal), rows(buffers), data

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
            "upload": self.upload,
            "download": self.download,
        }

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
            ValueError: If a state's fields or shapes differ from this task's.
        """
        device = self.buffers.device
        expected = {f.name: getattr(self.server, f.name) for f in fields(self.server)}
        shapes = {name: _shape(value) for name, value in expected.items()}
        found = {name: _shape(value) for name, value in state["server"].items()}
        if shapes != found:
            raise ValueError(
                f"The checkpoint's server state has {found}, this task and algorithm have {shapes}. "
                "Resume with the model and algorithm it was trained with."
            )
        like = self.point.dtype
        self.server = type(self.server)(**{name: _to(value, device, like) for name, value in state["server"].items()})
        self.upload, self.download = state["upload"], state["download"]
        if state["clients"] is None:
            return
        if not self._buffers_by_kind:
            self._changed = tuple(state["buffers"]["names"])
            self.space.restrict_buffers(self._changed)
            self._set_buffers(self.space, state["buffers"]["values"].to(device, like))
        self._clients = ClientStates(
            self._template(self.kind(self._choice.first)), state["clients"]["clients"], self._storage
        )
        self._clients.load_state_dict(state["clients"])
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


_STATE = "state."
_PERSONAL = "personal"
_BUFFERS = "buffers"


def _tensors(message: Any) -> dict[str, Tensor]:
    return {f.name: value for f in fields(message) if isinstance(value := getattr(message, f.name), Tensor)}


def _floats(message: Any) -> int:
    return 0 if message is None else sum(tensor.numel() for tensor in _tensors(message).values())


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def _to(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to(device, dtype if value.is_floating_point() else None)
