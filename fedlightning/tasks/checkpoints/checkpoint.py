"""The federated part of Lightning's checkpoints: writing it, reading it, and refusing what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.nn.parameter import is_lazy

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.parameter_space import Layout, write
from fedlightning.core.serialisation import CheckpointError, class_path, rebuild
from fedlightning.core.settings import settings
from fedlightning.federation.client_states import MemoryMapped
from fedlightning.federation.files.checkpoint_io import (
    FORMAT,
    AtomicCheckpointIO,
    read_checkpoint,
    read_hyper_parameters,
    require_federation,
)
from fedlightning.federation.files.shards import write_shards
from fedlightning.federation.resume import START_ANEW
from fedlightning.tasks.checkpoints.fingerprint import fingerprint
from fedlightning.tasks.checkpoints.hyper_parameters import plain_hyper_parameters

if TYPE_CHECKING:
    from fedlightning.tasks.checkpoints.checkpointed import CheckpointedTask

CHECKPOINT_KEY = "federation"
_KEPT = {"average": "by the server", "local": "by every client"}
_RESUMED = {"optimizer_states", "lr_schedulers", "loops"}


def save(task: CheckpointedTask, checkpoint: dict[str, Any]) -> None:
    """Add server and client states to a checkpoint, and write hyper-parameters in plain types.

    Raises:
        CheckpointError: If the client states lie in several processes, and a plugin writes one file.
    """
    simulation, space = task.run.simulation, task.parameter_space()
    state = {
        "format": FORMAT,
        "algorithm": class_path(type(task.algorithm)),
        "data": dict(task.run.trained_on),
        "drawn": dict(task.run.drawn),
        "model": fingerprint(task),
        "personal_parameters": list(space.personal.names),
        "max_parameters": list(space.shared.names[space.shared.minimised :]),
        **simulation.state_dict(),
    }
    if simulation.processes.count > 1 and task.client_models.keep_states and state["clients"] is not None:
        if not isinstance(task.trainer.strategy.checkpoint_io, AtomicCheckpointIO):
            raise CheckpointError(
                f"{type(task.trainer.strategy.checkpoint_io).__name__} writes one file, but the client states lie in "
                f"{simulation.processes.count} processes. Leave out this plugin."
            )
        state["shards"] = write_shards(state["clients"], simulation.processes, Path(task.trainer.default_root_dir))
    if not task.run.at_round_boundary:
        state["unfinished"] = True
    checkpoint[CHECKPOINT_KEY] = state
    data = task.trainer.datamodule  # type: ignore[attr-defined]
    for owner, taken_out in ((task, task.taken_out), (data, ())):
        key = getattr(owner, "CHECKPOINT_HYPER_PARAMS_KEY", None)
        if key in checkpoint:
            given = checkpoint[key].get("algorithm")
            if owner is task and isinstance(given, Algorithm) and task.algorithm is not task.made_with:
                checkpoint[key]["algorithm"] = task.algorithm  # which was set between two fits
            checkpoint[key] = plain_hyper_parameters(type(owner), checkpoint[key], taken_out)


def has_states(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint has the states of server and clients."""
    return CHECKPOINT_KEY in checkpoint


def load(task: CheckpointedTask, checkpoint: Mapping[str, Any], fitting: bool) -> None:
    """Restore server and client states from a checkpoint.

    States of another algorithm are left out where they are not needed: if no training goes on from them, and clients
    have no models of their own.

    Args:
        task: Receives the states.
        checkpoint: As Lightning reads it.
        fitting: Whether training goes on from the checkpoint.

    Raises:
        CheckpointError: If the states are missing, damaged, of an unfinished round, or belong to another algorithm.
    """
    state, rounds = checkpoint.get(CHECKPOINT_KEY), checkpoint.get("global_step", 0)
    if state is None:
        if fitting:
            raise _of_another(task, "no federated algorithm", fitting)
        task.run.load(None, {}, rounds=rounds)
        return
    require_federation(state, task.run.source)
    if state.get("unfinished", False):
        raise CheckpointError(
            f"{task.run.source} was written within a round, by OnExceptionCheckpoint, say, when server, clients and "
            "model were not of one. Take another one: LastCheckpoint and ModelCheckpoint write at the end of rounds."
        )
    fits = state["algorithm"] == class_path(type(task.algorithm))
    if fits:
        require_same_personal_order(task, state)
        if fitting:
            require_same_blocks(task, state)
        require_same_buffers(task, state, fitting)
    elif fitting or task.client_models.exist:
        raise _of_another(task, state["algorithm"], fitting)
    _write_unsaved_buffers(task, state["buffers"]["names"], state["buffers"]["values"])
    others, drawn, model = state.get("other_clients", ()), state.get("drawn"), state.get("model")
    task.run.load(state if fits else None, state.get("data", {}), others, rounds, drawn, model)


