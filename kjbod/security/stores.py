"""Read keystores and truststores of Kafka's brokers and clients (``DefaultSslEngineFactory`` of 4.3.1; KIP-651 for PEM;
``KeyStore`` of Java). Blocking code.

Python's ssl reads PEM. PKCS12 needs the package ``cryptography``, which is imported on demand. The host's ``keytool``
converts JKS, a format of Java, to PKCS12; a host that runs Kafka has ``keytool``. As in Java
(``keystore.type.compat``), the first bytes decide between JKS and PKCS12, whatever type is configured.

A PKCS12 or JKS keystore must have exactly one private key.
"""

import base64
import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kjbod.errors import EXIT_CONFIG, EXIT_FAILURE, KjbodError
from kjbod.files import read_file
from kjbod.security.tls_keys import PEM, Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

STORE_BYTES_MAX: Final = 4 << 20
"""Java's own ``cacerts`` has a sixteenth of this size."""
KEYTOOL_DEADLINE_S: Final = 20.0
"""A start of Java takes a second, and longer on a busy host."""

_KEYSTORE, _TRUSTSTORE = "keystore", "truststore"
_IN_MEMORY = ("/dev/shm", "/run")
"""Mount points of a tmpfs on most hosts: files written there reach no disk."""
_JKS_MAGIC, _JCEKS_MAGIC = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_PFX = re.compile(rb"0(?:[\x00-\x80]|\x81.|\x82..|\x83...|\x84....)\x02\x01\x03", re.DOTALL)
"""Start of a PKCS12 file: a sequence with version 3 (RFC 7292)."""
_PEM_BLOCK = re.compile(
    r"-BEGIN\s+(?P<label>[A-Z0-9]+(?:\s+[A-Z0-9]+){0,4})-+\s*"
    r"(?P<headers>(?:[A-Za-z0-9-]+:[^\r\n]*[\r\n]+)*)(?P<body>[A-Za-z0-9/+=\s]*)-+END"
)
"""Blocks as in ``PemParser``: line ends may be spaces, because a value of a properties file is one line."""
_CERTIFICATE = "CERTIFICATE"
_OTHER_LABELS: Final = {"X509 CERTIFICATE": _CERTIFICATE, "TRUSTED CERTIFICATE": _CERTIFICATE}
"""OpenSSL's names of a certificate. After a trusted certificate OpenSSL appends its uses; Java ignores them."""
_TOO_WEAK: Final = {
    "EE_KEY_TOO_SMALL": "its key is too small for OpenSSL, for RSA below 2,048 bits: make a key of 2,048 bits or more"
    " (EC: 256) and have a certificate issued for it; Java still takes 1,024 bits",
    "CA_KEY_TOO_SMALL": "the key of an authority in its chain is too small for OpenSSL, for RSA below 2,048 bits: have"
    " a certificate issued by an authority with a key of 2,048 bits or more (EC: 256); Java still takes 1,024 bits",
    "CA_MD_TOO_WEAK": "a certificate in its chain is signed with SHA-1 or MD5: have it issued anew, signed with"
    " SHA-256",
}
"""OpenSSL's reasons against a certificate, with remedies."""
_NO_ENTRIES: Final = re.compile(r"\bcontains 0 entries\b")
_SOURCE_PASSWORD, _TARGET_PASSWORD = "KJBOD_SOURCE_PASSWORD", "KJBOD_TARGET_PASSWORD"
"""Environment variables for keytool: all users of the host can see its arguments."""
_KEYTOOL_OPTIONS: Final = ("-J-XX:-UsePerfData", "-J-Duser.language=en")
"""UsePerfData would leave a file in /tmp."""


class StoreError(KjbodError):
    """A keystore or truststore cannot be used: key, file and reason. A restart does not fix this."""

    exit_code = EXIT_CONFIG


class StoreOutOfReach(StoreError):  # noqa: N818 - what happened
    """A store cannot be read now, for example before its disk is mounted or on a busy host. A restart may fix this."""

    exit_code = EXIT_FAILURE


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key and its certificate chain, all in PEM.

    Attributes:
        chain_pem: certificate chain, leaf first.
        password: password of ``key_pem``, if that is encrypted.
    """

    chain_pem: bytes
    key_pem: bytes = field(repr=False)
    password: str | None = field(default=None, repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load this identity into ``context``. The private key is not written to a disk.

        Raises:
            ssl.SSLError: the key does not belong to the leaf, cannot be decrypted, or is too weak for OpenSSL.
        """
        with _memory_file(self.chain_pem + self.key_pem) as name:
            # With None, OpenSSL would ask on the terminal.
            context.load_cert_chain(name, password="" if self.password is None else self.password)


