"""Measurements of clients' models while Lightning's evaluation loop runs over the clients' data."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.tree import map_tensors
from fedlightning.data.evaluation import ClientLoader, EvaluationPart
from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest
from fedlightning.metrics.alone import alone
from fedlightning.metrics.defined import is_defined
from fedlightning.metrics.sums import sums_of
from fedlightning.tasks.evaluation.carried_over import CarriedOver
from fedlightning.tasks.evaluation.side_by_side import SideBySide
from fedlightning.tasks.evaluation.unnumbered import on_training_data, takes_number

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

_PREFIXES = ("val_", "test_", "local_train_", "global_train_", "global_")


class Logged(NamedTuple):
    """Identifies what a task logs: by the data, the model, and the name it is given.

    Attributes:
        dataloader: Number of the data loader, 0 for evaluation data and 1 for training data.
        model: ``own`` for clients' own models, ``global`` for the server's beside them, ``shared`` where there is none
            but the server's.
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
        if self.model != "global":
            return name
        return f"{prefix}global_{name.removeprefix(prefix)}" if name.startswith(prefix) else f"global_{name}"

    def _name_on_training_data(self) -> str:
        rest = self.name
        for prefix in ("local_train_", "global_train_"):
            rest = rest.removeprefix(prefix)
        if rest == self.name:  # a user's task that does not tell the data loaders apart
            given = f"global_{self.name}" if self.model == "global" else self.name
            return f"{given}/dataloader_idx_{self.dataloader}"
        if self.model != "own" or rest.startswith("global_"):  # of tasks that look at both models themselves
            return f"global_train_{rest.removeprefix('global_')}"
        return f"local_train_{rest}"


class MetricRecord:
    """Gathers by client what a task logs under one name.

    Numbers are averaged over a client's batches. A metric of torchmetrics is computed and reset after the last one.

    Attributes:
        metric: The metric of torchmetrics; None for numbers.
    """

    def __init__(self, name: str, prog_bar: bool, keeps_sums: bool = False, logger: bool = True) -> None:
        """Start with no client measured.

        Args:
            name: As the task calls it, for messages.
            prog_bar: Whether the mean over clients is shown in the progress bar.
            keeps_sums: Whether what a metric is computed from is kept, too, to be added up over clients.
            logger: Whether loggers get what is reported.
        """
        self._name = name
        self._prog_bar = prog_bar
        self._keeps_sums = keeps_sums
        self._logger = logger
        self._sums: dict[int, dict[str, Tensor]] = {}
        self.metric: Metric | None = None
        self._total = 0.0
        self._samples = 0.0
        self._by_client: dict[int, tuple[float, float]] = {}  # value and number of samples

    def add(self, value: Any, samples: float) -> None:
        """Record a value that was logged for a batch of the present client."""
        self._samples += samples
        if isinstance(value, Metric):
            self.metric = value
        else:
            self._total += float(value) * samples

    def close(self, client: int) -> None:
        """Compute the value of a client whose batches have all been evaluated; a metric is to be reset afterwards."""
        if not self._samples:  # this client logged nothing under the name, others did
            return
        if self.metric is not None:
            if self._keeps_sums:
                self._sums[client] = _require_sums(self._name, self.metric)
            with alone(self.metric):
                value = float(self.metric.compute()) if is_defined(self.metric) else math.nan
            self._by_client[client] = value, self._samples
        else:
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
        if higher_is_better is None and self.metric is not None:
            higher_is_better = self.metric.higher_is_better
        values, samples = zip(*known.values(), strict=True)
        sums = [self._sums[client] for client in known if client in self._sums]
        return ClientValues(
            list(known),
            torch.tensor(values),
            torch.tensor(samples),
            higher_is_better,
            nan_is_undefined=self.metric is not None,
            prog_bar=self._prog_bar,
            sums={name: torch.stack([own[name] for own in sums]) for name in sums[0]} if sums else {},
            logger=self._logger,
        )


