"""Addresses of the link, as nodes dial it and as it listens."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from fedlightning.core.errors import InvalidValueError

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


@dataclass(frozen=True)
class Address:
    """Names a machine and one of its ports.

    Attributes:
        host: A host name or an IP address, without brackets.
        port: From 1 to 65535.
    """

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, what: str) -> Address:
        """Read ``host:port``, ``1.2.3.4:port`` or ``[::1]:port``.

        Args:
            text: The address.
            what: The argument or key that it was given as, for the message.

        Raises:
            ValueError: If it is no address.
        """
        example = "Expected host:port, such as fed.example.org:8443, 192.0.2.7:8443 or [2001:db8::7]:8443."
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise InvalidValueError(f"{what}={text}: there is no port. {example}")
        if not 1 <= int(port) <= 65535:
            raise InvalidValueError(f"{what}={text}: port {port} does not exist; ports are 1 to 65535.")
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if is_ip(bare):
            if (":" in bare) is (bare == host):
                raise InvalidValueError(f"{what}={text}: brackets belong around IPv6 addresses alone. {example}")
        elif not _NAME.fullmatch(host):
            raise InvalidValueError(f"{what}={text}: {_no_host(host)} {example}")
        return cls(bare, int(port))

    @property
    def is_of_this_machine(self) -> bool:
        """Return whether only this machine itself can reach it."""
        return ipaddress.ip_address(self.host).is_loopback if is_ip(self.host) else self.host == "localhost"

    def of_link(self) -> Address:
        """Return where the link of nodes that dial this address listens: here, or behind a proxy."""
        return self if self.is_of_this_machine else Address("127.0.0.1", 8443 if self.port != 8443 else 8444)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def require_host(what: str, host: str) -> None:
    """Refuse what is no host name and no IP address, such as an address with its port.

    Args:
        what: The argument that it was given as, for the message.
        host: An international name as DNS has it, ``xn--...``; an IPv6 address without brackets.

    Raises:
        ValueError: If it is none.
    """
    if not is_ip(host) and not _NAME.fullmatch(host):
        raise InvalidValueError(f"{what}={host}: {_no_host(host)} Expected fed.example.org, 192.0.2.7 or 2001:db8::7.")


def _no_host(host: str) -> str:
    return f"'{host}' is no host name and no IP address."


def is_ip(host: str) -> bool:
    """Return whether a host is given by an IP address, not by a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
