"""Prometheus' web configuration file: TLS and logins of the metrics listener (prometheus/exporter-toolkit,
``docs/web-configuration.md``). Pure.

Settings that would let others in than Prometheus lets in are refused, and so is each name that is not known.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final

import bcrypt
import msgspec
import yaml
from msgspec import Meta, Struct, field

from kjbod.errors import ConfigError
from kjbod.security.tls_keys import NO_CLIENT, PEM, REQUIRED, WANTED, Store, Tls

FILE_BYTES_MAX: Final = 1 << 20
PASSWORD_BYTES_MAX: Final = 72
"""bcrypt looks at no more."""
COST_MAX: Final = 14
"""Of a hash: a second of a processor for each login, and twice as much with each step."""
_HASH: Final = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")
_CLIENTS: Final[Mapping[str, str]] = {
    "": NO_CLIENT,
    "NoClientCert": NO_CLIENT,
    "RequestClientCert": NO_CLIENT,  # nobody looks at what is shown
    "VerifyClientCertIfGiven": WANTED,
    "RequireAndVerifyClientCert": REQUIRED,
}
_VERSIONS: Final = ("TLS10", "TLS11", "TLS12", "TLS13")
_NAMES: Final[Mapping[str, str]] = {"TLS12": "TLSv1.2", "TLS13": "TLSv1.3"}
"""Versions that OpenSSL still speaks."""


class _TlsServer(Struct, forbid_unknown_fields=True):
    cert_file: str = ""
    key_file: str = ""
    client_auth_type: str = ""
    client_ca_file: str = ""
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: list[str] = field(default_factory=list)
    prefer_server_cipher_suites: bool = True


class _Http(Struct, forbid_unknown_fields=True):
    http2: bool = True
    """Without effect: a scrape here is HTTP/1.1."""


class _File(Struct, forbid_unknown_fields=True):
    tls_server_config: _TlsServer | None = None
    http_server_config: _Http | None = None
    basic_auth_users: dict[Annotated[str, Meta(min_length=1)], str] | None = None


class WebSettings(Struct, frozen=True):
    """Settings of the metrics listener.

    Attributes:
        tls: of the listener; None: plain text.
        users: bcrypt hashes, by name; empty: nobody has to log in.
    """

    tls: Tls | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)

    def knows(self, name: str, password: bytes) -> bool:
        """Whether this is a login. Takes as long for a name that is not known. Computes for some 50 ms.

        Args:
            name: of the user.
            password: as the client sent it.
        """
        hashed = self.users.get(name)
        wanted = next(iter(self.users.values())) if hashed is None else hashed
        return bcrypt.checkpw(password[:PASSWORD_BYTES_MAX], wanted) and hashed is not None

    def digest(self, name: str, password: bytes) -> bytes:
        """A name for a login that is good while its hash is the same, from which the password cannot be told."""
        return hmac.digest(self.users.get(name, b""), name.encode() + b"\0" + password, hashlib.sha256)


def read_web_settings(content: bytes, path: str) -> WebSettings:
    """Settings from a file's content.

    Args:
        content: YAML.
        path: of the file; other paths in it are relative to its folder.

    Raises:
        ConfigError: with every mistake, one line each; no line has a hash.
    """
    try:
        found = msgspec.convert(yaml.safe_load(content) or {}, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1})"
        raise ConfigError(f"{path}: expected YAML, as Prometheus' web configuration file has it{where}") from None
    problems = [*_problems_of_tls(found.tls_server_config), *_problems_of_users(found.basic_auth_users)]
    if problems:
        raise ConfigError(*(f"{path}: {problem}" for problem in problems))
    users = {name: hashed.encode() for name, hashed in (found.basic_auth_users or {}).items()}
    return WebSettings(_tls(found.tls_server_config, path), users)


def _problems_of_tls(tls: _TlsServer | None) -> list[str]:
    if tls is None or tls == _TlsServer():
        return []
    of = "tls_server_config"
    found = [f"{of}.{name} is missing" for name in ("cert_file", "key_file") if not getattr(tls, name)]
    if tls.client_auth_type not in _CLIENTS:
        known = ", ".join(name for name in _CLIENTS if name)
        found.append(f"{of}.client_auth_type={tls.client_auth_type}: expected one of {known}")
    elif tls.client_ca_file and _CLIENTS[tls.client_auth_type] == NO_CLIENT:
        found.append(f"{of}.client_ca_file has no effect without client_auth_type: RequireAndVerifyClientCert")
    versions = {"min_version": tls.min_version, "max_version": tls.max_version}
    wrong = {name: version for name, version in versions.items() if version not in _VERSIONS}
    found += [f"{of}.{name}={version}: expected one of {', '.join(_VERSIONS)}" for name, version in wrong.items()]
    if not found and not _protocols(tls):
        found.append(f"{of}: expected TLS12 or TLS13 between min_version and max_version")
    return found


def _problems_of_users(users: Mapping[str, str] | None) -> list[str]:
    found = []
    for name, hashed in (users or {}).items():
        shape = _HASH.fullmatch(hashed)
        if shape is None:
            found.append(f"basic_auth_users.{name}: expected a bcrypt hash, as htpasswd -nBC 10 prints it")
        elif not 4 <= int(shape[1]) <= COST_MAX:
            found.append(f"basic_auth_users.{name}: expected a bcrypt hash of cost 4 to {COST_MAX}")
        elif ":" in name:
            found.append(f"basic_auth_users.{name}: expected a name without a colon")
    return found


def _protocols(tls: _TlsServer) -> tuple[str, ...]:
    first, last = _VERSIONS.index(tls.min_version), _VERSIONS.index(tls.max_version)
    return tuple(_NAMES[name] for name in _VERSIONS[first : last + 1] if name in _NAMES)


def _tls(tls: _TlsServer | None, path: str) -> Tls | None:
    if tls is None or not tls.cert_file:
        return None
    folder = PurePath(path).parent

    def store(name: str, **more: Any) -> Store:
        return Store(f"tls_server_config.{name}", PEM, str(folder / getattr(tls, name)), **more)

    return Tls(
        source=path,
        keystore=store("cert_file", key_path=str(folder / tls.key_file)),
        truststore=store("client_ca_file") if tls.client_ca_file else None,
        protocols=_protocols(tls),
        cipher_suites=tuple(tls.cipher_suites),
        client_auth=_CLIENTS[tls.client_auth_type],
    )
