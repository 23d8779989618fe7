"""A client's own model as a file, and its predictions, made at the node from the node's files alone.

The node may work meanwhile: nothing is locked, and nothing of the node's is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import Subset

from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.data.evaluation import dtype_of, pooled_loader
from fedlightning.federation.files.whole_files import why_unwritten, write_whole
from fedlightning.federation.remote.run_config import RunConfig, name_of_run
from fedlightning.federation.remote.sent_model import SentModel
from fedlightning.flower.allowed_classes import AllowedClasses
from fedlightning.flower.built import built_data, enter
from fedlightning.flower.kept_run import kept_run
from fedlightning.flower.node_config import NodeConfig, read_node_config
from fedlightning.flower.node_task import placed_task
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.evaluation.kept_model import personalized_at_node
from fedlightning.tasks.evaluation.node_evaluation import positions_of

PARTS_OF_DATA = ("predict", "test", "val", "train")
"""The node's data that may be predicted."""


def export(config_file: str, client: int, out: str, part: str | None = None) -> str:
    """Write a client's own model as a ``state_dict``, which the plain module loads.

    Args:
        config_file: The node's config.
        client: Number of the client in the federation.
        out: File to write.
        part: Dotted name of the module in the task whose weights are written, such as ``network``; None for all.

    Returns:
        What was written, in a line.

    Raises:
        StoreError: If the node has no model of the client.
        InvalidValueError: If the client is not at this node, or the task has no such part.
        UsageError: If the file cannot be written.
    """
    target = Path(out).expanduser().absolute()
    _, _, task, sent = _model(config_file, client)
    module = dict(task.named_modules()).get(part or "")
    if module is None:
        raise InvalidValueError(
            f"part={part}: {type(task).__name__} has no module of this name. There are "
            f"{', '.join(name for name, _ in task.named_children())}."
        )
    _write({name: value.detach().cpu() for name, value in module.state_dict().items()}, target)
    return f"{target}: the model of client {client} after {sent.rounds} rounds"


def predict(config_file: str, client: int, out: str, on: str = "test") -> str:
    """Write what ``predict_step`` returns for data of the node with a client's own model.

    Args:
        config_file: The node's config.
        client: Number of the client in the federation.
        out: File to write by ``torch.save``: one tensor of all samples, or a list of what the batches gave.
        on: Which data, one of :data:`PARTS_OF_DATA`. All of ``predict``, else the samples of the client.

    Returns:
        What was written, in a line.

    Raises:
        StoreError: If the node has no model of the client.
        InvalidValueError: If the client is not at this node, or there are no such data.
        UsageError: If the task does not predict, or the file cannot be written.
    """
    target = Path(out).expanduser().absolute()
    config, run, task, sent = _model(config_file, client)
    if not is_overridden("predict_step", task):
        raise UsageError(f"{type(task).__name__} has no predict_step, so it predicts nothing.")
    data = built_data(config, run.seed, run.work)
    federation: Any = data.federation
    dataset = getattr(federation, on, None)
    if on not in PARTS_OF_DATA or dataset is None:
        raise InvalidValueError(f"on={on}: the node's data have none of these. There are {_there(federation)}.")
    if on != "predict":
        partition = federation.partition if on == "train" else getattr(federation, f"{on}_partition")
        own = positions_of(on, dataset, partition, data)[config.places[client]]
        if not len(own):
            raise InvalidValueError(f"on={on}: client {client} has no samples there.")
        dataset = Subset(dataset, own.tolist())
    trainer = Trainer(
        accelerator=config.accelerator,
        devices=1,
        precision=config.precision or run.precision,  # type: ignore[arg-type]
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.precision_plugin.convert_module(task)  # as the trainer would: real numbers come in the dtype that it leaves
    loader = pooled_loader(dataset, data.eval_batch_size, data.num_workers, dtype_of(task))
    batches: Any = trainer.predict(task, loader)
    tensors = all(isinstance(batch, Tensor) and batch.dim() for batch in batches)
    _write(torch.cat(batches) if tensors else batches, target)
    return (
        f"{target}: predictions for {len(dataset)} samples with the model of client {client} after {sent.rounds} rounds"
    )


def _model(config_file: str, client: int) -> tuple[NodeConfig, RunConfig, FederatedLightningModule, SentModel]:
    """Return the node's config and last run, and a client's own model."""
    config = read_node_config(config_file)
    if client not in config.places:
        raise InvalidValueError(
            f"client={client} is not at this node, which holds {', '.join(map(str, sorted(config.places)))}."
        )
    enter(config.folder)
    text = kept_run(config.states_folder)
    if text is None:
        raise UsageError(f"There is no run in {config.states_folder}: no server has enrolled this node yet.")
    run = RunConfig.of_text(text)
    task, _ = placed_task(run, AllowedClasses(config.classes))
    copied, sent = personalized_at_node(task, config.states_folder, client, name_of_run(text))
    return config, run, copied, sent


def _there(federation: Any) -> str:
    return ", ".join(name for name in PARTS_OF_DATA if getattr(federation, name) is not None)


def _write(value: Any, target: Path) -> None:
    try:
        write_whole(value, target)
    except OSError as error:
        raise UsageError(f"Nothing was written: {why_unwritten(error, target)}") from error
