"""The check that what a client replies does not depend on which clients are computed beside it.

The oracle cuts a cohort into chunks, whose sizes differ from machine to machine. An algorithm that mixes the rows of a
chunk would give other results with each of them, and in a real federation, where a client is alone.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlightning.algorithms.base import Reply
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.memory import give_back_what_is_free
from fedlightning.core.seeding import derive_seed
from fedlightning.core.settings import settings
from fedlightning.core.tree import map_tensors
from fedlightning.federation.client_states import StatesByField
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.clients.client_update import seed_of
from fedlightning.federation.clients.made_up import MadeUpData, Quadratic, Quadratics, Shapes
from fedlightning.federation.clients.oracle_selection import OracleSelection
from fedlightning.federation.clients.rehearsal import Enough, rehearsed
from fedlightning.federation.protocol import Request
from fedlightning.federation.sampling.cohort import Cohort
from fedlightning.federation.validation import name_of, tensors_of

ONE, OTHER = Quadratic(c=1.0, t=100.0), Quadratic(c=0.2, t=-30.0)
"""Functions of two clients: so far apart that a mean or a maximum over both shows in either."""

NEW_ONE, NEW_OTHER = Quadratic(c=0.5, t=-500.0), Quadratic(c=0.5, t=500.0)
"""What either is replaced by, to see whether that changes the other one's reply: each on the other side of it."""

QUIET, ALSO_QUIET = Quadratic(c=0.01, t=1.0), Quadratic(c=0.02, t=-1.0)
"""Functions with gradients that are a thousandth of the others', or less. With one of them in a pair, and without, a
branch for all clients at once goes one way and the other: one that shortens all where the longest is too long, say."""

STEPS, UNEQUAL_STEPS = 3, (3, 2, 1, 4)
"""Local steps, and those of both clients and of those that replace them where a cohort's take different numbers."""

BESIDE, ALONE = 16.0, 3000.0
"""By how many roundings of its largest number a reply may change with the client beside it, and when it is alone.

With another client beside it, the same kernels compute the same bits; for a client alone other kernels may run, whose
last bits a solver may amplify.
"""

MOST = 0.02
"""Largest relative change that counts as rounding in 16 bits."""

LOOKED_AT = 1024
"""Clients of a cohort of which it is asked whether they take different numbers of steps."""


class Independence:
    """Tries the client update of every phase on made-up clients, before it counts, in the first round that has two.

    Where a round has several phases, the next one is tried as well: by then clients' states differ. The first cohort
    whose clients take different numbers of steps is tried, too.
    """

    def __init__(self, table: ClientTable) -> None:
        """Start before the first phase.

        Args:
            table: What the clients keep, which stays as it is.
        """
        self._table = table
        self._samples: Any = torch.zeros(1)
        self._times: Counter[tuple[int, bool]] = Counter()  # by phase, and whether steps differed
        self._told: set[str] = set()  # names of functions that were warned of or could not be tried
        self._untold: list[str] = []

    def show(self, samples: Any) -> None:
        """Take a client's minibatch for the made-up clients, whose functions do not depend on it.

        Algorithms may look at samples.
        """
        self._samples = map_tensors(torch.clone, samples)

    def require(self, cohort: Cohort, request: Request, selection: OracleSelection) -> None:
        """Check that what clients reply in a phase does not depend on those that are computed beside them.

        An algorithm that fails on made-up functions is accepted, and the user told that it was not checked.

        Args:
            cohort: The clients of the phase, which is about to begin.
            request: What the server asks of them.
            selection: Says whether clients are computed together, and tells the user.

        Raises:
            ValueError: If a client's reply changes with the clients beside it.
        """
        phases, number = self._table.algorithm.phases, request.stamp.phase
        is_wanted = selection.self_check != "off" and selection.chunk_size > 1
        if not is_wanted or len(cohort) < 2 or not self._is_due(cohort, number, min(len(phases), 2)):
            return
        name = name_of(phases[number].client_update, self._table.algorithm, "client_update")
        trial = _Trial(self._table, cohort, request, self._samples)
        try:
            found = trial.influence()
        except Exception as error:
            why = "it asked for too many gradients" if isinstance(error, Enough) else f"{type(error).__name__}: {error}"
            if name not in self._told:
                self._told.add(name)
                self._untold.append(
                    f"clients: whether what {name} replies for one of them depends on others was not checked, because "
                    f"it failed on made-up functions: {why.splitlines()[0]}"
                )
            return
        finally:
            give_back_what_is_free()
        if found is not None:
            raise InvalidValueError(
                f"{name}: '{found.field}' of client {found.client} changes with {found.cause}. Rows of [S, ...] are "
                "clients. Which of them are computed together differs from machine to machine, so that no row may "
                "depend on another. Reduce along the other dimensions, as x.norm(dim=1, keepdim=True) does in place of "
                "x.norm(); leave clients that have no more minibatches as they are by batch.keep(new, old); draw a "
                "client's random numbers by oracle.uniform; or move what needs all clients into server_update. "
                f"{settings({'model.self_check': 'off'})} accepts it as it is."
            )
        keeps = _KEEPS.format(", ".join(sorted(trial.changed)))
        for is_so, what in ((trial.draws, _DRAWS), (bool(trial.changed), keeps)):
            if is_so and name not in self._told:
                warnings.warn(f"{name} {what}", UserWarning, stacklevel=2)
        if trial.draws or trial.changed:
            self._told.add(name)

    def tell(self, selection: OracleSelection) -> None:
        """Report what could not be checked, once a phase has gone well: what went wrong in it says more."""
        for line in self._untold:
            selection.report(line)
        self._untold.clear()

    def _is_due(self, cohort: Cohort, phase: int, most: int) -> bool:
        """Return whether the clients of a phase are to be tried once more, and count it."""
        if self._times[phase, True] == most:
            return False
        differ = len(_steps_of(cohort)) > 1
        if self._times[phase, differ] == most:
            return False
        self._times[phase, differ] += 1
        return True


