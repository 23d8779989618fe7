"""The callback that writes what every client reports to a file: one row a client and round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from fedlightning.callbacks.row_file import Cells, RowFile
from fedlightning.callbacks.run_folder import run_folder
from fedlightning.core.errors import InvalidTypeError, OutputError
from fedlightning.core.validation import require
from fedlightning.federation.client_columns import ClientColumn, of_all_processes
from fedlightning.federation.files.whole_files import FULL, why_unwritten
from fedlightning.federation.loop import RoundResult
from fedlightning.federation.sampling.cohort import RoundBatch

KEYS = ("round", "stage", "client")


class ClientValuesFile(Callback):
    """Writes the values of single clients, where loggers get means, spread and percentiles over clients.

    A row has the columns ``round``, ``stage``, ``client``, and one for every value. Rows of the stage ``train`` are of
    the clients that took part in a round: ``samples`` and ``minibatches`` of each, its mean losses over its local steps
    (``train_loss`` and whatever else the objective returns), its ``drift``, what the algorithm logs, and ``counted``,
    which is 0 for a client that means leave out because it sent numbers that are not finite, otherwise 1. Rows of the
    stages ``val`` and ``test`` are of the clients that were evaluated one by one, with every metric. An empty cell says
    that there is no such value; ``nan`` is a value that is not a number, or a metric undefined on a client's data.

    The file of a run that resumes has every round once: rows after the checkpoint are removed and, where the run has a
    new folder, the rows before it are copied. The file of another run is renamed to ``clients.before-1.csv``, also if
    the run resumes from a checkpoint that was written without this callback: its file begins there. In several
    processes the first one writes the values of all. Rows are appended, so that a round costs the same at any length of
    the file.

    Args:
        path: The file; null for ``clients.csv`` in the folder of the run.
        every_n_rounds: Training rows are written after every n-th round, at least 1.

    Attributes:
        folder: Where the file lies under its name, wherever ``path`` is; None for what ``path`` says.
    """

    folder: Path | None = None

    def __init__(self, path: str | None = None, every_n_rounds: int = 1) -> None:
        self.every_n_rounds = every_n_rounds
        require(self, "every_n_rounds", at_least=1, whole=True)
        self._given = path
        self._file: RowFile | None = None
        self._resumed: Path | None = None
        self._written: dict[str, int] = {}  # the last round that the file may have, by stage

    @property
    def path(self) -> Path | None:
        """Return the path of the file; None in processes that write none, and before a run starts."""
        return None if self._file is None else self._file.path

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Find the file.

        Raises:
            TypeError: If the module is no federated task.
        """
        if not hasattr(pl_module, "evaluation_session"):
            raise InvalidTypeError(
                f"ClientValuesFile: {type(pl_module).__name__} is no FederatedLightningModule, so that it has no "
                "clients. Take the callback out."
            )
        path = self._place(trainer)
        writes = trainer.is_global_zero and not trainer.fast_dev_run  # type: ignore[attr-defined]
        if self._file is None or self._file.path != path:
            self._file = RowFile(path) if writes else None
            self._written = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Remove the rows of rounds that are still to come."""
        goes_on = bool(self._written) and trainer.ckpt_path is None
        self._written = dict.fromkeys(("train", "val", "test"), trainer.global_step)
        if self._file is not None:
            with self._saving():
                self._begin(self._file, trainer.global_step, goes_on)

    def _begin(self, file: RowFile, rounds: int, goes_on: bool) -> None:
        """Leave the rows of so many rounds of this run in a file.

        Args:
            file: The file.
            rounds: Number of rounds done.
            goes_on: Whether the rows in the file are of this run, if no checkpoint says where they are.
        """
        before, self._resumed = self._resumed, None
        if rounds and (goes_on if before is None else before == file.path.absolute()):
            file.keep(lambda row: int(row["round"]) <= rounds)
            return
        if not file.is_empty:
            rank_zero_info(f"{file.path} is of another run: it is now {file.move_aside().name}.")
        if before is not None and before.is_file():  # of a run that was resumed in a new folder
            file.begin_with(RowFile(before), lambda row: int(row["round"]) <= rounds)
        elif before is not None:
            rank_zero_warn(f"{file.path} begins after round {rounds}: {before}, with the rounds before, is gone.")
        elif rounds:
            rank_zero_warn(f"{file.path} begins after round {rounds}: the rounds before had no ClientValuesFile.")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write the rows of the clients that took part in the round."""
        if trainer.fast_dev_run or trainer.global_step % self.every_n_rounds:  # type: ignore[attr-defined]
            return
        result = pl_module.rounds.last
        columns = {} if result is None or result.undone else {**_shares(batch), **_counted(result), **result.columns}
        everyone = of_all_processes(columns, pl_module.run.simulation.loop.transport.processes)
        self._write(trainer.global_step, "train", {k: (each.client_ids, each.values) for k, each in everyone.items()})

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write the rows of the clients that were evaluated."""
        if not trainer.sanity_checking:
            found = pl_module.evaluation_session.found
            measured = {name: (values.client_ids, values.values) for name, values in found.items()}
            rounds = trainer.global_step if trainer.state.fn == "fit" else pl_module.run.rounds
            self._write(rounds, "test" if trainer.testing else "val", measured)

    on_test_end = on_validation_end

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Have the rows on the disk before the checkpoint that a run would resume from."""
        if self._file is not None:
            with self._saving():
                self._file.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return where the rows are."""
        return {} if self.path is None else {"path": str(self.path.absolute())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Note where the rows of the run are that is resumed."""
        self._resumed = Path(state_dict["path"]) if "path" in state_dict else None

    def _place(self, trainer: Trainer) -> Path:
        given = None if self._given is None else Path(self._given)
        if self.folder is not None:
            return self.folder / ("clients.csv" if given is None else given.name)
        return run_folder(trainer) / "clients.csv" if given is None else given

    def _write(self, index: int, stage: str, columns: Mapping[str, tuple[Sequence[int], Tensor]]) -> None:
        if self._file is None or not columns:
            return
        cells: dict[int, dict[str, str]] = {}
        for name, (client_ids, values) in columns.items():
            for client, text in zip(client_ids, _as_text(values), strict=True):
                cells.setdefault(client, {})[name] = text
        rows: list[Cells] = [
            {"round": str(index), "stage": stage, "client": str(client), **cells[client]} for client in sorted(cells)
        ]
        with self._saving():
            if self._written.get(stage, index) >= index:  # by a repeated evaluation, or of an earlier program
                self._file.keep(lambda row: row["stage"] != stage or int(row["round"]) != index)
            self._file.append([*KEYS, *columns], rows)
        self._written[stage] = max(index, self._written.get(stage, index))

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Name file, reason and remedy where rows cannot be written."""
        try:
            yield
        except OSError as error:
            assert self.path is not None
            room = "Make room there, or give" if error.errno in FULL else "Give"
            option = " (ClientValuesFile(path=...))" if self.folder is None else ""
            raise OutputError(
                f"The clients' values were not saved: {why_unwritten(error, self.path)} {room} another folder{option}."
            ) from error


def _shares(batch: RoundBatch) -> dict[str, ClientColumn]:
    """Return how many samples and minibatches the clients of a round had."""
    members = {member.id: member for cohort in batch.cohorts for member in cohort.members}
    columns = {"samples": ClientColumn(), "minibatches": ClientColumn()}
    counts = torch.tensor([(member.size, len(member.index)) for member in members.values()], dtype=torch.long)
    for column, numbers in zip(columns.values(), counts.view(-1, 2).T, strict=True):
        column.add(list(members), numbers)
    return columns


def _counted(result: RoundResult) -> dict[str, ClientColumn]:
    """Return which clients count in the means of a round, 1 or 0: in those of all phases that they took part in."""
    counts: dict[int, bool] = {}
    for column in result.columns.values():
        for client, counted in zip(column.client_ids, column.counted.tolist(), strict=True):
            counts[client] = counts.get(client, True) and counted
    found = ClientColumn()
    found.add(list(counts), torch.tensor(list(counts.values()), dtype=torch.long))
    return {"counted": found}


def _as_text(values: Tensor) -> list[str]:
    """Return numbers with as many digits as their dtype can tell apart."""
    numbers = values.detach().cpu()
    if not numbers.is_floating_point():
        return [str(number) for number in numbers.tolist()]
    digits = 17 if numbers.dtype == torch.float64 else 9
    return [f"{number:.{digits}g}" for number in numbers.tolist()]
