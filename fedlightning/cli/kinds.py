"""The kinds of classes that arguments take: how users call them, and classes of each kind as examples."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, get_args

from fedlightning.core.annotated import argument_types

_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Algorithm": ("an algorithm", ("fedlightning.algorithms.FedAvg", "fedlightning.algorithms.SCAFFOLD")),
    "FederatedLightningModule": ("a task", ("fedlightning.tasks.Classification", "fedlightning.tasks.QuadraticSaddle")),
    "FederatedDataModule": ("a data module", ("fedlightning.data.Digits", "fedlightning.data.MNIST")),
    "Partitioner": ("a partitioner", ("fedlightning.data.IID", "fedlightning.data.Dirichlet")),
    "Participation": ("a participation", ("fedlightning.participation.Full", "fedlightning.participation.Uniform")),
    "Durations": (
        "a law of durations",
        ("fedlightning.participation.HalfNormalDuration", "fedlightning.participation.LogNormalDuration"),
    ),
    "Regularizer": ("a regularizer", ("fedlightning.proximal.L1", "fedlightning.proximal.L2Ball")),
    "ClientBatching": ("an oracle", ("fedlightning.oracle.Vectorized", "fedlightning.oracle.Sequential")),
    "LocalSolver": ("a local solver", ("fedlightning.local.GradientDescent", "fedlightning.local.SVRG")),
    "StoppingRule": ("a stopping rule", ("fedlightning.local.FixedSteps", "fedlightning.local.GradientTolerance")),
    "Storage": (
        "a storage",
        ("fedlightning.federation.client_states.OnHost", "fedlightning.federation.client_states.MemoryMapped"),
    ),
    "Channels": ("a channel", ("fedlightning.channel.Channel", "fedlightning.channel.PerPhase")),
    "Transform": ("a transform of updates", ("fedlightning.channel.Clip", "fedlightning.channel.TopK")),
    "Aggregation": ("an aggregation rule", ("fedlightning.channel.Median", "fedlightning.channel.TrimmedMean")),
    "Attack": ("an attack", ("fedlightning.channel.SignFlip", "fedlightning.channel.ALIE")),
    "Poisoning": ("a poisoning", ("fedlightning.data.LabelFlip",)),
    "Compressor": ("a compressor", ("fedlightning.channel.TopK", "fedlightning.channel.QSGD")),
    "Release": ("noise at the server", ("fedlightning.channel.GaussianNoise",)),
    "Accountant": ("an accountant", ("fedlightning.channel.privacy.RDP", "fedlightning.channel.privacy.PLD")),
    "Adversary": ("an adversary", ("fedlightning.tasks.DANN", "fedlightning.tasks.CDAN")),
    "Optimizer": ("an optimizer", ("torch.optim.SGD", "torch.optim.Adam")),
    "Schedule": (
        "a schedule over rounds",
        ("fedlightning.schedules.Exponential", "fedlightning.schedules.Milestones"),
    ),
    "LRScheduler": ("a schedule", ("torch.optim.lr_scheduler.StepLR", "torch.optim.lr_scheduler.CosineAnnealingLR")),
    "Callback": ("a callback", ("fedlightning.callbacks.History", "lightning.pytorch.callbacks.EarlyStopping")),
    "Logger": ("a logger", ("lightning.pytorch.loggers.TensorBoardLogger", "lightning.pytorch.loggers.CSVLogger")),
    "Module": ("a network", ("fedlightning.models.MLP", "fedlightning.models.LeNet5")),
}
"""By the name of the base class: the words for one of the kind, and paths of classes."""


def wrong_kind(where: str, path: str | None, expected: str) -> str:
    """Return the message about a class of another kind than its argument takes.

    Args:
        where: Key and value, as on the command line.
        path: The class that was given; None if it is not known.
        expected: Name of the base class of those that the argument takes.
    """
    words, examples = _KINDS.get(expected, (f"a subclass of {expected}", ()))
    such = f" such as {' or '.join(examples)}" if examples else ""
    given = "" if path is None else _described(path)
    return f"{where}: {given}expected {words}{such}."


def class_at(path: str) -> Any:
    """Return the class at a path whose module exists; None if the module has no such class."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name, None) if module else None


def kinds_taken(owner: str, argument: str) -> list[str]:
    """Return the names of the base classes of what an argument takes, those of known kinds alone.

    Args:
        owner: Path of the class that has the argument.
        argument: Its name.
    """
    taken = argument_types(class_at(owner)).get(argument)
    return [each.__name__ for each in _classes_in(taken) if each.__name__ in _KINDS]


def dataclass_taken(owner: str, argument: str) -> Any:
    """Return the dataclass that an argument takes; None if there is none.

    Args:
        owner: Path of the class that has the argument.
        argument: Its name; a field of a dataclass within it follows a dot.
    """
    found: Any = class_at(owner)
    for name in argument.split("."):
        found = None if found is None else dataclass_in(argument_types(found).get(name))
    return found


def dataclass_in(annotation: Any) -> Any:
    """Return the first dataclass that an annotation is made of; None if there is none."""
    return next((each for each in _classes_in(annotation) if is_dataclass(each)), None)


def is_of_kind(path: str, kinds: Collection[str]) -> bool:
    """Return whether a class has one of the base classes that are named."""
    return any(base.__name__ in kinds for base in class_at(path).__mro__)


def base_class(where: str, path: str) -> str:
    """Return the message about a base class, given itself or taken where no class is named.

    Args:
        where: Key, and the value if it is short, as on the command line.
        path: The base class.
    """
    _, examples = _KINDS.get(path.rpartition(".")[2], ("", ()))
    such = f"a class_path such as {' or '.join(examples)}" if examples else "the class_path of one of its subclasses"
    return f"{where}: {path} is a base class of which no object can be made. Give {such}."


def _classes_in(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation is made of."""
    if isinstance(annotation, type):
        yield annotation
    for each in get_args(annotation):
        yield from _classes_in(each)


def _described(path: str) -> str:
    """Return what a class is, or nothing if it is of no known kind."""
    cls = class_at(path)
    kind = next((_KINDS[base.__name__][0] for base in getattr(cls, "__mro__", ()) if base.__name__ in _KINDS), None)
    return "" if kind is None else f"{path.rpartition('.')[2]} is {kind}, "
