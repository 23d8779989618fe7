"""The config of a run, and of the nodes' data, from the configs of the simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.strict_yaml import read_mapping

Config = dict[str, Any]

SECTIONS = ("seed_everything", "trainer", "model", "data")
"""What a simulation's configs may hold."""
_ROUNDS = ("participation", "rounds_per_epoch")
"""Arguments of a data module that say how rounds are made, which is the server's to know."""


@dataclass(frozen=True)
class SimulationConfig:
    """Holds the config of a simulation, all files together.

    Attributes:
        values: As in the files; later files change what earlier files say.
    """

    values: Mapping[str, Any]

    @classmethod
    def read(cls, files: Sequence[str | Path]) -> SimulationConfig:
        """Read the files of a simulation, as ``fedlightning fit`` takes them.

        Raises:
            ValueError: If one is no config, or they name no task, algorithm and data together.
        """
        values: Config = {}
        for file in files:
            values = merged(values, read_mapping(Path(file).expanduser(), "a config with model, data and trainer"))
        config = cls(values)
        config._require_complete()
        return config

    @property
    def seed(self) -> int:
        """The seed of the simulation."""
        return int(self.values.get("seed_everything", 0))

    @property
    def classes(self) -> list[str]:
        """The class paths of task and algorithm that are not this package's."""
        paths = dict.fromkeys(class_paths(self.values["model"]))
        return [path for path in paths if path.partition(".")[0] != "fedlightning"]

    def sources_in(self, folder: Path) -> list[Path]:
        """Return the modules and packages of a folder that the config takes classes from; other machines lack them."""
        tops = dict.fromkeys(path.partition(".")[0] for path in class_paths(self.values))
        found = (path for top in tops for path in (folder / f"{top}.py", folder / top) if path.exists())
        return [path for path in found if path.name != "fedlightning"]

    def run(self, num_clients: int) -> Config:
        """Return the config of the federation's run: task, algorithm and trainer unchanged, data of nobody.

        Args:
            num_clients: Number N of clients of the federation.

        Raises:
            ValueError: If the simulation has another number of clients.
        """
        arguments = _arguments(self.values["data"])
        self._require_as_many(num_clients)
        trainer = dict(self.values.get("trainer") or {})
        callbacks = trainer.get("callbacks") or []
        report = {"class_path": "fedlightning.callbacks.RoundReport"}
        return {
            "seed_everything": self.seed,
            "trainer": {
                **trainer,
                "enable_progress_bar": False,
                "callbacks": [*(callbacks if isinstance(callbacks, list) else [callbacks]), report],
            },
            "model": self.values["model"],
            "data": {name: arguments[name] for name in _ROUNDS if name in arguments},
        }

    def node_data(self) -> Config:
        """Return the data of the simulation as a node's: minibatches as there; the seed comes with the run."""
        data = self.values["data"]
        kept = {name: value for name, value in _arguments(data).items() if name not in _ROUNDS}
        return {"class_path": data["class_path"], "init_args": kept}

    def _require_complete(self) -> None:
        if odd := next((key for key in self.values if key not in SECTIONS), None):
            raise InvalidValueError(f"--config: a federation has no use for '{odd}'. Expected {', '.join(SECTIONS)}.")
        for key in ("model", "data"):
            section = self.values.get(key)
            if not isinstance(section, Mapping) or not isinstance(section.get("class_path"), str):
                raise InvalidValueError(f"--config: {key}.class_path is missing. Give the simulation's configs, all.")
        if not _arguments(self.values["model"]).get("algorithm"):
            raise InvalidValueError(
                "--config: model.init_args.algorithm is missing. Give an algorithm's config as well, such as "
                "--config configs/classification/fed_avg.yaml."
            )

    def _require_as_many(self, num_clients: int) -> None:
        data = _arguments(self.values["data"])
        partitioner = data.get("partitioner")
        for key, arguments in (
            ("data.init_args", data),
            ("data.init_args.partitioner.init_args", _arguments(partitioner) if partitioner else {}),
        ):
            given = arguments.get("num_clients")
            if isinstance(given, int) and given != num_clients:
                raise InvalidValueError(
                    f"--nodes: they have {num_clients} clients, and the simulation has {key}.num_clients={given}. Give "
                    f"the nodes clients 0 to {given - 1}, or change the config."
                )


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> Config:
    """Return a config in which later values take the place of earlier ones, key by key.

    A class of another path comes with arguments of its own: those of the earlier class are dropped.
    """
    result = dict(earlier)
    for key, value in later.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            other = "class_path" in value and value["class_path"] != before.get("class_path", value["class_path"])
            result[key] = merged({} if other else before, value)
        elif isinstance(before, Mapping) and isinstance(value, str) and "class_path" in before:
            result[key] = merged(before if before["class_path"] == value else {}, {"class_path": value})
        else:
            result[key] = value
    return result


def class_paths(config: Any) -> Iterator[str]:
    """Yield the class paths in a part of a config, at any depth."""
    if isinstance(config, Mapping):
        if isinstance(config.get("class_path"), str):
            yield config["class_path"]
        for value in config.values():
            yield from class_paths(value)
    elif isinstance(config, list):
        for value in config:
            yield from class_paths(value)


def _arguments(section: Any) -> Mapping[str, Any]:
    arguments = section.get("init_args") if isinstance(section, Mapping) else None
    return arguments if isinstance(arguments, Mapping) else {}
