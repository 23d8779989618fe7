"""Conversion of objects to plain configurations and back, limited to what a checkpoint may build."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, Flag
from importlib import import_module
from pathlib import PurePath
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedlightning.core.annotated import as_annotated, enums_named
from fedlightning.core.errors import FedlightningError, InvalidTypeError
from fedlightning.core.fetching import fetching_nothing

T = TypeVar("T")


LEFT_OUT = "_left_out"
"""Key of the names of hyper-parameters that had no plain form when a checkpoint was written."""


class NotPlainError(FedlightningError, TypeError):
    """The value cannot be written as numbers, strings, lists, dicts and class paths."""


class CheckpointError(FedlightningError, OSError, ValueError):
    """A checkpoint cannot be written, read, or used for this task."""


class UntrustedClassError(CheckpointError):
    """A checkpoint asks for a class that it may not choose; nothing was imported, built or called."""


def to_config(value: Any, place: str = "The value") -> Any:
    """Convert ``value`` to plain types; dataclass objects, enums, classes and partials become class paths.

    Args:
        value: What is stored.
        place: Where the value is, for the message.

    Raises:
        NotPlainError: If the value (a lambda, a module, ...) has no plain form.
    """
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    if isinstance(value, Enum):
        named = {"value": value.value} if isinstance(value, Flag) else {"name": value.name}  # flags may be several
        return {"class_path": _path_of(type(value), place), "init_args": named}
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)  # NumPy's numbers derive from these types, but would be stored as NumPy objects
    if value is None:
        return None
    if isinstance(value, Mapping):
        odd = next((key for key in value if isinstance(key, Enum) or not isinstance(key, str | int | float)), None)
        if odd is not None:
            raise NotPlainError(f"{place} has the key {odd!r}, a {type(odd).__name__}: keys are texts and numbers.")
        return {key: to_config(item, f"{place}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_config(item, f"{place}[{i}]") for i, item in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        arguments = {f.name: to_config(getattr(value, f.name), f"{place}.{f.name}") for f in fields(value) if f.init}
        return {"class_path": _path_of(type(value), place), "init_args": arguments}
    if isinstance(value, functools.partial) and not value.args:
        return {"class_path": _path_of(value.func, place), "init_args": to_config(value.keywords, place)}
    if isinstance(value, type):
        return {"class_path": _path_of(value, place)}
    if isinstance(value, PurePath):
        return str(value)
    raise NotPlainError(f"{place} is a {type(value).__name__}, which has no plain form for checkpoints.")


@dataclass(frozen=True)
class Trust:
    """Decides which class paths in a file may become objects.

    Always trusted are the algorithms, regularizers, oracles, networks and similar classes of this package, the
    optimizers and schedulers of ``torch.optim``, and the layers of ``torch.nn``. A path is looked up in a module, never
    walked attribute by attribute. A class is then judged by the module that defines it and by its base classes, so a
    module that imports ``os`` makes nothing of ``os`` available.

    Attributes:
        named: Further classes and functions, named by the caller.
        modules: Modules whose own classes are trusted; classes that these modules import are not.
    """

    named: tuple[Any, ...] = ()
    modules: tuple[str, ...] = ()

    def find(self, path: Any, place: str) -> Any:
        """Return the class or function that a class path names.

        Args:
            path: The class path, as written in the file.
            place: Where the path is written, for the message.

        Raises:
            UntrustedClassError: If the path names nothing that is trusted.
        """
        if isinstance(path, str) and _DOTTED.fullmatch(path):
            module, _, name = path.rpartition(".")
            there = vars(sys.modules[module]).get(name) if module in sys.modules else None
            for named in self.named:
                if there is named or path == f"{named.__module__}.{named.__qualname__}":
                    return named
            if module in self.modules and isinstance(there, type) and there.__module__ == module:
                return there
            found = _of_torch(module, there) or _of_this_package(module, name)
            if found is not None:
                return found
        raise UntrustedClassError(
            f"{place} names the class {path!r}, which a checkpoint may not choose; nothing of it was imported or run. "
            "Classes of fedlightning, torch.optim and torch.nn are built, and those defined beside the task that is "
            "loaded. If the class is yours and you trust the file: load_from_checkpoint(path, trusted=[TheClass]), or "
            "give the value itself, load_from_checkpoint(path, name=value)."
        )

    def find_subclass(self, path: Any, base: type[T], place: str) -> type[T]:
        """Return the class of a class path, if derived from ``base``, for the task or data module to load.

        Raises:
            UntrustedClassError: If the class does not derive from ``base``, or is neither of this package nor trusted.
        """
        module, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
        there = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if there is None and module.startswith(_TASKS_AND_DATA) and _DOTTED.fullmatch(f"{module}.{name}"):
            there = _imported(module, name)
        if isinstance(there, type) and issubclass(there, base):
            home = there.__module__
            mine = home.startswith(f"{_PACKAGE}.") or home in self.modules
            if mine or any(there is known for known in (base, *self.named)):
                return there
        raise UntrustedClassError(
            f"{place} asks for a {path!r}, which is no {base.__name__} of fedlightning. If the class is yours and you "
            "trust the file, call its own load_from_checkpoint."
        )


def shown(config: Any) -> str:
    """Return a plain configuration of :func:`to_config` as a Python expression, for messages."""
    if isinstance(config, Mapping) and "class_path" in config:
        arguments = ", ".join(f"{name}={shown(value)}" for name, value in config.get("init_args", {}).items())
        return f"{config['class_path'].rpartition('.')[2]}({arguments})"
    if isinstance(config, Mapping):
        return "{" + ", ".join(f"{name!r}: {shown(value)}" for name, value in config.items()) + "}"
    return f"[{', '.join(map(shown, config))}]" if isinstance(config, list) else repr(config)


def from_config(config: Any, trust: Trust | None = None, place: str = "The configuration") -> Any:
    """Build objects from the plain values of :func:`to_config`.

    Class paths become objects; class paths of optimizers, schedulers and functions become partials. Nothing is fetched
    from the network: arguments named ``download`` count as false.

    Args:
        config: Plain values.
        trust: Which classes may be built; None for classes of this package, ``torch.optim`` and ``torch.nn`` only.
        place: Where the values are written, for messages.

    Raises:
        UntrustedClassError: If a class path names a class that is not trusted.
        CheckpointError: If a class does not accept the stored arguments.
    """
    trust = Trust() if trust is None else trust
    if isinstance(config, list | tuple):
        return [from_config(item, trust, f"{place}[{i}]") for i, item in enumerate(config)]
    if not isinstance(config, Mapping):
        return config
    if "class_path" not in config or not set(config) <= {"class_path", "init_args", "dict_kwargs"}:
        return {key: from_config(item, trust, f"{place}.{key}") for key, item in config.items()}
    made = trust.find(config["class_path"], place)
    arguments: dict[str, Any] = {}
    for part in ("init_args", "dict_kwargs"):
        given = config.get(part) or {}
        if not isinstance(given, Mapping):
            raise CheckpointError(f"{place}.{part} is a {type(given).__name__}, expected a dict of arguments.")
        arguments |= {name: from_config(item, trust, f"{place}.{name}") for name, item in given.items()}
    arguments = fetching_nothing(made, arguments)  # what was fetched is in the checkpoint, or is given again
    try:
        if isinstance(made, type) and issubclass(made, Enum):
            return made[arguments["name"]] if "name" in arguments else made(arguments["value"])
        arguments = as_annotated(made, arguments)
        if not isinstance(made, type) or issubclass(made, Optimizer | LRScheduler) or _is_open(made, arguments):
            return functools.partial(made, **arguments)
        return made(**arguments)
    except Exception as error:
        raise CheckpointError(f"{place}: {config['class_path']} cannot be made from what is stored: {error}") from error


def rebuild(
    base: type[T],
    stored: Any,
    given: Mapping[str, Any],
    trusted: Iterable[Any] = (),
    wrapped_in: Any = None,
    place: str = "hyper_parameters",
) -> T:
    """Build a task or a data module from the hyper-parameters of a checkpoint.

    Args:
        base: The class whose ``load_from_checkpoint`` was called.
        stored: The hyper-parameters; classes of the module that defines ``base`` are trusted.
        given: Values that replace stored values.
        trusted: Further classes that may be built.
        wrapped_in: Name of the one argument that took all hyper-parameters as a dict.
        place: Where the hyper-parameters are written, for messages.

    Raises:
        UntrustedClassError: If the hyper-parameters ask for a class that is not trusted.
        CheckpointError: If no object can be built from the hyper-parameters.
    """
    if not isinstance(stored, Mapping):
        raise CheckpointError(f"{place} is a {type(stored).__name__}, expected a dict.")
    arguments = dict(stored)
    instantiator, left_out = arguments.pop("_instantiator", None), arguments.pop(LEFT_OUT, ())
    if instantiator is not None and instantiator not in _INSTANTIATORS:
        raise UntrustedClassError(
            f"{place}._instantiator asks to run {instantiator!r}; nothing of it was imported or run. No checkpoint of "
            "fedlightning does: do not use this file, unless you know who changed it."
        )
    own = () if base.__module__.startswith(f"{_PACKAGE}.") else (base.__module__,)
    trust = Trust(_named(trusted), own)
    path = arguments.pop("_class_path", None)
    cls = base if path is None else trust.find_subclass(path, base, f"{place}._class_path")
    trust = replace(trust, named=(*trust.named, *enums_named(cls)))
    parameters = inspect.signature(cls).parameters
    if isinstance(wrapped_in, str) and wrapped_in in parameters and parameters[wrapped_in].kind is not _VAR_KEYWORD:
        arguments = {wrapped_in: arguments}
    is_closed = not any(parameter.kind is _VAR_KEYWORD for parameter in parameters.values())
    if is_closed:
        arguments = {name: value for name, value in arguments.items() if name in parameters}
    missing = [name for name in left_out if name not in given]
    if asked := [name for name in missing if name in parameters]:
        raise CheckpointError(_left_out(cls, asked, place))
    if missing and not is_closed:  # a class that hands them on may have given them itself
        warnings.warn(f"Unless {cls.__name__} sets them itself: {_left_out(cls, missing, place)}", stacklevel=2)
    arguments = {n: from_config(v, trust, f"{place}.{n}") for n, v in arguments.items() if n not in given}
    try:
        return cls(**as_annotated(cls, fetching_nothing(cls, arguments)), **given)
    except Exception as error:
        unknown = [name for name in _required(parameters) if name not in arguments and name not in given]
        if unknown and not stored:
            raise CheckpointError(_nothing_saved(cls, unknown, place)) from error
        raise CheckpointError(
            f"{cls.__name__} cannot be made from {place}: {str(error).rstrip('.')}. Values that are missing or "
            f"have changed are given as {cls.__name__}.load_from_checkpoint(path, name=value)."
        ) from error


def _is_open(made: type, arguments: Mapping[str, Any]) -> bool:
    """Return whether a class was stored without its step size, which is left to whoever makes an object of it."""
    known = inspect.signature(made).parameters
    lr = known.get("lr")
    is_left = lr is not None and lr.default is inspect.Parameter.empty and "lr" not in arguments
    return is_left and set(arguments) <= set(known)


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    """Return the names of the parameters that have no default."""
    variable = (inspect.Parameter.VAR_POSITIONAL, _VAR_KEYWORD)
    return [
        n for n, each in parameters.items() if each.default is inspect.Parameter.empty and each.kind not in variable
    ]


def _nothing_saved(cls: type, unknown: Sequence[str], place: str) -> str:
    """Return the message about a class that saved no hyper-parameters, from which it could be built."""
    values = ", ".join(f"{name}=..." for name in unknown)
    return (
        f"{cls.__name__} cannot be made from {place}: none are stored, because {cls.__name__}.__init__ does not call "
        f"self.save_hyperparameters(). Give {'them' if len(unknown) > 1 else 'it'} here, "
        f"{cls.__name__}.load_from_checkpoint(path, {values}), and call save_hyperparameters() for checkpoints to come."
    )


def _left_out(cls: type, missing: Sequence[str], place: str) -> str:
    values = ", ".join(f"{name}=..." for name in missing)
    return (
        f"{place} lack {', '.join(missing)}, which had no plain form to be stored in. Give what was trained with: "
        f"{cls.__name__}.load_from_checkpoint(path, {values})."
    )


def class_path(cls: type) -> str:
    """Return the dotted path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_INSTANTIATORS = ("lightning.pytorch.cli.instantiate_module", "pytorch_lightning.cli.instantiate_module")
