"""Federated data as a ``LightningDataModule``: one train batch is one communication round."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torch.utils.data import Sampler as TorchSampler
from typing_extensions import Self

from fedlightning.algorithms.base import Phase
from fedlightning.core.seeding import derive_seed
from fedlightning.core.serialisation import rebuild
from fedlightning.core.tree import flatten, map_tensors
from fedlightning.core.validation import require, require_instance
from fedlightning.data.evaluation import ClientLoader, PooledLoader
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import MixedTensorData, as_tensor_data
from fedlightning.data.tensors import TensorData as TensorData
from fedlightning.federation.checkpoint_io import read_checkpoint, read_hyper_parameters
from fedlightning.federation.cohort import ClientBatches, Cohort, RoundBatch
from fedlightning.federation.minibatches import client_seed, draw_minibatches
from fedlightning.federation.processes import held_by
from fedlightning.federation.sources import LoadedSource, Source, TensorSource
from fedlightning.models.per_architecture import TaskArchitectures
from fedlightning.participation import Full, Participation, Selection


class SampleError(RuntimeError):
    """A client's data set did not give its samples; the message names round and client."""


@dataclass(frozen=True)
class Federation:
    """Data sets of a federation.

    Attributes:
        train: All clients' samples, pooled.
        partition: Which of them each client holds.
        val: Validation data; None for no validation.
        test: Test data.
        predict: Data to predict; the test data if None.
        val_partition: Which validation samples each client holds, where clients have models of their own to validate;
            some may hold none (``allow_empty``). The data set may hold further samples, as ``train`` may.
        test_partition: Likewise of the test data.
    """

    train: Dataset[Any]
    partition: Partition
    val: Dataset[Any] | None = None
    test: Dataset[Any] | None = None
    predict: Dataset[Any] | None = None
    val_partition: Partition | None = None
    test_partition: Partition | None = None

    def __post_init__(self) -> None:
        empty = (self.partition.sizes == 0).nonzero().flatten().tolist()
        if empty:
            shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
            raise ValueError(
                f"Federation(partition=...): {len(empty)} of {len(self.partition)} clients have no training samples: "
                f"{shown}. Leave such clients out, of val_partition and test_partition too; allow_empty is for these."
            )


