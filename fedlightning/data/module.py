"""Federated data as a ``LightningDataModule``: one train batch is one communication round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor
from torch.utils.data import Dataset
from typing_extensions import Self

from fedlightning.core.errors import InvalidAttributeError, InvalidTypeError, InvalidValueError
from fedlightning.core.misspelt import require_arguments
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.serialisation import rebuild
from fedlightning.core.validation import require, require_instance, spoken_name
from fedlightning.data.described import Described
from fedlightning.data.evaluation_loaders import EvaluationLoaders, Loader
from fedlightning.data.federation import Federation
from fedlightning.data.identity import difference, identity_of
from fedlightning.data.poisoning import Poisoning
from fedlightning.federation.files.checkpoint_io import read_checkpoint, read_hyper_parameters
from fedlightning.federation.sampling.round_loader import RoundLoader
from fedlightning.federation.sampling.round_plan import require_minibatches
from fedlightning.participation import Full, Participation


class FederatedDataModule(Described):
    """Makes rounds of federated data; each subclass defines the data sets.

    Tensors (:class:`TensorData`, ``TensorDataset``) are gathered by index on the device; other data sets, and
    subclasses of these that make samples in a way of their own, go through ``DataLoader`` workers. Cohorts, minibatches
    and what data sets draw (an augmentation) are pure functions of seed, round, phase and client, so a resumed run sees
    the same samples.
    """

    def __init__(
        self,
        batch_size: int | None = 32,
        local_steps: int | None = None,
        local_epochs: float = 1,
        participation: Participation | None = None,
        rounds_per_epoch: int = 10,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
        validate_train: bool = False,
        poisoning: Poisoning | None = None,
    ) -> None:
        """Set how rounds are made from the data.

        Args:
            batch_size: Samples B >= 1 of a local minibatch; null for the client's whole data. Every minibatch has B
                samples; a client with fewer samples meets some of them several times in a minibatch.
            local_steps: Local steps K >= 1 of a client in a round; null for as many as ``local_epochs`` take.
            local_epochs: Passes over the client's data in a round, if ``local_steps`` is null; 0.5 is half of one, as
                many minibatches as that takes, rounded up.
            participation: Who takes part; null for all.
            rounds_per_epoch: Communication rounds that Lightning counts as one epoch, at whose end it validates.
            eval_batch_size: Batch size of validation, test and prediction.
            num_workers: Number of worker processes for data sets that are not tensors.
            seed: Seed of cohorts and minibatches (and, in most data sets, of the partition).
            validate_train: Whether validation gets the clients' training data as a second loader: pooled (``val_loss``
                is ``global_train_loss`` there), or client by client where clients have models of their own
                (``local_train_loss``). A ``validation_step`` that takes a ``dataloader_idx`` names its values itself.
            poisoning: What some clients have done to their training data, to simulate attacks; null for nothing.
        """
        super().__init__()
        self.batch_size = batch_size
        self.local_steps = local_steps
        self.local_epochs = local_epochs
        self.participation = Full() if participation is None else participation
        self.rounds_per_epoch = rounds_per_epoch
        self.eval_batch_size = eval_batch_size
        self.num_workers = num_workers
        self.seed = seed
        self.validate_train = validate_train
        self.poisoning = poisoning
        self._federation: Federation | None = None
        require(self, "batch_size", "local_steps", at_least=1, optional=True, whole=True)
        require(self, "local_epochs", above=0.0)
        require(self, "rounds_per_epoch", "eval_batch_size", at_least=1, whole=True)
        require(self, "num_workers", at_least=0, whole=True)
        require(self, "seed", whole=True)
        require_minibatches(self)
        require_instance(f"{spoken_name(self)}(participation", self.participation, Participation, "Uniform(size=10)")
        if poisoning is not None:
            require_instance(f"{spoken_name(self)}(poisoning", poisoning, Poisoning, "LabelFlip(share=0.2)")

    @abstractmethod
    def build(self) -> Federation:
        """Build the data sets; called once, when the data sets are first needed."""

    @classmethod
    def from_datasets(  # type: ignore[override]
        cls,
        train: Sequence[Dataset[Any]],
        val: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        test: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        **options: Any,
    ) -> FederatedDataModule:
        """Build federated data from one data set per client.

        Args:
            train: One data set a client, each with at least one sample.
            val: Validation data of the global model; or a list, one data set a client, for the clients' own models.
                Clients whose entry is null or empty are not evaluated.
            test: Test data, likewise.
            options: Arguments of :class:`FederatedDataModule`: ``batch_size``, ``local_steps``, ``participation``,
                ``seed``, ...

        Raises:
            TypeError: If ``train`` is not a list, or there is no such option.
            ValueError: If the list is empty.
        """
        if isinstance(train, Dataset | Tensor | str | Mapping) or not hasattr(train, "__getitem__"):
            raise InvalidTypeError(
                f"from_datasets(train={type(train).__name__}): expected a list of data sets, one a client. A generator "
                "becomes one by list(...); one data set is shared out by Subset(dataset, indices) of each client."
            )
        if not len(train):
            raise InvalidValueError("from_datasets(train=[]): give one data set a client.")
        if "collate_fn" in options:
            raise InvalidTypeError(
                "from_datasets(collate_fn=...): minibatches of all clients are gathered without such a function. "
                "Pad or collate in the data set: samples of one shape."
            )
        require_arguments("from_datasets", options, [cls.from_datasets, FederatedDataModule.__init__])
        from fedlightning.data.client_datasets import ClientDatasets  # a subclass of this class

        return ClientDatasets(train, val, test, **options)

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        weights_only: bool | None = None,
        trusted: Iterable[Any] = (),
        **kwargs: Any,
    ) -> Self:
        """Rebuild the data module of a checkpoint, without fetching any data.

        The class must have called ``save_hyperparameters``.

        Args:
            checkpoint_path: A file, a URL, or an open file.
            map_location: As for ``torch.load``.
            hparams_file: YAML or CSV with hyper-parameters in place of those stored.
            weights_only: Null or true to refuse files with more than tensors and plain values.
            trusted: Your own classes that hyper-parameters in the file may name; see
                :meth:`FederatedLightningModule.load_from_checkpoint`.
            kwargs: Hyper-parameters that replace those stored.

        Raises:
            CheckpointError: If the file is no checkpoint, or asks for a class that is not trusted.
        """
        checkpoint = read_checkpoint(checkpoint_path, map_location, weights_only)
        key = cls.CHECKPOINT_HYPER_PARAMS_KEY
        stored = checkpoint.get(key, {}) if hparams_file is None else read_hyper_parameters(Path(hparams_file))
        wrapped_in = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME)
        data = rebuild(cls, stored, kwargs, trusted, wrapped_in, f"{hparams_file or checkpoint_path}: {key}")
        if type(data).__qualname__ in checkpoint:
            data.load_state_dict(checkpoint[type(data).__qualname__])
        return data

    @property
    def federation(self) -> Federation:
        """Return the data sets, built on first use."""
        _require_made(self)
        if self._federation is None:
            try:
                built = self.build()
            except FileNotFoundError as error:
                root = getattr(self, "root", None)
                if len(error.args) == 1 and root is not None and not Path(root).is_absolute():
                    error.args = (f"{error} Looked in {Path(root).absolute()}.",)
                raise
            _require_federation(self, built)
            self._federation = built if self.poisoning is None else self.poisoning.apply(built)
        return self._federation

    @property
    def num_clients(self) -> int:
        """Return the number N of clients."""
        return len(self.federation.partition)

    def setup(self, stage: str | None = None) -> None:
        """Build the data sets and check that no cohort is larger than the federation.

        Raises:
            ValueError: If more clients are to take part than there are.
        """
        _require_made(self)
        if stage in ("fit", None):
            self.participation.check(self.num_clients)
            if self.local_steps is not None and self.local_epochs != 1:
                rank_zero_warn(
                    f"{spoken_name(self)}: local_steps={self.local_steps} says how long clients train in a round, so "
                    f"local_epochs={self.local_epochs} is not used. Leave one of them out."
                )

    @property
    def identity(self) -> dict[str, Any]:
        """Describe the federation in plain types, as checkpoints store it; see :mod:`fedlightning.data.identity`."""
        return identity_of(self.federation, self.seed)

    def differs_from(self, theirs: Mapping[str, Any]) -> str | None:
        """Describe how this federation differs from another one.

        Args:
            theirs: The :attr:`identity` of the other federation; older checkpoints lack some entries.

        Returns:
            Both federations and what to do; None if they are the same, as far as known.
        """
        return difference(theirs, self.identity)

    def train_dataloader(self) -> RoundLoader:
        """Return a loader of rounds that starts at the trainer's current round.

        Raises:
            TypeError: If the trainer fits a module that carries out no rounds.
        """
        trainer: Any = self.trainer
        if trainer is None:
            return RoundLoader(self)
        task = trainer.lightning_module
        clients: Any = getattr(task, "client_models", None)
        if clients is None:
            name = type(task).__name__
            raise InvalidTypeError(
                f"{name} is no federated task, and a training batch of a FederatedDataModule is a round of many "
                f"clients. Fit fedlightning.federate({name}(...), algorithm), with an algorithm of "
                "fedlightning.algorithms such as FedAvg, or a subclass of FederatedLightningModule."
            )
        return RoundLoader(
            self,
            phases=task.algorithm.phases,
            start=(lambda: 0) if trainer.overfit_batches else (lambda: trainer.global_step),
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            architecture=TaskArchitectures(task).of,
            by_owner=clients.keep_states,
        )

    def val_dataloader(self) -> Loader:
        """Return the loader of validation data, client by client if clients have models of their own.

        With ``validate_train``, a list of validation data and training data.
        """
        loaders = self._evaluation_loaders()
        return [loaders.val(), loaders.train()] if self.validate_train else loaders.val()

    def test_dataloader(self) -> Loader:
        """Return the loader of test data, client by client if clients have models of their own."""
        return self._evaluation_loaders().test()

    def predict_dataloader(self) -> Loader:
        """Return the loader of data to predict; test data client by client for clients' own models."""
        return self._evaluation_loaders().predict()

    def _evaluation_loaders(self) -> EvaluationLoaders:
        federation, trainer = self.federation, self.trainer
        if trainer is None:
            return EvaluationLoaders(federation, self.eval_batch_size, self.num_workers)
        return EvaluationLoaders(
            federation,
            self.eval_batch_size,
            self.num_workers,
            task=trainer.lightning_module,
            rank=trainer.global_rank,
            num_processes=trainer.world_size,
        )


def _require_made(data: FederatedDataModule) -> None:
    """Refuse a data module whose ``__init__`` does not call the base class's ``__init__``."""
    if "_federation" not in vars(data):
        raise InvalidAttributeError(
            f"{type(data).__name__}.__init__ does not call super().__init__(...) of FederatedDataModule. Call it first "
            "of all, with batch_size, local_steps, participation, ... as you like them."
        )


def _require_federation(data: FederatedDataModule, built: object) -> None:
    """Refuse what is no federation as the result of ``build``, and a data module without such a method."""
    name = type(data).__name__
    if type(data).build is FederatedDataModule.build:
        raise InvalidTypeError(
            f"{name} has no build: write build(self), which returns a fedlightning.data.Federation, e.g. "
            "Federation(data, partition)."
        )
    if not isinstance(built, Federation):
        raise InvalidTypeError(
            f"{name}.build returned a {type(built).__name__}; expected a fedlightning.data.Federation, e.g. "
            "Federation(data, partition)."
        )
