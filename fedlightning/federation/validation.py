"""Checks that an algorithm returns what the contract promises, and that states are alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import FrozenInstanceError, fields, is_dataclass
from linecache import getline
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Reply
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.settings import settings
from fedlightning.federation.protocol import Request, Roster
from fedlightning.federation.remedies import LOOK_AT_DATA, smaller_steps

_NAMED_CLIENTS = 10


def tensors_of(message: Any) -> dict[str, Tensor]:
    """Return the tensors among a dataclass's fields, by name; empty for None."""
    if message is None:
        return {}
    values = {each.name: getattr(message, each.name) for each in fields(message)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def require_reply(
    algorithm: Algorithm,
    reply: Any,
    num_clients: int,
    personal: int,
    is_last: bool = True,
    dim: int | None = None,
) -> None:
    """Check that an algorithm's client function returned a reply of the right types and shapes.

    Args:
        algorithm: The algorithm, for messages.
        reply: What the function returned.
        num_clients: Number S of clients the reply was computed for.
        personal: Length p of the clients' personal blocks, 0 if there are none.
        is_last: True in the last phase of a round. Earlier phases may only gather information, and then reply with an
            update alone.
        dim: Number d of shared parameters; None to leave points unchecked.

    Raises:
        TypeError: If the reply is no :class:`~fedlightning.algorithms.base.Reply`, contains other things than
            dataclasses of tensors, logs what are no numbers, or lacks new personal blocks although the task has some.
        ValueError: If a tensor is not ``[S, ...]``, the personal blocks are not ``[S, p]``, the point is not
            ``[S, d]``, or what is logged is not ``[S]``.
    """
    name = f"{type(algorithm).__name__}.client_update"
    if not isinstance(reply, Reply):
        raise InvalidTypeError(
            f"{name} returned a {type(reply).__name__}; expected "
            "Reply(update=message, state=new client states or None, personal=new personal blocks, point=local points)."
        )
    for part, message in {"update": reply.update, "state": reply.state}.items():
        if message is None:
            continue
        if not is_dataclass(message) or isinstance(message, type):
            raise InvalidTypeError(
                f"{name} returned Reply({part}={type(message).__name__}); expected an object of a frozen dataclass "
                "of tensors [S, ...], e.g. fedlightning.algorithms.base.Point(w)."
            )
        for field_name in (each.name for each in fields(message)):
            tensor = getattr(message, field_name)
            if not isinstance(tensor, Tensor):
                raise InvalidTypeError(
                    f"{name} returned {part}.{field_name} of type {type(tensor).__name__}; expected a tensor "
                    f"[{num_clients}, ...], one row for each of the S={num_clients} clients."
                )
            if tensor.shape[:1] != (num_clients,):
                raise InvalidValueError(
                    f"{name} returned {part}.{field_name} of shape {list(tensor.shape)}; expected "
                    f"[{num_clients}, ...], one row for each of the S={num_clients} clients."
                )
    for part, value, shape in _logged(name, reply, num_clients, dim):
        expected = f"[{', '.join(map(str, shape))}]"
        if not _is_real(value) or (part == "point" and not value.is_floating_point()):
            found = f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
            raise InvalidTypeError(f"{name} returned {part} of type {found}; expected a tensor of numbers, {expected}.")
        if value.shape != shape:
            raise InvalidValueError(f"{name} returned {part} of shape {list(value.shape)}; expected {expected}.")
    if not is_last and (reply.state is not None or reply.personal is not None):
        what = "client states" if reply.state is not None else "personal blocks"
        raise InvalidValueError(
            f"{name} returned {what} before the last phase of a round. Return them in the last phase: if that is given "
            "up, the server undoes the round, and clients that had already kept something could not."
        )
    gathers = not is_last and reply.state is None and reply.point is None
    if personal and reply.personal is None and not gathers:
        raise InvalidTypeError(
            f"{name} returned no personal blocks, but the task has personal_parameters. Return Reply(..., personal=v) "
            "with v from local_steps or oracle.step_personal; personal=oracle.personal leaves them as they are."
        )
    if reply.personal is not None and reply.personal.shape != (num_clients, personal):
        raise InvalidValueError(
            f"{name} returned personal of shape {list(reply.personal.shape)}; expected [{num_clients}, {personal}]."
        )


def _logged(name: str, reply: Reply, num_clients: int, dim: int | None) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Yield the parts of a reply from which values are logged, with their names and the shapes that they must have.

    Raises:
        TypeError: If what is to be logged has no names.
    """
    if reply.point is not None and dim is not None:
        yield "point", reply.point, (num_clients, dim)
    if not isinstance(reply.log, Mapping):
        raise InvalidTypeError(f"{name} returned log={type(reply.log).__name__}; expected a dict of tensors [S].")
    yield from ((f"log[{key!r}]", value, (num_clients,)) for key, value in reply.log.items())


def _is_real(value: Any) -> bool:
    """Return whether something is a tensor of real numbers, not a sparse one."""
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_complex()
        and value.dtype != torch.bool
    )


def require_same_buffers(request: Request, roster: Roster) -> None:
    """Check that the objective of clients that join late changes the buffers that the federation has agreed on.

    Args:
        request: What the server sends.
        roster: What the clients found when they joined.

    Raises:
        ValueError: If the names differ.
    """
    different = sorted(set(request.buffer_names).symmetric_difference(roster.buffers))
    if different or request.buffer_names != roster.buffers:
        raise InvalidValueError(
            f"The objective changes buffer '{(different or roster.buffers)[0]}' for some clients and not for others, "
            "so it cannot be averaged. Write into it in every call, or set "
            f"{settings({'model.buffers': 'local'})}."
        )


def require_start_state(algorithm: Algorithm, state: Any) -> Any:
    """Return what an algorithm's ``init_client`` returned, a client's state before its first round.

    Raises:
        TypeError: If it is neither a dataclass of tensors nor None.
    """
    if state is None or (is_dataclass(state) and not isinstance(state, type)):
        return state
    raise InvalidTypeError(
        f"{type(algorithm).__name__}.init_client returned a {type(state).__name__}; expected an object of a frozen "
        f"dataclass of tensors, {_EXAMPLE}, or None if clients keep nothing."
    )


def require_client_state(algorithm: Algorithm, start: Any, state: Any, is_last: bool = True) -> None:
    """Check that clients' new states have the fields of the state before their first round, or they would be lost.

    Args:
        algorithm: The algorithm, for messages.
        start: What ``init_client`` returned.
        state: The state in a reply.
        is_last: True in the last phase of a round, in which clients with a state return one.

    Raises:
        TypeError: If there is no such state, its fields differ, or it is missing.
    """
    names, known = list(tensors_of(state)), list(tensors_of(start))
    if state is None and known and is_last:
        raise InvalidTypeError(
            f"{name_of(algorithm.phases[-1].client_update, algorithm, 'client_update')} returned no state, although "
            f"init_client returns a {type(start).__name__}, which would stay as it began. Return "
            f"Reply(..., state={type(start).__name__}(...)) with tensors [S, ...]; state=state leaves it as it is."
        )
    if state is None:
        return
    if sorted(names) == sorted(known):
        _require_alike(algorithm, tensors_of(start), tensors_of(state))
        return
    returned = f"{type(algorithm).__name__}.client_update returned a state with {', '.join(names)}"
    if start is None:
        raise InvalidTypeError(f"{returned}, but {_no_init_client(algorithm, type(state).__name__)}")
    raise InvalidTypeError(
        f"{returned}; expected {', '.join(known)} as in the {type(start).__name__} that init_client returns."
    )


def _require_alike(algorithm: Algorithm, start: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Check that the fields of clients' new states can be kept where those before their first round were.

    Raises:
        TypeError: If real numbers would be cut to whole ones.
        ValueError: If shapes differ.
    """
    name = name_of(algorithm.phases[-1].client_update, algorithm, "client_update")
    for field, before in start.items():
        after = state[field]
        if after.shape[1:] != before.shape:
            shape = ", ".join(map(str, ("S", *before.shape)))
            raise InvalidValueError(
                f"{name} returned state.{field} of shape {list(after.shape)}; expected [{shape}], as init_client "
                f"returns {list(before.shape)} for one client."
            )
        if after.is_floating_point() and not before.is_floating_point():
            raise InvalidTypeError(
                f"{name} returned state.{field} of type {after.dtype}, but init_client returns {before.dtype}, which "
                "cannot hold fractions. Return one dtype in both."
            )


@contextmanager
def absent_state_named(algorithm: Algorithm, update: Callable[..., Any], state: Any) -> Iterator[None]:
    """Say that ``init_client`` is missing where a client function reads a state that is None.

    Args:
        algorithm: The algorithm, for messages.
        update: Its client function, called with message, state and oracle.
        state: The clients' states, as the function receives them.

    Raises:
        TypeError: If the function reads a field of the state, and there is none.
    """
    try:
        yield
    except AttributeError as error:
        code = getattr(update, "__code__", None)
        line, frame = [(line, frame) for frame, line in walk_tb(error.__traceback__)][-1]
        read = f"{code.co_varnames[2]}.{error.name}" if code is not None else ""  # of self, message, state, oracle
        if (
            state is not None
            or error.obj is not None
            or frame.f_code is not code
            or read not in getline(code.co_filename, line)
        ):
            raise
        raise InvalidTypeError(
            f"{type(algorithm).__name__}.client_update reads {read}, but {_no_init_client(algorithm, 'State')}"
        ) from error


@contextmanager
def attributes_named(algorithm: Algorithm) -> Iterator[None]:
    """Say what to do instead where an algorithm's function sets an attribute of the algorithm itself.

    A frozen dataclass refuses that by itself, without a word about where else to put what is to be kept.

    Args:
        algorithm: The algorithm whose function is called.

    Raises:
        AttributeError: If an attribute is set.
    """
    try:
        yield
    except FrozenInstanceError as error:
        frame = [frame for frame, _ in walk_tb(error.__traceback__)][-1]  # of the method that dataclass() wrote
        name = frame.f_locals.get("name")
        if isinstance(name, str) and frame.f_locals.get("self") is algorithm:
            Algorithm.__setattr__(algorithm, name, None)
        raise


def _no_init_client(algorithm: Algorithm, name: str) -> str:
    has_one = type(algorithm).init_client is not Algorithm.init_client
    return (
        f"{type(algorithm).__name__}{'.init_client returned None' if has_one else ' has no init_client'}, so that its "
        "clients keep nothing from one round to the next. "
        "Write init_client(self, z), which returns a client's state before its first round, a frozen dataclass of "
        f"tensors, e.g. {name}(torch.zeros_like(z))."
    )


_EXAMPLE = "e.g. State(torch.zeros_like(z))"


def require_server_state(before: Any, after: Any, update: Callable[..., Any], algorithm: Algorithm) -> None:
    """Check that an algorithm's server function returned a state of the same class and shapes as before.

    Raises:
        TypeError: If the new state is of another class.
        ValueError: If a tensor has another shape.
    """
    name = name_of(update, algorithm)
    if type(after) is not type(before):
        raise InvalidTypeError(
            f"{name} returned a {type(after).__name__}; expected a {type(before).__name__} as init_server does."
        )
    old = tensors_of(before)
    any_length = {each.name for each in fields(before) if each.metadata.get("any_length")}
    for field_name, tensor in tensors_of(after).items():
        if field_name in old and field_name not in any_length and tensor.shape != old[field_name].shape:
            raise InvalidValueError(
                f"{name} returned {field_name} of shape {list(tensor.shape)}; expected "
                f"{list(old[field_name].shape)} as before the round."
            )


def name_of(update: Callable[..., Any], algorithm: Algorithm, otherwise: str = "server_update") -> str:
    """Return what an algorithm's function is called in messages, ``otherwise`` if it has no name."""
    return f"{type(algorithm).__name__}.{getattr(update, '__name__', otherwise)}"


def shapes_of(state: Any, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what two states must have in common: the shapes of tensors, and the types of all other fields.

    Args:
        state: A dataclass, whose fields may be declared to have any length; None for a stateless algorithm.
        values: Values of the fields by name, if not those of ``state`` itself.
    """
    if state is None:
        return {}
    any_length = {each.name for each in fields(state) if each.metadata.get("any_length")}
    values = {each.name: getattr(state, each.name) for each in fields(state)} if values is None else values
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(value, Tensor):
            found[name] = type(value).__name__
        else:
            found[name] = ("any", *value.shape[1:]) if name in any_length else tuple(value.shape)
    return found


class LeftOutWarnings:
    """Warns of clients that are left out of a mean: names every client once, until ten have been named.

    The warning that names the tenth client is the last one.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        """Start without any client named.

        Args:
            algorithm: The algorithm in use, whose options the warnings advise.
        """
        self._algorithm = algorithm
        self._named: set[int] = set()

    def warn(self, client_ids: Sequence[int]) -> None:
        """Warn of the given clients that have not been named before."""
        new = sorted({*client_ids} - self._named)
        shown = new[: max(0, _NAMED_CLIENTS - len(self._named))]
        self._named.update(new)
        if not shown:
            return
        clients = "clients" if len(new) > 1 else "client"
        rest = f" and {len(new) - len(shown)} others" if len(new) > len(shown) else ""
        last = "" if len(self._named) < _NAMED_CLIENTS else " Further clients are not named."
        warnings.warn(
            f"NaN or infinite numbers came from {clients} {', '.join(map(str, shown))}{rest}: left out of the mean "
            f"whenever they do; 'left_out' counts them. {smaller_steps(self._algorithm, LOOK_AT_DATA)}{last}",
            RuntimeWarning,
            stacklevel=2,
        )
