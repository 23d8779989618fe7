"""The link's certificate hangs from the federation's own authority, and TLS itself takes it for its hosts alone."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import ipaddress
import ssl
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.flower.deployment import certificates
from fedlightning.flower.deployment.certificates import (
    SERVER_DAYS,
    hosts_of,
    last_day,
    make_authority,
    make_server_certificate,
)

HOSTS = ["fed.example.org", "192.0.2.7", "::1", "localhost", "localhost"]


@pytest.fixture(scope="module")
def authority():
    return make_authority("digits")


@pytest.fixture(scope="module")
def server(authority):
    return make_server_certificate(authority, HOSTS)


def verified(authority, server, subject):
    """The chain from the server's certificate to the authority, as an independent implementation builds it."""
    store = Store([x509.load_pem_x509_certificate(authority.certificate)])
    verifier = PolicyBuilder().store(store).build_server_verifier(subject)
    return verifier.verify(x509.load_pem_x509_certificate(server.certificate), [])


@pytest.mark.parametrize("host", ["fed.example.org", "localhost", "192.0.2.7", "::1"])
def test_the_chain_holds_for_every_host(host, authority, server):
    try:
        subject = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    assert len(verified(authority, server, subject)) == 2


def test_it_holds_for_no_other_host_and_no_other_authority(authority, server):
    with pytest.raises(VerificationError):
        verified(authority, server, x509.DNSName("other.example.org"))
    with pytest.raises(VerificationError):
        verified(make_authority("digits"), server, x509.DNSName("localhost"))


def test_keys_are_on_p384_and_belong_to_their_certificates(authority, server):
    for pair in (authority, server):
        key = load_pem_private_key(pair.key, None)
        assert isinstance(key.curve, ec.SECP384R1)
        assert x509.load_pem_x509_certificate(pair.certificate).public_key() == key.public_key()


def test_only_the_authority_signs(authority, server):
    for pair, signs in ((authority, True), (server, False)):
        extensions = x509.load_pem_x509_certificate(pair.certificate).extensions
        assert extensions.get_extension_for_class(x509.BasicConstraints).value.ca is signs
        assert extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is signs


def test_hosts_and_last_day_are_read_from_the_file(server, tmp_path):
    (tmp_path / "server.crt").write_bytes(server.certificate)
    assert hosts_of(tmp_path / "server.crt") == ["fed.example.org", "192.0.2.7", "::1", "localhost"]
    left = last_day(tmp_path / "server.crt") - datetime.now(timezone.utc)
    assert timedelta(days=SERVER_DAYS - 1) < left <= timedelta(days=SERVER_DAYS)


def test_no_certificate_outlives_its_authority(monkeypatch, tmp_path):
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 100)
    pairs = {"authority": make_authority("digits")}
    pairs["server"] = make_server_certificate(pairs["authority"], HOSTS)
    for name, pair in pairs.items():
        (tmp_path / name).write_bytes(pair.certificate)
    assert last_day(tmp_path / "server") == last_day(tmp_path / "authority")
    monkeypatch.setattr(certificates, "AUTHORITY_DAYS", 0)
    with pytest.raises(UsageError, match=r"authority's certificate has ended on \d{4}-.* Make a new federation"):
        make_server_certificate(make_authority("digits"), HOSTS)


@pytest.mark.parametrize(("host", "agrees"), [("localhost", True), ("127.0.0.1", False)])
def test_a_tls_handshake_agrees(host, agrees, authority, server, tmp_path):
    (tmp_path / "crt").write_bytes(server.certificate)
    (tmp_path / "key").write_bytes(server.key)
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    ours = ssl.create_default_context(cadata=authority.certificate.decode())
    wires = [ssl.MemoryBIO() for _ in range(2)]
    client = ours.wrap_bio(wires[0], wires[1], server_hostname=host)
    link = theirs.wrap_bio(wires[1], wires[0], server_side=True)

    def shake():
        for end in (client, link, client, link):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue

    if agrees:
        shake()
        assert client.version() == "TLSv1.3"
    else:
        with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
            shake()


@pytest.mark.parametrize(
    "host", ["fed.example.org:8443", "https://fed.example.org", "bücher.de", "[::1]", "two words", ""]
)
def test_what_is_no_host_is_not_certified(host, authority):
    with pytest.raises(InvalidValueError, match="is no host name and no IP address") as refused:
        make_server_certificate(authority, ["fed.example.org", host])
    assert str(refused.value).startswith(f"hosts={host}: ")
