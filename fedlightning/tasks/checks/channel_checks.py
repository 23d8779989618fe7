"""Checks of a fit whose updates pass through a channel, made once the clients are known, and after its rounds."""

from __future__ import annotations

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedlightning.channel.channel import Channels
from fedlightning.core.errors import InvalidValueError
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.remote import RemoteClients


def require_suitable_cohorts(channels: Channels, num_phases: int, data: FederatedDataModule | RemoteClients) -> None:
    """Make sure that cohorts are as large as robust rules need them, and that adversaries can be simulated.

    Args:
        channels: The channels of the fit.
        num_phases: Number of phases of a round.
        data: The data module; its clients may be on other machines.

    Raises:
        ValueError: If a round may have fewer clients than a rule needs, if there are adversaries on other machines, or
            if their ids are not those of clients.
    """
    fewest = data.participation.fewest(data.num_clients)
    for channel in filter(None, map(channels.of, range(num_phases))):
        rule, attack = channel.aggregate, channel.adversary
        answering = max(fewest, 1) if rule is not None and rule.is_mean else fewest  # empty rounds are left out
        if rule is not None and rule.fewest > answering:
            raise InvalidValueError(
                f"{rule!r} needs the updates of {rule.fewest} clients or more, and a round may have {fewest} with "
                f"{data.participation!r}. Choose a participation in which as many answer, or a rule for fewer."
            )
        if attack is None:
            continue
        if isinstance(data, RemoteClients):
            raise InvalidValueError(
                f"Channel(adversary={attack!r}): adversaries are simulated, and these clients are on machines of their "
                "own. Leave adversary out; poisoning of the nodes' data modules works there."
            )
        attack.among(data.num_clients)


def warn_of_negative_variances(task: nn.Module) -> None:
    """Warn of running variances below zero, to which a channel may bring the mean of what it changes."""
    for name, module in task.named_modules():
        if isinstance(module, _BatchNorm) and module.running_var is not None and bool((module.running_var < 0).any()):
            rank_zero_warn(
                f"{type(task).__name__}: the running variance of '{name}' is below zero, and evaluation is NaN there: "
                "the channel changes averaged statistics as it does updates. Leave them on the clients "
                "(buffers='local'), or normalise by groups."
            )
            return