class FederatedDataModule(LightningDataModule):
    """Base of all federated data: a subclass says what the data are, this class makes rounds of them.

    Tensors (:class:`TensorData`, ``TensorDataset``) are gathered by index on the device; other data sets go through
    ``DataLoader`` workers. Cohorts and minibatches are pure functions of seed, round, phase and client, so a resumed
    run sees the same samples.
    """

    def __init__(
        self,
        batch_size: int | None = 32,
        local_steps: int | None = None,
        local_epochs: int = 1,
        participation: Participation | None = None,
        rounds_per_epoch: int = 10,
        eval_batch_size: int = 256,
        num_workers: int = 0,
        seed: int = 0,
        validate_train: bool = False,
    ) -> None:
        """Say how rounds are made of the data.

        Args:
            batch_size: Samples B of a local minibatch; null for the client's whole data. Every minibatch has B samples;
                a client that holds fewer meets some of them several times in one.
            local_steps: Local steps K a round. Null: as many as ``local_epochs`` take.
            local_epochs: Passes over the client's data a round, if ``local_steps`` is null.
            participation: Who takes part; null for all.
            rounds_per_epoch: Communication rounds that Lightning counts as one epoch, at whose end it validates.
            eval_batch_size: Batch size of validation, test and prediction.
            num_workers: Worker processes for data sets that are not tensors.
            seed: Seed of cohorts and minibatches (and, in most data sets, of the partition).
            validate_train: Give validation the clients' training data as a second loader, for tasks whose
                ``validation_step`` takes a ``dataloader_idx``: pooled (``Classification``: ``global_train_loss``, ...),
                or client by client where clients have models of their own (``local_train_loss``, ...).
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
        self._federation: Federation | None = None
        require(self, "batch_size", "local_steps", at_least=1, optional=True, whole=True)
        require(self, "local_epochs", "rounds_per_epoch", "eval_batch_size", at_least=1, whole=True)
        require(self, "num_workers", at_least=0, whole=True)
        require(self, "seed", whole=True)
        owner = type(self).__name__
        require_instance(f"{owner}(participation", self.participation, Participation, "Uniform(size=10)")

    @abstractmethod
    def build(self) -> Federation:
        """Make the data sets; called once."""

    @classmethod
    def from_datasets(  # type: ignore[override]
        cls,
        train: Sequence[Dataset[Any]],
        val: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        test: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        **options: Any,
    ) -> FederatedDataModule:
        """Federated data from one data set a client.

        Args:
            train: One data set a client.
            val: Validation data of the global model; or a list, one data set a client, for their own models. Clients
                whose entry is null or empty are not looked at.
            test: Test data, likewise.
            options: Arguments of :class:`FederatedDataModule`: ``batch_size``, ``local_steps``, ``participation``,
                ``seed``, ...
        """
        if isinstance(train, Dataset | Tensor | str | Mapping) or not hasattr(train, "__getitem__"):
            raise TypeError(
                f"from_datasets(train={type(train).__name__}): expected a list of data sets, one a client. A generator "
                "becomes one by list(...); one data set is shared out by Subset(dataset, indices) of each client."
            )
        if not len(train):
            raise ValueError("from_datasets(train=[]): give one data set a client.")
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
        """The data module of a checkpoint, if it called ``save_hyperparameters``; it fetches nothing.

        Args:
            checkpoint_path: A file, a URL, or an open file.
            map_location: As for ``torch.load``.
            hparams_file: YAML or CSV with hyper-parameters in place of those stored.
            weights_only: Null or true: files with more than tensors and plain values are refused.
            trusted: Classes of yours that hyper-parameters in the file may name; see
                :meth:`FederatedLightningModule.load_from_checkpoint`.
            kwargs: Hyper-parameters that win over those stored.

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
        """The data sets, built on first use."""
        if self._federation is None:
            try:
                self._federation = self.build()
            except FileNotFoundError as error:
                root = getattr(self, "root", None)
                if len(error.args) == 1 and root is not None and not Path(root).is_absolute():
                    error.args = (f"{error} Looked in {Path(root).absolute()}.",)
                raise
        return self._federation

    @property
    def num_clients(self) -> int:
        """N, the number of clients."""
        return len(self.federation.partition)

    def setup(self, stage: str | None = None) -> None:
        """Build the data sets and check that cohorts fit."""
        if stage in ("fit", None):
            self.participation.check(self.num_clients)

    @property
    def identity(self) -> dict[str, Any]:
        """Which federation this is, in plain types: number of clients, digest of the partition, seed, some samples.

        Data sets given one a client are told apart by their sizes and, if they hold tensors, by some clients' first
        samples.
        """
        partition = self.federation.partition
        samples = _first_samples(self.federation.train, partition)
        return {"clients": len(partition), "partition": partition.digest, "seed": self.seed, "samples": samples}

    def differs_from(self, theirs: Mapping[str, Any]) -> str | None:
        """What sets this federation apart from that of another's :attr:`identity`.

        Client i of one is then not client i of the other, and its personal model may have been trained on what are test
        samples of another client now.

        Args:
            theirs: What is known of it; of an older checkpoint, nothing.

        Returns:
            Both federations and what to do; None if they are the same, as far as known.
        """
        mine = self.identity
        same_partition = all(theirs.get(name, mine[name]) == mine[name] for name in ("clients", "partition"))
        if same_partition and _same_samples(theirs.get("samples"), mine["samples"]):
            return None
        seed = theirs.get("seed")
        other = " of other samples" if same_partition else ""
        return (
            f"What the clients keep was trained on {_named(theirs)}, the data are {_named(mine)}{other}. Give the same "
            f"data with the same options and seed={seed} (command line: --seed_everything {seed})."
        )

    def train_dataloader(self) -> RoundLoader:
        """Rounds, from where the trainer stands."""
        trainer: Any = self.trainer
        if trainer is None:
            return RoundLoader(self)
        algorithm = getattr(trainer.lightning_module, "algorithm", None)
        phases = (_ONE_PHASE,) if algorithm is None else algorithm.phases
        start = (lambda: 0) if trainer.overfit_batches else (lambda: trainer.global_step)
        architecture = _architecture_of(trainer.lightning_module)
        by_owner = getattr(trainer.lightning_module, "keeps_client_states", False)
        return RoundLoader(self, phases, start, trainer.global_rank, trainer.world_size, architecture, by_owner)

    def val_dataloader(self) -> DataLoader[Any] | list[Any] | ClientLoader:
        """Validation data, client by client where clients have models of their own.

        With ``validate_train`` the training data too.
        """
        evaluation = self._evaluation("val", self.federation.val, self.federation.val_partition)
        if self.validate_train:
            train, by_client = self.federation.train, _models(self.trainer and self.trainer.lightning_module)
            partition = self.federation.partition
            return [evaluation, self._evaluation("val", train, partition) if by_client else self._loader(train)]
        return evaluation

    def test_dataloader(self) -> DataLoader[Any] | list[Any] | ClientLoader:
        """Test data, likewise."""
        return self._evaluation("test", self.federation.test, self.federation.test_partition)

    def predict_dataloader(self) -> DataLoader[Any] | list[Any] | ClientLoader:
        """Data to predict; the test data client by client where clients have models of their own."""
        federation, trainer = self.federation, self.trainer
        task: Any = None if trainer is None else trainer.lightning_module
        pooled = federation.predict is not None or federation.test_partition is None
        if pooled and task is not None and task.personal_parameters and task.predict_client is None:
            rank_zero_warn(
                f"{type(task).__name__}: the data to predict are nobody's, so the shared parameters predict with the "
                "personal ones of the start. Set predict_client to predict with a client's own model."
            )
        if federation.predict is not None:
            return self._loader(federation.predict)
        if federation.test is None or federation.test_partition is None or not _models(task):
            return self._evaluation("predict", federation.test, federation.test_partition)
        return self._by_client(federation.test, federation.test_partition, ("own",), task.predict_client)

    def _evaluation(
        self, stage: str, dataset: Dataset[Any] | None, partition: Partition | None
    ) -> DataLoader[Any] | list[Any] | ClientLoader:
        if dataset is None:
            return []
        task: Any = None if self.trainer is None else self.trainer.lightning_module
        models = () if stage == "predict" else _models(task)
        if partition is None:
            if models:
                _no_partition(task, stage)
            return self._loader(dataset)
        if models:
            return self._by_client(dataset, partition, models, at_once=task.evaluated_together(stage))
        return self._loader(_subset(dataset, partition.order))

    def _by_client(
        self,
        dataset: Dataset[Any],
        partition: Partition,
        models: tuple[str, ...],
        client: int | None = None,
        at_once: int = 1,
    ) -> ClientLoader:
        if client is not None and not 0 <= client < len(partition):
            raise IndexError(f"predict_client={client}: the federation has clients 0 to {len(partition) - 1}.")
        if client is not None and not len(partition[client]):
            raise ValueError(f"predict_client={client}: this client has no test samples. Choose one that has some.")
        trainer: Any = self.trainer
        processes = 1 if trainer is None else trainer.world_size
        if client is not None and processes > 1:
            raise ValueError(
                f"predict_client={client} with {processes} processes: the client's model lies in one of them. "
                "Predict on one device."
            )
        sizes = partition.sizes
        if processes > 1 and any(not sizes[rank::processes].any() for rank in range(processes)):
            raise ValueError(
                f"The evaluation data are those of {int((sizes > 0).sum())} clients, and none of them is with one of "
                f"the {processes} processes (client i is with process i modulo {processes}), which the others would "
                "wait for. Use fewer devices, or give more clients evaluation data."
            )
        mine = held_by(0 if trainer is None else trainer.global_rank, processes, len(partition))
        clients = mine if client is None else [client]
        architecture = _architecture_of(None if self.trainer is None else self.trainer.lightning_module)
        return ClientLoader(
            dataset, partition, self.eval_batch_size, models, clients, self.num_workers, at_once, architecture
        )

    def _loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        if isinstance(dataset, MixedTensorData):
            raise ValueError(
                "Samples of several shapes cannot be evaluated as one data set. Evaluate them client by client: give "
                "val, test or predict one data set a client, to a task with personal_parameters."
            )
        tensors = as_tensor_data(dataset)
        if tensors is None:
            return PooledLoader(dataset, batch_size=self.eval_batch_size, num_workers=self.num_workers)
        return PooledLoader(_Batches(tensors, self.eval_batch_size), batch_size=None)


