"""Which node holds which clients, found out before the first round and whenever nodes come or go."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

import fedlightning
from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import FedlightningError
from fedlightning.federation.protocol import Parameter, Roster
from fedlightning.federation.remote.carrier import Carrier
from fedlightning.federation.remote.failure import FAILURE, decode_failure
from fedlightning.federation.remote.message_types import type_name
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.roster_codec import ENROL, RUN, Enrolment, decode_enrolment

_LATE = 30.0
"""Seconds that a round waits for a node that comes back to say which clients it has."""

_MOST_SAMPLES = 2**40
"""Largest number of samples that a client may say it has; sums over clients stay exact."""


class EnrolmentError(FedlightningError, RuntimeError):
    """The nodes do not make up the federation that the server expects."""


class Directory:
    """Knows at which node each client of the federation is.

    Attributes:
        samples: Every client's number of samples, ``[N]``; those of a checkpoint count, also if a node is away.
        data: By what each client's data are recognised, for the clients that were there.
    """

    def __init__(
        self,
        carrier: Carrier,
        num_clients: int,
        algorithm: Algorithm,
        parameters: tuple[Parameter, ...],
        seconds: float,
        pause: float = 1.0,
        run: str = "",
        clock: Callable[[], float] = time.monotonic,
        channel: str = "",
    ) -> None:
        """Start without any node.

        Args:
            carrier: Reaches the nodes.
            num_clients: Number N of clients of the federation, at all nodes together.
            algorithm: The server's algorithm, which all nodes must run.
            parameters: The shared parameters of the server's task, which all nodes must have.
            seconds: How long to wait for all clients to be there, above 0.
            pause: Seconds between two looks for nodes.
            run: Description of the run, from which nodes build their task; empty if they have one already.
            clock: Tells the time in seconds.
            channel: Description of the channel that all nodes must have; empty for none.
        """
        self.samples = torch.zeros(num_clients, dtype=torch.long)
        self.data: dict[int, str] = {}
        self._carrier = carrier
        self._algorithm = type_name(type(algorithm))
        self._parameters = parameters
        self._channel = channel
        self._seconds = seconds
        self._pause = pause
        self._question = Packet(ENROL, {RUN: run} if run else {})
        self._clock = clock
        self._names: dict[int, str] = {}
        self._node_of: dict[int, int] = {}
        self._silences: dict[str, str] = {}
        self._known: set[int] = set()

    def resume(self, samples: Tensor, data: Mapping[int, str]) -> None:
        """Go on with the clients of a checkpoint, so that nodes may be away.

        Raises:
            EnrolmentError: If the checkpoint has another number of clients.
        """
        if len(samples) != len(self.samples):
            raise EnrolmentError(
                f"The checkpoint holds a federation of {len(samples)} clients, the server was started for "
                f"{len(self.samples)}. Give it the number that the federation began with."
            )
        self.samples, self.data = samples.clone(), dict(data)
        self._known = set(range(len(samples)))

    def complete(self) -> None:
        """Wait until every client is at some node; of those that a checkpoint knows all but one node's may be away.

        Raises:
            EnrolmentError: If nodes do not fit the federation, or clients are missing after the time.
        """
        end = self._clock() + self._seconds
        while True:
            self.look_for_nodes(begins=True)
            missing = [c for c in range(len(self.samples)) if c not in self._node_of and c not in self._known]
            if not missing and self._node_of:
                return
            if self._clock() >= end:
                missing = missing or [*range(len(self.samples))]
                raise EnrolmentError(
                    f"{len(missing)} of {len(self.samples)} clients are at no node after {self._seconds:g} seconds: "
                    f"{', '.join(map(str, missing[:10]))}. Start their nodes, or lower the number of clients. "
                    f"There are the nodes {', '.join(self._names.values()) or 'none'}."
                    + "".join(f" Node {name} did not enrol: {why}." for name, why in self._silences.items())
                )
            time.sleep(self._pause)

    def look_for_nodes(self, begins: bool = False) -> None:
        """Ask nodes that were not there before which clients they hold, if some client's node is unknown.

        Args:
            begins: Whether a node that does not fit the federation is an error; later it is left out with a warning.

        Raises:
            EnrolmentError: If a node does not fit the federation when this begins.
        """
        present = self._carrier.nodes()
        self._node_of = {client: node for client, node in self._node_of.items() if node in present}
        new = {node: self._question for node in present if node not in self._names or not self.clients_of(node)}
        self._names = {node: name for node, name in present.items() if node not in new}
        if not new or len(self._node_of) == len(self.samples):
            return
        seconds = self._seconds if begins else min(self._seconds, _LATE)
        for delivery in self._carrier.exchange(new, "enrol", seconds):
            name = present[delivery.node]
            if delivery.packet is None:
                self._begin_silence(name, delivery.silence.rstrip("."))
                continue
            self._silences.pop(name, None)
            try:
                self._enrol(delivery.node, name, delivery.packet)
            except EnrolmentError as error:
                if begins:
                    raise
                warnings.warn(f"{error} It takes no part.", RuntimeWarning, stacklevel=2)

    def by_node(self, client_ids: Sequence[int]) -> dict[int, list[int]]:
        """Return clients by their nodes; clients whose node is away are left out."""
        found: dict[int, list[int]] = {}
        for client in client_ids:
            if client in self._node_of:
                found.setdefault(self._node_of[client], []).append(client)
        return found

    @property
    def nodes(self) -> list[int]:
        """The ids of all nodes that hold clients."""
        return sorted(set(self._node_of.values()))

    @property
    def begins(self) -> bool:
        """Whether the federation begins now, so that every client has to be there; False after a checkpoint."""
        return not self._known

    def clients_of(self, node: int) -> list[int]:
        """Return the clients of a node, ascending."""
        return sorted(client for client, its in self._node_of.items() if its == node)

    def name(self, node: int) -> str:
        """Return a node's name with its clients, for messages."""
        clients = ", ".join(map(str, self.clients_of(node)))
        return f"node {self._names.get(node, node)} ({'client' if ',' not in clients else 'clients'} {clients})"

    def _begin_silence(self, name: str, why: str) -> None:
        """Warn of a node that does not enrol, once for each reason."""
        if self._silences.get(name) != why:
            self._silences[name] = why
            warnings.warn(f"Node {name} did not enrol: {why}. It is asked again.", RuntimeWarning, stacklevel=3)

    def _enrol(self, node: int, name: str, packet: Packet) -> None:
        try:
            if packet.kind == FAILURE:
                failure = decode_failure(packet)
                raise EnrolmentError(f"Node {name} cannot enrol: {failure.error}: {failure.text}")
            enrolment = decode_enrolment(packet)
        except PacketError as error:
            raise EnrolmentError(f"Node {name} cannot enrol: {error}") from error
        for problem in self._problems(enrolment):
            raise EnrolmentError(f"Node {name} does not fit the federation: {problem}")
        for client, samples, data in zip(enrolment.client_ids, enrolment.samples.tolist(), enrolment.data, strict=True):
            self._node_of[client] = node
            self.samples[client], self.data[client] = int(samples), data
        self._names[node] = name
        if enrolment.precision is not None:
            numbers = enrolment.precision.dtype or "the numbers of its parameters"
            warnings.warn(
                f"Node {name} evaluates objectives in {numbers} by its own config, whatever the run says. For the "
                "run's precision, set precision to null in its node.yaml.",
                RuntimeWarning,
                stacklevel=4,
            )

    def _problems(self, theirs: Enrolment) -> list[str]:
        """Return what is wrong with an enrolment."""
        total, found = len(self.samples), []
        if theirs.version != fedlightning.__version__:
            found.append(f"it has fedlightning {theirs.version}, the server {fedlightning.__version__}.")
        if theirs.algorithm != self._algorithm:
            found.append(f"it runs {theirs.algorithm}, the server {self._algorithm}.")
        if theirs.channel != self._channel:
            found.append(
                f"its updates pass through {_shown(theirs.channel)}, the server expects {_shown(self._channel)}. Give "
                "both the same channel."
            )
        if difference := _difference(theirs.parameters, self._parameters):
            found.append(f"{difference} Give it the server's task.")
        if not _are_numbers_of_samples(theirs.samples, len(theirs.client_ids)):
            found.append(f"it has numbers of samples {theirs.samples.tolist()} for its clients {theirs.client_ids}.")
            return found
        if len(theirs.data) != len(theirs.client_ids):
            found.append(f"it has {len(theirs.data)} digests of data for its clients {theirs.client_ids}.")
            return found
        for client, samples, data in zip(theirs.client_ids, theirs.samples.tolist(), theirs.data, strict=True):
            if not 0 <= client < total:
                found.append(f"it has client {client}; the federation has clients 0 to {total - 1}.")
            elif client in self._node_of or theirs.client_ids.count(client) > 1:
                found.append(f"it has client {client}, which {self._names.get(self._node_of.get(client, -1))} has too.")
            elif (client in self._known or client in self.data) and int(self.samples[client]) != samples:
                found.append(
                    f"its client {client} has {samples} samples, and had {int(self.samples[client])} when the "
                    "federation began. Give it the data of then, or begin a new federation."
                )
            elif self.data.get(client, data) != data:
                found.append(
                    f"its client {client} has other data than when the federation began, though as many samples. Give "
                    "it the data of then, and the node its folder of states of then, or begin a new federation."
                )
        return found


