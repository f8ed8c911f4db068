"""Values of Kafka's ``ssl.*`` keys, read and checked (``SslConfigs`` of 4.3.1)."""

import dataclasses
from typing import Final

from msgspec import Struct

PEM, PKCS12, JKS = STORE_TYPES = ("PEM", "PKCS12", "JKS")
NO_CLIENT, WANTED, REQUIRED = CLIENT_AUTH = ("none", "requested", "required")
"""Values of ``ssl.client.auth``."""
DEFAULT_TLS_PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A keystore or a truststore.

    Attributes:
        key: key that names the store, for messages: ``listener.name.controller.ssl.keystore.location``.
        kind: one of :data:`STORE_TYPES`.
        path: absolute path of its file; None if the properties file has the PEM text itself.
        password: password of the store; None: no password.
        pem: the PEM text: certificates of a truststore, or the certificate chain of a keystore.
        key_pem: the private key that belongs to ``pem``, of a keystore.
        key_password: password of the private key; None: no password, or the store's.
        key_path: absolute path of the private key's file; None: the key is in ``path``, or in ``key_pem``.
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
        source: file of the settings, for messages.
        keystore: our identity; None: no identity.
        truststore: certificates that we trust; None: those that the system trusts.
        checks_name: whether a server's certificate must have the host name of the connection
            (``ssl.endpoint.identification.algorithm=https``).
        protocols: ``ssl.enabled.protocols``.
        cipher_suites: ``ssl.cipher.suites``, by their RFC names, as in Java; empty: the library's default.
        client_auth: ``ssl.client.auth``, for a server.
    """

    source: str
    keystore: Store | None = None
    truststore: Store | None = None
    checks_name: bool = True
    protocols: tuple[str, ...] = DEFAULT_TLS_PROTOCOLS
    cipher_suites: tuple[str, ...] = ()
    client_auth: str = NO_CLIENT
