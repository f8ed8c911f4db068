"""Make TLS contexts of Python's ssl from Kafka's ``ssl.*`` keys (``DefaultSslEngineFactory`` of 4.3.1). Blocking code:
it reads files and may run keytool.

Java and OpenSSL differ in three ways. Java trusts each certificate of a truststore, OpenSSL by default only self-signed
ones; ``X509_V_FLAG_PARTIAL_CHAIN`` changes that. Java has one list of cipher suites for all versions of TLS, OpenSSL
two: a version without a suite in the list is not offered. Python 3.11 cannot choose among the suites of TLS 1.3: any of
them in the list allows TLS 1.3 with all of OpenSSL's suites for it.
"""

import re
import ssl
from datetime import UTC, datetime

from kjbod.errors import ConfigError
from kjbod.security.stores import read_authorities, read_identity
from kjbod.security.tls_keys import NO_CLIENT, REQUIRED, WANTED, Tls

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFICATIONS = {NO_CLIENT: ssl.CERT_NONE, WANTED: ssl.CERT_OPTIONAL, REQUIRED: ssl.CERT_REQUIRED}
_TLS13_SUITE = re.compile(r"TLS_(AES_(128_(GCM|CCM|CCM_8)_SHA256|256_GCM_SHA384)|CHACHA20_POLY1305_SHA256)")
"""All suites of RFC 8446."""
_SUITE = re.compile(r"TLS_(?P<exchange>[A-Z_]+)_WITH_(?P<cipher>[A-Z0-9_]+)")
_RENEGOTIATION_SIGNAL = "TLS_EMPTY_RENEGOTIATION_INFO_SCSV"
"""Java lists this signal as a suite; OpenSSL always sends it."""
_CONSTRUCTED_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags of DER: ``[0]`` of a certificate's version; the time of two digits for the year."""


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context for connections that we open.

    Suites of TLS 1.3 in ``tls.cipher_suites`` are accepted but not selected: see the module.

    Raises:
        StoreError: a keystore or a truststore cannot be used.
        ConfigError: ``ssl.enabled.protocols`` or ``ssl.cipher.suites`` cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_name
    _configure(context, tls)
    return context


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the TLS context for connections that we accept. ``tls`` must have a keystore.

    Raises:
        StoreError, ConfigError: as :func:`client_context`; or there is no keystore.
    """
    if tls.keystore is None:
        raise ConfigError(f"{tls.source}: ssl.keystore.location: a listener with TLS needs a keystore")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = _VERIFICATIONS[tls.client_auth]
    context.options |= ssl.OP_NO_RENEGOTIATION
    _configure(context, tls)
    return context


def files_of(tls: Tls) -> tuple[str, ...]:
    """Return the files whose change requires a new context."""
    stores = [store for store in (tls.keystore, tls.truststore) if store is not None]
    paths = [path for store in stores for path in (store.path, store.key_path) if path is not None]
    return tuple(dict.fromkeys(paths))


def expiry_of(tls: Tls) -> datetime | None:
    """Return the end of our own certificate's validity, read from the keystore; None without a keystore.

    Raises:
        StoreError: the keystore cannot be used.
    """
    if tls.keystore is None:
        return None
    leaf = read_identity(tls.keystore, tls.source).chain_pem.decode().partition("-----END")[0]
    return _not_after(ssl.PEM_cert_to_DER_cert(f"{leaf}-----END CERTIFICATE-----"))


def _configure(context: ssl.SSLContext, tls: Tls) -> None:
    """Apply the settings that clients and servers share."""
    context.options |= ssl.OP_NO_COMPRESSION
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_versions(context, tls, _set_suites(context, tls))
    if tls.keystore is not None:
        read_identity(tls.keystore, tls.source).load_into(context)
    if tls.truststore is not None:
        context.load_verify_locations(cadata=read_authorities(tls.truststore, tls.source))
    elif context.verify_mode is not ssl.CERT_NONE:
        context.load_default_certs()


def _set_versions(context: ssl.SSLContext, tls: Tls, with_suites: frozenset[str]) -> None:
    # Configuration files often list older versions too. Neither Java nor OpenSSL speaks them any more.
    known = [name for name in tls.protocols if name in _VERSIONS]
    if not known:
        given = ", ".join(tls.protocols) or "nothing"
        raise ConfigError(f"{tls.source}: ssl.enabled.protocols: expected {' or '.join(_VERSIONS)}, not {given}")
    versions = [_VERSIONS[name] for name in known if name in with_suites]
    if not versions:
        raise ConfigError(f"{tls.source}: ssl.cipher.suites: expected suites of {' or '.join(known)}")
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_suites(context: ssl.SSLContext, tls: Tls) -> frozenset[str]:
    """Choose the cipher suites of TLS 1.2, and return the versions of TLS that have suites."""
    if not tls.cipher_suites:
        return frozenset(_VERSIONS)
    newer = {name for name in tls.cipher_suites if _TLS13_SUITE.fullmatch(name)}
    older = [name for name in tls.cipher_suites if name not in newer and name != _RENEGOTIATION_SIGNAL]
    unknown = [name for name in older if not _is_known(openssl_name(name))]
    older = [name for name in older if name not in unknown]
    if not older and not newer:
        raise ConfigError(f"{tls.source}: ssl.cipher.suites: OpenSSL does not have {', '.join(unknown)}")
    if older:
        context.set_ciphers(":".join(map(openssl_name, older)))
    return frozenset(["TLSv1.2"] * bool(older) + ["TLSv1.3"] * bool(newer))


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2 (openssl-ciphers(1)); empty if the name cannot be one.

    ``TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384`` is ``ECDHE-RSA-AES256-SHA384``: CBC is not named, RSA alone is neither,
    and no hash where the cipher has but one.
    """
    match = _SUITE.fullmatch(suite)
    if match is None:
        return ""
    exchange = "" if match["exchange"] == "RSA" else match["exchange"] + "_"
    cipher = re.sub(r"(AES|ARIA|CAMELLIA)_(\d+)", r"\1\2", match["cipher"])
    cipher = cipher.replace("_CBC_", "_").replace("CCM_8", "CCM8").replace("POLY1305_SHA256", "POLY1305")
    return (exchange + cipher).replace("_", "-")


def _is_known(name: str) -> bool:
    """Return whether OpenSSL has exactly this suite: ``AES128``, for example, selects many."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        return False
    return any(cipher["name"] == name for cipher in context.get_ciphers())


def _not_after(certificate: bytes) -> datetime:
    """Return ``notAfter`` of a certificate in DER (RFC 5280). Python's ssl only gives it for a peer's certificate."""
    _, at, _ = _element(certificate, 0)
    _, at, _ = _element(certificate, at)  # tbsCertificate
    tag, _, end = _element(certificate, at)
    at = end if tag == _CONSTRUCTED_VERSION else at
    for _field in ("serialNumber", "signature", "issuer"):
        _, _, at = _element(certificate, at)
    _, at, _ = _element(certificate, at)  # validity
    _, _, at = _element(certificate, at)  # notBefore
    tag, start, end = _element(certificate, at)
    text = certificate[start:end].decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text[0] >= "5" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the DER element at ``at``, and the start and end of its content."""
    length, start = data[at + 1], at + 2
    if length & 0x80:
        long_start, start = start, start + (length & 0x7F)
        length = int.from_bytes(data[long_start:start])
    return data[at], start, start + length