def merged(rosters: Mapping[str, Roster], directory: Directory) -> Roster:
    """Return the roster of the whole federation.

    Args:
        rosters: What each node said of its clients, by the node's name.
        directory: Which nodes there are, and every client's number of samples.

    Raises:
        EnrolmentError: If the objective changes other buffers at some nodes, or begins at other values; or if nodes
            were asked and none has answered, or, when the federation begins, not all.
    """
    silent = [directory.name(node) for node in directory.nodes if directory.name(node) not in rosters]
    if silent and (directory.begins or not rosters):
        raise EnrolmentError(f"{', '.join(silent)} did not say which buffers the objective changes; see above.")
    if not rosters:
        raise EnrolmentError("There is no node. Start the nodes of the federation.")
    (name, first), *others = rosters.items()
    for other, roster in others:
        if different := set(roster.changed_buffers).symmetric_difference(first.changed_buffers):
            raise EnrolmentError(
                f"The objective changes buffer '{min(different)}' at one of {name} and {other}, and not at the other, "
                "so it cannot be averaged. Write into it in every call, or set buffers to 'local' on all machines."
            )
        if roster.buffers != first.buffers or not torch.equal(roster.start_buffers, first.start_buffers):
            raise EnrolmentError(
                f"Buffers of {other} begin at other values, or are shared in another way, than those of {name}. Give "
                "both the server's task."
            )
        if others_logged := set(_options(roster)) ^ set(_options(first)):
            raise EnrolmentError(
                f"The training step logs '{min(others_logged)[0]}' with other options at one of {name} and {other} "
                "than at the other. Give both the server's module."
            )
    return replace(first, samples=directory.samples.clone())


