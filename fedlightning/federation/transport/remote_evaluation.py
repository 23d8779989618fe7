"""Evaluation of clients at nodes: the server asks, nodes measure, and metrics come back."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest
from fedlightning.federation.remote.carrier import Carrier
from fedlightning.federation.remote.checks import AnswerChecks
from fedlightning.federation.remote.enrolment import Directory
from fedlightning.federation.remote.evaluation_codec import decode_evaluation, encode_evaluate
from fedlightning.federation.remote.exchange import Exchange
from fedlightning.federation.remote.ledger import Ledger
from fedlightning.federation.remote.packet import PacketError
from fedlightning.federation.remote.silence import NodeError, Silence
from fedlightning.federation.remote.standing import Asked

_STAGES = {"val": "Validation", "test": "Test"}
_RESERVED = {"step", "epoch"}


class RemoteEvaluation:
    """Asks nodes for metrics of their clients' models, and says of which clients there are none."""

    def __init__(
        self,
        carrier: Carrier,
        directory: Directory,
        ledger: Ledger,
        seconds: float,
        tolerance: int,
        run: str = "",
        checks: AnswerChecks | None = None,
    ) -> None:
        """Take what an evaluation needs.

        Args:
            carrier: Carries packets.
            directory: Which node holds which clients.
            ledger: From which state each client answers.
            seconds: How long the server waits for nodes, above 0.
            tolerance: Evaluations in a row that may fail at a node, at least 1, with the last of which the run stops.
            run: Name of the run, which alone nodes answer; empty if they have their task without any.
            checks: How large numbers may be.
        """
        self._directory = directory
        self._ledger = ledger
        self._run = run
        self._checks = AnswerChecks() if checks is None else checks
        self._seconds = seconds
        self._exchange = Exchange(carrier, directory, Silence(tolerance))
        self._missing: list[int] = []

    def answers(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients measure of their models where their data and states lie; wrong answers are left out.

        Args:
            request: What is measured, of which models.
            client_ids: The clients asked.

        Raises:
            NodeError: If the programs of all nodes fail, or that of one node too often in a row.
        """
        where = _STAGES.get(request.stage, request.stage)
        if self._directory.nodes:
            self._directory.look_for_nodes()
        else:
            self._directory.complete()
        asked, packets = self._directory.by_node(client_ids), {}
        for node, own in asked.items():
            standings = tuple(self._ledger.standing(client) for client in own)
            packets[node] = encode_evaluate(Asked(self._ledger.federation, request, standings, self._run))
        taken: dict[int, list[EvaluationAnswer]] = {}
        for node, packet in self._exchange.answers(packets, request.stage, where, self._seconds):
            try:
                answers = decode_evaluation(packet)
            except PacketError as error:
                self._leave_out(where, node, str(error))
                continue
            if why := self._objection(answers, asked[node]):
                self._leave_out(where, node, why)
                continue
            taken[node] = answers
        faults = self._exchange.faults
        if faults and len(faults) == len(asked):
            node, why = next(iter(faults.items()))
            raise NodeError(f"{where}: no node could measure; at {self._directory.name(node)}: {why}")
        for node, name in _odd(taken).items():
            self._leave_out(where, node, f"its {name[:80]!r} is not made of what those of most clients are made of.")
            del taken[node]
        heard = {client for node in taken for client in asked[node]}
        self._name_missing(where, [client for client in client_ids if client not in heard], len(client_ids))
        for answers in taken.values():
            yield from answers

    def _name_missing(self, where: str, clients: list[int], asked: int) -> None:
        """Warn of the clients whose nodes did not answer, whenever these are others than the last time."""
        if clients and clients != self._missing:
            shown = ", ".join(map(str, clients[:10])) + (", ..." if len(clients) > 10 else "")
            warnings.warn(
                f"{where}: the metrics are without {len(clients)} of {asked} clients, of whose nodes there is no "
                f"answer: {shown}.",
                RuntimeWarning,
                stacklevel=2,
            )
        self._missing = clients

    def _leave_out(self, where: str, node: int, why: str) -> None:
        name = self._directory.name(node)
        warnings.warn(f"{where}: an answer of {name} was left out: {why}", RuntimeWarning, stacklevel=2)

    def _objection(self, answers: Sequence[EvaluationAnswer], asked: Sequence[int]) -> str:
        """Return what is wrong with the answers of a node, of which clients were asked; empty if nothing is."""
        values = _metrics(answers)
        counts = Counter((name, client) for name, each in values for client in each.client_ids)
        if odd := next((name for (name, _), count in counts.items() if count > 1), None):
            return f"it has two values of {odd[:80]!r} for one client."
        for name, each in values:
            if not set(each.client_ids) <= set(asked):
                return "it is of clients of other nodes."
            if name in _RESERVED:
                return f"it has a metric of the name {name!r}, which is the server's."
            if not (each.samples.isfinite() & (each.samples > 0)).all():
                return f"it has {name[:80]!r} over {each.samples.tolist()} samples."
            tensors = {name[:80]: each.values, "its samples": each.samples, **each.sums}
            if why := next(self._checks.too_large(tensors), None):
                return f"{why}."
        return ""


def _odd(answers: Mapping[int, Sequence[EvaluationAnswer]]) -> dict[int, str]:
    """Return the nodes with a metric that cannot be joined with that of most clients, and the metric's name."""
    kinds: dict[str, Counter[Any]] = {}
    for node in sorted(answers):
        for name, values in _metrics(answers[node]):
            kinds.setdefault(name, Counter())[_kind(values)] += len(values.client_ids)
    usual = {name: counts.most_common(1)[0][0] for name, counts in kinds.items()}
    found = {
        node: next((name for name, values in _metrics(own) if _kind(values) != usual[name]), None)
        for node, own in answers.items()
    }
    return {node: name for node, name in found.items() if name is not None}


def _kind(values: ClientValues) -> Any:
    """Return what the values of clients must agree in to be joined."""
    sums = {(name, each.dtype, each.shape[1:]) for name, each in values.sums.items()}
    return values.metric, frozenset(sums), values.nan_is_undefined


def _metrics(answers: Sequence[EvaluationAnswer]) -> list[tuple[str, ClientValues]]:
    return [each for answer in answers for each in answer.metrics.items()]