class ClientEvaluation:
    """Measures clients' models in the steps of Lightning's evaluation loop.

    Before a batch of one client, the client's model is put into the task; what the step logs is then heard as the
    client's. A batch of several clients is evaluated side by side if the task allows it.

    Attributes:
        request: What the server asked.
        unfinished: The client of the last batch, if more of its batches are to come; None if it has been measured.
    """

    def __init__(self, task: FederatedLightningModule, request: EvaluationRequest, side_by_side: SideBySide) -> None:
        """Start with nothing measured.

        Args:
            task: Evaluated.
            request: What the server asked.
            side_by_side: Computes predictions of several clients.
        """
        self.request = request
        self.unfinished: int | None = None
        self._task: Any = task
        self._is_numbered = takes_number(task.validation_step)
        self._side_by_side = side_by_side
        self._records: dict[Logged, MetricRecord] = {}
        self._measured: tuple[EvaluationPart, int] | None = None  # what is logged is this client's, of this data loader
        self._carried_over = CarriedOver(task)
        self._group: tuple[tuple[EvaluationPart, ...], int] | None = None  # the batch is these clients'
        side_by_side.forget_models()

    def start_batch(self, loader: ClientLoader, batch_idx: int, dataloader_idx: int) -> None:
        """Put the model of the batch's client into the task, or prepare for several clients.

        It stays there until the next batch, or :meth:`finish_batch`, so that hooks after the batch meet it, too.
        """
        self.finish_batch()
        parts = loader.batches[batch_idx]
        if loader.grouped:
            self._group = parts, dataloader_idx
        else:
            self._task.evaluation_session.show(parts[0].client, own=parts[0].model == "own")
            self._measure(parts[0], dataloader_idx)

    def finish_batch(self) -> None:
        """End the last batch, if there is one, and put the global model back into the task."""
        self._group = None
        if self._measured is not None:
            self._stop_measuring(*self._measured)
            self._task.evaluation_session.restore()

    @property
    def is_of_several(self) -> bool:
        """Return whether the present batch is one of several clients, and none of them is measured at the moment."""
        return self._group is not None and self._measured is None

    def hears(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: Any = None,
        on_epoch: Any = None,
        reduce_fx: Any = "mean",
        *_: Any,
        batch_size: int | None = None,
        **options: Any,
    ) -> bool:
        """Record what the task logs, as ``self.log`` does; return False if no client is measured at the moment.

        Raises:
            ValueError: If a number is to be reduced otherwise than by its mean; a metric reduces itself.
        """
        if self._measured is None:
            return False
        part, dataloader_idx = self._measured
        own = on_training_data("local", name) if dataloader_idx and not self._is_numbered else name
        logged, pooled = Logged(dataloader_idx, part.model, own), part.model == "shared"
        if not isinstance(value, Metric):
            _require_mean(name, reduce_fx)
            self._carried_over.require_own(name, value)
        shown, goes_to_loggers = prog_bar and part.model != "global", logger is not False
        record = self._records.setdefault(logged, MetricRecord(name, shown, pooled, goes_to_loggers))
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
                name = "" if not values.sums else self._name_of(record.metric)
                metrics[logged.full_name(self.request.stage)] = replace(values, metric=name)
        if metrics:
            yield EvaluationAnswer(metrics)

    def _name_of(self, metric: Metric | None) -> str:
        return next((name for name, each in self._task.named_modules() if each is metric), "")

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
            self._measure(part, dataloader_idx)
            task.evaluate(stage, data, task.predictions(data) if predictions is None else map_tensors(own, predictions))
            self._stop_measuring(part, dataloader_idx)
        task.evaluation_session.restore()

    def _measure(self, part: EvaluationPart, dataloader_idx: int) -> None:
        """Take what is logged from now on as a client's."""
        self._carried_over.begin_batch(is_first=self.unfinished is None)
        self._measured = part, dataloader_idx

    def _stop_measuring(self, part: EvaluationPart, dataloader_idx: int) -> None:
        """Compute the values of a client whose last batch has been evaluated."""
        self._carried_over.finish_batch()
        self._measured = None
        self.unfinished = None if part.last else part.client
        if part.last:
            own = (dataloader_idx, part.model)
            records = [each for logged, each in self._records.items() if (logged.dataloader, logged.model) == own]
            for record in records:
                record.close(part.client)
            for record in records:  # several may have one metric, or metrics that share what they count
                if record.metric is not None:
                    record.metric.reset()


def _require_sums(name: str, metric: Metric) -> dict[str, Tensor]:
    """Return the sums that a metric is computed from.

    Raises:
        ValueError: If it is computed from single samples.
    """
    sums = sums_of(metric)
    if sums is None:
        raise InvalidValueError(
            f"'{name}' is a {type(metric).__name__}, whose value over the samples of all clients needs the samples' "
            "scores, which do not leave a node. Log one that adds up, as a binned one does (thresholds=100); set "
            "per_client_evaluation for the mean over clients; or give the server data: RemoteClients(val=...)."
        )
    return sums


def is_mean(reduction: Any) -> bool:
    """Return whether ``reduce_fx`` of ``self.log`` asks for the mean."""
    return reduction in ("mean", "default", torch.mean)


def _require_mean(name: str, reduction: Any) -> None:
    """Make sure that a value over samples of clients is asked for as a mean.

    Raises:
        ValueError: If it is not.
    """
    if not is_mean(reduction):
        raise InvalidValueError(
            f"'{name}' is logged with reduce_fx={reduction!r}: over a client's batches, and over clients, values are "
            "averaged. Leave reduce_fx out, or log a torchmetrics metric (SumMetric, MaxMetric)."
        )


def _higher_is_better(said: Mapping[str, bool], name: str) -> bool | None:
    """Return what a task says of a metric, with or without the prefixes of its name; None if it says nothing."""
    if name in said:
        return said[name]
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return said.get(name)
