"""Some clients of a federation, named or drawn once for a whole run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class SomeClients:
    """Names clients, or draws them; a base class of what concerns the same clients in every round.

    Equal shares and seeds choose the same clients wherever they are given.

    Args:
        clients: Ids of the clients. Give either these or ``share``.
        share: Share 0 < share <= 1 of all N clients, rounded (halves up), at least one client.
        seed: Seed of the draw of the share.
    """

    clients: Sequence[int] | None = None
    share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if (self.clients is None) == (self.share is None):
            raise InvalidValueError(
                f"{name}(clients={self.clients}, share={self.share}): give exactly one of clients and share."
            )
        require(self, "share", above=0.0, at_most=1.0, optional=True)
        require(self, "seed")
        given = self.clients
        if given is None:
            return
        if not isinstance(given, Sequence) or any(type(each) is not int for each in given):
            raise InvalidTypeError(f"{name}(clients={given!r}): expected a list of client ids, e.g. [0, 3].")
        if not given or len(set(given)) < len(given) or min(given) < 0:
            raise InvalidValueError(f"{name}(clients={given!r}): expected one or more different ids from 0.")

    def among(self, num_clients: int) -> frozenset[int]:
        """Return the ids of the clients in a federation of N clients.

        Raises:
            ValueError: If an id is not among those of the federation.
        """
        if self.share is not None:
            return _drawn(self.share, self.seed, num_clients)
        assert self.clients is not None
        if unknown := sorted(client for client in self.clients if client >= num_clients):
            shown = ", ".join(map(str, unknown[:_SHOWN])) + (", ..." if len(unknown) > _SHOWN else "")
            raise InvalidValueError(
                f"{type(self).__name__}(clients=...): the federation has {num_clients} clients, 0 to "
                f"{num_clients - 1}, and none with the id {shown}. Leave it out."
            )
        return frozenset(self.clients)


@lru_cache(maxsize=16)
def _drawn(share: float, seed: int, num_clients: int) -> frozenset[int]:
    """Draw a share of the clients, once for all rounds."""
    count = max(1, int(share * num_clients + 0.5))
    return frozenset(random.Random(derive_seed(seed, 17)).sample(range(num_clients), count))
