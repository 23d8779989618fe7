"""A link's certificate is replaced by one of the same authority, which nodes know."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import stat
from datetime import timedelta

from cryptography import x509

from fedlightning.core.errors import MissingFileError
from fedlightning.flower.deployment.certificates import hosts_of, last_day
from fedlightning.flower.deployment.renewal import renew, validity
from tests.support.deployment import federation_in


def test_nodes_trust_the_new_certificate_too(tmp_path):
    server = federation_in(tmp_path / "f")
    before, key = server.certificate.read_bytes(), server.key.read_bytes()
    hosts = hosts_of(server.certificate)
    assert renew(server, ["192.0.2.9"]) == [*hosts, "192.0.2.9"]
    assert server.certificate.read_bytes() != before
    assert server.key.read_bytes() != key
    assert stat.S_IMODE(server.key.stat().st_mode) == 0o600
    authority = x509.load_pem_x509_certificate((tmp_path / "f" / "nodes" / "a" / "ca.crt").read_bytes())
    x509.load_pem_x509_certificate(server.certificate.read_bytes()).verify_directly_issued_by(authority)


def test_an_authority_without_its_key_signs_nothing(tmp_path):
    server = federation_in(tmp_path / "f")
    server.authority_key.rename(tmp_path / "safe")
    before = server.certificate.read_bytes()
    with pytest.raises(MissingFileError, match=r"ca.key: no such file. It signs certificates"):
        renew(server)
    assert server.certificate.read_bytes() == before


def test_the_end_is_announced_a_month_before(tmp_path):
    server = federation_in(tmp_path / "f")
    end = last_day(server.certificate)
    until = f"certificate until {end.date()}"
    assert validity(server) == validity(server, end - timedelta(days=31)) == until
    assert validity(server, end - timedelta(days=29)) == (
        f"{until}; renew it by fedlightning federation renew {server.path}"
    )
