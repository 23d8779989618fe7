"""Validation, test and prediction with every client's own model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from torchmetrics import Metric

from fedlightning.callbacks.histograms import log_histogram
from fedlightning.core.tree import map_tensors
from fedlightning.data.evaluation import ClientLoader, EvaluationPart, PooledLoader
from fedlightning.models.per_architecture import TaskArchitectures
from fedlightning.oracle.predictions import ClientPredictions, NotBatchableError
from fedlightning.tasks.advice import leave_out_advice_to_synchronise


@dataclass
class _Logged:
    """What a task logged under one name."""

    prog_bar: bool
    metric: Metric | None = None
    of_a_metric: bool = False
    better: bool | None = None
    total: float = 0.0
    weight: float = 0.0
    values: dict[int, float] = field(default_factory=dict)

    def known(self, values: Tensor) -> Tensor:
        """The values ``[N]`` that count."""
        return values[values.isfinite()] if self.of_a_metric else values[list(self.values)]

    def add(self, value: Any, weight: float) -> None:
        if isinstance(value, Metric):
            self.metric, self.of_a_metric, self.better = value, True, value.higher_is_better
        else:
            self.total += float(value) * weight
            self.weight += weight

    def close(self, client: int) -> None:
        """One client's batches are through."""
        if self.metric is not None:
            synchronises, self.metric.sync_on_compute = self.metric.sync_on_compute, False
            self.values[client] = float(self.metric.compute())  # other processes are at other clients
            self.metric.sync_on_compute = synchronises
            self.metric.reset()
        elif self.weight:
            self.values[client] = self.total / self.weight
            self.total = self.weight = 0.0


