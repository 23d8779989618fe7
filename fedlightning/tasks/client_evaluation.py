"""Measurements of clients' models while Lightning's evaluation loop runs over the clients' data."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from fedlightning.core.tree import map_tensors
from fedlightning.data.evaluation import ClientLoader, EvaluationPart
from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest
from fedlightning.tasks.side_by_side import SideBySide

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

_PREFIXES = ("val_", "test_", "local_train_", "global_train_", "global_")


class Logged(NamedTuple):
    """Identifies what a task logs: by the data, the model, and the name it is given.

    Attributes:
        dataloader: Number of the data loader, 0 for evaluation data and 1 for training data.
        model: ``own`` for clients' own models, ``global`` for the server's.
        name: As the task calls it.
    """

    dataloader: int
    model: str
    name: str

    def full_name(self, stage: str) -> str:
        """Return the name users see, which tells models and data apart.

        Args:
            stage: ``val`` or ``test``.
        """
        name, prefix = self.name, f"{stage}_"
        if self.dataloader:
            return self._name_on_training_data()
        if self.model == "own":
            return name
        return f"{prefix}global_{name.removeprefix(prefix)}" if name.startswith(prefix) else f"global_{name}"

    def _name_on_training_data(self) -> str:
        rest = self.name
        for prefix in ("local_train_", "global_train_"):
            rest = rest.removeprefix(prefix)
        if rest == self.name:  # a user's task that does not tell the data loaders apart
            given = self.name if self.model == "own" else f"global_{self.name}"
            return f"{given}/dataloader_idx_{self.dataloader}"
        if self.model == "global" or rest.startswith("global_"):  # of tasks that look at both models themselves
            return f"global_train_{rest.removeprefix('global_')}"
        return f"local_train_{rest}"


class MetricRecord:
    """Gathers by client what a task logs under one name.

    Numbers are averaged over a client's batches. A metric of torchmetrics is computed and reset after the last one.
    """

    def __init__(self, prog_bar: bool) -> None:
        """Start with no client measured.

        Args:
            prog_bar: Whether the mean over clients is shown in the progress bar.
        """
        self._prog_bar = prog_bar
        self._metric: Metric | None = None
        self._total = 0.0
        self._samples = 0.0
        self._by_client: dict[int, tuple[float, float]] = {}  # value and number of samples

    def add(self, value: Any, samples: float) -> None:
        """Record a value that was logged for a batch of the present client."""
        self._samples += samples
        if isinstance(value, Metric):
            self._metric = value
        else:
            self._total += float(value) * samples

    def close(self, client: int) -> None:
        """Compute the value of a client whose batches have all been evaluated."""
        if self._metric is not None:
            synchronises, self._metric.sync_on_compute = self._metric.sync_on_compute, False
            self._by_client[client] = float(self._metric.compute()), self._samples  # other processes, other clients
            self._metric.sync_on_compute = synchronises
            self._metric.reset()
        elif self._samples:
            self._by_client[client] = self._total / self._samples, self._samples
        self._total = self._samples = 0.0

    def values_of(self, client_ids: Collection[int], higher_is_better: bool | None) -> ClientValues | None:
        """Return the values of these clients; None if none of them has one.

        Args:
            client_ids: Ids of the clients asked.
            higher_is_better: What the task says of the metric. If None, a metric of torchmetrics says it itself.
        """
        known = {client: measured for client, measured in self._by_client.items() if client in client_ids}
        if not known:
            return None
        if higher_is_better is None and self._metric is not None:
            higher_is_better = self._metric.higher_is_better
        values, samples = zip(*known.values(), strict=True)
        return ClientValues(
            list(known),
            torch.tensor(values),
            torch.tensor(samples),
            higher_is_better,
            nan_is_undefined=self._metric is not None,
            prog_bar=self._prog_bar,
        )


class ClientEvaluation:
    """Measures clients' models in the steps of Lightning's evaluation loop.

    Before a batch of one client, the client's model is put into the task; what the step logs is then heard as the
    client's. A batch of several clients is evaluated side by side if the task allows it.

    Attributes:
        request: What the server asked.
    """

    def __init__(self, task: FederatedLightningModule, request: EvaluationRequest, side_by_side: SideBySide) -> None:
        """Start with nothing measured.

        Args:
            task: Evaluated.
            request: What the server asked.
            side_by_side: Computes predictions of several clients.
        """
        self.request = request
        self._task: Any = task
        self._side_by_side = side_by_side
        self._records: dict[Logged, MetricRecord] = {}
        self._measured: tuple[EvaluationPart, int] | None = None  # what is logged is this client's, of this data loader
        self._group: tuple[tuple[EvaluationPart, ...], int] | None = None  # the batch is these clients'
        side_by_side.forget_models()

    def start_batch(self, loader: ClientLoader, batch_idx: int, dataloader_idx: int) -> None:
        """Put the client's model into the task, or prepare for several clients."""
        parts = loader.batches[batch_idx]
        if loader.grouped:
            self._group = parts, dataloader_idx
        else:
            self._task.evaluation_session.show(parts[0].client, own=parts[0].model == "own")
            self._measured = parts[0], dataloader_idx

    def end_batch(self, loader: ClientLoader, batch_idx: int, dataloader_idx: int) -> None:
        """Put the global model back into the task."""
        if loader.grouped:
            self._group = None
        else:
            self._stop_measuring(loader.batches[batch_idx][0], dataloader_idx)
            self._task.evaluation_session.restore()

    def hears(
        self, name: str, value: Any, prog_bar: bool = False, *_: Any, batch_size: int | None = None, **__: Any
    ) -> bool:
        """Record what the task logs, as ``self.log`` does; return False if no client is measured at the moment."""
        if self._measured is None:
            return False
        part, dataloader_idx = self._measured
        logged = Logged(dataloader_idx, part.model, name)
        record = self._records.setdefault(logged, MetricRecord(prog_bar and part.model == "own"))
        record.add(value, len(part.index) if batch_size is None else batch_size)
        return True

    def takes_over(self, stage: str, batch: Any) -> bool:
        """Evaluate a batch of several clients, leaves ``[S, B, ...]``; return False if the batch is one client's."""
        if self._group is None:
            return False
        self._evaluate_together(*self._group, stage, batch)
        return True

    def answers(self, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what these clients measured, in one answer; nothing if no client has finished its data."""
        asked, metrics = set(client_ids), {}
        for logged, record in self._records.items():
            values = record.values_of(asked, _higher_is_better(self._task.higher_is_better, logged.name))
            if values is not None:
                metrics[logged.full_name(self.request.stage)] = values
        if metrics:
            yield EvaluationAnswer(metrics)

    def _evaluate_together(
        self, parts: tuple[EvaluationPart, ...], dataloader_idx: int, stage: str, batch: Any
    ) -> None:
        """Evaluate several clients; ``batch`` has leaves ``[S, B, ...]``."""
        task = self._task
        predictions = self._side_by_side.predict(task, self.request, parts, batch)
        for place, part in enumerate(parts):

            def own(leaf: Tensor, place: int = place, samples: int = len(part.index)) -> Tensor:
                return leaf[place, :samples]

            data = map_tensors(own, batch)
            if predictions is None:
                task.evaluation_session.show(part.client, own=part.model == "own")
            self._measured = part, dataloader_idx
            task.evaluate(stage, data, task.predictions(data) if predictions is None else map_tensors(own, predictions))
            self._stop_measuring(part, dataloader_idx)
        task.evaluation_session.restore()

    def _stop_measuring(self, part: EvaluationPart, dataloader_idx: int) -> None:
        """Compute the values of a client whose last batch has been evaluated."""
        self._measured = None
        if part.last:
            for logged, record in self._records.items():
                if (logged.dataloader, logged.model) == (dataloader_idx, part.model):
                    record.close(part.client)


def _higher_is_better(said: Mapping[str, bool], name: str) -> bool | None:
    """Return what a task says of a metric, with or without the prefixes of its name; None if it says nothing."""
    if name in said:
        return said[name]
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return said.get(name)
