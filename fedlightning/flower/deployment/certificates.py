"""A certificate authority of the federation's own, and the certificate by which nodes know the link."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedlightning.core.errors import InvalidTypeError, UsageError
from fedlightning.flower.deployment.address import is_ip, require_host

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
"""How long certificates are valid: ten years for the authority's; 825 days is the most that all TLS libraries take."""

_SLACK = timedelta(minutes=5)
"""Clocks of nodes may be late by so much when they first see a certificate."""


@dataclass(frozen=True)
class Pair:
    """Holds a certificate and its private key, both as PEM.

    Attributes:
        certificate: For everybody.
        key: For its owner alone; not encrypted, as services start without a person.
    """

    certificate: bytes
    key: bytes


def make_authority(name: str) -> Pair:
    """Make an authority that signs certificates of one federation, with a key on the curve P-384.

    Args:
        name: Name of the federation.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    subject = _name(f"{name} certificate authority")
    builder = _builder(subject, subject, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA384()), key)


def make_server_certificate(authority: Pair, hosts: Iterable[str]) -> Pair:
    """Make the certificate of a link, which ends no later than its authority's.

    Args:
        authority: Signs it.
        hosts: Host names and IP addresses under which nodes and commands reach the link, at least one.

    Raises:
        ValueError: If one is neither.
        UsageError: If the authority's certificate has ended.
    """
    signer = x509.load_pem_x509_certificate(authority.certificate)
    if signer.not_valid_after_utc <= datetime.now(timezone.utc):
        raise UsageError(
            f"The authority's certificate has ended on {signer.not_valid_after_utc.date()}, so nodes trust nothing "
            "that it signs. Make a new federation: fedlightning federation new."
        )
    hosts = list(dict.fromkeys(hosts))
    for host in hosts:
        require_host("hosts", host)
    key = ec.generate_private_key(ec.SECP384R1())
    names = [x509.IPAddress(ipaddress.ip_address(host)) if is_ip(host) else x509.DNSName(host) for host in hosts]
    builder = _builder(_name(hosts[0]), signer.subject, key.public_key(), SERVER_DAYS, signer.not_valid_after_utc)
    for extension, critical in (
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_identifier(signer)), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return _pair(builder.sign(_key_of(authority), hashes.SHA384()), key)


def hosts_of(certificate: Path) -> list[str]:
    """Return the host names and IP addresses of a certificate's file."""
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def last_day(certificate: Path) -> datetime:
    """Return until when a certificate's file is valid."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int, latest: datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SLACK)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _identifier(certificate: x509.Certificate) -> x509.SubjectKeyIdentifier:
    return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value


def _key_of(pair: Pair) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pair.key, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidTypeError(f"The authority's key is a {type(key).__name__}; expected one on an elliptic curve.")
    return key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])  # RFC 5280 allows no more


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(certificate.public_bytes(pem), private)