def read_identity(store: Store, source: str) -> Identity:
    """Return the private key and the certificate chain of a keystore, and check that they belong together.

    Raises:
        StoreError: the keystore cannot be used.
    """
    place = _Place(store, source, _KEYSTORE)
    identity = _pem_identity(place) if store.kind == PEM else _pkcs12_identity(place)
    _check_certificates(place, identity.chain_pem.decode())
    try:
        identity.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    except ValueError:
        raise place.error(f"password too long for OpenSSL ({place.key_of('key.password')})") from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise place.error("key does not match certificate") from None
        if b" ENCRYPTED " in identity.key_pem:
            raise place.error(f"wrong password ({place.key_of('key.password')})") from None
        weak = _TOO_WEAK.get(error.reason or "")
        raise place.error(weak or f"private key or certificate not usable ({_words(error)})") from None
    return identity


def read_authorities(store: Store, source: str) -> str:
    """Return all certificates of a truststore, as PEM text.

    For an entry with a private key in a PKCS12 or JKS file, Java trusts its certificate, but not the issuers unless
        they have entries of their own. Entries are recognized by their alias: issuers have no name (OpenSSL), or the
        name of the subject (keytool).

    Raises:
        StoreError: the truststore cannot be used.
    """
    place = _Place(store, source, _TRUSTSTORE)
    if store.kind == PEM:
        blocks = list(_pem_blocks(_pem_text(place)))
        pem = "".join(text for label, text in blocks if label == _CERTIFICATE)
    else:
        pem = _pkcs12_authorities(place)
    if not pem:
        raise place.error("no certificate in it")
    _check_certificates(place, pem)
    return pem


def why_empty_for_java(store: Store, source: str) -> str | None:
    """Return why Java, and so Kafka, trusts no certificate of a truststore that :func:`read_authorities` reads; None:
    Java trusts some, or the host has no keytool.

    In PKCS12, Java trusts only certificates with Java's attribute ``trustedKeyUsage``. Other programs write files
    without it; keytool finds no entry in such a file.
    """
    keytool = _find_keytool(os.environ)
    if store.kind == PEM or store.path is None or keytool is None:
        return None
    place = _Place(store, source, _TRUSTSTORE)
    try:
        data = place.read()
        if not _PFX.match(data):
            return None
        with _private_directory() as name:
            (Path(name) / "store.p12").write_bytes(data)
            command = [keytool, *_KEYTOOL_OPTIONS, "-list", "-keystore", "store.p12", "-storetype", "PKCS12"]
            said = _keytool_says(command, place, Path(name), {}, "\n")
    except (OSError, StoreError):
        return None
    if not _NO_ENTRIES.search(said):
        return None
    error = place.error("Kafka finds no trusted certificate in this PKCS12 file, and so believes nobody")
    return str(error)


