"""Arguments of a task that do not go together, refused when the task is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from operator import index
from typing import Any

from fedlightning.algorithms.base import Algorithm, composite_methods
from fedlightning.algorithms.fed_pd import FedPD
from fedlightning.channel.channel import Channels
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.validation import require_argument, require_instance
from fedlightning.federation.client_states import Storage
from fedlightning.oracle import ClientBatching
from fedlightning.tasks.fit.server_step import EXAMPLES, ServerStep
from fedlightning.tasks.options import FederationOptions

_OF_A_CLASS = (
    "max_parameters",
    "personal_parameters",
    "received_parameters",
    "per_client_evaluation",
    "higher_is_better",
)
_CALLED_OTHERWISE = {
    "max_params": "max_parameters",
    "maximised_parameters": "max_parameters",
    "maximized_parameters": "max_parameters",
    "personal_params": "personal_parameters",
    "private_parameters": "personal_parameters",
    "local_parameters": "personal_parameters",
    "per_client_eval": "per_client_evaluation",
}


def require_known_attributes(owner: object) -> None:
    """Make sure that no attribute of a task, or of its class, is nearly one by which tasks are trained.

    Args:
        owner: The task or its class. Attributes that it inherits are not looked at.

    Raises:
        TypeError: If one is; it would be ignored.
    """
    for name, value in vars(owner).items():
        if name.startswith("_") or not _may_be_meant(value) or any(known in name for known in _OF_A_CLASS):
            continue
        found = _CALLED_OTHERWISE.get(name) or next(iter(get_close_matches(name, _OF_A_CLASS, n=1, cutoff=0.9)), None)
        if found is not None and not getattr(owner, found, None):
            cls = owner if isinstance(owner, type) else type(owner)
            raise InvalidTypeError(f"{cls.__name__}.{name} is no attribute of tasks. Did you mean {found}?")


def _may_be_meant(value: Any) -> bool:
    """Return whether a value is one that such an attribute may have: names, a truth value, or these by name."""
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(each, str | bool) for each in value.values())
    if isinstance(value, Sequence | Set) and not isinstance(value, str):
        return bool(value) and all(isinstance(each, str) for each in value)
    return isinstance(value, str | bool)


def require_algorithm(owner: object, algorithm: Any) -> None:
    """Make sure that an argument is an algorithm.

    Args:
        owner: The task, for the message.
        algorithm: As the user gave it.

    Raises:
        TypeError: If it is something else, such as the class of an algorithm.
    """
    if not isinstance(algorithm, Algorithm) or not hasattr(algorithm, "__dataclass_fields__"):
        raise InvalidTypeError(
            f"{type(owner).__name__}(algorithm={algorithm!r}): expected an object of a dataclass derived from "
            "fedlightning.algorithms.Algorithm, e.g. FedAvg(lr=0.1). The command line makes one if the task's argument "
            "is annotated, algorithm: Algorithm."
        )


def require_client_options(owner: object, oracle: Any, client_storage: Any, predict_client: Any) -> None:
    """Make sure that the options of clients are what their names say; each may be None.

    Args:
        owner: The task, for the message.
        oracle: How operators are computed.
        client_storage: Where client states lie.
        predict_client: Client whose own model predicts.

    Raises:
        TypeError: If oracle or storage is something else, or the client no whole number.
        ValueError: If the client's number is negative.
    """
    if oracle is not None:
        require_instance(f"{type(owner).__name__}(oracle", oracle, ClientBatching, "Sequential()")
    if client_storage is not None:
        require_instance(f"{type(owner).__name__}(client_storage", client_storage, Storage, "MemoryMapped('states')")
    require_argument(owner, "predict_client", predict_client, optional=True, whole=True, at_least=0)


def require_server_step(owner: object, step: ServerStep) -> None:
    """Make sure that the parts of a server step are what their names say.

    Args:
        owner: The task, for the message.
        step: As the user chose it.

    Raises:
        TypeError: If optimizer or scheduler is nothing that makes one.
        ValueError: If the norm to clip at is not positive.
    """
    require_argument(owner, "server_clip", step.clip, optional=True, above=0.0)
    for name, made in (("server_optimizer", step.optimizer), ("server_scheduler", step.scheduler)):
        if made is not None and not callable(made):
            raise InvalidTypeError(
                f"{type(owner).__name__}({name}={made!r}): expected something that makes it, e.g. {EXAMPLES[name]}."
            )


def require_compatible(algorithm: Algorithm, options: FederationOptions, step: ServerStep) -> None:
    """Make sure that an algorithm supports the regularizers and the server step of a task.

    Raises:
        ValueError: If the algorithm takes no regularizer, or if something besides the algorithm would move the model
            that must not.
    """
    name = type(algorithm).__name__
    if options.regularizes and not algorithm.regularized:
        raise InvalidValueError(
            f"{name} takes no regularizer or max_regularizer: averaging its local points would "
            "undo what a proximal step did. Composite methods here: "
            f"{', '.join(composite_methods())}. A smooth penalty can be part of objective()."
        )
    if step.moves_freely and options.regularizes:
        raise InvalidValueError(
            "server_optimizer, server_scheduler and server_clip would move the model after the proximal step, out "
            "of its constraint and structure. Use either a regularizer or one of these."
        )
    if step.moves_freely and not algorithm.primal:
        raise InvalidValueError(
            f"{name} computes the point from its server state (a dual, or exact means over all "
            "clients): server_optimizer, server_scheduler and server_clip cannot move it. Leave them out and use "
            "the algorithm's own step sizes."
        )


def require_channel(owner: object, algorithm: Algorithm, options: FederationOptions) -> None:
    """Make sure that a task's channel suits its algorithm and its other options.

    Args:
        owner: The task, for messages.
        algorithm: The algorithm, whose phases the channel has to suit.
        options: Have the channel; None suits all.

    Raises:
        TypeError: If it is something else.
        ValueError: If it has channels for another number of phases, or needs clients to weigh the same or to be
            averaged, and they are not.
    """
    channels, name = options.channel, type(algorithm).__name__
    if channels is None:
        return
    require_instance(f"{type(owner).__name__}(channel", channels, Channels, "Channel(client=[Clip(1.0)])")
    count = len(algorithm.phases)
    channels.require_phases(name, count)
    used = [channel for phase in range(count) if (channel := channels.of(phase)) is not None]
    if options.weighting == "samples" and any(channel.counts_clients_alike for channel in used):
        raise InvalidValueError(
            "weighting='samples': robust means and noise presuppose that all clients count alike, because one that "
            "claims many samples would outweigh the others. Take weighting='uniform', or leave aggregate, adversary "
            "and noise out of the channel."
        )
    if algorithm.needs_exact_uploads and any(channel.client or channel.acts_on_cohort for channel in used):
        raise InvalidValueError(
            f"{name}'s clients move their control variates by the points that they send. What a channel changes on the "
            "way would stay in the sum of the control variates for good, and the run would end elsewhere. Leave the "
            "channel out, or take SCAFFOLD or FedDyn, which end at the solution through ErrorFeedback."
        )
    if isinstance(algorithm, FedPD) and algorithm.p > 0 and any(channel.download for channel in used):
        raise InvalidValueError(
            f"{name}(p={algorithm.p}) sends no point after a round without communication, and clients would answer "
            "relative to the server's exact one, which Channel(download=[...]) has not changed. Leave download out, or "
            "take p=0."
        )
    if algorithm.server_knows_clients and any(channel.acts_on_cohort for channel in used):
        raise InvalidValueError(
            f"{name} keeps something of single clients at its server, which aggregates, attackers and noise of a "
            "channel do not cover. Use transforms of clients alone, Channel(client=[...]), or another algorithm."
        )


def require_client_number(method: str, client: Any) -> int:
    """Return a client's number as an ``int``.

    Args:
        method: Called with it, for the message.
        client: As the user gave it.

    Raises:
        TypeError: If it is no whole number.
    """
    try:
        return index(client)
    except TypeError:
        shown = f"{client!r} of type {type(client).__name__}"
        raise InvalidTypeError(f"{method}({shown}): expected a client's number, from 0 on.") from None
