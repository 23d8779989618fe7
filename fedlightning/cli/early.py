"""Checks that find mistakes on the command line before anything heavy is imported.

The parser knows the names of options and arguments from classes, and to import Lightning and what it imports takes
several seconds. Their source files are read in a fraction of one. What is not certain from sources is left to the
parser, and so is whether values are of the right types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fedlightning.cli import sources
from fedlightning.cli.complaints import no_argument, no_class, no_name, no_option, own_classes
from fedlightning.cli.default_logger import default_logger
from fedlightning.core import strict_yaml
from fedlightning.core.errors import FedlightningError
from fedlightning.core.misspelt import did_you_mean

_TRAINER = "lightning.pytorch.trainer.trainer.Trainer"
_OWN = ("config", "print_config", "seed_everything", "trainer", "model", "data", "help")
_FROM_DATA = ("model", "train_dataloaders", "val_dataloaders", "dataloaders", "datamodule")
_CHECKPOINTS_BY_NAME = ("best", "last", "hpc")  # found by Lightning


class MistakeError(FedlightningError):
    """Signals that the command line cannot be carried out; the message is one sentence for the user."""


def check(subcommand: str, given: Sequence[str]) -> None:
    """Raise an error for misspelt options, arguments and classes, and for missing files.

    Args:
        subcommand: ``fit``, ``validate``, ``test`` or ``predict``.
        given: The arguments after it.

    Raises:
        MistakeError: At the first certain mistake.
    """
    if any(asks_for_help(argument) for argument in given):
        return
    options = Options(subcommand)
    for argument, key, value in pairs(given):
        options.require(argument, key)
        if key in ("c", "config"):
            options.read(str(value))
        elif key == "ckpt_path":
            require_checkpoint(value)
        else:
            options.set(key, value)


def require_checkpoint(path: object) -> None:
    """Raise an error if the checkpoint is missing, unless Lightning finds the file by a special name.

    Raises:
        MistakeError: If there is no such file.
    """
    if not isinstance(path, str) or not path or path in _CHECKPOINTS_BY_NAME:
        return
    if path.startswith("registry") or "://" in path or Path(path).exists():
        return
    parent = Path(path).absolute().parent
    near = [folder for folder in (parent, parent.parent) if folder.is_dir() and folder.parent != folder]
    is_shared = near[:1] == [parent] and not parent.is_relative_to(Path.cwd())  # /tmp, say, where others have runs, too
    below = ("",) if is_shared else ("", "*/", "*/*/")
    found = (file for levels in below for folder in near[:1] for file in folder.glob(f"{levels}last.ckpt"))
    newest = max(found, key=lambda file: file.stat().st_mtime_ns, default=None)
    hint = "" if newest is None else f" There is {newest}."
    raise MistakeError(f"--ckpt_path={path}: no such file.{hint}")


def require_keeper(path: object, keeps_last: bool) -> None:
    """Raise an error if Lightning is to find a checkpoint by a name that nothing in this process stands for.

    Args:
        path: As given.
        keeps_last: Whether a callback of the run knows where the last checkpoint lies.

    Raises:
        MistakeError: If none is found.
    """
    if path != "best" and (path != "last" or keeps_last):
        return
    newest = max(Path("runs").glob("**/*.ckpt"), key=lambda found: found.stat().st_mtime_ns, default=None)
    near = "" if newest is None else f" The newest is {newest}."
    raise MistakeError(f"--ckpt_path={path}: a new process knows of no {path} checkpoint. Name the file.{near}")


@dataclass
class _Place:
    """Represents a place in the configuration where a class is given.

    Attributes:
        path: Dotted path of the class; None if it is not known.
        within: Places of its arguments that are classes themselves.
    """

    path: str | None = None
    within: dict[str, _Place] = field(default_factory=dict)

    def argument(self, name: str) -> _Place:
        return self.within.setdefault(name, _Place())


class Options:
    """Holds the configuration known so far: files and command-line values in the order given.

    Args:
        subcommand: Name of the subcommand, whose options are read from Lightning's source.
    """

    def __init__(self, subcommand: str) -> None:
        self._places = {name: _Place() for name in ("model", "data", "trainer")}
        self._places["trainer"].within["logger"] = _Place(default_logger()["class_path"])
        self._foreign = False  # whether modules are named that may have any classes
        trainer = sources.find(_TRAINER)
        takes = [None if trainer is None else sources.method_arguments(trainer, m) for m in ("__init__", subcommand)]
        self._trainer, run = takes
        self._top = None if run is None else [*_OWN, *(name for name in run if name not in _FROM_DATA)]

    @property
    def names(self) -> list[str]:
        """Return all options of the subcommand and of the trainer, without dashes."""
        return [*(self._top or ()), *(f"trainer.{name}" for name in self._trainer or ())]

    def require(self, given: str, key: str) -> None:
        """Raise an error unless the command or the trainer has this option."""
        head, _, rest = key.partition(".")
        name = rest.partition(".")[0].removesuffix("+")
        unknown = head not in (*(self._top or (head,)), "c", "h")
        if head == "trainer" and name:
            unknown = name not in (self._trainer or (name,))
        if unknown:
            raise MistakeError(no_option(given, key, self.names))

    def read(self, file: str) -> None:
        """Read the values of a config file.

        Raises:
            MistakeError: If it is missing or no YAML, or has a mistake.
        """
        path = Path(file).expanduser()
        if "://" in file or "\n" in file or file.lstrip().startswith("{"):
            return  # what jsonargparse takes beside files
        if not path.is_file():
            raise MistakeError(f"--config={file}: File does not exist. Paths count from {Path.cwd()}.")
        config = _parsed(file, path)
        try:
            for key, value in config.items() if isinstance(config, Mapping) else ():
                self.require(str(key), str(key))
                for name in value if key == "trainer" and isinstance(value, Mapping) else ():
                    self.require(f"trainer.{name}", f"trainer.{name}")
                self.set(str(key), value)
        except MistakeError as mistake:
            raise MistakeError(f"{file}: {mistake}{_of_a_comparison(config)}") from None

    def set(self, key: str, value: Any) -> None:
        """Set a value of the configuration."""
        head, *rest = key.split(".")
        place = self._places.get(head)
        if place is None:
            return None
        where = head
        while rest:
            name = rest.pop(0)
            where = f"{where}.{name}"
            if name == "init_args" and rest:
                continue
            if name in ("class_path", "init_args"):
                return self._take(place, where.removesuffix(f".{name}"), {name: value})
            if where == "trainer.callbacks+" and isinstance(value, str):
                return self._choose(_Place(), "trainer.callbacks", value)
            if name == "dict_kwargs" or name.endswith("+"):
                return None
            _require_argument(place, where if value is None or rest else f"{where}={value}", ".".join([name, *rest]))
            place = place.argument(name)
        return self._take(place, where, value)

    def _take(self, place: _Place, where: str, value: Any) -> None:
        if isinstance(value, str):
            if place.path is not None or where in ("model", "data"):
                self._choose(place, where, value)
            elif _is_class(value):
                place.path = value
        elif isinstance(value, Mapping):
            if "class_path" in value:
                self._choose(place, where, value["class_path"])
            if not {"class_path", "init_args"} & set(value):
                for name, each in value.items():  # classes by prefix, or arguments whose class an earlier file gave
                    self._take(place.argument(str(name)), f"{where}.{name}", each)
            given = value.get("init_args")
            for name, each in given.items() if isinstance(given, Mapping) else ():
                key = f"{where}.init_args.{name}"
                _require_argument(place, f"{key}={each}" if isinstance(each, str | int | float) else key, str(name))
                self._take(place.argument(str(name)), key, each)
        else:
            place.path, place.within = None, {}
            for each in value if isinstance(value, list) else ():
                self._take(_Place(), where, each)

    def _choose(self, place: _Place, where: str, path: Any) -> None:
        """Set the class of a place, and forget the arguments of a different class given before."""
        if path == place.path:
            return
        former, place.path, place.within = place.path or "", None, {}
        if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
            return
        if path.endswith((".yaml", ".yml", ".json")):  # the configuration of a class
            return
        if "." not in path and former.startswith("fedlightning.") and not self._foreign:
            if path not in own_classes() and "Did you mean" in (complaint := no_class(where, path)):
                raise MistakeError(complaint)
            return
        if "." not in path and where == "trainer.callbacks" and not self._foreign:
            if path not in (known := _callbacks()) and (hint := did_you_mean(path, known)):
                raise MistakeError(f"{where}={path}: no such class.{hint}")
            return
        try:
            sources.find(path)
        except sources.NoSuchNameError as missing:
            module, _, name = path.rpartition(".")
            if missing.module == module:
                raise MistakeError(no_name(where, module, name, sources.names(module))) from None
            raise MistakeError(no_class(where, path)) from None
        self._foreign |= path.partition(".")[0] not in ("fedlightning", "lightning", "torch")
        place.path = path


def _callbacks() -> list[str]:
    """Return the callbacks that can be given by name alone."""
    return [
        name for module in ("lightning.pytorch.callbacks", "fedlightning.callbacks") for name in sources.names(module)
    ]


def _is_class(value: str) -> bool:
    """Return whether an arbitrary text is the path of a class."""
    try:
        found = sources.find(value) if re.fullmatch(r"\w+(\.\w+)+", value) else None
    except sources.NoSuchNameError:
        return False
    return found is not None


def _of_a_comparison(config: Mapping[Any, Any]) -> str:
    return " This is a config of fedlightning compare." if {"base", "algorithms"} <= set(config) else ""


def _require_argument(place: _Place, where: str, name: str) -> None:
    found = None if place.path is None else sources.find(place.path)
    known = None if found is None else sources.arguments(found)
    if found is not None and known is not None and name.partition(".")[0] not in known:
        raise MistakeError(no_argument(where, found.node.name, name, known))


def _parsed(file: str, path: Path) -> Any:
    """Return the content of a config file, a mapping or nothing.

    Raises:
        MistakeError: If it is something else.
    """
    try:
        config = strict_yaml.parsed(path.read_text(encoding="utf-8"))
    except strict_yaml.YamlError as mistake:
        raise MistakeError(f"--config={file}: {mistake}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MistakeError(f"--config={file}: it is no text ({error}). Expected YAML.") from None
    if config is not None and not isinstance(config, Mapping):
        raise MistakeError(
            f"--config={file}: it holds a {type(config).__name__} at the top. Expected keys such as model, data and "
            "trainer."
        )
    return config


def asks_for_help(argument: str) -> bool:
    """Return True for ``-h``, ``--help`` and the help of a class, such as ``--model.help``."""
    name = argument.partition("=")[0]
    return name in ("-h", "--help") or name.endswith(".help")


def pairs(given: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield each option as written, its name, and its value as parsed by YAML."""
    waiting = list(given)
    while waiting:
        argument = waiting.pop(0)
        if not argument.startswith("-") or argument in ("-", "--"):
            continue  # the parser's to complain about
        name, equals, text = argument.partition("=")
        if not equals and waiting and not re.match("-[-A-Za-z]", waiting[0]):
            text = waiting.pop(0)
        key = name.lstrip("-")
        try:
            yield argument, key, text if key in ("c", "config", "ckpt_path") else yaml.safe_load(text)
        except yaml.YAMLError:
            yield argument, key, None
