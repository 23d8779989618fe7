"""The configuration that a run leaves in its folder, where no file of the user's own lies in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_warn

from fedlightning.callbacks.run_folder import run_folder


class ConfigOfRun(SaveConfigCallback):
    """Saves the configuration in the folder of the run, also where the logger has one folder for many runs.

    A file that an earlier run has left there is replaced. The user's own files stay as they are: those that the run was
    given, and those that no run has written.

    Attributes:
        folder: Where to save; None for the folder of the first logger, and for nowhere if there is no logger.
    """

    folder: Path | None = None

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Write ``config.yaml``; called in the first process alone."""
        if self.folder is None and not trainer.loggers:  # the folder would be the current one
            return
        file = (self.folder or run_folder(trainer)) / "config.yaml"
        text = self.parser.dump(self.config, skip_none=False, skip_validation=True)
        if file.exists() and (self._was_given(file) or not _is_of_a_run(file)):
            if file.read_bytes() != text.encode():
                rank_zero_warn(
                    f"The configuration of this run is not saved: {file} is a file of your own, and stays as it is. "
                    "Have the run write to another folder (--trainer.logger.init_args.save_dir=...)."
                )
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def _was_given(self, file: Path) -> bool:
        given: list[Any] = self.config.get("config") or []
        return any(file.samefile(each.absolute) for each in given if Path(each.absolute).exists())


def _is_of_a_run(file: Path) -> bool:
    """Return whether a file begins as those that Lightning's parser writes."""
    with file.open("rb") as opened:
        return opened.readline().startswith(b"# lightning.pytorch==")
