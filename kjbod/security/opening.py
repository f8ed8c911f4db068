"""Security of connections as files of configuration say: resolves ``config.providers``, and reads the JAAS file."""

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kjbod.config.endpoints import Listener
from kjbod.config.keys import Config
from kjbod.config.properties import parse_properties
from kjbod.config.providers import Variables
from kjbod.errors import ConfigError
from kjbod.security import settings
from kjbod.security.channel import Security
from kjbod.security.jaas import TEXT_CHARS_MAX, LoginModule, parse_sections
from kjbod.security.keys import PLAINTEXT, ChannelSettings, ListenerSettings
from kjbod.security.listener import Credentials, ListenerSecurity, no_credentials, nothing

JAAS_PROPERTY: Final = "java.security.auth.login.config"
"""The Java property that names the JAAS file; Kafka's scripts take it from ``KAFKA_OPTS``."""
FILE_BYTES_MAX: Final = 1024 * 1024
CONTROLLER_MECHANISM: Final = "sasl.mechanism.controller.protocol"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"


def of_controllers(config: Config) -> ChannelSettings:
    """Settings of a node's connections to the controllers.

    Raises:
        ConfigError: with every mistake.
    """
    names = config.controller_listener_names
    protocol = config.controller_protocol or PLAINTEXT
    return _of_listener(config, names[0] if names else "", protocol, CONTROLLER_MECHANISM)


def of_brokers(config: Config, listener: str) -> ChannelSettings:
    """Settings of a broker's connections to brokers by this listener.

    Raises:
        ConfigError: with every mistake.
    """
    protocol = config.listener_security_protocol_map.get(listener, PLAINTEXT)
    return _of_listener(config, listener, protocol, INTER_BROKER_MECHANISM)


def of_own_listener(config: Config, listener: Listener) -> ListenerSettings:
    """Settings of a listener of this node.

    Raises:
        ConfigError: with every mistake.
    """
    if listener.protocol == PLAINTEXT:
        return ListenerSettings()
    return settings.of_own_listener(
        config.properties,
        config.source,
        listener.name,
        listener.protocol,
        Variables(config.properties, os.environ).resolve,
        lambda: _sections(config.kjbod_jaas_file, os.environ),
    )


def listener_problems(config: Config, listeners: Iterable[Listener]) -> list[str]:
    """Reasons why these cannot be listened on as the file says."""
    found: list[str] = []
    for listener in listeners:
        try:
            of_own_listener(config, listener)
        except ConfigError as error:
            found += error.problems
    return list(dict.fromkeys(found))


async def listener_security(
    config: Config,
    listener: Listener,
    credentials: Credentials = no_credentials,
    ready: Callable[[], Awaitable[object]] = nothing,
) -> ListenerSecurity | None:
    """Security of a listener of this node, its files read; None: plain text. ``credentials`` and ``ready`` are
    those of :class:`ListenerSecurity`.

    Raises:
        ConfigError: with every mistake.
        KjbodError: a keystore or truststore cannot be used.
    """
    if listener.protocol == PLAINTEXT:
        return None
    found = ListenerSecurity(await asyncio.to_thread(of_own_listener, config, listener), credentials, ready)
    await asyncio.to_thread(found.load)
    return found


def problems(config: Config) -> list[str]:
    """Reasons why the controllers of a configuration cannot be spoken with."""
    try:
        of_controllers(config)
    except ConfigError as error:
        return list(error.problems)
    return []


def security_of(config: Config) -> Security:
    """Security of a node's connections to the controllers.

    Raises:
        ConfigError: with every mistake.
    """
    return Security(of_controllers(config))


def client_security(path: Path | None, environment: Mapping[str, str] = os.environ) -> Security:
    """Security of a client with the file of ``--command-config``; None: plain text.

    Raises:
        ConfigError: it cannot be read, or with every mistake in it.
        KjbodError: a keystore or truststore cannot be used.
    """
    if path is None:
        return Security()
    properties = _properties(path)
    variables = Variables(properties, environment)
    found = Security(settings.of_client(properties, str(path), variables.resolve, lambda: _sections(None, environment)))
    found.load()
    return found


def _of_listener(config: Config, listener: str, protocol: str, mechanism_key: str) -> ChannelSettings:
    if protocol == PLAINTEXT:
        return ChannelSettings()
    variables = Variables(config.properties, os.environ)
    return settings.of_listener(
        config.properties,
        config.source,
        listener,
        protocol,
        mechanism_key,
        variables.resolve,
        lambda: _sections(config.kjbod_jaas_file, os.environ),
    )


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
