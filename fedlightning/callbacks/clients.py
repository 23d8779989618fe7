"""The callback that validates, tests and predicts with every client's own model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import CombinedLoader, rank_zero_warn
from torchmetrics import Metric

from fedlightning.callbacks.client_report import log_number_of_clients, log_over_clients, log_over_samples
from fedlightning.callbacks.percentiles import PERCENTILES, require_percentiles
from fedlightning.data.evaluation import ClientLoader, PooledLoader
from fedlightning.data.remote import NodesLoader


def _of_tasks(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that rests for modules that are no federated tasks, which a Trainer may run after one."""

    @wraps(hook)
    def for_tasks(self: Callback, trainer: Trainer, pl_module: LightningModule, *args: Any, **options: Any) -> None:
        if hasattr(pl_module, "evaluation_session"):
            hook(self, trainer, pl_module, *args, **options)

    return for_tasks


class EvaluateClients(Callback):
    """Runs a task's ordinary validation and test steps once for every client, with that client's model and data.

    The data module gives batches of one client each (:class:`~fedlightning.data.ClientLoader`). Before a batch the
    client's own model is put into the task, afterwards the global one again. Whatever the step logs is gathered by
    client: numbers are averaged over a client's batches, torchmetrics are computed and reset after them. Then the mean
    over clients is logged under the name itself, the standard deviation over clients as ``<name>_std`` and the worst
    client as ``<name>_worst``: the least value where more is better, else the largest. Metrics of torchmetrics know
    which; of plain numbers the task's ``higher_is_better`` says it, and where nobody does, ``<name>_min`` and
    ``<name>_max`` are logged instead. ``<name>_p10``, ``<name>_p50`` and ``<name>_p90`` are percentiles over clients;
    what an algorithm logs client by client in a round has percentiles as well. Loggers that show histograms get one.
    Clients for whom a torchmetric is undefined (NaN) are left out, and ``<name>_defined`` says how many were not; a
    plain number that is not finite makes the mean so. Where methods keep personal models beside the global one, the
    global one is evaluated on every client's data as well: ``val_global_accuracy`` beside ``val_accuracy``. With
    ``validate_train`` of the data module every client's model is evaluated on the client's training data too:
    ``local_train_loss``, and ``global_train_loss`` for the global one.

    A :class:`~fedlightning.BatchedEvaluationTask` gets batches of several clients, whose models run side by side.

    Where clients are at nodes (:class:`~fedlightning.data.RemoteClients` without ``val``), the nodes measure, and the
    server logs the same of what they send, and as ``val_clients`` of how many clients. Where clients have no models of
    their own, that is the value over the samples of all of them.

    Every task brings this callback; otherwise it rests where clients have no models of their own.

    Args:
        percentiles: Which percentiles are logged, each from 0 to 100; empty for none.
    """

    def __init__(self, percentiles: Sequence[float] = PERCENTILES) -> None:
        self.percentiles = require_percentiles(self, percentiles)
        self._begins = False  # with the next batch, if that is a client's

    @_of_tasks
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Come first among the callbacks, so that all hooks of a batch meet the model of its client."""
        task: Any = pl_module
        data = trainer.datamodule  # type: ignore[attr-defined]
        task.evaluation_session.loaders.prepare(task, bool(getattr(data, "validate_train", False)))
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        callbacks.remove(self)
        callbacks.insert(0, self)

    @_of_tasks
    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Check whether evaluation data come client by client."""
        pl_module.evaluation_session.end()
        pl_module.evaluation_session.loaders.begin()
        loaders = _loaders(trainer)
        self._begins = _check_clients(trainer, pl_module, loaders) and not _at_nodes(loaders)
        if self._begins:
            _reset_metrics(pl_module)

    @_of_tasks
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Put the client's model into the task, or prepare for several clients.

        Before the first batch, other callbacks may have put averaged weights, say, into the task.
        """
        if self._begins:
            self._begins = False
            pl_module.evaluation_session.look()
            pl_module.evaluation_session.begin(pl_module.run.evaluation_request("test" if trainer.testing else "val"))
        loader, evaluation = _loaders(trainer)[dataloader_idx], pl_module.evaluation_session.evaluation
        pl_module.evaluation_session.loaders.start_batch(dataloader_idx)
        if isinstance(loader, ClientLoader):
            evaluation.start_batch(loader, batch_idx, dataloader_idx)
        elif evaluation is not None:
            evaluation.finish_batch()

    @_of_tasks
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Ask the clients what they measured, and log it."""
        mixes = pl_module.evaluation_session.loaders.end()
        self._report(trainer, pl_module)
        pl_module.evaluation_session.loaders.are_mixed = mixes

    def _report(self, trainer: Trainer, pl_module: Any) -> None:
        session, loaders = pl_module.evaluation_session, _loaders(trainer)
        at_nodes = _at_nodes(loaders)
        if trainer.sanity_checking if at_nodes else session.evaluation is None:
            return
        num_clients = max(loader.num_clients for loader in loaders if isinstance(loader, ClientLoader | NodesLoader))
        if at_nodes:
            found = session.ask_nodes("test" if trainer.testing else "val", num_clients)
            log_number_of_clients(trainer, pl_module, found)
        else:
            session.evaluation.finish_batch()
            _warn_if_cut_short(trainer, session.evaluation.unfinished)
            found = session.collect(num_clients)
        pl_module.client_metrics = {name: values.spread(num_clients) for name, values in found.items()}
        for name, values in found.items():
            if pl_module.evaluated_models:
                log_over_clients(trainer, pl_module, name, values, self.percentiles)
            else:
                log_over_samples(pl_module, name, values)
        session.reported = pl_module.evaluated_models

    on_test_start = on_validation_start
    on_test_batch_start = on_validation_batch_start
    on_test_epoch_end = on_validation_epoch_end

    @_of_tasks
    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Forget whose data were predicted before."""
        by_client = _check_clients(trainer, pl_module, _several(trainer.predict_dataloaders))
        if pl_module.predict_client is not None or by_client:
            pl_module.evaluation_session.look()
        pl_module.predicted_clients = []

    @_of_tasks
    def on_predict_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Put the model of the batch's client into the task, or of the client asked for."""
        loader = _several(trainer.predict_dataloaders)[dataloader_idx]
        client = loader.batches[batch_idx][0].client if isinstance(loader, ClientLoader) else pl_module.predict_client
        if client is not None:
            if not isinstance(loader, ClientLoader) and pl_module.client_models.exist:
                pl_module.client_models.require_states(f"predict_client={client}")
            pl_module.evaluation_session.show(client)
            pl_module.predicted_clients.append(client)

    @_of_tasks
    def on_predict_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the global model back into the task."""
        pl_module.evaluation_session.close()

    @_of_tasks
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put the global model back into the task, and forget the samples of an evaluation that was cut short."""
        module: Any = pl_module
        module.evaluation_session.close()
        if trainer.evaluating and trainer.state.fn != TrainerFn.FITTING:  # in a fit there are those of training, too
            _reset_metrics(pl_module)