def _write_unsaved_buffers(task: CheckpointedTask, names: Sequence[str], values: Tensor) -> None:
    """Write the averages of buffers into the task that are not among its weights, as they are not persistent."""
    present, saved = dict(task.named_buffers()), task.state_dict()
    if all(name in saved for name in names) or not all(name in present for name in names):
        return
    averaged = Layout(tuple(names), tuple(present[name].shape for name in names), len(names))
    if averaged.dim == len(values):
        write(averaged, task, values)


def _of_another(task: CheckpointedTask, theirs: str, fitting: bool) -> CheckpointError:
    remedy = (
        f"Resume with the same algorithm, or {START_ANEW}."
        if fitting
        else "The clients' own models are among them: evaluate with the algorithm it was trained with."
    )
    mine = class_path(type(task.algorithm))
    return CheckpointError(
        f"{task.run.source} was written by {theirs}, this run uses {mine}: their states do not fit. {remedy}"
    )


def resume(task: CheckpointedTask, checkpoint: Mapping[str, Any], strict: bool | None) -> None:
    """Restore server and client states of the checkpoint that a trainer reads.

    Args:
        task: Attached to the trainer.
        checkpoint: As Lightning reads it.
        strict: Whether the names of the weights must be the same; None to leave the weights unchecked.

    Raises:
        CheckpointError: If the checkpoint does not fit the task, or a fit cannot go on from it.
    """
    if task.trainer.ckpt_path:
        task.run.read_from(str(task.trainer.ckpt_path))
    load(task, checkpoint, fitting=task.trainer.training)
    if strict is not None:
        require_fitting_weights(task, checkpoint["state_dict"], strict)
    if task.trainer.training:
        require_resumable(checkpoint, task.run.source)
        require_same_home(task, checkpoint)


def require_same_blocks(task: CheckpointedTask, state: Mapping[str, Any]) -> None:
    """Make sure that the same parameters stay on the clients, and are maximised, as when a checkpoint was written.

    Raises:
        CheckpointError: If a parameter belongs to another block now.
    """
    space = task.parameter_space()
    blocks = {
        "personal_parameters": ("personal", "shared", space.personal.names),
        "max_parameters": ("maximised", "minimised", space.shared.names[space.shared.minimised :]),
    }
    for argument, (inside, outside, now) in blocks.items():
        before = state.get(argument)
        if before is None:  # a file written before these were noted
            continue
        if moved := [name for name in (*before, *now) if (name in before) != (name in now)]:
            was, is_now = (inside, outside) if moved[0] in before else (outside, inside)
            raise CheckpointError(
                f"{task.run.source} was trained with '{moved[0]}' {was}, now it is {is_now}: states and optimizers do "
                f"not fit. Resume with the same {argument}, or {START_ANEW}."
            )


def require_same_personal_order(task: CheckpointedTask, state: Mapping[str, Any]) -> None:
    """Make sure that personal parameters stand in clients' blocks where they stood when a checkpoint was written.

    Raises:
        CheckpointError: If the same parameters come in another order.
    """
    before, now = state.get("personal_parameters") or (), task.parameter_space().personal.names
    if sorted(before) == sorted(now) and list(before) != list(now):
        was, is_now = next(pair for pair in zip(before, now, strict=True) if pair[0] != pair[1])
        raise CheckpointError(
            f"{task.run.source} has clients' parameters in another order, '{was}' where '{is_now}' is now: each would "
            f"get another's numbers. Make the layers of {type(task).__name__} in the order they were trained in."
        )


def require_same_buffers(task: CheckpointedTask, state: Mapping[str, Any], fitting: bool) -> None:
    """Make sure that buffers lie where they lay when a checkpoint was written: with the server, or with the clients.

    Args:
        task: Receives the states.
        state: What is stored of them.
        fitting: Whether training goes on from the checkpoint.

    Raises:
        CheckpointError: If the task's ``buffers`` has another value, and the objective changes some that may travel.
    """
    if state["clients"] is None:  # no round yet
        return
    tables = state["clients"].get("architectures", {"": state["clients"]}).values()
    changed = {name for table in tables for name in table["buffers"]}
    moving = [name for name in task.parameter_space().travelling_buffers if name in changed]
    before, now = ("average" if state["buffers"]["names"] else "local"), task.federation_options.buffers
    if moving and before != now:
        anew = f", or {START_ANEW}" if fitting else ""
        raise CheckpointError(
            f"{task.run.source} was trained with buffers='{before}', this run has buffers='{now}': '{moving[0]}' was "
            f"kept {_KEPT[before]}, and is expected {_KEPT[now]}. Take {settings({'model.buffers': before})}{anew}."
        )


def rescue(trainer: Trainer) -> str:
    """Save the state before a round that was rejected, if the run saves checkpoints at all.

    Returns:
        A sentence that says where, to end the error with; empty if nothing was saved.
    """
    callback = trainer.checkpoint_callback
    if callback is None:
        return ""
    folder = Path(getattr(callback, "dirpath", None) or trainer.default_root_dir)
    path = folder / f"before-rejected-round-{trainer.global_step + 1}.ckpt"
    trainer.save_checkpoint(path, weights_only=False)
    return f" The state before this round was saved to {path}."