_PACKAGE = __name__.partition(".")[0]
_TASKS_AND_DATA = (f"{_PACKAGE}.tasks", f"{_PACKAGE}.data")
_PARTS = (
    "algorithms",
    "channel",
    "core",
    "data",
    "federation",
    "local",
    "models",
    "oracle",
    "participation",
    "proximal",
    "schedules",
    "tasks",
)


def _named(trusted: Iterable[Any]) -> tuple[Any, ...]:
    """Return the classes and functions that the caller trusts, as a tuple."""
    given = trusted if isinstance(trusted, Iterable) and not isinstance(trusted, str | type) else (trusted,)
    named = tuple(given)
    for each in named:
        if not callable(each) or not hasattr(each, "__qualname__"):
            raise InvalidTypeError(f"trusted={trusted!r}: expected a list of classes, e.g. trusted=[MyNetwork].")
    return named


def _of_torch(module: str, found: Any) -> type | None:
    """Return ``found`` in ``module`` if torch defines it as an optimizer, a scheduler or a layer; otherwise None."""
    if not isinstance(found, type) or module.split(".")[:2] not in (["torch", "optim"], ["torch", "nn"]):
        return None
    defined = f"{found.__module__}."
    of_optim = defined.startswith("torch.optim.") and issubclass(found, Optimizer | LRScheduler)
    return found if of_optim or (defined.startswith("torch.nn.modules.") and issubclass(found, nn.Module)) else None


