"""The contract of a federated algorithm.

An algorithm says what a client and the server do with the gradient operator of the clients' objectives. It knows
vectors only: the shared point ``z [d]``, a cohort's matrices ``[S, d]``, and an oracle that returns operators. It knows
nothing of Lightning, of parameter names, or of how many clients fit into memory. A round goes, for each phase::

    message = algorithm.broadcast(server)                          # sent to every client of the cohort
    reply   = algorithm.client_update(message, state, oracle)      # S clients at once, each with a state of its own
    server  = algorithm.server_update(server, mean of the updates)
    z       = algorithm.point(server)                              # the model everyone sees

``client_update`` and ``server_update`` never see each other's state, so the same class serves a simulation, several
processes, and a real federation in which S = 1 on every client's machine.

Minimisation and minimax are one thing here. With the operator ``g_i = (grad_x f_i, -grad_y f_i)`` a local step
``w - lr * g_i(w)`` descends in the min block and ascends in the max block; without a max block it is plain descent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from inspect import isabstract
from typing import Any, ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor

from fedlightning.algorithms.binding import Binding
from fedlightning.algorithms.declared import count as count
from fedlightning.algorithms.declared import from_each_client as from_each_client
from fedlightning.algorithms.declared import increment as increment
from fedlightning.algorithms.declared import of_any_length as of_any_length
from fedlightning.algorithms.declared import over_all_clients as over_all_clients
from fedlightning.algorithms.declared import relative_to as relative_to
from fedlightning.algorithms.declared import squared_norm_of as squared_norm_of
from fedlightning.core.errors import InvalidAttributeError, InvalidTypeError
from fedlightning.core.in_force import in_force, require_varying
from fedlightning.core.noted import notes_reads_of
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.core.per_block import PerBlock as PerBlock
from fedlightning.core.per_block import per_block as per_block
from fedlightning.core.per_block import per_block_fields
from fedlightning.core.schedule import PerRound as PerRound
from fedlightning.core.schedule import constant as constant
from fedlightning.core.validation import require_step_size
from fedlightning.local.clipping import ByValue, require_clip
from fedlightning.local.descent import AnyOptimizer, Direction, bound_optimizer, descend
from fedlightning.local.optimizers import LocalOptimizer
from fedlightning.local.torch_optimizers import OptimizerCallable as OptimizerCallable
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.proximal.composite import Composite

AlgorithmT = TypeVar("AlgorithmT", bound="Algorithm")
LocalGradientAlgorithmT = TypeVar("LocalGradientAlgorithmT", bound="LocalGradientAlgorithm")


@dataclass(frozen=True)
class Reply:
    """Holds what the clients of a cohort return in one phase.

    Attributes:
        update: A dataclass of tensors ``[S, ...]``, sent to the server. The server gets the same dataclass with every
            field averaged over the cohort. Fields made by :func:`over_all_clients` are summed over the cohort and
            divided by the number N of all clients; fields made by :func:`from_each_client` arrive one by one. None
            sends nothing.
        state: The clients' new states, each field ``[S, ...]``, or None for a stateless algorithm. Never sent.
        personal: The clients' new personal blocks, ``[S, p]``; None on tasks without any. Never sent.
        point: The clients' local points after their steps, ``[S, d]``, from which the drift is logged.
        log: Further values to log, one for each client, ``[S]``.
    """

    update: Any
    state: Any = None
    personal: Tensor | None = None
    point: Tensor | None = None
    log: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """Carries a single point as a message; what is no point, such as a step, goes into a class of its own.

    Attributes:
        z: ``[d]`` as a broadcast and after averaging, ``[S, d]`` as an update.
    """

    z: Tensor = relative_to("z")


@dataclass(frozen=True)
class PerClient:
    """Holds a tensor for each of some clients, and a default for all other clients.

    In a message, every client receives its own tensor alone (see :meth:`only`): ``client_update`` sees the tensors
    ``[S, ...]`` of its S clients.

    Attributes:
        default: The tensor of clients that are not among ``client_ids``, ``[...]``.
        client_ids: Ids of the M clients that have a tensor of their own, ``[M]``.
        values: The tensors of these clients, ``[M, ...]``.
    """

    default: Tensor
    client_ids: Tensor
    values: Tensor

    def of(self, client_ids: Sequence[int]) -> Tensor:
        """Return the tensors of the given clients, ``[S, ...]``."""
        place = {client: number for number, client in enumerate(self.client_ids.tolist())}
        return torch.stack([self.values[place[each]] if each in place else self.default for each in client_ids])

    def only(self, *client_ids: int) -> PerClient:
        """Return what some clients may see: their own tensors, and no default unless one of them has it.

        What a single client sees is the default of an object without others.
        """
        if len(client_ids) == 1:
            return PerClient(self.of(client_ids)[0], self.client_ids[:0], self.values[:0])
        ids = torch.tensor(client_ids, dtype=torch.long, device=self.client_ids.device)
        return PerClient(torch.zeros_like(self.default), ids, self.of(client_ids))


@dataclass(frozen=True)
class Phase:
    """Describes one exchange between server and cohort; most algorithms have one phase in a round.

    Attributes:
        broadcast: Server state to message.
        client_update: Message, client states and oracle to reply. Only a round's last phase may return client states
            or personal blocks: if a later phase is given up, the server undoes the round, which clients could not.
        server_update: Server state and averaged update to new server state.
        data: ``minibatches`` (``oracle.batches``), ``full`` if the clients need all their data at once
            (``oracle.full``), or ``both``.
        steps: Number of local steps of a client; None for as many as the data module gives.
        draws: Number of minibatches that a local step takes: 2 for methods that look ahead on one and step on another.
    """

    broadcast: Callable[[Any], Any]
    client_update: Callable[[Any, Any, GradientOracle], Reply]
    server_update: Callable[[Any, Any], Any]
    data: Literal["minibatches", "full", "both"] = "minibatches"
    steps: int | None = None
    draws: int = 1


class Algorithm(ABC):
    """Serves as the base class of all algorithms, frozen dataclasses whose fields are the hyper-parameters."""

    regularized: ClassVar[bool] = False
    """Whether the algorithm solves composite problems (takes ``regularizer`` and ``max_regularizer``)."""

    primal: ClassVar[bool] = True
    """Whether the server holds the point itself, so that a server optimizer (Adam, momentum) may move it."""

    server_knows_clients: ClassVar[bool] = False
    """Whether the server's state holds something of single clients, by their ids."""

    needs_exact_uploads: ClassVar[bool] = False
    """Whether clients keep what is right only if the server received their update as it was."""

    state_depends_on: ClassVar[tuple[str, ...]] = ()
    """Names of the hyper-parameters without which the states cannot be read; ``regularizer`` means all regularizers.

    Checkpoints keep the values of these hyper-parameters, and a run that resumes with other values asks
    :meth:`carried_over`. An example is a penalty in a mean that the server accumulates; a step size that only the next
    round uses is none.
    """

    without_personal: ClassVar[str] = ""
    """What a method for personal blocks amounts to on a task without them; empty for all other methods."""

    personal_lr: float | Tensor = 0.0
    """Step size of the personal block, set by :meth:`bind` from ``lr``."""

    min_dim: ClassVar[int] = 0
    """Length of the min block, which comes first in every vector, set by :meth:`bind`."""

    given = cast("Algorithm", None)  # jsonargparse would read an annotation in the modules of subclasses
    """The algorithm as it was before :meth:`bind`, which sets this, with numbers in place of schedules."""

    binding = cast("Binding | None", None)
    """Binds the algorithm anew in every round, set by :meth:`bind` if a hyper-parameter has a schedule."""

    regularizer: ClassVar[Composite] = Composite()
    """The term added to the mean of the objectives, set by :meth:`bind`; zero where ``regularized`` is False."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set anything but hyper-parameters, once each, because no checkpoint would find other values.

        Raises:
            AttributeError: If a method keeps something on the algorithm itself.
        """
        if name in getattr(type(self), "__dataclass_fields__", {}) and name not in vars(self):
            object.__setattr__(self, name, value)  # the constructor of a dataclass that is not frozen
            return
        raise InvalidAttributeError(
            f"{type(self).__name__} sets self.{name}: an algorithm keeps nothing on itself, where no checkpoint would "
            "find it. Put it into the server's or the client's state (a frozen dataclass), or make it a "
            "hyper-parameter, a field of the class decorated with @dataclass(frozen=True, eq=False)."
        )

    @abstractmethod
    def init_server(self, z: Tensor) -> Any:
        """Return the server's state at the start.

        Args:
            z: ``[d]``, the task's initial parameters.

        Returns:
            A frozen dataclass of tensors and numbers.
        """

    def init_client(self, z: Tensor) -> Any:
        """Return a client's state before its first round: a frozen dataclass of tensors, or None if there is none."""
        return None

    @abstractmethod
    def broadcast(self, server: Any) -> Any:
        """Return the message to every client, a dataclass of tensors and numbers."""

    @abstractmethod
    def client_update(self, message: Any, state: Any, oracle: GradientOracle) -> Reply:
        """Do the local work of S clients, and return their reply.

        Args:
            message: What the server broadcast.
            state: The clients' states, fields ``[S, ...]``; None for a stateless algorithm.
            oracle: Operators and minibatches of these clients.
        """

    @abstractmethod
    def server_update(self, server: Any, update: Any) -> Any:
        """Return the new server state, given the old state and the averaged update."""

    def point(self, server: Any) -> Tensor:
        """Return the model ``[d]`` that belongs to a server state.

        Raises:
            TypeError: If the state has no field of that name.
        """
        if not hasattr(server, "z"):
            raise InvalidTypeError(
                f"{type(self).__name__}: the server's state, a {type(server).__name__}, has no field z with the model. "
                "Return a frozen dataclass that has one from init_server, or write point(self, server)."
            )
        return server.z  # type: ignore[no-any-return]

    def with_point(self, server: Any, z: Tensor) -> Any:
        """Return the server state moved to the point ``z [d]``, which a server optimizer computed."""
        return replace(server, z=z)

    @property
    def partial_cohorts(self) -> str | None:
        """Return advice for users who train with only some of the clients in a round, or None."""
        return None

    @property
    def accumulates(self) -> bool:
        """Return True if the server adds up uploads over the rounds, so that client weights must not change."""
        return False

    def carried_over(self: AlgorithmT, server: Any, before: AlgorithmT, clients: Any) -> Any:
        """Convert the server state of a run whose hyper-parameters in :attr:`state_depends_on` had other values.

        Args:
            server: The state at the end of that run.
            before: This algorithm with the hyper-parameters of that run, bound.
            clients: The clients' states averaged over all N, a dataclass like :meth:`init_client`'s; None for a
                stateless algorithm, or if clients count by their samples, whose numbers are not known here.

        Returns:
            The converted state; None if it cannot be computed from what is known, so that resuming is refused.
        """
        return None

    def personal_model(self, state: Any) -> Tensor | None:
        """Return the shared parameters of the clients' personal models, if these differ from the server's point.

        Args:
            state: The clients' states, fields ``[S, ...]``; None for a stateless algorithm.

        Returns:
            ``[S, d]``, or None if every client uses :meth:`point` (with its personal block, if there is one).
        """
        return None

    def step_scale(self, server: Any) -> float:
        """Return the factor on the clients' step size ``lr`` in the round that starts from the state ``server``.

        It is 1 for methods with constant steps, and logged as part of ``client_lr``.
        """
        return 1.0

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the exchanges of one round, in order."""
        return (Phase(self.broadcast, self.client_update, self.server_update),)

    def bind(self: AlgorithmT, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None) -> AlgorithmT:
        """Return a copy whose per-block hyper-parameters are numbers or vectors ``[d]``, ready to compute with.

        Schedules have their values of the first round; see :func:`fedlightning.algorithms.binding.in_round`.

        Args:
            space: Names and blocks of the parameters.
            like: Gives dtype and device of the vectors.
            regularizer: Regularizers of the shared parameters; None for none.

        Raises:
            TypeError: If a hyper-parameter that is the same in every round is given a schedule.
            ValueError: If one names an unknown prefix or leaves a parameter uncovered.
        """
        require_varying(self)
        start = in_force(self, 0)
        bound = copy(start)
        object.__setattr__(bound, "given", start)
        if start is not self:
            Binding(self, space, like, regularizer).of(bound)
        object.__setattr__(bound, "min_dim", space.shared.min_dim)
        object.__setattr__(bound, "regularizer", Composite() if regularizer is None else regularizer)
        for name in per_block_fields(type(self)):
            value = getattr(start, name)
            if value is None:
                continue
            shared, personal = space.spread(value, name, like, both=name == "lr")
            object.__setattr__(bound, name, shared)
            if name == "lr":
                object.__setattr__(bound, "personal_lr", personal)
        return bound


@notes_reads_of("local_optimizer", "local_clip")  # a client update that reads neither ignores what is set
@dataclass(frozen=True, eq=False)
class LocalGradientAlgorithm(Algorithm):
    """Serves as the base class of algorithms whose clients take K steps by :meth:`local_steps`, with its options.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        local_optimizer: What takes the steps in place of plain ones, fresh in every round, with the learning rate
            ``lr``: an elementwise torch optimizer (momentum, Adam, ...) for the shared block, or a
            :class:`fedlightning.local.LocalOptimizer` for all blocks.
        local_clip: Largest norm > 0 of one client's minibatch gradient, or :class:`fedlightning.local.ByValue`; null
            for no clipping. The gradient of the objective itself is clipped (shared and personal block together where
            both step on it, min and max block together), before the method adds its corrections and before the local
            optimizer.
    """

    lr: PerBlock = per_block()
    local_optimizer: OptimizerCallable | LocalOptimizer | None = field(default=None, kw_only=True)
    local_clip: PerRound | ByValue | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        require_step_size(self, "lr")
        require_clip(self, "local_clip")
        optimizer = self.local_optimizer
        if not (optimizer is None or isinstance(optimizer, LocalOptimizer) or callable(optimizer)):
            raise InvalidTypeError(
                f"{type(self).__name__}(local_optimizer={optimizer!r}): expected something that makes one, e.g. "
                "torch.optim.Adam, a functools.partial of it, or an optimizer of fedlightning.local."
            )

    def bind(
        self: LocalGradientAlgorithmT, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None
    ) -> LocalGradientAlgorithmT:
        """Try out the local optimizer, and return a bound copy; see :meth:`Algorithm.bind`.

        Raises:
            ValueError: If the local optimizer is not elementwise, or for the reasons of :meth:`Algorithm.bind`.
        """
        bound = super().bind(space, like, regularizer)
        optimizer = bound_optimizer(bound.local_optimizer, space, like, "local_optimizer")
        object.__setattr__(bound, "local_optimizer", optimizer)
        return bound

    def local_steps(
        self, z: Tensor, oracle: GradientOracle, direction: Direction | None = None, optimizer: AnyOptimizer = None
    ) -> tuple[Tensor, Tensor | None]:
        """Take every client's K steps from ``z [d]`` or ``[S, d]``; see :func:`fedlightning.local.descent.descend`.

        They are steps of ``optimizer`` or, if None, of ``local_optimizer``.
        """
        lr: Any = self.lr
        how = self.local_optimizer if optimizer is None else optimizer
        return descend(z, oracle, lr, direction, how, self.personal_lr, self.local_clip)


def composite_methods() -> list[str]:
    """Return the names of the algorithms that take regularizers."""
    found: set[str] = set()
    classes: list[Any] = [Algorithm]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        if cls.regularized and not isabstract(cls):
            found.add(cls.__name__)
    return sorted(found)
