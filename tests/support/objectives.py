"""Objectives made of torch's own lists of modules and operations, for the fuzz of the oracles.

``torch.testing._internal`` holds what torch tests itself with: ``module_db``, a constructor call and forward inputs for
every module, and ``op_db``, sample inputs for every operation. Each becomes the objective of a small federation. The
tensors of a sample are a client's data, drawn a little apart for every client and minibatch; trainable factors in
front of them let gradients flow where the module has no parameters; a smooth scalar of the outputs is the loss.
"""

from __future__ import annotations

import random
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._pytree import tree_flatten, tree_unflatten

CLIENTS = 6
SAMPLES = 4
"""Of each client, where a sample is a whole input of a module or operation."""

PER_STEP = 2e-4
"""How far the first step goes in the largest coordinate: the rounds stay in the domain of the operation."""


class UnsuitableError(Exception):
    """There is no objective in this entry; the message says why."""


class AbsentError(Exception):
    """There is no such entry: the last sample is the first one."""


@dataclass(frozen=True)
class Setting:
    """A federation of :data:`CLIENTS` clients and their objective.

    Attributes:
        network: Makes the module that is trained; called under a fixed seed.
        loss: Network and minibatch to the objective's value.
        data: Tensors ``[n, ...]`` of each client.
        batch_size: Samples of a minibatch.
        lr: Step size.
        random: Whether the objective draws numbers from torch's generator.
        outside: Whether it has state or numbers that torch does not know of (a Python counter, NumPy noise): advanced
            by each call, so that only a run one by one, announced by a line, is right, and its numbers are its own.
    """

    network: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Any], Any]
    data: list[tuple[Tensor, ...]]
    batch_size: int = 1
    lr: float = 0.05
    random: bool = False
    outside: bool = False


@dataclass(frozen=True)
class Case:
    """An entry of a list.

    Attributes:
        name: ``source:entry``, for the command line and the table.
        make: Makes the objective, or raises :class:`UnsuitableError`.
    """

    name: str
    make: Callable[[], Setting]


