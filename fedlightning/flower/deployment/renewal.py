"""A new certificate for a link, before nodes refuse the old one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from fedlightning.core.errors import MissingFileError
from fedlightning.flower.deployment.certificates import Pair, hosts_of, last_day, make_server_certificate
from fedlightning.flower.deployment.files import PRIVATE, replace
from fedlightning.flower.deployment.server_folder import ServerFolder

_EARLY = timedelta(days=30)


def renew(server: ServerFolder, hosts: Sequence[str] = ()) -> list[str]:
    """Replace certificate and key of the link, and return the hosts that it now stands for.

    Nodes need nothing: they know the authority, which stays.

    Args:
        server: The server's folder.
        hosts: Names and IP addresses beside those of the old certificate.

    Raises:
        FileNotFoundError: If the authority's key is not there.
    """
    if not server.authority_key.is_file():
        raise MissingFileError(f"{server.authority_key}: no such file. It signs certificates: bring it back for this.")
    authority = Pair(server.authority.read_bytes(), server.authority_key.read_bytes())
    pair = make_server_certificate(authority, (*hosts_of(server.certificate), *hosts))
    replace(server.key, pair.key, PRIVATE)
    replace(server.certificate, pair.certificate)
    return hosts_of(server.certificate)


def validity(server: ServerFolder, now: datetime | None = None) -> str:
    """Return until when the link's certificate is valid, and what to do if that is soon.

    Args:
        server: The server's folder.
        now: The time; None for the machine's.
    """
    end = last_day(server.certificate)
    remedy = f"; renew it by fedlightning federation renew {server.path}"
    is_late = end - (datetime.now(timezone.utc) if now is None else now) < _EARLY
    return f"certificate until {end.date()}{remedy if is_late else ''}"
