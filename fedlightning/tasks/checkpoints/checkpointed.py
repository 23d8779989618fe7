"""A task that is saved and restored together with the states of its server and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import IO, Any

from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from typing_extensions import Self

from fedlightning.algorithms.base import Algorithm
from fedlightning.federation.client_states import Storage
from fedlightning.tasks.checkpoints import checkpoint as codec
from fedlightning.tasks.checks.guards import GuardedModule
from fedlightning.tasks.fit.run import FederationRun


class CheckpointedTask(GuardedModule):
    """Writes the states of server and clients into Lightning's checkpoints, and reads them from there.

    Attributes:
        algorithm: What clients and server do.
        client_storage: Where client states lie; None for beside the model.
        run: The states of server and clients.
    """

    algorithm: Algorithm
    client_storage: Storage | None
    run: FederationRun
    _has_read = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep the states also where hooks of a checkpoint are a task's own, which Lightning's never has to call."""
        super().__init_subclass__(**options)
        if _is_foreign(cls, "on_save_checkpoint"):
            cls.on_save_checkpoint = _with_states_saved(cls.on_save_checkpoint)  # type: ignore[method-assign]
        if _is_foreign(cls, "on_load_checkpoint"):
            cls.on_load_checkpoint = _with_states_loaded(cls.on_load_checkpoint)  # type: ignore[method-assign]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add server and client states, and write hyper-parameters in plain types."""
        codec.save(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore server and client states.

        Raises:
            CheckpointError: If the checkpoint has none, they are damaged, or they belong to another algorithm or model.
        """
        self._has_read = True
        if self._trainer is None:
            codec.load(self, checkpoint, fitting=True)
            return
        changes_weights = not type(self).on_load_checkpoint.__module__.startswith("fedlightning.tasks.")  # a user's
        codec.resume(self, checkpoint, None if changes_weights else self.strict_loading)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load the weights of the global model alone; ``load_from_checkpoint`` restores clients' models too."""
        result = super().load_state_dict(*args, **kwargs)
        self.run.note_loaded_weights()
        return result

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        trusted: Iterable[Any] = (),
        **kwargs: Any,
    ) -> Self:
        """Make the task of a checkpoint, with its weights and the states of server and clients.

        A file cannot make arbitrary objects. Only classes of this package, optimizers and schedulers of
        ``torch.optim``, layers of ``torch.nn``, classes of the module that defines this task, and those in ``trusted``
        are made from the names in it.

        Args:
            checkpoint_path: A file, a URL, or an open file.
            map_location: As for ``torch.load``.
            hparams_file: YAML or CSV with hyper-parameters in place of those stored.
            strict: Whether the names of the weights must be the same; null for the task's ``strict_loading``.
            weights_only: Null or true refuses files with more than tensors and plain values. False runs whatever is in
                the file.
            trusted: Classes and functions of yours that hyper-parameters in the file may name.
            kwargs: Hyper-parameters in place of stored ones of the same name.

        Raises:
            CheckpointError: If the file is no checkpoint of such a task, or asks for a class that is not trusted.
        """
        task: Self = codec.read_task(
            cls, checkpoint_path, map_location, hparams_file, strict, weights_only, trusted, kwargs
        )
        return task


def _is_foreign(cls: type[CheckpointedTask], hook: str) -> bool:
    """Return whether a class has a hook of its own, or from a base that is no task, whose hooks are seen to already."""
    owner = next(base for base in cls.__mro__ if hook in vars(base))
    return owner is cls or not issubclass(owner, CheckpointedTask)


def _with_states_saved(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that adds the states to a checkpoint, unless it has them by ``super()``."""

    @wraps(hook)
    def on_save_checkpoint(self: CheckpointedTask, checkpoint: dict[str, Any]) -> None:
        hook(self, checkpoint)
        if not codec.has_states(checkpoint):
            CheckpointedTask.on_save_checkpoint(self, checkpoint)

    return on_save_checkpoint


def _with_states_loaded(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that restores the states of a checkpoint, unless it did by ``super()``."""

    @wraps(hook)
    def on_load_checkpoint(self: CheckpointedTask, checkpoint: dict[str, Any]) -> None:
        self._has_read = False
        hook(self, checkpoint)
        if not self._has_read:
            CheckpointedTask.on_load_checkpoint(self, checkpoint)

    return on_load_checkpoint
