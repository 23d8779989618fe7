"""Addresses are read as nodes dial them, and refused with the reason."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.address import Address, is_ip


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("fed.example.org:8443", "fed.example.org", 8443),
        ("192.0.2.7:1", "192.0.2.7", 1),
        ("[2001:db8::7]:65535", "2001:db8::7", 65535),
        ("localhost:443", "localhost", 443),
    ],
)
def test_an_address_is_read_and_written_alike(text, host, port):
    address = Address.parse(text, "--address")
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fed.example.org", "there is no port. Expected host:port"),
        ("fed.example.org:https", "there is no port"),
        ("fed.example.org:0", "port 0 does not exist; ports are 1 to 65535"),
        ("fed.example.org:65536", "port 65536 does not exist"),
        (":8443", "'' is no host name"),
        ("https://fed.example.org:8443", "'https://fed.example.org' is no host name"),
        ("fed_example:8443", "'fed_example' is no host name"),
        ("-fed.org:8443", "is no host name"),
        ("2001:db8::7:8443", "brackets belong around IPv6 addresses alone"),
        ("[192.0.2.7]:8443", "brackets belong around IPv6 addresses alone"),
    ],
)
def test_what_is_no_address_is_refused(text, why):
    with pytest.raises(InvalidValueError, match=why) as refused:
        Address.parse(text, "--address")
    assert str(refused.value).startswith(f"--address={text}: ")


def test_this_machine_is_known():
    own = ["localhost:1", "127.0.0.1:1", "127.3.2.1:1", "[::1]:1"]
    others = ["fed.example.org:1", "0.0.0.0:1", "192.168.1.2:1", "[::]:1"]
    assert [Address.parse(each, "").is_of_this_machine for each in own + others] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    ("text", "link"),
    [("127.0.0.1:9000", "127.0.0.1:9000"), ("a.org:443", "127.0.0.1:8443"), ("a.org:8443", "127.0.0.1:8444")],
)
def test_the_link_listens_here_or_behind_a_proxy(text, link):
    assert str(Address.parse(text, "").of_link()) == link


def test_ip_addresses_are_told_from_names():
    assert [is_ip(each) for each in ("1.2.3.4", "::1", "1.2.3", "a.org")] == [True, True, False, False]
