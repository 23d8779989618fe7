"""How the runs of a comparison share loggers: each run writes to its own place, and all are one group.

The loggers are those of the configuration, ``trainer.logger``. What a run adds to their arguments depends on the class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import Namespace
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from fedlightning.cli.default_logger import default_logger

_IDENTITIES = "loggers.json"


class Place(NamedTuple):
    """Says which run of which comparison a logger writes for.

    Attributes:
        algorithm: Name of the algorithm.
        seed: Seed of the run.
        run: Name of the run, which differs from those of all others.
        folder: Folder of the run.
        comparison: Folder of the comparison; its name is that of the group.
    """

    algorithm: str
    seed: int
    run: str
    folder: Path
    comparison: Path

    @property
    def group(self) -> str:
        """The name of the group."""
        return self.comparison.absolute().name


class Sharing:
    """Arranges loggers of a class of which nothing else is known: each run gets a folder, but there is no group."""

    def arguments(self, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
        """Return the arguments of the constructor that differ from those of the configuration."""
        return {"save_dir": str(place.folder)} if "save_dir" in given else {}

    def options(self, place: Place) -> dict[str, Any]:
        """Return further keyword arguments, of constructors that pass them on; those of the configuration win."""
        return {}

    def resumed(self, identity: str) -> dict[str, Any]:
        """Return the arguments with which a run goes on that was logged under this identity."""
        return {}

    def identity(self, logger: Any) -> str | None:
        """Return what the logger must be told to go on with the same run; None if it needs nothing."""
        return None

    def open_group(self, arguments: Mapping[str, Any]) -> None:
        """Make what several runs would otherwise make at the same time."""

    def close(self, logger: Any) -> None:
        """End the run, so that the next one in this process begins a new one."""

    def where(self, arguments: Mapping[str, Any], comparison: Path) -> str | None:
        """Return a sentence on where to find the runs."""


class _TensorBoard(Sharing):
    """One folder for all runs, which TensorBoard shows together."""

    def arguments(self, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
        return {"save_dir": str(place.folder), "name": "", "version": "", "default_hp_metric": False}

    def where(self, arguments: Mapping[str, Any], comparison: Path) -> str:
        return f"Curves, pictures: tensorboard --logdir {comparison}"


class _CSV(Sharing):
    """One folder in that of the run; a run that goes on has a further table, as Lightning would empty the first."""

    def arguments(self, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
        return {"save_dir": str(place.folder), "name": "csv", "version": None}

    def where(self, arguments: Mapping[str, Any], comparison: Path) -> str:
        return f"Tables: metrics.csv in csv/ of every run below {comparison}"


class _WandB(Sharing):
    """One group of W&B, with the algorithm as job type."""

    def arguments(self, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
        return {"name": place.run, "save_dir": str(place.folder)}

    def options(self, place: Place) -> dict[str, Any]:
        return {"group": place.group, "job_type": place.algorithm}

    def resumed(self, identity: str) -> dict[str, Any]:
        return {"id": identity}

    def identity(self, logger: Any) -> str:
        return str(logger.experiment.id)

    def close(self, logger: Any) -> None:
        logger.experiment.finish()

    def where(self, arguments: Mapping[str, Any], comparison: Path) -> str:
        synced = f"; send it with: wandb sync {comparison}/*/*/wandb/offline-*" if arguments.get("offline") else ""
        return f"Curves, pictures: a group in W&B{synced}"


class _MLflow(Sharing):
    """One experiment of MLflow, in a database in the folder of the comparison unless another one is given."""

    def arguments(self, given: Mapping[str, Any], place: Place) -> dict[str, Any]:
        tags = {**(given.get("tags") or {}), "algorithm": place.algorithm, "seed": str(place.seed)}
        arguments = {"run_name": place.run, "tags": tags}
        if given.get("experiment_name") in (None, "lightning_logs"):
            arguments["experiment_name"] = place.group
        if not given.get("tracking_uri"):
            root = place.comparison.absolute()
            arguments |= {
                "tracking_uri": f"sqlite:///{root / 'mlflow.db'}",
                "artifact_location": given.get("artifact_location") or (root / "mlartifacts").as_uri(),
            }
        return arguments

    def resumed(self, identity: str) -> dict[str, Any]:
        return {"run_id": identity}

    def identity(self, logger: Any) -> str:
        return str(logger.run_id)

    def open_group(self, arguments: Mapping[str, Any]) -> None:
        from mlflow.tracking import MlflowClient

        client, name = MlflowClient(arguments["tracking_uri"]), arguments["experiment_name"]
        if client.get_experiment_by_name(name) is None:
            client.create_experiment(name, artifact_location=arguments.get("artifact_location"))

    def where(self, arguments: Mapping[str, Any], comparison: Path) -> str:
        uri, name = arguments["tracking_uri"], arguments["experiment_name"]
        return f"Curves, pictures: experiment '{name}' of mlflow ui --backend-store-uri {uri}"


_SHARING: dict[type[Logger], Sharing] = {
    TensorBoardLogger: _TensorBoard(),
    CSVLogger: _CSV(),
    WandbLogger: _WandB(),
    MLFlowLogger: _MLflow(),
}


def sharing_of(cls: type) -> Sharing:
    """Return how loggers of a class are shared."""
    return next((_SHARING[base] for base in cls.__mro__ if base in _SHARING), Sharing())


def placed(configured: Any, place: Place) -> list[Namespace]:
    """Return the configurations of a run's loggers.

    Args:
        configured: The value of ``trainer.logger``: a class with its arguments, a list of these, true for the default,
            false or null for none.
        place: Which run this is.
    """
    if configured is True:
        configured = Namespace(class_path=default_logger()["class_path"], init_args=Namespace())
    given = configured if isinstance(configured, list) else [configured] if configured else []
    identities = _identities(place.folder)
    return [_placed(each, place, identities.get(str(number))) for number, each in enumerate(given)]


def _placed(configured: Namespace, place: Place, identity: str | None) -> Namespace:
    sharing = sharing_of(_class(configured))
    arguments = configured.get("init_args", Namespace()).as_dict()
    arguments |= sharing.arguments(arguments, place)
    if identity is not None:
        arguments |= sharing.resumed(identity)
    found = Namespace(class_path=configured.class_path, init_args=Namespace(arguments))
    if options := {**sharing.options(place), **_plain(configured.get("dict_kwargs"))}:
        found.dict_kwargs = options
    return found


def open_groups(loggers: Sequence[Namespace]) -> None:
    """Make the groups of a comparison, before several runs do so at the same time."""
    for each in loggers:
        sharing_of(_class(each)).open_group(each.init_args.as_dict())


def remember(loggers: Sequence[Logger], folder: Path) -> None:
    """Note in the folder of a run under which identities it is logged, for the case that it has to go on later."""
    named = {str(number): sharing_of(type(each)).identity(each) for number, each in enumerate(loggers)}
    known = {number: identity for number, identity in named.items() if identity is not None}
    if known:
        (folder / _IDENTITIES).write_text(json.dumps(known))


def close(loggers: Sequence[Logger]) -> None:
    """End a run in all its loggers."""
    for each in loggers:
        sharing_of(type(each)).close(each)


def where(loggers: Sequence[Namespace], comparison: Path) -> list[str]:
    """Return a line on every logger: where to find the runs, or that they are not grouped."""
    lines = []
    for each in loggers:
        cls = _class(each)
        found = sharing_of(cls).where(each.init_args.as_dict(), comparison)
        ungrouped = f"{cls.__name__}: compare knows no groups of it, so its runs are named by its own arguments alone"
        lines.append(ungrouped if found is None else found)
    return lines


def _identities(folder: Path) -> dict[str, str]:
    path = folder / _IDENTITIES
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _class(configured: Namespace) -> type:
    module, _, name = configured.class_path.rpartition(".")
    cls: type = getattr(import_module(module), name)
    return cls


def _plain(options: Any) -> dict[str, Any]:
    return options.as_dict() if isinstance(options, Namespace) else dict(options or {})
