"""An algorithm whose clients step as a module's own optimizer does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.schedule import has_schedule
from fedlightning.core.validation import numbers_of_a_round
from fedlightning.federation.remedies import argument_names
from fedlightning.local.clipping import Clip
from fedlightning.tasks.federated.optimizers import Steps

AlgorithmCallable = Callable[[float], Algorithm]
"""Makes an algorithm for a step size ``lr``: a class such as ``FedAvg``, or a ``functools.partial`` of it."""

_OWN = {"lr": "lr", "optimizer": "local_optimizer", "clip": "local_clip"}
_OF_SOLVER = {"lr": "lr", "optimizer": "optimizer", "clip": "clip"}


def with_open_step_size(algorithm: Any) -> tuple[Any, bool]:
    """Return an algorithm, and whether its step size is left to the module's optimizer.

    Args:
        algorithm: An object, whose step size is its own; or a class or what makes one, whose step size is open unless a
            ``functools.partial`` names it.

    Raises:
        TypeError: If the algorithm needs further hyper-parameters.
        ValueError: If one that is named is out of range.
    """
    if isinstance(algorithm, Algorithm) or not callable(algorithm):
        return algorithm, False
    make: Any = algorithm
    is_named = isinstance(make, partial) and make.keywords.get("lr") is not None
    try:
        return make() if is_named else make(lr=1.0), not is_named
    except TypeError as error:
        kind = getattr(make, "func", make)
        name = getattr(kind, "__name__", repr(kind))
        raise InvalidTypeError(f"federate(algorithm={name}): {_why_not_made(make, kind, name, error)}") from None


def _why_not_made(make: Any, kind: Any, name: str, error: TypeError) -> str:
    """Return why an algorithm is not made from a step size, and what to give, by the arguments that it takes."""
    takes, missing = _arguments(kind), [each for each in _required(make) if each != "lr"]
    needed = [f"{each}=..." for each in _required(kind) if each != "lr"]
    if "lr" in takes and missing:
        others = ", ".join(needed)
        return (
            f"it needs {' and '.join(missing)} beside a step size. Give functools.partial({name}, {others}) to leave "
            f"the step size lr to the module, or an object, {name}(lr=..., {others})."
        )
    if "lr" not in takes and "solver" in takes:
        of_module, own = (", ".join([*needed, f"solver=LocalSteps({lr})"]) for lr in ("", "lr=..."))
        return (
            f"it has no step size lr of its own, the step size is its solver's. Give an object, {name}({of_module}) to "
            f"leave the step size to the module, or {name}({own}), with fedlightning.local.LocalSteps."
        )
    return f"it cannot be made from a step size alone: {error}. Give an object, {name}({', '.join(needed) or '...'})."


def _arguments(make: Any) -> Mapping[str, Parameter]:
    """Return the arguments of a class or function by name; none where Python cannot tell."""
    try:
        return signature(make).parameters
    except ValueError:
        return {}


def _required(make: Any) -> list[str]:
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    takes = _arguments(make).items()
    return [name for name, each in takes if each.default is Parameter.empty and each.kind not in variable]


def takes_step_size(algorithm: Algorithm, lr_is_open: bool) -> bool:
    """Return whether an algorithm takes the step size of the module's optimizer.

    Args:
        algorithm: As the user chose it.
        lr_is_open: Whether the algorithm's own step size is none that the user chose.
    """
    place = _place(algorithm)
    return "lr" in place and (lr_is_open or place["lr"] is None)


def with_steps(
    algorithm: Algorithm, steps: Steps | None, lr_is_open: bool, ignores_schedule: bool = False
) -> Algorithm:
    """Return an algorithm whose clients step as a torch optimizer does.

    A step size or a local optimizer that the algorithm names itself stays.

    Args:
        algorithm: As the user chose it.
        steps: The module's optimizer; None if it has none.
        lr_is_open: Whether the algorithm's own step size is none that the user chose.
        ignores_schedule: Whether the module's optimizer has schedulers that are left out.

    Raises:
        TypeError: If the algorithm takes over some optimizers, and this is none of them.
        ValueError: If there is no step size, or one that the algorithm may not have in some round, or the algorithm's
            steps cannot be those of the optimizer.
    """
    name, place = type(algorithm).__name__, _place(algorithm)
    if steps is None:
        if lr_is_open:
            raise InvalidValueError(
                f"federate(algorithm={name}): the module has no optimizer to take the step size from. Write "
                f"configure_optimizers, or give {name}(lr=...)."
            )
        return algorithm
    changes: dict[str, Any] = {}
    if takes_step_size(algorithm, lr_is_open):
        steps.require_to_move()
        changes["lr"] = _of_its_own(steps.lr)
    else:
        is_used = steps.optimizer is None or "optimizer" in place  # else a line below says that nothing of it is
        by_group = is_used and isinstance(steps.lr, Mapping)
        _say_what_is_not_used(name, ignores_schedule or has_schedule(steps.lr), by_group)
    if steps.optimizer is None:
        return _changed(algorithm, changes)
    if "optimizer" in place:
        if place["optimizer"] is None:
            changes["optimizer"] = steps.optimizer
        try:
            return _changed(algorithm, changes)
        except InvalidTypeError as error:
            raise InvalidTypeError(
                f"{name} does not take over the steps of the module's {steps.name}: {error} Torch's SGD, Adam and "
                "AdamW become those of fedlightning.local. Return one that fits from configure_optimizers, or take an "
                "algorithm whose clients begin anew in every round (FedAvg)."
            ) from None
    if "lr" in changes:
        raise InvalidValueError(
            f"{name} takes plain gradient steps, and the step size of the module's {steps.name} was chosen for others "
            f"(with momentum, of Adam, ...). Give a step size, {name}(lr=...), or take an algorithm with a local "
            "optimizer (FedAvg, FedProx, FedMM, FedSkip, Ditto, ...)."
        )
    rank_zero_warn(f"{name} takes plain gradient steps of its own size: the module's {steps.name} is not used.")
    return algorithm


def with_steps_of(algorithm: Algorithm, other: Algorithm, lr_is_open: bool) -> Algorithm:
    """Return an algorithm with the steps of another where it leaves them open.

    Args:
        algorithm: As the user chose it.
        other: One of the same class, whose clients step as a module's optimizer did.
        lr_is_open: Whether the algorithm's own step size is none that the user chose.
    """
    theirs = _place(other)
    is_open = {what for what, value in _place(algorithm).items() if value is None or (what == "lr" and lr_is_open)}
    with numbers_of_a_round():
        return _changed(algorithm, {what: theirs[what] for what in is_open & theirs.keys()})


def with_steps_left_open(
    algorithm: Algorithm, made: Algorithm, chosen: Algorithm, lr_is_open: bool
) -> tuple[Algorithm, bool]:
    """Return an algorithm that was set after a fit, and whether its step size is left to the module's optimizer.

    One made from the fit's, as by ``dataclasses.replace``, has the steps that the fit took from module and Trainer.
    These are the next fit's to say.

    Args:
        algorithm: As the user set it.
        made: The algorithm of the fit.
        chosen: As the user chose it before the fit.
        lr_is_open: Whether its step size was none that the user chose.
    """
    if type(algorithm) is not type(made):
        return algorithm, False
    now, then, before = _place(algorithm), _place(made), _place(chosen)
    taken = {what for what, value in now.items() if value is then.get(what) and what in before}
    return _changed(algorithm, {what: before[what] for what in taken}), lr_is_open and "lr" in taken


def with_clip(algorithm: Algorithm, clip: Clip | None, given: str) -> Algorithm:
    """Return an algorithm that limits clients' gradients.

    Args:
        algorithm: As the user chose it.
        clip: The limit; None to leave the algorithm as it is.
        given: What the user wrote to set the limit, for messages.

    Raises:
        ValueError: If the algorithm cannot limit gradients, or has a limit of its own.
    """
    if clip is None:
        return algorithm
    if "clip" not in _place(algorithm):
        raise InvalidValueError(
            f"{given}: {type(algorithm).__name__} has no option that clips clients' gradients, as local_clip of FedAvg "
            "does. Leave it out, or set server_clip, which limits the global model's move."
        )
    own = _place(algorithm)["clip"]
    if own is not None:
        raise InvalidValueError(
            f"{type(algorithm).__name__} limits clients' gradients by {own!r}, and {given} by {clip!r}: give one of "
            "the two."
        )
    return _changed(algorithm, {"clip": _of_its_own(clip)})


def _say_what_is_not_used(name: str, schedule: bool, by_group: bool) -> None:
    """Tell the user what of the module's step sizes an algorithm with one of its own does without."""
    unused = [*(["the schedule"] if schedule else []), *(["the step sizes by parameter group"] if by_group else [])]
    if unused:
        what, verb = " and ".join(unused), "are" if by_group else "is"
        rank_zero_warn(f"{name} has a step size of its own: {what} of the module's optimizer {verb} not used.")


def _of_its_own(value: Any) -> Any:
    """Return a number as an object that nobody else has, by which it is told from one that the user gives."""
    return float(repr(value)) if isinstance(value, int | float) else value


def _place(algorithm: Algorithm) -> dict[str, Any]:
    """Return the present values of the options of clients' steps that the algorithm, or its solver, has."""
    own = {what: name for what, name in _OWN.items() if name in argument_names(algorithm)}
    solver: Any = getattr(algorithm, "solver", None)
    of_solver = {what: name for what, name in _OF_SOLVER.items() if name in argument_names(solver) and what not in own}
    return {what: getattr(algorithm, name) for what, name in own.items()} | {
        what: getattr(solver, name) for what, name in of_solver.items()
    }


def _changed(algorithm: Algorithm, changes: Mapping[str, Any]) -> Algorithm:
    own = {_OWN[what]: value for what, value in changes.items() if _OWN[what] in argument_names(algorithm)}
    inner = {_OF_SOLVER[what]: value for what, value in changes.items() if _OWN[what] not in argument_names(algorithm)}
    if inner:
        made: Any = algorithm
        own["solver"] = replace(made.solver, **inner)
    made_anew: Any = algorithm
    return replace(made_anew, **own) if own else algorithm
