"""Random numbers of clients that do not depend on which other clients are computed beside them.

Each evaluation of each client has a seed of its own, a function of (seed, round, phase, client, step). When clients are
computed one after the other, the default generators are seeded before each evaluation. When many clients are computed
at once, :class:`ClientNoise` gives every client's part of a random operation the numbers that the client would have
drawn alone; where one client's operations are replayed for others, :class:`NoiseOfOne` does. So dropout and noise are
the same for every oracle, in every chunk and on any number of processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.core.errors import FedlightningError
from fedlightning.core.seeding import derive_seed

aten = torch.ops.aten

_DEFAULT_GENERATORS = threading.Lock()
"""Held while a default generator stands in for a client's own."""


class UnsplittableDrawError(FedlightningError, RuntimeError):
    """A random operation draws numbers that cannot be shared out among clients."""


class LateDrawError(FedlightningError, RuntimeError):
    """An objective draws random numbers that did not when it was looked at."""


class Randomness:
    """Gives the seeds of the random numbers of S clients in one evaluation.

    Attributes:
        places: Places in the chunk of the clients whose numbers are drawn.
    """

    def __init__(
        self,
        client_seeds: Sequence[int],
        steps: int,
        missed: Tensor | None = None,
        places: Sequence[int] | None = None,
    ) -> None:
        """Identify the evaluation.

        Args:
            client_seeds: Seed of each client in this phase of this round.
            steps: Number of earlier evaluations of this chunk.
            missed: How many of the earlier evaluations each client took no part in, ``[S]``; None if no client missed
                any.
            places: Places of the clients whose numbers are drawn; None for all.
        """
        self._clients = client_seeds
        self._steps = steps
        self._missed = missed
        self.places = range(len(client_seeds)) if places is None else places

    def seeds(self) -> list[int]:
        """Return one seed for each client."""
        missed = [0] * len(self._clients) if self._missed is None else self._missed.tolist()
        return [derive_seed(self._clients[place], self._steps - int(missed[place])) for place in self.places]

    def of(self, places: Sequence[int]) -> Randomness:
        """Return the randomness of some of the clients, given their places among these."""
        return Randomness(self._clients, self._steps, self._missed, [self.places[place] for place in places])


class EvaluationSeeds:
    """Gives every evaluation of each of S clients a seed of its own.

    A client's own evaluations are counted, not those of its chunk, so that its random numbers are the same in any
    chunk.
    """

    def __init__(self, client_seeds: Sequence[int]) -> None:
        """Start before the first evaluation.

        Args:
            client_seeds: Seed of each client in this phase of this round.
        """
        self._client_seeds = client_seeds
        self._evaluations = 0
        self._missed: Tensor | None = None  # [S], None while every client took part in all evaluations
        self._active: Tensor | None = None  # in the last evaluation
        self._absent: Tensor | None = None  # 1 for the others

    def next(self) -> Randomness:
        """Return the random numbers of the next evaluation, the same ones until :meth:`advance` is called."""
        return Randomness(self._client_seeds, self._evaluations, self._missed)

    def advance(self, active: Tensor | None) -> None:
        """Count an evaluation.

        Args:
            active: ``[S]`` bool, the clients that took part; None if all did.
        """
        self._evaluations += 1
        if active is None:
            return
        if self._absent is None or self._active is not active:
            self._active, self._absent = active, active.logical_not().long()
        self._missed = self._absent if self._missed is None else self._missed + self._absent

    def generators(self) -> list[torch.Generator]:
        """Return new generators on the CPU, one a client, that do not depend on the evaluations so far."""
        return [torch.Generator().manual_seed(seed) for seed in self._client_seeds]