_DRAWS = (
    "draws from random generators that all clients share, so that a client's numbers depend on which others are "
    "computed beside it, and the same seed gives other results where chunks have other sizes. oracle.uniform(count) "
    "draws numbers of each client's own. Whether a reply depends on the number of clients could not be checked."
)

_KEEPS = (
    "changes {} in Python, where checkpoints and other machines do not find it, and clients of other chunks meet it. "
    "What is to last belongs into the clients' or the server's state."
)


class _Client(NamedTuple):
    """Describes a made-up client in the place of a real one.

    Attributes:
        place: 0 or 1, the place of the real one.
        function: Its objective.
        steps: Number of its minibatches.
        state: What it keeps, ``[1, ...]``.
        is_new: Whether it has replaced another one, and has samples and random numbers of its own.
    """

    place: int
    function: Quadratic
    steps: int
    state: StatesByField
    is_new: bool


class _Outcome(NamedTuple):
    """Holds what S made-up clients reply.

    Attributes:
        clients: Who they are.
        fields: All rows of the reply, ``[S, ...]``, by their names.
        states: What each of them keeps from then on.
    """

    clients: Sequence[_Client]
    fields: Mapping[str, Tensor]
    states: Sequence[StatesByField]

    def row(self, place: int) -> Mapping[str, Tensor]:
        return {name: rows[place] for name, rows in self.fields.items()}


class _Influence(NamedTuple):
    """Names a field of a client's reply that changes although the client has not, and what changes it."""

    field: str
    client: int
    cause: str