class ClientDatasets(FederatedDataModule):
    """One data set a client, as :meth:`FederatedDataModule.from_datasets` makes it."""

    def __init__(
        self,
        clients: Sequence[Dataset[Any]],
        val_dataset: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        test_dataset: Dataset[Any] | Sequence[Dataset[Any] | None] | None = None,
        **options: Any,
    ) -> None:
        """Take the clients' data sets; ``dealing`` are arguments of :class:`FederatedDataModule`."""
        super().__init__(**options)
        self.clients = list(clients)
        self.val_dataset = val_dataset
        self.test_dataset = test_dataset

    def build(self) -> Federation:
        """Pool the clients' samples.

        Raises:
            ValueError: If a client has no training samples, or the lists do not go with each other.
        """
        without = [
            client
            for client, dataset in enumerate(self.clients)
            if not _size_of(dataset, f"train: the data set of client {client}")
        ]
        if without:
            raise ValueError(
                f"train: Client {without[0]} has no samples ({len(without)} of {len(self.clients)} data sets are null "
                "or empty). Leave such clients out of train, val and test."
            )
        train, partition = _joined(self.clients)
        val, val_partition = self._held_out("val", self.val_dataset)
        test, test_partition = self._held_out("test", self.test_dataset)
        return Federation(
            train, partition, val=val, test=test, val_partition=val_partition, test_partition=test_partition
        )

    def _held_out(
        self, name: str, given: Dataset[Any] | Sequence[Dataset[Any] | None] | None
    ) -> tuple[Dataset[Any] | None, Partition | None]:
        if not isinstance(given, list | tuple):
            _size_of(given, f"{name}: the data set")  # type: ignore[arg-type]
            return given, None  # type: ignore[return-value]
        if len(given) != len(self.clients):
            raise ValueError(
                f"{name}: a list of {len(given)} data sets for {len(self.clients)} clients. Give one a client in the "
                "order of train, null for a client without, or one data set for the global model."
            )
        sizes = [_size_of(each, f"{name}: the data set of client {i}") for i, each in enumerate(given)]
        if not any(sizes):
            raise ValueError(f"{name}: all {len(given)} data sets are null or empty. Give null for no {name} data.")
        return _joined(given)