def reseed() -> None:
    """Seed every generator an objective may draw from."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def module_cases() -> list[Case]:
    """The first and the last input of every module in training mode, the first in evaluation mode where that differs.

    Samples are made when they are asked for: a list of all would take longer than a round.
    """
    cases = []
    for info in _torch_modules():
        for training in (True, False) if info.train_and_eval_differ else (True,):
            for place in (0, -1) if training else (0,):
                name = f"module:{info.name}[{place}]{'' if training else ' eval'}"
                cases.append(Case(name, partial(_module_setting, info, training, place)))
    return cases


def operation_cases() -> list[Case]:
    """The first and the last sample of every differentiable operation in double precision, the first in complex."""
    cases = []
    for info in _torch_operations():
        variant = f".{info.variant_test_name}" if info.variant_test_name else ""
        for dtype, places in ((torch.complex128, (0,)), (torch.float64, (0, -1))):
            if dtype in info.supported_backward_dtypes("cpu"):
                for place in places:
                    name = f"op:{info.name}{variant}[{place}]{' complex' if dtype.is_complex else ''}"
                    cases.append(Case(name, partial(_operation_setting, info, dtype, place)))
    return cases


def _torch_modules() -> list[Any]:
    with _torch_tests():
        from torch.testing._internal.common_modules import module_db
    return module_db


def _torch_operations() -> list[Any]:
    with _torch_tests():
        from torch.testing._internal.common_methods_invocations import op_db
    return [info for info in op_db if info.supports_autograd]


@contextmanager
def _torch_tests() -> Iterator[None]:
    """Import torch's tests without their side effects.

    They forbid to set ``torch.backends.*.flags`` from then on, warn, and want a package that compares printed output,
    which is not needed to read the lists. What forbids cannot be undone by name: ``torch.backends`` stands before the
    module that holds the flag, and keeps what is set to itself.
    """
    try:
        import expecttest  # noqa: F401
    except ModuleNotFoundError:
        stand_in: Any = ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings(), mock.patch.object(torch.backends, "disable_global_flags"):
        warnings.simplefilter("ignore")
        yield


def _at(samples: list[Any], place: int) -> Any:
    if place == -1 and len(samples) == 1:
        raise AbsentError("has one sample")
    return samples[place]


def _module_inputs(info: Any, training: bool) -> list[Any]:
    reseed()
    inputs = info.module_inputs_func(info, device="cpu", dtype=torch.float64, requires_grad=False, training=training)
    return [each for each in inputs if each.forward_input is not None]


def _samples(info: Any, dtype: torch.dtype) -> list[Any]:
    """The first samples that hold numbers, more than one where there are such."""
    reseed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(islice(info.sample_inputs("cpu", dtype, requires_grad=False), 60))
    filled = [s for s in samples if all(t.numel() for t in _tensors((s.input, s.args, s.kwargs)))]
    several = [s for s in filled if any(t.numel() > 1 for t in _tensors((s.input, s.args, s.kwargs)) if _is_number(t))]
    return (several or filled)[:12] or samples[:1]


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor))


def _module_setting(info: Any, training: bool, place: int) -> Setting:
    inputs = _at(_module_inputs(info, training), place)
    given = inputs.forward_input

    def network() -> nn.Module:
        made = inputs.constructor_input
        network = info.module_cls(*deepcopy(made.args), **deepcopy(made.kwargs)).double().train(training)
        if isinstance(network, LazyModuleMixin):
            network(*given.args, **given.kwargs)  # its parameters get their shapes
        return network

    return _wrapped(network, lambda net: net, (given.args, given.kwargs))


def _operation_setting(info: Any, dtype: torch.dtype, place: int) -> Setting:
    sample = _at(_samples(info, dtype), place)

    def function(*args: Any, **kwargs: Any) -> Any:
        return sample.output_process_fn_grad(info(*args, **kwargs))

    return _wrapped(nn.Identity, lambda net: function, ((sample.input, *sample.args), sample.kwargs))


class Factors(nn.Module):
    """A network behind trainable factors of its inputs, with a smooth scalar of its outputs.

    Complex inputs have complex factors, in two real parameters.
    """

    def __init__(
        self,
        network: nn.Module,
        call: Callable[[nn.Module], Any],
        leaves: list[Any],
        tree: Any,
        moved: list[int],
        sizes: list[float] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self._call = call
        self._leaves = leaves
        self._tree = tree
        numbers = {str(i): leaves[i] for i in moved}
        self.real = nn.ParameterDict({i: torch.ones(t.shape, dtype=torch.float64) for i, t in numbers.items()})
        self.imag = nn.ParameterDict(
            {i: torch.zeros(t.shape, dtype=torch.float64) for i, t in numbers.items() if t.is_complex()}
        )
        self.sizes = sizes

    def forward(self, batch: Any) -> Tensor:
        """The scalar of one sample; ``batch`` holds the leaves that are tensors, ``[1, ...]`` each."""
        leaves, given = list(self._leaves), iter(batch)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                leaves[i] = self._scaled(str(i), next(given)[0])
        args, kwargs = tree_unflatten(leaves, self._tree)
        return self._scalar(self._call(self.network)(*args, **kwargs))

    def _scaled(self, key: str, leaf: Tensor) -> Tensor:
        if key in self.imag:
            return leaf * torch.complex(self.real[key], self.imag[key])
        return leaf * self.real[key] if key in self.real else leaf

    def _scalar(self, outputs: Any) -> Tensor:
        """A mean of tanh, each output on its own scale and with weights that no symmetry cancels."""
        values = [part for t in _tensors(outputs) if _is_number(t) and t.numel() for part in _parts(t)]
        if not values:
            raise UnsuitableError("has no differentiable output")
        if self.sizes is None:
            self.sizes = [float(t.detach().abs().max()) or 1.0 for t in values]
        terms = []
        for t, size in zip(values, self.sizes, strict=True):
            weights = torch.arange(t.numel(), dtype=t.dtype).add(1.0).cos().reshape(t.shape)
            terms.append((t * weights / size).tanh().mean())
        return torch.stack(terms).sum()


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _parts(t: Tensor) -> tuple[Tensor, ...]:
    t = t.to_dense() if t.layout != torch.strided else t
    return (t.real.double(), t.imag.double()) if t.is_complex() else (t.double(),)


def _elementwise(leaf: Tensor) -> Tensor:
    return leaf * (0.95 - 0.1 * torch.rand(leaf.shape, dtype=torch.float64))


def _shrunk(leaf: Tensor) -> Tensor:
    return leaf * (0.95 - 0.1 * torch.rand((), dtype=torch.float64))


def _grown(leaf: Tensor) -> Tensor:
    return leaf * (1.05 + 0.1 * torch.rand((), dtype=torch.float64))


def _same(leaf: Tensor) -> Tensor:
    return leaf.clone()


def _wrapped(network: Callable[[], nn.Module], call: Callable[[nn.Module], Any], given: Any) -> Setting:
    """The objective, with the widest draw of data at which loss and gradient are finite."""
    leaves, tree = tree_flatten(given)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if any(t.layout != torch.strided for t in tensors):
        raise UnsuitableError("takes sparse tensors")
    if not tensors:
        raise UnsuitableError("takes no tensors")
    if not any(_is_number(t) and t.numel() for t in tensors) and not any(True for _ in network().parameters()):
        raise UnsuitableError("takes no real or complex numbers")
    numbers = [i for i, leaf in enumerate(leaves) if _is_number(leaf)]
    problems = []
    for moved in (numbers, numbers[:1]):  # not every argument has a derivative
        for draw in (_elementwise, _shrunk, _grown, _same):
            reseed()
            data = [
                tuple(torch.stack([draw(t) if _is_number(t) else t for _ in range(SAMPLES)]) for t in tensors)
                for _ in range(CLIENTS)
            ]
            make = partial(_factors, network, call, leaves, tree, moved)
            trial = make()
            try:
                steepest, drew = _slopes(trial, data)
            except UnsuitableError as problem:
                problems.append(problem)
                continue
            made = partial(make, trial.sizes)
            return Setting(made, lambda net, batch: net(batch), data, lr=PER_STEP / steepest, random=drew)
    raise problems[0]


def _factors(
    network: Callable[[], nn.Module],
    call: Callable[[nn.Module], Any],
    leaves: list[Any],
    tree: Any,
    moved: list[int],
    sizes: list[float] | None = None,
) -> Factors:
    return Factors(network(), call, leaves, tree, moved, sizes)


def _slopes(trial: Factors, data: list[tuple[Tensor, ...]]) -> tuple[float, bool]:
    """Largest derivative at any sample, and whether evaluations draw random numbers."""
    parameters, steepest, drew = list(trial.parameters()), 0.0, False
    for client in data:
        for k in range(SAMPLES):
            before = torch.get_rng_state()
            try:
                loss = trial([t[k : k + 1] for t in client])
            except UnsuitableError:
                raise
            except Exception as error:
                raise UnsuitableError(f"fails plainly: {_line(error)}") from error
            drew |= not torch.equal(before, torch.get_rng_state())
            if not loss.requires_grad:
                raise UnsuitableError("has no differentiable output")
            try:
                slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
            except Exception as error:
                raise UnsuitableError(f"fails plainly: {_line(error)}") from error
            largest = max((float(g.abs().max()) for g in slopes if g is not None and g.numel()), default=0.0)
            if not torch.isfinite(loss) or not np.isfinite(largest):
                raise UnsuitableError("has infinite values or derivatives at its samples")
            steepest = max(steepest, largest)
    if steepest < 1e-10:
        raise UnsuitableError("is flat: its derivatives are zero")
    return steepest, drew


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:160] if text else ''}"