def _reset_metrics(task: LightningModule) -> None:
    for metric in task.modules():
        if isinstance(metric, Metric):
            metric.reset()


def _warn_if_cut_short(trainer: Trainer, client: int | None) -> None:
    """Warn of a client of whose batches a limit of the Trainer left some out."""
    if client is not None and not trainer.sanity_checking:
        name = "limit_test_batches" if trainer.testing else "limit_val_batches"
        option = "fast_dev_run" if trainer.fast_dev_run else name  # type: ignore[attr-defined]
        rank_zero_warn(
            f"{option} ends the evaluation within client {client}'s data: neither it nor a later client is measured. "
            f"A client has several batches here. Raise {option}, or eval_batch_size of the data module."
        )


def _loaders(trainer: Trainer) -> list[Any]:
    """Return the data loaders of the validation or test that runs."""
    return _several(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders)


def _at_nodes(loaders: list[Any]) -> bool:
    """Return whether evaluation data are at nodes."""
    return any(isinstance(loader, NodesLoader) for loader in loaders)


def _several(loaders: Any) -> list[Any]:
    """Return data loaders as a list, in the order in which Lightning numbers them."""
    flattened: list[Any] = CombinedLoader(loaders).flattened
    return flattened


def _check_clients(trainer: Trainer, module: Any, loaders: list[Any]) -> bool:
    """Return whether data come client by client, and refuse data of other clients than the task has models of."""
    by_client = [loader for loader in loaders if isinstance(loader, ClientLoader | NodesLoader)]
    if by_client:
        module.client_models.require_data_of_same_clients(trainer.datamodule)  # type: ignore[attr-defined]
        module.client_models.adapt_on(trainer.datamodule)  # type: ignore[attr-defined]
        if module.client_models.exist and module.run.holds_weights_alone:
            rank_zero_warn(
                f"{type(module).__name__}: load_state_dict brought the global model alone, so all clients are "
                "evaluated with the personal parts of the start. Load theirs with load_from_checkpoint."
            )
        if not trainer.sanity_checking:
            module.client_models.warn_if_not_adapted()
    elif not all(isinstance(loader, PooledLoader) for loader in loaders):
        _warn_of_the_start(module, trainer)
    return bool(by_client)


def _warn_of_the_start(module: Any, trainer: Trainer) -> None:
    """Warn if personal parts that no client has trained predict for data that belong to no client.

    A federated data module says so itself.
    """
    chosen = trainer.predicting and module.predict_client is not None
    if not module.personal_parameters or module.run.is_of_one_client or chosen:
        return
    rank_zero_warn(
        f"{type(module).__name__}: the data are nobody's, so the shared parameters answer with the personal ones of "
        "the start, which no client has trained. Evaluate client by client (FederatedDataModule.from_datasets with val "
        "or test as a list), or one client's own model: task.personalize(i), or predict_client=i to predict."
    )
