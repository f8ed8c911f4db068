"""Read the settings of secured connections from configuration files, including ``config.providers`` and the JAAS file.
A node with PLAINTEXT only does not load this module or its imports (:mod:`kjbod.security.opening`)."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kjbod.config.endpoints import Listener
from kjbod.config.keys import Config
from kjbod.config.paths import is_below
from kjbod.config.properties import parse_properties
from kjbod.config.providers import Variables
from kjbod.errors import ConfigError
from kjbod.file_kinds import kind_by_content
from kjbod.security import settings
from kjbod.security.jaas import TEXT_CHARS_MAX, LoginModule, parse_sections
from kjbod.security.keys import ChannelSettings, Kerberos, ListenerSettings
from kjbod.security.tls_keys import Tls

if TYPE_CHECKING:
    from kjbod.security.oauthbearer.keys import TokenSettings, ValidatorSettings

JAAS_PROPERTY: Final = "java.security.auth.login.config"
"""The Java property that names the JAAS file; Kafka's scripts take it from ``KAFKA_OPTS``."""
KRB5_PROPERTY: Final = "java.security.krb5.conf"
"""The Java property that names ``krb5.conf``."""
KRB5_VARIABLE: Final = "KRB5_CONFIG"
"""The environment variable of MIT's library for ``krb5.conf``."""
FILE_BYTES_MAX: Final = 1024 * 1024
HEAD_BYTES: Final = 4096
"""Number of bytes at the start of a file that are enough to recognize its kind."""
CLIENT_PREFIXES: Final = ("security.", "ssl.", "sasl.", "bootstrap.", "client.", "config.providers")
"""Prefixes of keys that show that a file is a client's."""


def of_listener(config: Config, listener: str, protocol: str, mechanism_key: str) -> ChannelSettings:
    """Return the settings of a node's connections to other nodes by their listener; see
    :func:`kjbod.security.settings.of_listener`.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    found = settings.of_listener(
        config.properties,
        config.source,
        listener,
        protocol,
        mechanism_key,
        Variables(config.properties, os.environ).resolve,
        lambda: _sections(config.kjbod_jaas_file, os.environ),
    )
    login = found.login
    _require_usable(None if login is None else login.kerberos)
    _require_elsewhere(config, found.tls, None if login is None else login.kerberos or login.token)
    return found


def of_own_listener(config: Config, listener: Listener) -> ListenerSettings:
    """Return the settings of a listener of this node.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    found = settings.of_own_listener(
        config.properties,
        config.source,
        listener.name,
        listener.protocol,
        Variables(config.properties, os.environ).resolve,
        lambda: _sections(config.kjbod_jaas_file, os.environ),
    )
    _require_usable(found.kerberos)
    for secret in (found.kerberos, found.tokens):
        _require_elsewhere(config, found.tls, secret)
    return found


def of_client(path: Path, environment: Mapping[str, str]) -> ChannelSettings:
    """Return the settings of a client, from the file of ``--command-config``.

    Raises:
        ConfigError: the file cannot be read or has mistakes; the error lists all of them.
    """
    properties = _properties(path)
    variables = Variables(properties, environment)
    found = settings.of_client(properties, str(path), variables.resolve, lambda: _sections(None, environment))
    _require_usable(found.login.kerberos if found.login is not None else None, environment)
    return found


def _require_usable(kerberos: Kerberos | None, environment: Mapping[str, str] = os.environ) -> None:
    """Require the Kerberos library, and point it to Java's ``krb5.conf`` if it has none of its own.

    Raises:
        ConfigError: the library is not installed.
    """
    if kerberos is None:
        return
    from kjbod.security.kerberos_login import require

    require(kerberos.where)
    given = _from_options(environment, KRB5_PROPERTY)
    if given and not environment.get(KRB5_VARIABLE):
        os.environ[KRB5_VARIABLE] = given


def _require_elsewhere(
    config: Config, tls: Tls | None, login: "Kerberos | TokenSettings | ValidatorSettings | None"
) -> None:
    """Require that stores and login files are not on a disk that a broker's process watches. A thread that reads from a
    hung disk would keep the process, its port and its locks, even after a kill.

    Raises:
        ConfigError: a file is on such a disk.
    """
    if "broker" not in config.process_roles:
        return
    stores = () if tls is None else (tls.keystore, tls.truststore)
    files = [(f"{config.source}: {store.key}", store.path) for store in stores if store is not None]
    if isinstance(login, Kerberos):
        files += [(f"{login.where}: keyTab", login.keytab), (f"{login.where}: ticketCache", login.cache)]
    elif login is not None:
        from kjbod.security.oauthbearer.keys import files_of

        named = files_of(login).items()
        files += [(f"{config.source}: {key.removeprefix(f'{config.source}: ')}", path) for key, path in named]
    problems = [
        f"{name}={path}: expected a file outside the disks that are watched, not below {inside}"
        for name, path in files
        if path is not None
        for inside in config.directories
        if is_below(os.path.abspath(path), inside)  # noqa: PTH100  the text alone
    ]
    if problems:
        raise ConfigError(*problems)


def _sections(path: str | None, environment: Mapping[str, str]) -> Mapping[str, Sequence[LoginModule]]:
    """Return the sections of the JAAS file; empty if there is no file.

    Raises:
        ConfigError: the file cannot be read, or is no JAAS file.
    """
    named = path or _from_options(environment)
    if not named:
        return {}
    try:
        with open(named, "rb") as file:
            text = file.read(TEXT_CHARS_MAX + 1).decode()
        return parse_sections(text)
    except OSError as error:
        raise ConfigError(f"{named}: {error.strerror}: expected a readable JAAS file") from None
    except ValueError as error:
        raise ConfigError(f"{named}: expected a JAAS file: {error}") from None


def _from_options(environment: Mapping[str, str], name: str = JAAS_PROPERTY) -> str | None:
    """Return the value of a Java property from ``KAFKA_OPTS``; None: not set."""
    given = environment.get("KAFKA_OPTS", "")
    try:
        options = shlex.split(given)
    except ValueError:
        options = given.split()
    found = [one.removeprefix(f"-D{name}=") for one in options if one.startswith(f"-D{name}=")]
    return found[-1] if found else None


def _properties(path: Path) -> Mapping[str, str]:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: expected a readable file of client properties") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: expected a file of client properties of at most {FILE_BYTES_MAX} bytes")
    try:
        found = parse_properties(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {kind_by_content(text[:HEAD_BYTES]) or error}") from None
    # Parsed as properties, such a file would have no security keys: no password, or a plain-text connection.
    if not any(name.startswith(CLIENT_PREFIXES) for name in found) and (kind := kind_by_content(text[:HEAD_BYTES])):
        raise ConfigError(f"{path}: {kind}")
    return found