_ONE_PHASE = Phase(None, None, None)  # type: ignore[arg-type]


class RoundLoader:
    """Yields one :class:`RoundBatch` a round, as a pure function of (seed, round).

    An epoch is ``rounds_per_epoch`` rounds; the round to begin with is asked for when iteration starts, after Lightning
    has restored it, so no position has to be stored.
    """

    def __init__(
        self,
        data: FederatedDataModule,
        phases: Sequence[Phase] = (_ONE_PHASE,),
        start: Callable[[], int] = lambda: 0,
        rank: int = 0,
        world_size: int = 1,
        architecture: Callable[[int], str] = lambda client: "",
        by_owner: bool = False,
    ) -> None:
        """Deal ``data`` to the cohorts of ``phases``.

        Each of ``world_size`` processes gets its part of a cohort: with ``by_owner`` the clients whose states lie in
        it, else an equal share. ``architecture`` gives a client's architecture.

        Raises:
            ValueError: If a cohort may have fewer clients than there are processes.
        """
        self._data = data
        self._phases = phases
        self._start = start
        self._rank = rank
        self._world_size = world_size
        self._architecture = architecture
        self._by_owner = by_owner
        self._tensors = _as_source(data.federation.train)
        if world_size > 1:
            self._check_size(data.participation.fewest(len(data.federation.partition)))

    def __len__(self) -> int:
        return self._data.rounds_per_epoch

    def __iter__(self) -> Iterator[RoundBatch]:
        start = self._start()
        source: Source | None = self._tensors
        if source is None:
            order = _ClientOrder(self, start)
            loader = DataLoader(
                self._data.federation.train,
                batch_sampler=order,
                num_workers=self._data.num_workers,
                persistent_workers=False,
            )
            source = LoadedSource(_loaded(iter(loader), order.asked))
        for round_index in range(start, start + len(self)):
            yield RoundBatch(
                round_index,
                tuple(self._cohort(round_index, phase, source) for phase in range(len(self._phases))),
                self._data.federation.partition.sizes,
            )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the round is the state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""

    def members(self, round_index: int, phase: int) -> tuple[ClientBatches, ...]:
        """This process's clients of one phase of one round and their samples; none once too few have answered."""
        data, partition = self._data, self._data.federation.partition
        ids = self._own(self._answering(round_index, phase))
        asked = self._phases[phase]
        mixed = isinstance(data.federation.train, MixedTensorData)
        members = []
        for client in ids:
            indices = partition[client]
            steps = self._steps(asked, len(indices))
            index = (
                indices[None]
                if asked.data == "full"
                else draw_minibatches(
                    indices,
                    data.batch_size,
                    steps * asked.draws,
                    client_seed(data.seed, round_index, phase, client),
                )
            )
            whole = indices if asked.data == "both" else None
            shape = data.federation.train.shape_of(int(indices[0])) if mixed else 0  # type: ignore[attr-defined]
            members.append(ClientBatches(client, index, len(indices), whole, self._architecture(client), shape))
        return tuple(sorted(members, key=lambda member: (*member.kind, 0 if member.whole is None else member.size)))

    def _cohort(self, round_index: int, phase: int, source: Source) -> Cohort:
        return Cohort(
            self.members(round_index, phase),
            source,
            seed=derive_seed(self._data.seed, round_index, phase, 2),
            answering=len(self._answering(round_index, phase)),
            contacted=self._selection(round_index, phase).num_contacted,
        )

    def _answering(self, round_index: int, phase: int) -> list[int]:
        """Clients that answer in a phase; none once too few have."""
        selections = [self._selection(round_index, each).ids for each in range(phase + 1)]
        return selections[phase] if all(selections[:phase]) else []

    def _steps(self, phase: Phase, samples: int) -> int:
        """Local steps K of a client: the phase's own number, the data's, or as many as its local epochs take."""
        data = self._data
        if phase.steps is not None:
            return phase.steps
        if data.local_steps is not None:
            return data.local_steps
        if data.batch_size is None:
            return data.local_epochs
        return math.ceil(data.local_epochs * samples / data.batch_size)

    def _selection(self, round_index: int, phase: int) -> Selection:
        data = self._data
        return data.participation.select(len(data.federation.partition), data.seed, round_index, phase)

    def _check_size(self, num_clients: int) -> None:
        if num_clients < self._world_size:
            raise ValueError(
                f"{self._data.participation}: a round may have {num_clients} clients, too few for {self._world_size} "
                "processes. Let more take part (FirstResponders: raise at_least), or use fewer devices."
            )

    def _own(self, ids: list[int]) -> list[int]:
        if ids:
            self._check_size(len(ids))
        if self._by_owner:
            mine = held_by(self._rank, self._world_size, len(self._data.federation.partition))
            return [client for client in ids if client in mine]
        cuts = [round(i * len(ids) / self._world_size) for i in range(self._world_size + 1)]
        return ids[cuts[self._rank] : cuts[self._rank + 1]]