def _of_this_package(module: str, name: str) -> type | None:
    """Return a class of this package that hyper-parameters may hold; None for tasks, data modules and all else."""
    package, *parts = module.split(".")
    if package != _PACKAGE or not parts or parts[0] not in _PARTS or name.startswith("_"):
        return None
    found = _imported(module, name)
    mine = isinstance(found, type) and found.__module__.startswith(f"{_PACKAGE}.")
    return found if mine and issubclass(found, _kinds()) and not hasattr(found, "load_from_checkpoint") else None


def _imported(module: str, name: str) -> Any:
    """Import a module of this package and return one of its names; None if there is none."""
    try:
        return getattr(import_module(module), name, None)
    except ModuleNotFoundError:
        return None


@functools.cache
def _kinds() -> tuple[type, ...]:
    """What hyper-parameters of this package's tasks and data modules derive from."""
    from fedlightning.algorithms.base import Algorithm  # these import this module
    from fedlightning.channel.base import Aggregation, Release, Transform
    from fedlightning.channel.channel import Channels
    from fedlightning.channel.robust.attacks.base import Attack
    from fedlightning.core.schedule import Schedule
    from fedlightning.data.partitioners import Partitioner
    from fedlightning.data.poisoning import Poisoning
    from fedlightning.federation.client_states import Storage
    from fedlightning.local import ByValue, LocalOptimizer, LocalSolver, StoppingRule
    from fedlightning.oracle import ClientBatching
    from fedlightning.participation import Participation, Responses
    from fedlightning.proximal import Regularizer
    from fedlightning.tasks.adversaries import Adversary

    return (
        *(
            Algorithm,
            Storage,
            Partitioner,
            LocalOptimizer,
            ByValue,
            LocalSolver,
            StoppingRule,
            ClientBatching,
            Participation,
            Responses,
            Regularizer,
            Schedule,
        ),
        *(Channels, Transform, Aggregation, Release, Attack, Poisoning),
        *(Adversary, nn.Module),
    )


def _path_of(function: Any, place: str) -> str:
    path = f"{function.__module__}.{function.__qualname__}"
    if "<" in path or not (inspect.isclass(function) or inspect.isfunction(function)):
        raise NotPlainError(f"{place} is made by {path}, which cannot be imported by that name.")
    return path