def require_resumable(checkpoint: Mapping[str, Any], name: str) -> None:
    """Make sure that training can go on from a checkpoint.

    Raises:
        CheckpointError: If the checkpoint holds weights alone.
    """
    if absent := _RESUMED - set(checkpoint):
        raise CheckpointError(
            f"{name} has no {', '.join(sorted(absent))}: it was saved with "
            "save_weights_only=True. It can be evaluated; training goes on from a whole checkpoint."
        )


def require_same_home(task: CheckpointedTask, checkpoint: Mapping[str, Any]) -> None:
    """Make sure that the clients of a checkpoint live where this run looks for them: here, or at nodes.

    Raises:
        CheckpointError: If their states are in the file, and this run asks nodes, or the other way round.
    """
    state = checkpoint.get(CHECKPOINT_KEY)
    if state is None or state["clients"] is None or ("nodes" in state) == (task.run.connect is not None):
        return
    there, here = ("at nodes", "here") if "nodes" in state else ("in the file", "at nodes")
    raise CheckpointError(
        f"{task.run.source} is of a run whose client states are {there}, this run looks for them {here}. Go on as that "
        f"run did, or {START_ANEW}."
    )


def require_fitting_weights(task: CheckpointedTask, stored: Mapping[str, Any], strict: bool) -> None:
    """Make sure that the weights of a checkpoint fit the task, and name the first that does not.

    Args:
        task: Would receive the weights.
        stored: The weights by name.
        strict: Whether the names must be the same.

    Raises:
        CheckpointError: If names or shapes differ, or weights contain NaN.
    """
    own, name = task.state_dict(), task.run.source
    wrong = [
        f"'{weight}' has the shape {tuple(value.shape)} there, {tuple(own[weight].shape)} here"
        for weight, value in stored.items()
        if isinstance(value, Tensor) and weight in own and not is_lazy(own[weight]) and value.shape != own[weight].shape
    ]
    if strict:
        wrong += [f"'{weight}' is missing there" for weight in own if weight not in stored]
        wrong += [f"'{weight}' is missing here" for weight in stored if weight not in own]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise CheckpointError(
            f"{name} holds another model than this {type(task).__name__}: {wrong[0]}{more}. "
            "Use the network and the hyper-parameters it was trained with."
        )
    for weight, _ in task.named_parameters():
        value = stored.get(weight)
        if isinstance(value, Tensor) and value.isnan().any():
            raise CheckpointError(f"{name}: the weights '{weight}' contain NaN. Use an earlier one.")


def read_task(
    cls: Any,
    checkpoint_path: str | Path | IO[bytes],
    map_location: Any,
    hparams_file: str | Path | None,
    strict: bool | None,
    weights_only: bool | None,
    trusted: Iterable[Any],
    given: Mapping[str, Any],
) -> Any:
    """Make the task of a checkpoint, with its weights and all states; see ``load_from_checkpoint``."""
    checkpoint = read_checkpoint(checkpoint_path, map_location or _where_possible, weights_only)
    name = str(checkpoint_path) if isinstance(checkpoint_path, str | Path) else "The checkpoint"
    stored = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_KEY, {})
    if hparams_file is not None:
        stored = read_hyper_parameters(Path(hparams_file))
    wrapped_in = checkpoint.get(cls.CHECKPOINT_HYPER_PARAMS_NAME)
    task = rebuild(cls, stored, given, trusted, wrapped_in, f"{hparams_file or name}: hyper_parameters")
    storage = task.client_storage
    if isinstance(storage, MemoryMapped) and not Path(storage.folder).is_dir() and "client_storage" not in given:
        raise CheckpointError(
            f"{name}: client states were kept in the folder {storage.folder}, which is not there. Give "
            "client_storage=MemoryMapped(folder), or client_storage=None to keep them beside the model."
        )
    strict = task.strict_loading if strict is None else strict
    task.configure_model()
    task.run.read_from(name)
    task.on_load_checkpoint(checkpoint)
    require_fitting_weights(task, checkpoint["state_dict"], strict)
    task.load_state_dict(checkpoint["state_dict"], strict=strict)
    device = next((t.device for t in checkpoint["state_dict"].values() if isinstance(t, Tensor)), None)
    return task if device is None else task.to(device)


def _where_possible(storage: Any, location: str) -> Any:
    """Put a tensor on the device it was saved from, or into main memory if there is no such device."""
    cuda = location.startswith("cuda") and int(location.partition(":")[2] or 0) >= torch.cuda.device_count()
    mps = location.startswith("mps") and not torch.backends.mps.is_available()
    return storage.cpu() if cuda or mps or location.startswith("xla") else None