class _Trial:
    """Runs the client update of a phase for two clients of a cohort.

    Attributes:
        draws: Whether a run has drawn from generators that all clients share.
        changed: Names of what runs have changed in Python.
    """

    def __init__(self, table: ClientTable, cohort: Cohort, request: Request, samples: Any) -> None:
        ends = cohort.members[0], cohort.members[-1]
        self._table, self._request, self._samples = table, request, samples
        self._ids = [member.id for member in ends]
        self._like, self._shapes = cohort, Shapes()
        draws = table.algorithm.phases[request.stamp.phase].draws
        counts = _steps_of(cohort)
        few = min(STEPS * draws, max(counts))
        self._steps = [few] * 4 if len(counts) == 1 else [steps * draws for steps in UNEQUAL_STEPS]
        self.draws = False
        self.changed: set[str] = set()

    def influence(self) -> _Influence | None:
        """Return how a client's reply depends on another; None if it does not.

        Clients are tried from where they stand and, as these may be equal, once more from where that has led them.
        """
        states, functions = self._table.states.of(self._ids), (ONE, OTHER, NEW_ONE, NEW_OTHER)
        own = [{name: rows[place : place + 1] for name, rows in states.items()} for place in (0, 1)] * 2
        for turn in (0, 1):
            one, other, new_one, new_other = (
                _Client(k % 2, functions[k], self._steps[k], own[k], is_new=k > 1) for k in range(4)
            )
            together, with_new_one, with_new_other = (
                self._run(*pair) for pair in ((one, other), (new_one, other), (one, new_other))
            )
            compared = [(together, 1, with_new_one), (together, 0, with_new_other)]
            if turn == 0:
                quiet, also_quiet = new_other._replace(function=QUIET), new_one._replace(function=ALSO_QUIET)
                with_quiet = self._run(one, quiet)
                compared += [(together, 0, with_quiet), (with_quiet, 1, self._run(also_quiet, quiet))]
            for first, place, second in compared:
                if field := self._changed(first, place, second, place, BESIDE):
                    return _Influence(field, self._ids[place], f"client {self._ids[1 - place]} beside it")
            alone = 1 - turn
            lone = None if self.draws else self._run((one, other)[alone])  # what is drawn for all is other for one
            if lone is not None and (field := self._changed(together, alone, lone, 0, ALONE)):
                return _Influence(field, self._ids[alone], _NUMBER)
            led = *together.states, with_new_one.states[0], with_new_other.states[1]
            if not any(led):
                break
            own = [{**former, **state} for former, state in zip(own, led, strict=True)]
        return None

    def _changed(self, one: _Outcome, place: int, other: _Outcome, its_place: int, roundings: float) -> str | None:
        """Return the first field in which a client's row differs from its row in another outcome; None if none does.

        Fields that another run of the same clients changes as well, such as the time, do not count.

        Args:
            one: An outcome.
            place: The client's place in it.
            other: The other outcome.
            its_place: The client's place there.
            roundings: How many count as none.
        """
        mine, theirs = one.row(place), other.row(its_place)
        names = [name for name in mine if name in theirs and not _is_same(mine[name], theirs[name], roundings)]
        if not names:
            return None
        again = self._run(*one.clients).row(place)
        return next((name for name in names if _is_same(mine[name], again.get(name), 0.0)), None)

    def _run(self, *clients: _Client) -> _Outcome:
        """Run the client update for clients that are computed together."""
        ids = [self._ids[client.place] for client in clients]
        steps = torch.tensor([client.steps for client in clients]).to(self._like.device, self._like.dtype)
        states = {name: torch.cat([client.state[name] for client in clients]) for name in clients[0].state}
        evaluate = Quadratics([client.function for client in clients], self._shapes)
        data = MadeUpData(steps, self._samples, [client.is_new for client in clients])
        seeds = [derive_seed(seed_of(self._request, self._ids[each.place]), int(each.is_new)) for each in clients]
        reply, oracle, draws, changed = rehearsed(self._table, ids, data, self._request, evaluate, states, seeds)
        self.draws |= draws
        self.changed.update(changed)
        kept, _ = self._table.new_states(reply, oracle)
        own = [{name: rows[place : place + 1] for name, rows in kept.items()} for place in range(len(clients))]
        return _Outcome(clients, _rows(reply, len(clients)), own)


_NUMBER = "the number of clients that are computed together (or with rounding, as the sign of a number near zero does)"


def _steps_of(cohort: Cohort) -> set[int]:
    """Return the numbers of minibatches that some clients of a cohort take, the first and the last among them."""
    return {len(member.index) for member in (*cohort.members[:LOOKED_AT], cohort.members[-1])}


def _rows(reply: Reply, count: int) -> dict[str, Tensor]:
    """Return the tensors of a reply by name that have a row for each of the clients; others are refused later on."""
    parts = {"update": tensors_of(reply.update), "state": tensors_of(reply.state), "log": reply.log}
    found: dict[str, Any] = {
        f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()
    }
    found |= {"personal": reply.personal, "point": reply.point}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, Tensor) and value.layout == torch.strided and value.shape[:1] == (count,)
    }


def _is_same(one: Tensor, other: Tensor | None, roundings: float) -> bool:
    """Return whether two tensors are equal but for some roundings of their largest number."""
    if other is None or one.shape != other.shape:
        return False
    wide = torch.promote_types(one.dtype, torch.float32)
    eps = torch.finfo(one.dtype if one.dtype.is_floating_point or one.dtype.is_complex else wide).eps
    if not one.numel() or not torch.equal(one.isnan(), other.isnan()):
        return not one.numel()
    one, other = one.to(wide).nan_to_num(), other.to(wide).nan_to_num()
    largest = torch.maximum(one.abs().max(), other.abs().max())
    return bool((one - other).abs().max() <= min(roundings * eps, MOST) * largest)
