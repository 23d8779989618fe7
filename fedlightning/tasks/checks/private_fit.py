"""Checks of a fit whose channel adds noise, for what would make its account of privacy wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info

from fedlightning.channel.privacy import DistributedGaussianNoise, noises_of
from fedlightning.channel.privacy.coverage import drawing
from fedlightning.core.errors import InvalidValueError
from fedlightning.data.remote import RemoteClients

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


def check_private_fit(task: FederatedLightningModule, data: Any, repeated: int = 0) -> None:
    """Refuse a fit with noise that does not hide clients, and say what is logged without noise.

    Parts of a user's own pass: what they hide is not known here, and :class:`~fedlightning.callbacks.PrivacyBudget`
    refuses them.

    Args:
        task: Attached to a trainer.
        data: The data module.
        repeated: Number of rounds of another fit of the task that were drawn by the same seed.

    Raises:
        ValueError: If the noise does not cover what the server's state is made of, a single client could undo a round,
            clients could compute the noise, processes would draw different noise, or another fit of the task has drawn
            the same noise or cohorts.
    """
    options, trainer = task.federation_options, task.trainer
    draws = [] if options.channel is None else drawing(options.channel, task.algorithm)
    if not (draws and noises_of(options.channel, task.algorithm)):
        return
    if trainer.precision == "16-mixed":
        raise InvalidValueError(
            "precision='16-mixed': a round is undone where the numbers of one client overflow, which tells of this "
            "client without noise. Use 'bf16-mixed'."
        )
    seeded = next((each for each in draws if not each.secure), None)
    if isinstance(data, RemoteClients) and seeded is not None:
        raise InvalidValueError(
            f"{type(seeded).__name__}(secure=False): the seed of a round is sent to all clients on other machines, who "
            "could compute the noise. Set secure=True."
        )
    at_server = [each for each in draws if each.secure and not isinstance(each, DistributedGaussianNoise)]
    if trainer.world_size > 1 and at_server:
        raise InvalidValueError(
            f"{type(at_server[0]).__name__}(secure=True): {trainer.world_size} processes would draw different noise "
            "for the one server that they all compute. Use one process, or secure=False for an experiment."
        )
    if repeated and (seeded is not None or data.participation.fewest(data.num_clients) < data.num_clients):
        raise InvalidValueError(
            f"seed={data.seed} of the data module has drawn noise and cohorts of {repeated} rounds of another fit of "
            "this task, and this fit would draw the same: the difference of two models would show what the noise "
            "hides. Go on from a checkpoint of that fit (ckpt_path), or give the data module another seed."
        )
    rank_zero_info(
        "Noise covers the server's state. Losses and other values that clients report are logged without noise."
    )
