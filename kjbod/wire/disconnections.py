"""Reasons for which there is no connection, or none any more, and their words."""

import ssl
from collections.abc import Mapping
from typing import Final

from kjbod.errors import ProtocolError
from kjbod.printable import printable

WHERE: Final = "see security.protocol in the file of --command-config, or listener.security.protocol.map"
"""Where a wrong security protocol is mended."""

SAID_MAX: Final = 300
"""Characters of what a peer says of itself."""


class Disconnected(ProtocolError):  # noqa: N818 - what happened, in Kafka's word
    """There is no connection (any more): refused, reset, closed by either side, or the peer sent garbage. Whether the
    peer acted on a request in flight is not known."""


class ForeignPeer(Disconnected):
    """The peer speaks another protocol than we do: to try again is of no use."""


class AuthenticationFailed(Disconnected):
    """Peer and we do not believe each other: certificate, name or password are wrong, or no mechanism is known to both.
    To try again is of no use before somebody has changed something."""


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
"""Words for what is wrong with a certificate, by OpenSSL's ``X509_V_ERR_...``."""
_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING"}
)


def said(text: str) -> str:
    """Text of a peer that may be anybody, for a line."""
    return printable(text[: SAID_MAX + 1], SAID_MAX)


def not_believed(peer: str, error: ssl.SSLError) -> Disconnected:
    """A failure of TLS in words; peer: ``host:port``."""
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
    """Of a peer that answered plain text with TLS."""
    return ForeignPeer(f"{peer} speaks TLS, and it was asked in plain text: {WHERE}")