class _ClientOrder(TorchSampler[list[int]]):
    """Sample positions, one list a client, in the order rounds, phases and cohorts will ask for them.

    Attributes:
        asked: Round and client of the lists that were given out and have not come back as samples.
    """

    def __init__(self, rounds: RoundLoader, start: int) -> None:
        self.asked: deque[tuple[int, int]] = deque()
        self._rounds = rounds
        self._start = start

    def __iter__(self) -> Iterator[list[int]]:
        for round_index in range(self._start, self._start + len(self._rounds)):
            for phase in range(len(self._rounds._phases)):
                for member in self._rounds.members(round_index, phase):
                    self.asked.append((round_index, member.id))
                    yield (member.index if member.whole is None else member.whole).flatten().tolist()


def _loaded(items: Iterator[Any], asked: deque[tuple[int, int]]) -> Iterator[Any]:
    """Samples as they arrive; an error of a data set comes with the round and the client it was asked for."""
    while True:
        try:
            item = next(items)
        except Exception as error:
            if not asked:
                if isinstance(error, StopIteration):
                    return
                raise
            lines = str(error).strip().splitlines() or [""]
            of_worker = "in DataLoader worker process" in lines[0]  # the cause is the last line of its traceback
            said = lines[-1] if of_worker else f"{type(error).__name__}: {lines[0]}"
            round_index, client = asked[0]
            raise SampleError(
                f"Round {round_index}: the samples of client {client} could not be loaded: {said}. Model and states "
                "are those before this round."
            ) from error
        asked.popleft()
        yield item


