"""Certificates made when asked for: an authority, and what it signs. EC keys, since those are quick."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from kjbod.security.tls_keys import PEM, PKCS12, Store

NOT_AFTER = datetime(2049, 6, 1, tzinfo=UTC)


def _name(common_name: str, *units: str) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _encryption(password: str | None) -> KeySerializationEncryption:
    return NoEncryption() if password is None else BestAvailableEncryption(password.encode())


class Certified(Struct, frozen=True):
    """A certificate with its private key; ``issuers`` are those that vouch for it, the nearest first."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    issuers: tuple[x509.Certificate, ...] = ()

    @property
    def pem(self) -> str:
        """The certificate alone."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def chain_pem(self) -> str:
        """The certificate and its issuers but for the root."""
        chain = (self.certificate, *self.issuers[:-1])
        return "".join(each.public_bytes(Encoding.PEM).decode() for each in chain)

    def key_pem(self, password: str | None = None) -> str:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, _encryption(password)).decode()

    def pkcs12(self, password: str | None, *, name: str = "kafka") -> bytes:
        """The key and the whole chain."""
        encryption = _encryption(password)
        return pkcs12.serialize_key_and_certificates(
            name.encode(), self.key, self.certificate, self.issuers, encryption
        )

    def trusted_pkcs12(self, password: str) -> bytes:
        """The certificate as a trusted one, as a truststore of Java has it."""
        return pkcs12.serialize_java_truststore(
            [pkcs12.PKCS12Certificate(self.certificate, b"ca")], _encryption(password)
        )

    def keystore(self, directory: Path, name: str = "keystore.pem") -> Store:
        """A PEM keystore in a file."""
        path = directory / name
        path.write_text(self.key_pem() + self.chain_pem)
        return Store("ssl.keystore.location", PEM, str(path))

    def truststore(self, directory: Path, name: str = "truststore.pem") -> Store:
        """A PEM truststore in a file, with this certificate."""
        path = directory / name
        path.write_text(self.pem)
        return Store("ssl.truststore.location", PEM, str(path))

    def pkcs12_keystore(self, directory: Path, password: str, name: str = "keystore.p12") -> Store:
        path = directory / name
        path.write_bytes(self.pkcs12(password))
        return Store("ssl.keystore.location", PKCS12, str(path), password)


class Authority(Certified, frozen=True):
    """A certificate authority."""

    @classmethod
    def make(cls, common_name: str = "Test CA") -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(common_name)
        return cls(_sign(name, key, name, key, authority=True, not_after=NOT_AFTER), key)

    def authority(self, common_name: str = "Test intermediate CA") -> "Authority":
        """An intermediate authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _sign(_name(common_name), key, self.certificate.subject, self.key, authority=True, not_after=NOT_AFTER)
        return Authority(made, key, (self.certificate, *self.issuers))

    def leaf(
        self,
        *hosts: str,
        common_name: str = "",
        units: Sequence[str] = (),
        not_after: datetime = NOT_AFTER,
        usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    ) -> Certified:
        """A certificate for host names and addresses, which its common name is one of unless another is given."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(common_name or (hosts[0] if hosts else "leaf"), *units)
        made = _sign(subject, key, self.certificate.subject, self.key, hosts=hosts, not_after=not_after, usages=usages)
        return Certified(made, key, (self.certificate, *self.issuers))

    def expired(self, *hosts: str) -> Certified:
        """A certificate that was valid once."""
        return self.leaf(*hosts, not_after=datetime(2021, 1, 1, tzinfo=UTC))

    def client(self, common_name: str, *units: str) -> Certified:
        """A client's certificate, of the DN ``CN=<common name>,OU=<last unit>,...``."""
        return self.leaf(common_name=common_name, units=units, usages=(ExtendedKeyUsageOID.CLIENT_AUTH,))


def _sign(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    not_after: datetime,
    authority: bool = False,
    hosts: Sequence[str] = (),
    usages: Sequence[x509.ObjectIdentifier] = (),
) -> x509.Certificate:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC) - timedelta(days=1))
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
    return builder.sign(issuer_key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