class ClientNoise:
    """Runs random operations on tensors ``[S, ...]``, each client's part with the client's own generator."""

    def __init__(self) -> None:
        """Start without seeds, so that operations draw from the default generators as they are."""
        self._randomness: Randomness | None = None
        self._generators: list[torch.Generator] = []
        self._seeded = False
        self._turn = 0

    def begin(self, randomness: Randomness | None) -> None:
        """Use the random numbers of an evaluation; None for the default generators as they are.

        Seeds are derived only when something is drawn.
        """
        self._randomness = randomness
        self._seeded = False
        self._turn = 0

    def __call__(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a random ATen operation.

        Raises:
            UnsplittableDrawError: If the operation draws from the objective's own generator, or not client by client.
        """
        if self._randomness is None:
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            raise UnsplittableDrawError(f"{func} draws from a torch.Generator of the objective's own")
        generators = self._begun(_device_of(args, kwargs))
        if func is aten.randperm.default:  # vmap calls it once for each client, in order
            self._turn += 1
            return _drawing(func)(args, kwargs, generators[(self._turn - 1) % len(generators)])
        in_place = _IN_PLACE.get(func)
        if in_place is not None:  # the common case, dropout: of the argument only the shape counts
            output = torch.empty_like(args[0], memory_format=torch.contiguous_format)
            for row, generator in zip(output.unbind(0), generators, strict=True):
                in_place(row, *args[1:], generator=generator)
            return output
        draw = _drawing(func)
        shares = zip(_shared_out(func, args, len(generators)), generators, strict=True)
        if func._schema.is_mutable:
            for (row, *others), generator in shares:
                fresh = row if row.is_contiguous() else torch.empty_like(row, memory_format=torch.contiguous_format)
                draw((fresh, *others), kwargs, generator)
                if fresh is not row:
                    row.copy_(fresh)
            return args[0]
        parts = [draw(tuple(map(_in_order, own)), kwargs, generator) for own, generator in shares]
        if not isinstance(parts[0], Tensor):
            return tuple(torch.stack(part) for part in zip(*parts, strict=True))
        return torch.cat(parts) if func is aten.multinomial.default else torch.stack(parts)

    def _begun(self, device: torch.device) -> list[torch.Generator]:
        """Return every client's generator, which the first call in an evaluation seeds."""
        if not self._seeded:
            assert self._randomness is not None
            seeds = self._randomness.seeds()
            if len(self._generators) != len(seeds) or self._generators[0].device != device:
                self._generators = [torch.Generator(device) for _ in seeds]
            for generator, seed in zip(self._generators, seeds, strict=True):
                generator.manual_seed(seed)
            self._seeded = True
        return self._generators


class NoiseOfOne(threading.local):
    """Runs random operations of one client with the client's own generator, of another client on every thread."""

    def __init__(self, expected: bool = True) -> None:
        """Start without seeds: nothing can be drawn before :meth:`begin`.

        Args:
            expected: Whether the objective may draw at all.
        """
        self._expected = expected
        self._randomness: Randomness | None = None
        self._place = 0
        self._generator: torch.Generator | None = None
        self._seeded = False

    def begin(self, randomness: Randomness | None, place: int) -> None:
        """Use the random numbers of the client at a place of its chunk, on this thread."""
        self._randomness = randomness
        self._place = place
        self._seeded = False

    def __call__(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a random ATen operation.

        Raises:
            LateDrawError: If the objective was not to draw.
            UnsplittableDrawError: If the operation draws from the objective's own generator, or no seeds are given.
        """
        if not self._expected:
            raise LateDrawError(f"{func} draws random numbers")
        if kwargs.get("generator") is not None:
            raise UnsplittableDrawError(f"{func} draws from a torch.Generator of the objective's own")
        if self._randomness is None:
            raise UnsplittableDrawError(f"{func} draws random numbers, which would be the same for all clients")
        device = _device_of(args, kwargs)
        if self._generator is None or self._generator.device != device:
            self._generator, self._seeded = torch.Generator(device), False
        if not self._seeded:
            (seed,) = self._randomness.of([self._place]).seeds()
            self._generator.manual_seed(seed)
            self._seeded = True
        return _drawing(func)(args, kwargs, self._generator)


class PerClient(TorchDispatchMode):
    """Makes random operations below one ``vmap`` draw through a :class:`ClientNoise` while active."""

    def __init__(self, noise: Noise) -> None:
        """Draw random numbers through ``noise``."""
        super().__init__()
        self._noise = noise

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run random operations through the noise, and all other operations as they are."""
        return (self._noise if is_random(func, args, kwargs) else _plain)(func, *args, **(kwargs or {}))


Noise = ClientNoise | NoiseOfOne


def is_random(func: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> bool:
    """Return whether an ATen operation draws random numbers.

    Attention and recurrent layers do only with dropout, and these in training alone, between layers.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    given = {
        argument.name: args[place] if place < len(args) else (kwargs or {}).get(argument.name, argument.default_value)
        for place, argument in enumerate(func._schema.arguments)
        if argument.name in _OF_DROPOUT
    }
    rates = [given[name] for name in _RATES if name in given]
    may_drop = any(rates) or not rates
    return may_drop and given.get("train") is not False and given.get("num_layers") != 1


_RATES = ("dropout_p", "dropout")

_OF_DROPOUT = frozenset({*_RATES, "train", "num_layers"})
"""Arguments of attention and recurrent layers that say whether they draw."""


def generator_state(device: torch.device) -> Tensor:
    """Return the state of a device's default generator, to see whether something was drawn."""
    return _default_generator(device).get_state()


def _plain(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _shared_out(func: Any, args: tuple[Any, ...], num_clients: int) -> list[tuple[Any, ...]]:
    """Return the arguments of each client's part of an operation.

    Batched tensors are split into rows, and a shape ``[S, ...]`` loses its S.

    Raises:
        UnsplittableDrawError: If the operation does not draw client by client.
    """
    columns: list[Sequence[Any]] = []
    first = next((value for value in args if isinstance(value, Tensor | list | tuple)), None)
    for value in args:
        if func is aten.multinomial.default and isinstance(value, Tensor):  # [S * B, classes]
            columns.append(value.chunk(num_clients) if len(value) % num_clients == 0 else ())
        elif isinstance(value, Tensor) and isinstance(first, Tensor):
            columns.append(value.unbind(0) if value.dim() == first.dim() > 0 else [value] * num_clients)
        elif isinstance(value, list | tuple) and value is first:  # the shape of what is drawn
            columns.append([value[1:]] * (num_clients if value and value[0] == num_clients else 0))
        else:
            columns.append([value] * num_clients)
    if first is None or any(len(column) != num_clients for column in columns):
        raise UnsplittableDrawError(f"{func} does not draw client by client")
    return list(zip(*columns, strict=True))


def _in_order(value: Any) -> Any:
    """Make a tensor contiguous, because random numbers fill memory in order, as for a client alone."""
    return value.contiguous() if isinstance(value, Tensor) else value


@cache
def _drawing(func: Any) -> Callable[[tuple[Any, ...], dict[str, Any], torch.Generator], Any]:
    """Return a function that draws one client's part of an operation from a given generator.

    The generator is passed as an argument if the operation takes one; otherwise it replaces the default generator.
    """
    overload = _WITH_GENERATOR.get(func, func if _takes_generator(func) else None)
    if overload is not None:
        return lambda args, kwargs, generator: overload(*args, **kwargs, generator=generator)

    def as_default(args: tuple[Any, ...], kwargs: dict[str, Any], generator: torch.Generator) -> Any:
        default = _default_generator(generator.device)
        with _DEFAULT_GENERATORS:
            before = default.get_state()
            default.set_state(generator.get_state())
            try:
                return func(*args, **kwargs)
            finally:
                generator.set_state(default.get_state())
                default.set_state(before)

    return as_default


def _takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


_IN_PLACE = {aten.bernoulli.p: Tensor.bernoulli_}
"""Operations that fill a new tensor of their argument's shape, and the methods that fill an existing tensor."""

_WITH_GENERATOR = {
    aten.rand.default: aten.rand.generator,
    aten.randn.default: aten.randn.generator,
    aten.randint.default: aten.randint.generator,
    aten.randint.low: aten.randint.low_generator,
    aten.randperm.default: aten.randperm.generator,
}
"""Overloads that take a generator, for operations that are called without one."""


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    tensor = next((value for value in args if isinstance(value, Tensor)), None)
    device = torch.device(kwargs.get("device") or "cpu") if tensor is None else tensor.device
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