class EvaluateClients(Callback):
    """Runs a task's ordinary validation and test steps once for every client, with that client's model and data.

    The data module gives batches of one client each (:class:`~fedlightning.data.ClientLoader`). Before a batch the
    client's own model is put into the task, afterwards the global one again. Whatever the step logs is gathered by
    client: numbers are averaged over a client's batches, torchmetrics are computed and reset after them. Then the mean
    over clients is logged under the name itself, the standard deviation over clients as ``<name>_std`` and the worst
    client as ``<name>_worst``: the least value where more is better, else the largest. Metrics of torchmetrics know
    which; of plain numbers the task's ``higher_is_better`` says it, and where nobody does, ``<name>_min`` and
    ``<name>_max`` are logged instead. Clients for whom a torchmetric is undefined (NaN) are left out, and
    ``<name>_defined`` says how many were not; a plain number that is not finite makes the mean so. TensorBoard shows
    histograms over clients. Where methods keep personal models beside the global one, the global one is evaluated on
    every client's data as well: ``val_global_accuracy`` beside ``val_accuracy``. With ``validate_train`` of the data
    module every client's model is evaluated on the client's training data too: ``local_train_loss``, and
    ``global_train_loss`` for the global one.

    A :class:`~fedlightning.BatchedEvaluationTask` gets batches of several clients, whose models run side by side.

    Every task brings this callback; it rests where clients have no models of their own.
    """

    def __init__(self) -> None:
        self._logged: dict[tuple[int, str, str], _Logged] = {}  # by data loader, model and name
        self._stage = "val"
        self._predictions: dict[str, ClientPredictions] = {}  # by architecture
        self._refused = False

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing gathered yet."""
        self._start(trainer, "val", trainer.val_dataloaders, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing gathered yet."""
        self._start(trainer, "test", trainer.test_dataloaders, pl_module)

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Put the client's model in, or make ready for several clients."""
        self._begin(pl_module, trainer.val_dataloaders, batch_idx, dataloader_idx)

    def on_test_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Put the client's model in, or make ready for several clients."""
        self._begin(pl_module, trainer.test_dataloaders, batch_idx, dataloader_idx)

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """No client predicted for yet."""
        _check_clients(trainer, pl_module, trainer.predict_dataloaders)
        pl_module.predicted_clients = []

    def on_predict_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, *_: int) -> None:
        """Put the client's model in, or that of the client asked for."""
        loader = trainer.predict_dataloaders
        client = loader.batches[batch_idx][0].client if isinstance(loader, ClientLoader) else pl_module.predict_client
        if client is not None:
            if not isinstance(loader, ClientLoader) and pl_module.keeps_models:
                pl_module.require_client_states(f"predict_client={client}")
            pl_module.evaluation_session.show(client)
            pl_module.predicted_clients.append(client)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Take the client's model out."""
        self._end(pl_module, trainer.val_dataloaders, batch_idx, dataloader_idx)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Take the client's model out."""
        self._end(pl_module, trainer.test_dataloaders, batch_idx, dataloader_idx)

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *_: int
    ) -> None:
        """Take the client's model out."""
        pl_module.evaluation_session.restore()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log over clients."""
        self._report(trainer, pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log over clients."""
        self._report(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the global model behind."""
        module: Any = pl_module
        module.evaluation_session.close()

    def _start(self, trainer: Trainer, stage: str, loaders: Any, module: Any) -> None:
        self._logged, self._stage, self._predictions = {}, stage, {}
        if not _check_clients(trainer, module, loaders):
            return
        for metric in module.modules():  # an evaluation that was cut short left a client's samples in them
            if isinstance(metric, Metric):
                metric.reset()

    def _begin(self, module: Any, loaders: Any, batch_idx: int, dataloader_idx: int) -> None:
        loader = _several(loaders)[dataloader_idx]
        if not isinstance(loader, ClientLoader):
            return
        parts = loader.batches[batch_idx]
        if loader.grouped:
            module.evaluation_session.together = partial(self._evaluate, module, parts, dataloader_idx)
        else:
            module.evaluation_session.show(parts[0].client, own=parts[0].model == "own")
            self._listen(module, parts[0], dataloader_idx)

    def _end(self, module: Any, loaders: Any, batch_idx: int, dataloader_idx: int) -> None:
        loader = _several(loaders)[dataloader_idx]
        if not isinstance(loader, ClientLoader):
            return
        if loader.grouped:
            module.evaluation_session.together = None
        else:
            self._close(module, loader.batches[batch_idx][0], dataloader_idx)
            module.evaluation_session.restore()

    def _evaluate(
        self, module: Any, parts: tuple[EvaluationPart, ...], dataloader_idx: int, stage: str, batch: Any
    ) -> None:
        """Several clients; ``batch`` has leaves ``[S, B, ...]``."""
        predictions = self._predicted(module, parts, batch)
        for place, part in enumerate(parts):

            def own(leaf: Tensor, place: int = place, samples: int = len(part.index)) -> Tensor:
                return leaf[place, :samples]

            data = map_tensors(own, batch)
            if predictions is None:
                module.evaluation_session.show(part.client, own=part.model == "own")
            self._listen(module, part, dataloader_idx)
            module.evaluate(
                stage, data, module.predictions(data) if predictions is None else map_tensors(own, predictions)
            )
            self._close(module, part, dataloader_idx)
        module.evaluation_session.restore()

    def _predicted(self, module: Any, parts: tuple[EvaluationPart, ...], batch: Any) -> Any:
        """Scores of all clients; None if they have to be computed one client after the other."""
        if self._refused or not module.run.exists:
            return None
        simulation = module.run.simulation
        try:
            choice = TaskArchitectures(module)
            architecture = choice.of(parts[0].client)
            with choice.activated(architecture):
                if architecture not in self._predictions:
                    self._predictions[architecture] = ClientPredictions(module, simulation.space_of(architecture))
                w, v, b = simulation.models([part.client for part in parts], own=parts[0].model == "own")
                return self._predictions[architecture](w, v, b, batch)
        except NotBatchableError as refusal:
            self._refused = True
            rank_zero_info(
                f"{type(module).__name__}.predictions cannot run for many clients at once; they are evaluated one "
                f"after the other: {refusal}"
            )
            return None

    def _listen(self, module: Any, part: EvaluationPart, dataloader_idx: int) -> None:
        """Whatever is logged from here on is this client's."""

        def note(
            name: str, value: Any, prog_bar: bool = False, *_: Any, batch_size: int | None = None, **__: Any
        ) -> None:
            key = (dataloader_idx, part.model, name)
            logged = self._logged.setdefault(key, _Logged(prog_bar and part.model == "own"))
            logged.add(value, len(part.index) if batch_size is None else batch_size)

        module.evaluation_session.listener = note

    def _close(self, module: Any, part: EvaluationPart, dataloader_idx: int) -> None:
        module.evaluation_session.listener = None
        if part.last:
            for (loader, model, _), logged in self._logged.items():
                if (loader, model) == (dataloader_idx, part.model):
                    logged.close(part.client)

    def _report(self, trainer: Trainer, pl_module: Any) -> None:
        loaders = _several(trainer.test_dataloaders if self._stage == "test" else trainer.val_dataloaders)
        if not any(isinstance(loader, ClientLoader) for loader in loaders):
            return
        pl_module.client_metrics = {}
        self._gather()
        for (dataloader_idx, model, given), logged in self._logged.items():
            if not logged.values:  # cut short before the first client was through
                continue
            name = self._name(dataloader_idx, model, given)
            values = torch.full((loaders[dataloader_idx].clients,), torch.nan)
            values[list(logged.values)] = torch.tensor(list(logged.values.values()))
            pl_module.client_metrics[name] = values
            known = logged.known(values)
            log = partial(pl_module.log, add_dataloader_idx=False)
            for suffix in ("", "_std", "_worst", "_min", "_max", "_defined"):
                leave_out_advice_to_synchronise(f"{name}{suffix}")
            if len(known) < len(logged.values):
                log(f"{name}_defined", float(len(known)))
            log(name, known.mean(), prog_bar=logged.prog_bar)  # NaN if it is defined for nobody
            if not len(known):
                continue
            log(f"{name}_std", known.std(correction=0))
            better = _higher_is_better(pl_module, given, logged.better)
            if better is None:
                log(f"{name}_min", known.min())
                log(f"{name}_max", known.max())
            else:
                log(f"{name}_worst", known.min() if better else known.max())
            if not trainer.sanity_checking and bool(known.isfinite().all()):
                log_histogram(trainer, f"{name}_clients", known)

    def _gather(self) -> None:
        """Add what other processes' clients logged; afterwards every process knows all."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        mine = {
            key: (logged.prog_bar, logged.of_a_metric, logged.better, logged.values)
            for key, logged in self._logged.items()
        }
        everyone: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everyone, mine)
        for found in everyone:
            for key, (prog_bar, of_a_metric, better, values) in found.items():
                logged = self._logged.setdefault(key, _Logged(prog_bar))
                logged.of_a_metric, logged.better = of_a_metric, better
                logged.values |= values

    def _name(self, dataloader_idx: int, model: str, given: str) -> str:
        """What a step logged, by the model and the data it was evaluated on."""
        stage, rest = f"{self._stage}_", given
        if dataloader_idx:
            for prefix in ("local_train_", "global_train_"):
                rest = rest.removeprefix(prefix)
            if rest == given:  # a task of the user's that does not tell the loaders apart
                return f"{given if model == 'own' else f'global_{given}'}/dataloader_idx_{dataloader_idx}"
            if model == "global" or rest.startswith("global_"):  # of tasks that look at both models themselves
                return f"global_train_{rest.removeprefix('global_')}"
            return f"local_train_{rest}"
        if model == "own":
            return given
        return f"{stage}global_{given.removeprefix(stage)}" if given.startswith(stage) else f"global_{given}"


def _several(loaders: Any) -> list[Any]:
    """One data loader or a list of them, as a list."""
    return loaders if isinstance(loaders, list) else [loaders]


def _check_clients(trainer: Trainer, module: Any, loaders: Any) -> bool:
    """Whether data come client by client; if so, they must be those of the clients the task has models of."""
    by_client = [loader for loader in _several(loaders) if isinstance(loader, ClientLoader)]
    if by_client:
        module.require_its_clients(trainer.datamodule)  # type: ignore[attr-defined]
        if module.keeps_models and module.knows_the_global_model_alone:
            rank_zero_warn(
                f"{type(module).__name__}: load_state_dict brought the global model alone, so all clients are "
                "evaluated with the personal parts of the start. Load theirs with load_from_checkpoint."
            )
        if module.run.model_was_changed:
            rank_zero_warn(
                f"{type(module).__name__}: the parameters were changed since the last round. Clients' models are those "
                "of the rounds."
            )
    elif not all(isinstance(loader, PooledLoader) for loader in _several(loaders)):
        _warn_of_the_start(module, trainer)
    return bool(by_client)


def _warn_of_the_start(module: Any, trainer: Trainer) -> None:
    """Say that data of nobody's meet untrained personal parts; a federated data module's says so itself."""
    chosen = trainer.predicting and module.predict_client is not None
    if not module.personal_parameters or module.run.of_one_client or chosen:
        return
    rank_zero_warn(
        f"{type(module).__name__}: the data are nobody's, so the shared parameters answer with the personal ones of "
        "the start, which no client has trained. Evaluate client by client (FederatedDataModule.from_datasets with val "
        "or test as a list), or one client's own model: task.personalize(i), or predict_client=i to predict."
    )


def _higher_is_better(module: Any, name: str, known: bool | None) -> bool | None:
    """Which clients are worse in a metric: what the task says, else what the metric knows; None if nobody does."""
    said: bool | None = module.higher_is_better.get(name)
    if said is None:
        rest = name
        for prefix in ("val_", "test_", "local_train_", "global_train_", "global_"):
            rest = rest.removeprefix(prefix)
        said = module.higher_is_better.get(rest)
    return known if said is None else said
