"""Reasons for a missing or closed connection, and their messages."""

import ssl
from collections.abc import Mapping
from typing import Final

from kjbod.errors import ProtocolError
from kjbod.printable import printable

WHERE: Final = "see security.protocol in the file of --command-config, or listener.security.protocol.map"
"""Remedy for a wrong security protocol."""

SAID_MAX: Final = 300
"""Maximum characters of a peer's text about itself."""


class Disconnected(ProtocolError):  # noqa: N818 - what happened, in Kafka's word
    """No connection, or no longer: refused, reset, closed by either side, or the peer sent invalid data. Whether the
    peer executed a request in flight is unknown."""


class ForeignPeer(Disconnected):
    """The peer speaks another protocol than we do; a retry is useless."""


class AuthenticationFailed(Disconnected):
    """Authentication between peer and us failed: wrong certificate, name or password, or no common mechanism. A retry
    is useless until the configuration is changed."""


class RequestTimedOut(Disconnected):
    """No answer in time. The connection is closed."""


class ConnectTimedOut(RequestTimedOut):
    """No connection in time. No request was sent."""


_UNTRUSTED: Final[Mapping[int, str]] = {
    7: "is not signed by the key that ssl.truststore.location has of that authority",
    10: "is out of date",
    18: "is signed by itself, and not in ssl.truststore.location",
    19: "comes from a certificate authority that is not in ssl.truststore.location",
    20: "comes from a certificate authority that is not in ssl.truststore.location",
    21: "comes from a certificate authority that is not in ssl.truststore.location",
    62: "is for another host name",
    64: "is for another address",
    66: "has a key that is too small for OpenSSL: it needs one of 2,048 bits or more (EC: 256)",
    67: "comes from an authority whose key is too small for OpenSSL: it needs one of 2,048 bits or more (EC: 256)",
    68: "has a chain that is signed with SHA-1 or MD5: it needs one that is signed with SHA-256",
}
"""Messages about a certificate, by OpenSSL's ``X509_V_ERR_...``."""
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"}
)


def said(text: str) -> str:
    """Return the text of an untrusted peer, safe for a log line."""
    return printable(text[: SAID_MAX + 1], SAID_MAX)


def not_believed(peer: str, error: ssl.SSLError) -> Disconnected:
    """Turn a TLS failure into an error with a message; peer: ``host:port``."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = _UNTRUSTED.get(error.verify_code, f"is not believed: {error.verify_message}")
        detail = f" ({error.verify_message})" if error.verify_code in _UNTRUSTED else ""
        return AuthenticationFailed(f"the certificate of {peer} {what}{detail}")
    reason = error.reason or str(error)
    if reason in _NO_TLS:
        return ForeignPeer(f"{peer} does not speak TLS: {WHERE}")
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return AuthenticationFailed(
            f"{peer} refused the TLS handshake: {alert}: see ssl.keystore.location (who we are to it), "
            "ssl.cipher.suites and ssl.enabled.protocols"
        )
    return AuthenticationFailed(f"{peer}: TLS failed: {reason.replace('_', ' ').lower()}")


def speaks_tls(peer: str) -> ForeignPeer:
    """Return the error about a peer that answered plain text with TLS."""
    return ForeignPeer(f"{peer} speaks TLS, and it was asked in plain text: {WHERE}")
