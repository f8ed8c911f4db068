"""Values of Kafka's ``ssl.*`` keys, read and checked (``SslConfigs`` of 4.3.1)."""

import dataclasses
from typing import Final

from msgspec import Struct

PEM, PKCS12, JKS = STORE_TYPES = ("PEM", "PKCS12", "JKS")
NO_CLIENT, WANTED, REQUIRED = CLIENT_AUTH = ("none", "requested", "required")
"""``ssl.client.auth``."""
DEFAULT_TLS_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A keystore or a truststore.

    Attributes:
        key: the key of the file that names it, for messages: ``listener.name.controller.ssl.keystore.location``.
        kind: of :data:`STORE_TYPES`.
        path: its file, absolute; None where the file of properties has the PEM text itself.
        password: of the store; None: it has none.
        pem: that text: certificates of a truststore, or the certificate chain of a keystore.
        key_pem: the private key that belongs to ``pem``, of a keystore.
        key_password: of the private key; None: it has none, or the store's.
        key_path: file of the private key, absolute; None: it is in ``path``, or in ``key_pem``.
    """

    key: str
    kind: str = JKS
    path: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    pem: str | None = dataclasses.field(default=None, repr=False)
    key_pem: str | None = dataclasses.field(default=None, repr=False)
    key_password: str | None = dataclasses.field(default=None, repr=False)
    key_path: str | None = None


class Tls(Struct, frozen=True):
    """Settings of TLS.

    Attributes:
        source: the file that they are from, for messages.
        keystore: who we are; None: nobody.
        truststore: who is believed; None: whom the system believes.
        checks_name: whether a server must have the host name that was asked for
            (``ssl.endpoint.identification.algorithm=https``).
        protocols: ``ssl.enabled.protocols``.
        cipher_suites: ``ssl.cipher.suites``, by their names in RFCs, as Java has them; empty: the library's.
        client_auth: ``ssl.client.auth``, of a server.
    """

    source: str
    keystore: Store | None = None
    truststore: Store | None = None
    checks_name: bool = True
    protocols: tuple[str, ...] = DEFAULT_TLS_PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = NO_CLIENT