@dataclass(frozen=True)
class _Batches(Dataset[Any]):
    """Batches of tensor data as items, so that nothing is collated sample by sample."""

    data: TensorData
    size: int

    def __len__(self) -> int:
        return -(-len(self.data) // self.size)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        return self.data[index * self.size : (index + 1) * self.size]


def _as_source(dataset: Dataset[Any]) -> Source | None:
    if isinstance(dataset, MixedTensorData):
        return dataset.source()
    data = as_tensor_data(dataset)
    return None if data is None else TensorSource(data.tensors, data.transform)


def _size(dataset: Dataset[Any] | None) -> int:
    return 0 if dataset is None else len(dataset)  # type: ignore[arg-type]


def _size_of(dataset: Dataset[Any] | None, which: str) -> int:
    """The length of what a user gave as a data set.

    Raises:
        TypeError: If it is no data set with a length.
    """
    remedy = "expected a data set with __len__ and __getitem__"
    if isinstance(dataset, type) or not (dataset is None or hasattr(dataset, "__getitem__")):
        shown = dataset.__name__ if isinstance(dataset, type) else type(dataset).__name__
        raise TypeError(f"{which} is {shown}: {remedy}. Samples that come one after the other go into a list first.")
    if isinstance(dataset, tuple | Tensor | str | Mapping):
        raise TypeError(f"{which} is a {type(dataset).__name__}: {remedy}, e.g. TensorDataset(inputs, targets).")
    tensors = None if dataset is None else as_tensor_data(dataset)
    if odd := [
        t for t in ([] if tensors is None else flatten(tensors.tensors)[0]) if t.is_meta or t.layout != torch.strided
    ]:
        raise TypeError(
            f"{which} holds a tensor of {'the meta device' if odd[0].is_meta else str(odd[0].layout)}, whose samples "
            "cannot be gathered. Give dense tensors (.to_dense()) with data."
        )
    try:
        return _size(dataset)
    except Exception as error:
        name = type(dataset).__name__
        raise TypeError(
            f"{which}, {name}, has no length: {type(error).__name__}: {error}. {remedy[0].upper()}{remedy[1:]}."
        ) from error


def _joined(clients: Sequence[Dataset[Any] | None]) -> tuple[Dataset[Any], Partition]:
    """All clients' samples, clients of one shape of samples next to each other, and who holds which."""
    given = {client: dataset for client, dataset in enumerate(clients) if dataset is not None and _size(dataset)}
    groups: dict[Any, list[int]] = {}
    for client, dataset in given.items():
        groups.setdefault(_shape(dataset), []).append(client)
    if None in groups:
        groups = {None: list(given)}
    order = [client for group in groups.values() for client in group]
    sizes = [_size(given[client]) for client in order]
    positions = dict(zip(order, torch.arange(sum(sizes)).split(sizes), strict=True))
    partition = Partition.of((positions.get(client, ()) for client in range(len(clients))), allow_empty=True)
    pools = [_pooled([given[client] for client in group]) for group in groups.values()]
    return pools[0] if len(pools) == 1 else MixedTensorData(pools), partition  # type: ignore[arg-type]


def _shape(dataset: Dataset[Any]) -> Any:
    """What samples must agree in to be held as one tensor; None where they are not."""
    data = as_tensor_data(dataset)
    if data is None or data.transform is not None:
        return None
    leaves, structure = flatten(data.tensors)
    return structure, tuple(leaf.shape[1:] for leaf in leaves)


def _first_samples(dataset: Dataset[Any], partition: Partition, most: int = 64) -> list[float] | None:
    """A number for the first sample of some clients, evenly spread; None if samples are not tensors at hand."""
    if not isinstance(dataset, MixedTensorData) and as_tensor_data(dataset) is None:
        return None
    clients = range(0, len(partition), -(-len(partition) // most))
    return [_number(dataset, int(partition[client][0])) for client in clients if len(partition[client])]


def _number(dataset: Dataset[Any], position: int) -> float:
    """A weighted sum of all values of a sample, before any transform."""
    data = as_tensor_data(dataset)
    if isinstance(dataset, MixedTensorData):
        part = dataset.shape_of(position)
        data, position = dataset.parts[part], position - int(dataset.offsets[part])
    assert data is not None
    values = torch.cat([leaf[position].flatten().double().cpu() for leaf in flatten(data.tensors)[0]])
    return float(values @ torch.arange(1.0, len(values) + 1, dtype=torch.float64).cos())


def _same_samples(theirs: Sequence[float] | None, mine: Sequence[float] | None) -> bool:
    """Whether they are the same as far as known; features computed on another machine differ in the last digits."""
    if theirs is None or mine is None:
        return True
    if len(theirs) != len(mine):
        return False
    then, now = (torch.tensor(numbers, dtype=torch.float64) for numbers in (theirs, mine))
    scale = float(now.nan_to_num().abs().max()) if mine else 0.0
    return torch.allclose(then, now, rtol=0.0, atol=1e-3 * scale, equal_nan=True)


def _named(federation: Mapping[str, Any]) -> str:
    clients, partition, seed = (federation.get(name) for name in ("clients", "partition", "seed"))
    return f"a federation of {clients} clients (partition {partition}, seed {seed})"


def _architecture_of(task: Any) -> Callable[[int], str]:
    """PerArchitecture of clients' personal parts."""
    choice = None if task is None else TaskArchitectures(task)
    return choice.of if choice else lambda client: ""


def _subset(dataset: Dataset[Any], index: Tensor) -> Dataset[Any]:
    if isinstance(dataset, MixedTensorData):
        return dataset
    tensors = as_tensor_data(dataset)
    if tensors is None:
        return Subset(dataset, index.tolist())
    return TensorData(map_tensors(lambda t: t[index], tensors.tensors), tensors.transform)


def _models(task: Any) -> tuple[str, ...]:
    """Which models of a client are evaluated; none where there is only the global one."""
    models: tuple[str, ...] = getattr(task, "evaluated_models", ())
    return models


def _no_partition(task: Any, stage: str) -> None:
    text = (
        f"{type(task).__name__}: clients have models of their own, but the data do not say which {stage} samples each "
        f"client holds. Give {stage} as a list, one data set a client, to FederatedDataModule.from_datasets, or set "
        f"{stage}_partition in the data module's Federation."
    )
    if task.per_client_evaluation:
        raise ValueError(text)
    if task.personal_parameters:
        rank_zero_warn(f"{text} The shared parameters are evaluated with the personal ones of the start.")
    else:
        rank_zero_info(f"{text} The global model is evaluated.")


def _pooled(clients: Sequence[Dataset[Any]]) -> Dataset[Any]:
    parts = [as_tensor_data(client) for client in clients]
    if any(part is None or part.transform is not None for part in parts):
        return ConcatDataset(clients)

    def join(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves)

    return TensorData(map_tensors(join, *(part.tensors for part in parts if part is not None)))
