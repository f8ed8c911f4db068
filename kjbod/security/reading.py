"""Settings of secured connections, read from files of configuration: resolves ``config.providers``, and reads the JAAS
file. Whoever has PLAINTEXT alone does without this module, and what it loads (:mod:`kjbod.security.opening`)."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kjbod.config.endpoints import Listener
from kjbod.config.keys import Config
from kjbod.config.load import is_below
from kjbod.config.properties import parse_properties
from kjbod.config.providers import Variables
from kjbod.errors import ConfigError
from kjbod.security import settings
from kjbod.security.jaas import TEXT_CHARS_MAX, LoginModule, parse_sections
from kjbod.security.keys import ChannelSettings, ListenerSettings, Tls

if TYPE_CHECKING:
    from kjbod.security.oauthbearer.keys import TokenSettings, ValidatorSettings

JAAS_PROPERTY: Final = "java.security.auth.login.config"
"""The Java property that names the JAAS file; Kafka's scripts take it from ``KAFKA_OPTS``."""
FILE_BYTES_MAX: Final = 1024 * 1024


def of_listener(config: Config, listener: str, protocol: str, mechanism_key: str) -> ChannelSettings:
    """Settings of a node's connections to others by their listener; see :func:`kjbod.security.settings.of_listener`.

    Raises:
        ConfigError: with every mistake.
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
    _require_elsewhere(config, found.tls, None if found.login is None else found.login.token)
    return found


def of_own_listener(config: Config, listener: Listener) -> ListenerSettings:
    """Settings of a listener of this node.

    Raises:
        ConfigError: with every mistake.
    """
    found = settings.of_own_listener(
        config.properties,
        config.source,
        listener.name,
        listener.protocol,
        Variables(config.properties, os.environ).resolve,
        lambda: _sections(config.kjbod_jaas_file, os.environ),
    )
    _require_elsewhere(config, found.tls, found.tokens)
    return found


def of_client(path: Path, environment: Mapping[str, str]) -> ChannelSettings:
    """Settings of a client, from the file of ``--command-config``.

    Raises:
        ConfigError: it cannot be read, or with every mistake in it.
    """
    properties = _properties(path)
    variables = Variables(properties, environment)
    return settings.of_client(properties, str(path), variables.resolve, lambda: _sections(None, environment))


def _require_elsewhere(config: Config, tls: Tls | None, tokens: "TokenSettings | ValidatorSettings | None") -> None:
    """Require that stores, and files of tokens, lie on no disk that a broker's process watches: a thread that waits for
    one that hangs would keep the process, its port and its locks, also when it is killed.

    Raises:
        ConfigError: one does.
    """
    if "broker" not in config.process_roles:
        return
    stores = () if tls is None else (tls.keystore, tls.truststore)
    files = {store.key: store.path for store in stores if store is not None and store.path is not None}
    if tokens is not None:
        from kjbod.security.oauthbearer.keys import files_of

        files |= files_of(tokens)
    problems = [
        f"{config.source}: {key.removeprefix(f'{config.source}: ')}={path}: expected a file outside the disks that are "
        f"watched, not below {inside}"
        for key, path in files.items()
        for inside in config.directories
        if is_below(os.path.abspath(path), inside)  # noqa: PTH100  the text alone
    ]
    if problems:
        raise ConfigError(*problems)


def _sections(path: str | None, environment: Mapping[str, str]) -> Mapping[str, Sequence[LoginModule]]:
    """Sections of the JAAS file; none where there is no file.

    Raises:
        ConfigError: it cannot be read, or is none.
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


def _from_options(environment: Mapping[str, str]) -> str | None:
    """The JAAS file that is given to Java by ``KAFKA_OPTS``."""
    given = environment.get("KAFKA_OPTS", "")
    try:
        options = shlex.split(given)
    except ValueError:
        options = given.split()
    found = [
        re.sub(f"^-D{re.escape(JAAS_PROPERTY)}=", "", one) for one in options if one.startswith(f"-D{JAAS_PROPERTY}=")
    ]
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
        return parse_properties(text)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