def _are_numbers_of_samples(numbers: Tensor, clients: int) -> bool:
    """Return whether there is a whole number of samples for each client, of which the sum is no larger than exact."""
    if numbers.shape != (clients,) or numbers.dtype == torch.bool or numbers.is_complex():
        return False
    exact = numbers.double()
    return bool(((exact >= 1) & (exact <= _MOST_SAMPLES) & (exact == exact.round())).all())


def _shown(channel: str) -> str:
    return channel[:200] or "no channel"


def _options(roster: Roster) -> list[tuple[str, str]]:
    return [(name, repr(sorted(given.items()))) for name, given in roster.log_options.items()]


def _difference(theirs: Sequence[Parameter], ours: Sequence[Parameter]) -> str:
    """Say how the shared parameters of two tasks differ; empty if they do not."""
    if theirs == ours:
        return ""
    mine: Mapping[str, Parameter] = {each.name: each for each in ours}
    for each in theirs:
        if each.name not in mine:
            return f"it has the parameter '{each.name}', which the server has not."
        if each != mine[each.name]:
            own = mine[each.name]
            return (
                f"its parameter '{each.name}' is {each.dtype} {list(each.shape)}, the server's {own.dtype} "
                f"{list(own.shape)}."
            )
    if lacking := [name for name in mine if name not in {each.name for each in theirs}]:
        return f"it lacks the parameter '{lacking[0]}'."
    return "its parameters are in another order."
