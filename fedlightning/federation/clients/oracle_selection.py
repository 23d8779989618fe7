"""The choice of the oracle: fixed in the first round, replaced where it fails or is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.memory import give_back_what_is_free
from fedlightning.federation.clients.oracle_trial import FirstClients, half, in_chunks, sample_of, too_many
from fedlightning.federation.processes import Processes
from fedlightning.federation.protocol import Request
from fedlightning.federation.sampling.cohort import Chunk, Cohort
from fedlightning.oracle import Auto, BatchedError, ClientBatching, Cost, Vectorized
from fedlightning.oracle.checks.check import SelfCheck, fastest_that_agrees, in_words, ladder
from fedlightning.oracle.errors import is_out_of_memory

if TYPE_CHECKING:
    from fedlightning.federation.clients.client_group import ClientGroup

When = Literal["first", "off"] | int
"""When the oracle is checked: in the first round of a fit, never, or in the first and every n-th round."""

_NO_LIMIT = 2**30


class OracleSelection:
    """Keeps the oracle that computes operators, and falls back to the next slower one where necessary.

    The oracles form a ladder: compiled, replayed, not replayed, ``vmap`` of the gradient, one client after the other.
    Processes agree on an oracle between rounds; no operation is collective while clients are computed.

    Attributes:
        oracle: The present oracle; the first round replaces an open choice by a fixed one.
        self_check: When the oracle is compared with evaluation client by client.
        report: Receives one line for the user.
    """

    def __init__(
        self, oracle: ClientBatching, processes: Processes, report: Callable[[str], None], self_check: When
    ) -> None:
        """Start with the oracle that the user asked for.

        Args:
            oracle: As given, possibly an open choice.
            processes: Processes that must agree on one oracle.
            report: Receives one line for the user whenever an oracle is chosen or given up.
            self_check: When the oracle is compared with evaluation client by client.
        """
        self.oracle = oracle
        self._processes = processes
        self.report = report
        self.self_check = self_check
        self._ladder: list[ClientBatching] = [oracle]
        self._cost: Cost | None = None
        self._given_up: tuple[ClientBatching, str] | None = None  # the first that failed, and why; not yet reported

    @property
    def is_made(self) -> bool:
        """Return whether the first round has fixed the choice."""
        return self._cost is not None

    @property
    def threads(self) -> int | None:
        """Return the number of threads that compute a round on a CPU; None for as many as PyTorch takes.

        A way that was named, or that a checkpoint has, has them in its first round, too: sums of many numbers have
        other last bits on other numbers of threads.
        """
        return self.oracle.threads

    @property
    def chunk_size(self) -> int:
        """Return the number of clients that are computed together."""
        assert self._cost is not None
        return self.oracle.chunk(self._cost)

    def choose(self, group: ClientGroup | None, cost: Cost | None, cohort: Cohort, request: Request) -> None:
        """Fix the oracle in the first round; every process must call this.

        Args:
            group: Group of the cohort's first client, its architecture active; None if this process has no client in
                the cohort.
            cost: Cost of one client's gradient; None if this process has no client in the cohort.
            cohort: This process's part of the first cohort.
            request: What the server asks of the clients.
        """
        _require_one_choice(self.oracle, self._processes)
        if isinstance(self.oracle, Auto | Vectorized):
            self.oracle = self._chosen(group, cost, cohort, request)
            give_back_what_is_free()  # checks and trials take more than the way that was chosen
        self._cost = self._processes.agree(cost)
        self._ladder = ladder(self.oracle, request.point.device.type == "cpu")

    def agree(self) -> None:
        """Take the slowest of the processes' present oracles; every process must call this between rounds."""
        self.oracle = self._ladder[self._processes.largest(self._ladder.index(self.oracle))]

    def is_due(self, round_index: int) -> bool:
        """Return whether the oracle must be checked in a round after the first."""
        due = isinstance(self.self_check, int) and round_index % self.self_check == 0
        return due and isinstance(self.oracle, Vectorized)

    def turn(self, request: Request) -> int:
        """Return the number of checks before this round, which decides the clients of the next check."""
        return request.stamp.round // self.self_check if isinstance(self.self_check, int) else 0

    def check(self, group: ClientGroup | None, cohort: Cohort, request: Request) -> None:
        """Compare the oracle with plain evaluation and fall back if they differ; every process must call this."""
        assert isinstance(self.oracle, Vectorized)
        found: ClientBatching = self.oracle
        if group is not None:
            chunk = cohort.apart(self.turn(request), self.chunk_size)
            group.look_again(chunk, request)
            found = self._agreeing(group, chunk, self.oracle, request)
        self.oracle = self._agreed(found, request)

    def check_alone(self, group: ClientGroup, chunk: Chunk, request: Request) -> None:
        """Check the oracle in the middle of a round, for clients this process meets for the first time.

        Unlike in :meth:`check`, this process decides alone.
        """
        if isinstance(self.oracle, Vectorized):  # the other processes follow before the next round
            self.oracle = self._agreeing(group, chunk, self.oracle, request)

    def fall_back(self, error: Exception, num_clients: int, on_cpu: bool) -> bool:
        """Continue with fewer clients at once, or with plain evaluation: the objective has begun to do something else.

        Without self-checks, continue with the next slower oracle instead.

        Args:
            error: The error of the present oracle.
            num_clients: Number of clients that were computed together.
            on_cpu: Whether the objective runs on a CPU.

        Returns:
            True if there is another oracle to try; False if this was the last, or the error is the objective's own.
        """
        if self.oracle == self._ladder[-1]:
            return False
        if is_out_of_memory(error) and num_clients > 1:
            self._note(too_many(num_clients))
            self._take_fewer_than(num_clients)
            return True
        if not isinstance(error, BatchedError):
            return False
        self._note(f"with {in_words(self.oracle, on_cpu)} {str(error).splitlines()[0]}")
        unchecked = self._ladder[self._ladder.index(self.oracle) + 1]
        self.oracle = unchecked if self.self_check == "off" else self._ladder[-1]
        return True

    def report_given_up(self, on_cpu: bool) -> None:
        """Report in one line where :meth:`fall_back` has ended, and the first cause, after an attempt that is good."""
        if self._given_up is None:
            return
        (former, why), self._given_up = self._given_up, None
        fewer = in_words(former, on_cpu) == in_words(self.oracle, on_cpu)  # the same oracle, but smaller chunks
        self.report(f"oracle: took {in_chunks(self.chunk_size) if fewer else in_words(self.oracle, on_cpu)}: {why}")

    def _note(self, why: str) -> None:
        """Keep the cause of the first failure until an attempt is good."""
        self._given_up = self._given_up or (self.oracle, why)

    def _take_fewer_than(self, clients: int) -> None:
        """Compute half as many clients together from now on, by this oracle and by all slower ones."""
        place = self._ladder.index(self.oracle)
        fewer = half(clients)
        self._ladder = [replace(way, chunk_size=fewer) if isinstance(way, Vectorized) else way for way in self._ladder]
        self.oracle = self._ladder[place]

    def leave_batching(self, on_cpu: bool, why: str) -> None:
        """Compute clients one after the other from now on."""
        self._note(why)
        self.oracle = self._ladder[-1]
        self.report_given_up(on_cpu)

    def resume(self, stored: ClientBatching) -> None:
        """Continue with the choice of an earlier run where this run leaves the choice open."""
        if isinstance(self.oracle, Auto) and not isinstance(stored, Auto):
            self.oracle = stored
        elif isinstance(self.oracle, Vectorized) and isinstance(stored, Vectorized) and self.oracle.chunk_size is None:
            self.oracle = replace(self.oracle, chunk_size=stored.chunk_size)

    def _chosen(self, group: ClientGroup | None, cost: Cost | None, cohort: Cohort, request: Request) -> ClientBatching:
        """Replace an open choice by an oracle that all processes share and that agrees with plain evaluation."""
        on_cpu = request.point.device.type == "cpu"
        as_graphs = True if request.point.is_cuda else None  # where they take longer, the trial leaves them
        wanted = self.oracle if isinstance(self.oracle, Vectorized) else Vectorized(replay=as_graphs)
        most = _NO_LIMIT if cost is None else wanted.chunk(cost)
        size = -self._processes.largest(-most)  # memory may differ between devices
        open_choice = isinstance(self.oracle, Auto)
        if open_choice:
            size = min(size, self._processes.largest(len(cohort)))
        several = len({member.architecture for member in cohort.members}) > 1  # of which one may be much larger
        larger = size if several else _NO_LIMIT if cost is None else wanted.most(cost)
        larger = -self._processes.largest(-larger)
        fixed = replace(wanted, chunk_size=size)
        self._ladder = ladder(fixed, on_cpu)
        batched: ClientBatching = fixed
        if size > 1 or not open_choice:
            mine = fixed if group is None else self._agreeing(group, cohort.apart(0, size), fixed, request)
            batched = self._agreed(mine, request)
        if not isinstance(self.oracle, Auto):
            return batched
        has_state = group is not None and group.alone is not None
        if self.self_check != "off" and self._processes.largest(int(has_state)):
            return self._ladder[-1]  # trials would change what the objective remembers
        together = batched if size > 1 and isinstance(batched, Vectorized) else None
        side_by_side: Callable[[], Vectorized | None] = _none
        if group is not None and self.self_check != "off" and self._processes.count == 1:
            assert cost is not None  # several processes have a processor each already
            side_by_side = cache(FirstClients(group, cohort, cost, request).side_by_side)
        if size > 1 and together is None and side_by_side() is None:
            return batched  # nothing is left to compare, and a trial would change what the objective may remember
        trial = None
        if group is not None:
            assert cost is not None
            first = FirstClients(group, cohort, cost, request)
            trial = first.trial(self.oracle, together, side_by_side, self.report, larger)
            if isinstance(batched, Vectorized) or isinstance(trial.oracle, Vectorized):  # else a report has said why
                self.report(f"oracle: {trial.report}")
        chosen = self._processes.agree(None if trial is None else trial.oracle)
        assert chosen is not None
        return chosen

    def _agreeing(self, group: ClientGroup, chunk: Chunk, oracle: Vectorized, request: Request) -> ClientBatching:
        """Return the oracle or, if it disagrees with plain evaluation, the fastest slower one that agrees."""
        on_cpu = request.point.device.type == "cpu"
        found: ClientBatching = oracle
        why = group.alone
        if self.self_check == "off":
            if why is not None:
                self.report(f"oracle: stays with {in_words(oracle, on_cpu)}, as self_check='off' asks, although {why}")
            return oracle
        if why is not None:
            found = self._ladder[-1]
        else:
            with group.errors_named(chunk.ids):
                check = SelfCheck(group.objective, sample_of(group, chunk, request))
            forward_alone = oracle.backward in (None, "autograd") and not oracle.compile
            hooked = group.objective.hooks_tensors and forward_alone
            begin = replace(oracle, backward="vmap") if hooked else oracle
            found, why = fastest_that_agrees(begin, on_cpu, check)
        if why is not None:
            self.report(f"oracle: took {in_words(found, on_cpu)}: {why}")
        return found

    def _agreed(self, oracle: ClientBatching, request: Request) -> ClientBatching:
        """Return the slowest of the processes' oracles; every process must call this."""
        agreed = self._ladder[self._processes.largest(self._ladder.index(oracle))]
        if agreed != oracle:
            words = in_words(agreed, request.point.device.type == "cpu")
            self.report(f"oracle: took {words}, as another process must")
        return agreed


def _none() -> None:
    return None


def _require_one_choice(oracle: ClientBatching, processes: Processes) -> None:
    """Make sure that all processes were given the same oracle; otherwise they would wait for each other for ever.

    Raises:
        ValueError: If one was given another.
    """
    if processes.count == 1:
        return
    given = processes.collect(repr(oracle))
    if len(set(given)) > 1:
        other = next(place for place, each in enumerate(given) if each != given[0])
        raise InvalidValueError(
            f"oracle: process 0 was given {given[0]}, process {other} {given[other]}. Give all processes the same."
        )
