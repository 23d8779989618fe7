"""The folder into which the files of one run go, beside what its logger writes."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer


def run_folder(trainer: Trainer) -> Path:
    """Return the folder of a run, as its first process sees it; loggers of other processes may know no name.

    It is the folder of the first logger, ``runs/version_3``. Loggers that have no folder for every run (W&B, MLflow)
    would mix the files of several, so theirs is found by project and run, ``<folder>/<project>/<id>``, where Lightning
    puts checkpoints, too.
    """
    if not trainer.loggers:
        return Path(trainer.default_root_dir)
    first = trainer.loggers[0]
    if first.log_dir is not None:
        return Path(first.log_dir)
    version = first.version if isinstance(first.version, str) else f"version_{first.version}"
    return Path(first.save_dir or trainer.default_root_dir, str(first.name), version)
