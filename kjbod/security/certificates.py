"""Certificates of a process: the time until which each is valid, and whether its files can still be read. Pure."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final, Protocol

from msgspec import Struct

from kjbod.units import moment

ENDS_SOON: Final = timedelta(days=7)
"""A certificate that ends within this time was probably not renewed. Tools renew certificates weeks before
their end."""


class Certificate(Struct, frozen=True):
    """Certificate of this process, or its truststore where it has no certificate of its own.

    Attributes:
        key: key of its store, as ``ssl.keystore.location``.
    """

    key: str
    path: str
    not_after_ms: int | None
    not_renewed: str = ""

    @property
    def name(self) -> str:
        """Return ``ssl.keystore.location=/etc/kafka/host.pem``, or the key alone."""
        return f"{self.key}={self.path}" if self.path else self.key


class HasCertificate(Protocol):
    """The part of a connection's security that certificates are read from."""

    @property
    def certificate(self) -> Certificate | None: ...

    async def look(self, *, timeout_ms: int) -> None: ...


class Certificates:
    """All certificates of a process, by their use."""

    def __init__(self) -> None:
        self._all: list[tuple[str, HasCertificate]] = []
        self._others: list[Certificates] = []

    def add(self, use: str, security: HasCertificate) -> None:
        """Add the certificates of ``security``. ``use`` is ``controllers``, or the name of a listener."""
        self._all.append((use, security))

    def include(self, others: "Certificates") -> None:
        """Show the certificates of another half of the process too; that half checks them itself."""
        self._others.append(others)

    def _shown(self) -> Iterator[tuple[str, HasCertificate]]:
        yield from self._all
        for others in self._others:
            yield from others._shown()

    def now(self) -> dict[Certificate, list[str]]:
        """Return the certificates and the uses of each. Uses with the same file are one certificate."""
        found: dict[Certificate, list[str]] = {}
        for use, security in self._shown():
            if (certificate := security.certificate) is not None:
                found.setdefault(certificate, []).append(use)
        return found

    def reasons(self, wall_ms: int) -> list[str]:
        """Return the reasons why an operator should act, for the condition of a daemon."""
        return [reason for certificate in self.now() for reason in _reasons(certificate, wall_ms)]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the certificates for ``kjbod status``, the earliest end first."""
        rows = [
            {
                "key": one.key,
                "path": one.path,
                "not_after_ms": one.not_after_ms,
                "not_renewed": one.not_renewed or None,
                "uses": uses,
            }
            for one, uses in self.now().items()
        ]
        return sorted(rows, key=lambda row: (row["not_after_ms"] is None, row["not_after_ms"] or 0))

    def ends(self) -> Iterator[tuple[str, str, int]]:
        """Yield use, store and end in milliseconds since 1970 of each certificate that has an end."""
        for one, uses in self.now().items():
            if one.not_after_ms is not None:
                yield from ((use, one.name, one.not_after_ms) for use in uses)

    def __iter__(self) -> Iterator[HasCertificate]:
        """Iterate over everything that was added."""
        return iter([security for _, security in self._all])


NO_CERTIFICATES: Final = Certificates()
"""Certificates of a process without TLS."""


def _reasons(one: Certificate, wall_ms: int) -> Iterable[str]:
    if one.not_after_ms is not None and one.not_after_ms <= wall_ms:
        yield f"the certificate of {one.name} has ended, on {moment(one.not_after_ms)}"
    elif one.not_after_ms is not None and one.not_after_ms - wall_ms <= ENDS_SOON.total_seconds() * 1000:
        yield f"the certificate of {one.name} ends on {moment(one.not_after_ms)}"
    if one.not_renewed:
        yield f"{one.name} has changed and cannot be used, the one before it still is: {one.not_renewed}"