class _Place:
    """A store, and its names in messages."""

    def __init__(self, store: Store, source: str, part: str) -> None:
        self.store = store
        self.source = source
        self.part = part

    def key_of(self, name: str) -> str:
        """Return ``ssl.<name>`` with the prefix of the store's own key."""
        return f"{self.store.key[: max(self.store.key.rfind('ssl.'), 0)]}ssl.{name}"

    @property
    def password_key(self) -> str:
        return self.key_of(f"{self.part}.password")

    def error(self, text: str, kind: type[StoreError] = StoreError) -> StoreError:
        value = "" if self.store.path is None else f"={self.store.path}"
        return kind(f"{self.source}: {self.store.key}{value}: {text}")

    def read(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            StoreError: the file cannot be read.
        """
        if self.store.path is None:
            raise self.error(f"no file is named ({self.key_of(f'{self.part}.location')})")
        try:
            return read_file(Path(self.store.path), bytes_max=STORE_BYTES_MAX)
        except OSError as error:
            raise self.error(f"not readable: {error.strerror}", StoreOutOfReach) from None


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    """Yield the name of a file that exists in memory only, for libraries that read only files."""
    descriptor = os.memfd_create("kjbod-identity", os.MFD_CLOEXEC)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{descriptor}"


def _check_certificates(place: _Place, pem: str) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise place.error(f"certificate not readable ({_words(error)})") from None


def _words(error: Exception) -> str:
    """Return OpenSSL's reason, ``EE_KEY_TOO_SMALL``, as words."""
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason.replace("_", " ").lower() if reason else "malformed"


# PEM


def _pem_identity(place: _Place) -> Identity:
    store = place.store
    key_place = _place_of_key(place)
    chain_blocks = list(_pem_blocks(_pem_text(place)))
    key_blocks = chain_blocks if key_place is place else list(_pem_blocks(_pem_text(key_place)))
    chain = "".join(text for label, text in chain_blocks if label == _CERTIFICATE)
    keys = [text for label, text in key_blocks if label.endswith("PRIVATE KEY")]
    if not keys:
        raise key_place.error("no private key in it")
    if len(keys) > 1:
        raise key_place.error(f"expected one private key, and it has {len(keys)}")
    if not chain:
        raise place.error("no certificate in it")
    if " ENCRYPTED " in keys[0] and store.key_path is not None:
        raise key_place.error("key encrypted: expected a key without a password")
    if " ENCRYPTED " in keys[0] and store.key_password is None:
        raise key_place.error(f"key encrypted and {place.key_of('key.password')} missing")
    return Identity(chain.encode(), keys[0].encode(), store.key_password)


def _place_of_key(place: _Place) -> _Place:
    """Return the place of the private key of a PEM keystore: its own file or text, or that of the certificates."""
    store = place.store
    if store.key_path is not None:
        return _Place(Store("tls_server_config.key_file", PEM, store.key_path), place.source, _KEYSTORE)
    if store.path is not None:
        return place
    return _Place(Store(place.key_of("keystore.key"), PEM, pem=store.key_pem), place.source, _KEYSTORE)


def _pem_text(place: _Place) -> str:
    if place.store.path is None:
        return place.store.pem or ""
    data = place.read()
    if data.startswith(_JKS_MAGIC) or _PFX.match(data):
        raise place.error(f"not PEM, but a keystore of Java ({place.key_of(f'{place.part}.type')})")
    return data.decode("latin-1")


def _pem_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield label and PEM text, with its line ends, of each block in ``text``."""
    for match in _PEM_BLOCK.finditer(text):
        given = " ".join(match["label"].split())
        label = _OTHER_LABELS.get(given, given)
        body = "".join(match["body"].split())
        if given == "TRUSTED CERTIFICATE":
            body = _first_element(body)
        lines = [f"-----BEGIN {label}-----", *(body[at : at + 64] for at in range(0, len(body), 64))]
        yield label, "\n".join([*lines, f"-----END {label}-----", ""])


def _first_element(body: str) -> str:
    """Return the first DER element of a Base64 text, without the bytes after it (X.690, 8.1.3); unchanged if it has
    none."""
    try:
        data = base64.b64decode(body, validate=True)
    except ValueError:
        return body
    if len(data) < 2 or data[1] == 0x80:
        return body
    length_bytes = data[1] & 0x7F if data[1] > 0x80 else 0
    length = int.from_bytes(data[2 : 2 + length_bytes], "big") if length_bytes else data[1]
    return base64.b64encode(data[: 2 + length_bytes + length]).decode()


# PKCS12


def _pkcs12_identity(place: _Place) -> Identity:
    content = _pkcs12_content(place)
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if content.key is None:
        raise place.error("no private key in it")
    if content.cert is None:
        raise place.error("no certificate in it")
    try:
        chain = _chain(content.cert.certificate, [other.certificate for other in content.additional_certs])
        chain_pem = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)
    except ValueError:
        raise place.error("certificate not readable (malformed)") from None
    return Identity(chain_pem, content.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _chain(leaf: "Certificate", others: "list[Certificate]") -> "list[Certificate]":
    """Return the leaf, its issuer, the issuer's issuer and so on: files have them in any order."""
    chain = [leaf]
    while issuer := next((one for one in others if one.subject == chain[-1].issuer and one not in chain), None):
        chain.append(issuer)
    return chain


def _pkcs12_authorities(place: _Place) -> str:
    content = _pkcs12_content(place)
    from cryptography.hazmat.primitives.serialization import Encoding

    others = content.additional_certs
    if content.key is not None:
        others = [other for other in others if other.friendly_name and b"=" not in other.friendly_name]
    trusted = [content.cert, *others] if content.cert is not None else others
    return "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in trusted)


def _pkcs12_content(place: _Place) -> "PKCS12KeyAndCertificates":
    store, data = place.store, place.read()
    if data.startswith(_JKS_MAGIC):
        return _parse_pkcs12(place, *_pkcs12_of_jks(place, data))
    if data.startswith(_JCEKS_MAGIC):
        raise place.error("a JCEKS keystore: expected PKCS12, JKS or PEM")
    if not _PFX.match(data):
        of_text = f" (PEM? {place.key_of(f'{place.part}.type')}=PEM)" if b"-----BEGIN " in data else ""
        raise place.error(f"not a keystore{of_text}")
    if place.part == _KEYSTORE and store.key_password is not None and store.key_password != store.password:
        both = f"{place.key_of('key.password')} and {place.password_key}"
        raise place.error(f"{both} differ: a PKCS12 keystore has one password")
    return _parse_pkcs12(place, data, store.password)


def _parse_pkcs12(place: _Place, data: bytes, password: str | None) -> "PKCS12KeyAndCertificates":
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise place.error("PKCS12 and JKS need the Python package cryptography: install it, or use PEM") from None
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except UnsupportedAlgorithm as error:
        raise place.error(f"made with an algorithm that OpenSSL has not: {error.args[0]}") from None
    except ValueError:  # cryptography cannot tell a wrong password from a damaged file
        wrong = "password missing" if password is None else "wrong password, or the file is damaged or incomplete"
        raise place.error(f"{wrong} ({place.password_key})") from None


# JKS


def _pkcs12_of_jks(place: _Place, data: bytes) -> tuple[bytes, str]:
    """Return a JKS file as PKCS12, and the password of the result."""
    if place.part == _KEYSTORE and place.store.password is None:
        raise place.error(f"password missing ({place.password_key})")
    keytool = _find_keytool(os.environ)
    if keytool is None:
        raise place.error(_without_keytool(place))
    password = secrets.token_hex(16)
    with _private_directory() as name:
        directory = Path(name)
        try:
            (directory / "store.jks").write_bytes(data)
            said = _run_keytool(keytool, place, directory, password)
            converted = directory / "store.p12"
            if not converted.exists():
                raise place.error(_keytool_words(place, said))
            return read_file(converted), password
        except OSError as error:
            raise place.error(f"{keytool} cannot be run: {error.strerror}", StoreOutOfReach) from None


def _find_keytool(environ: Mapping[str, str]) -> str | None:
    if home := environ.get("JAVA_HOME"):
        keytool = Path(home) / "bin/keytool"
        if os.access(keytool, os.X_OK):
            return str(keytool)
    return shutil.which("keytool", path=environ.get("PATH"))


def _without_keytool(place: _Place) -> str:
    path = Path(place.store.path or "")
    converted = shlex.quote(str(path.with_suffix(".p12")))
    return (
        "a JKS keystore needs Java's keytool, which is neither in JAVA_HOME nor in PATH; on a host with Java, run:"
        f" keytool -importkeystore -srckeystore {shlex.quote(str(path))} -destkeystore {converted}"
        f" -deststoretype PKCS12, and name {converted} instead"
    )


def _private_directory() -> "tempfile.TemporaryDirectory[str]":
    """Return a directory for this user only (mode 0700), in memory if the host allows."""
    for parent in _IN_MEMORY:
        with contextlib.suppress(OSError):
            return tempfile.TemporaryDirectory(prefix="kjbod-", dir=parent)
    return tempfile.TemporaryDirectory(prefix="kjbod-")


def _run_keytool(keytool: str, place: _Place, directory: Path, target_password: str) -> str:
    """Import the whole store into ``store.p12``, and return the output of keytool.

    keytool accepts the password of a key as an option only with an alias. So it asks on its input, also for the
    password of a store without one.
    """
    store = place.store
    command = [keytool, *_KEYTOOL_OPTIONS, "-importkeystore", "-noprompt", "-srckeystore", "store.jks"]
    command += ["-srcstoretype", "JKS", "-destkeystore", "store.p12", "-deststoretype", "PKCS12"]
    command += ["-deststorepass:env", _TARGET_PASSWORD]
    asked_for = store.key_password if store.password is not None else ""
    text = "" if asked_for is None else f"{asked_for}\n"
    return _keytool_says(command, place, directory, {_TARGET_PASSWORD: target_password}, text, "-srcstorepass:env")


def _keytool_says(
    command: list[str],
    place: _Place,
    directory: Path,
    more: Mapping[str, str],
    text: str,
    password_option: str = "-storepass:env",
) -> str:
    """Run keytool in ``directory`` with the password of the store and ``text`` as its input, and return its output.

    Raises:
        StoreOutOfReach: keytool did not finish in time.
        OSError: keytool cannot be run.
    """
    keytool, store = command[0], place.store
    environment = {"LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", os.defpath), **more}
    if store.password is not None:
        command = [*command, password_option, _SOURCE_PASSWORD]
        environment[_SOURCE_PASSWORD] = store.password
    if home := os.environ.get("JAVA_HOME"):
        environment["JAVA_HOME"] = home
    with open(directory / "said", "w+b") as said:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that keytool has no terminal to ask on
        )
        try:
            process.communicate(text.encode(), timeout=KEYTOOL_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise place.error(f"{keytool} was not done within {KEYTOOL_DEADLINE_S:g} s", StoreOutOfReach) from None
        finally:
            _end(process)
        said.seek(0)
        return said.read().decode(errors="replace")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _keytool_words(place: _Place, said: str) -> str:
    """Return the reason why keytool imported nothing."""
    key_password = place.key_of("key.password")
    if "password was incorrect" in said:
        return f"wrong password ({place.password_key})"
    if "UnrecoverableKey" in said or "Too many failures" in said:
        if place.store.key_password is None:
            return f"key encrypted and {key_password} missing"
        return f"wrong password ({key_password})"
    match = re.search(r"keytool error: (?:java[\w.]*: )?([^\r\n]{1,200})", said)
    return f"not readable: keytool says {match[1] if match else 'nothing'}"
