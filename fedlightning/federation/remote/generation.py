"""Names of the states a client has had, which server and node work out alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from hashlib import sha256
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import PerClient
from fedlightning.federation.protocol import Request
from fedlightning.federation.remote.message_types import type_name
from fedlightning.federation.remote.packet import PacketError, is_short_number
from fedlightning.federation.remote.tensors import to_raw


@dataclass(frozen=True, order=True)
class Generation:
    """Names the state of a client after it has answered one request.

    Attributes:
        round: Round of the request.
        phase: Its phase.
        key: Digest of the request and of the generation that the client stood at, in hexadecimal. A request that is
            repeated leads to the same generation; a run that goes another way after a resume leads to another one.
    """

    round: int
    phase: int
    key: str

    def __str__(self) -> str:
        return f"{self.round}.{self.phase}.{self.key}"

    @classmethod
    def of(cls, text: str) -> Generation | None:
        """Return the generation of a text that ``str`` made; None for an empty text, a client before its first round.

        Raises:
            PacketError: If the text is none.
        """
        if not text:
            return None
        parts = text.split(".")
        if len(parts) != 3 or not (all(map(is_short_number, parts[:2])) and _is_key(parts[2])):
            raise PacketError(f"{text[:80]!r} names no state of a client; expected round.phase.key.")
        return cls(int(parts[0]), int(parts[1]), parts[2])


def text_of(generation: Generation | None) -> str:
    """Return a generation as text; empty for a client before its first round."""
    return "" if generation is None else str(generation)


@dataclass(frozen=True)
class Standing:
    """Says from which state a client answers, and which of its states nobody needs any more.

    Attributes:
        client: Id of the client.
        base: The generation that the server accepted last; None before the first.
        kept: Generations that the server's latest checkpoints go back to.
    """

    client: int
    base: Generation | None = None
    kept: tuple[Generation, ...] = ()


class RequestDigest:
    """Names the generations that a request leads to, one for each client."""

    def __init__(self, request: Request, run: str = "") -> None:
        """Digest what all clients of a request are sent alike.

        Args:
            request: The request.
            run: Name of the run, which stands for task, hyper-parameters and clients' work; empty if it has none.
        """
        stamp, precision = request.stamp, request.precision
        plain = (
            run,
            *stamp,
            request.seed,
            request.buffer_names,
            str(precision.dtype),
            precision.scale,
            *astuple(request.moment),
        )
        terms = request.terms
        if terms is not None:
            plain = (*plain, terms.cohort, terms.num_clients, terms.expected, *terms.public)
        common = sha256(repr(plain).encode())
        self._round, self._phase = stamp
        self._own: list[PerClient] = []
        seen = _Digests()
        for tensor in (request.point, request.buffers, *({} if terms is None else terms.public).values()):
            seen.add(common, tensor)
        if request.message is not None:
            common.update(type_name(type(request.message)).encode())
            for each in fields(request.message):
                value = getattr(request.message, each.name)
                if isinstance(value, PerClient):
                    self._own.append(value)
                else:
                    seen.add(common, value)
        self._common = common.digest()

    def generation(self, standing: Standing) -> Generation:
        """Return the generation of a client once it has answered."""
        own = sha256(self._common)
        own.update(f"{standing.client} {text_of(standing.base)}".encode())
        for value in self._own:
            _Digests().add(own, value.of([standing.client]))
        return Generation(self._round, self._phase, own.hexdigest()[:_KEY])


_KEY = 32
_FEDERATION = re.compile(r"[0-9a-f]{32}")


def _is_key(text: str) -> bool:
    return len(text) == _KEY and all(letter in "0123456789abcdef" for letter in text)


class _Digests:
    """Adds values to digests; a tensor that comes twice, as in many a broadcast, is read once."""

    def __init__(self) -> None:
        self._seen: list[tuple[Tensor, bytes]] = []

    def add(self, digest: Any, value: Any) -> None:
        digest.update(self._of(value) if isinstance(value, Tensor) else repr(value).encode())

    def _of(self, tensor: Tensor) -> bytes:
        for other, known in self._seen:
            if tensor.dtype == other.dtype and tensor.is_set_to(other):
                return known
        raw = to_raw(tensor)
        found = f"{raw.dtype} {raw.shape} {sha256(raw.data).hexdigest()}".encode()
        self._seen.append((tensor, found))
        return found


def require_federation(federation: str) -> None:
    """Make sure that an id of a federation, which names a folder, names no other place.

    Raises:
        PacketError: If it is none that a server has made.
    """
    if not _FEDERATION.fullmatch(federation):
        raise PacketError(f"{federation[:80]!r} is no id of a federation; expected 32 hexadecimal digits.")


def require_distinct(client_ids: Sequence[int]) -> None:
    """Make sure that no client is asked twice at once.

    Raises:
        PacketError: If one is.
    """
    if len(set(client_ids)) < len(client_ids):
        raise PacketError(f"A request asks clients {list(client_ids)}, one of them twice.")
