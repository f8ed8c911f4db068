"""Open the security of a node's connections and listeners, and of a command, from configuration files. Modules that
PLAINTEXT does not need are loaded on demand: they take half a megabyte of each process."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kjbod.config.endpoints import Listener
from kjbod.config.keys import Config
from kjbod.errors import ConfigError
from kjbod.security.channel import Security
from kjbod.security.keys import PLAINTEXT, ChannelSettings, ListenerSettings

if TYPE_CHECKING:
    from kjbod.security.credentials import Credentials
    from kjbod.security.listener import ListenerSecurity

CONTROLLER_MECHANISM: Final = "sasl.mechanism.controller.protocol"
INTER_BROKER_MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"


# ---- connections


def of_controllers(config: Config) -> ChannelSettings:
    """Return the settings of a node's connections to the controllers.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    names = config.controller_listener_names
    return _of_listener(config, names[0] if names else "", config.controller_protocol, CONTROLLER_MECHANISM)


def of_brokers(config: Config, listener: str) -> ChannelSettings:
    """Return the settings of a broker's connections to the brokers of this listener.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    protocol = config.listener_security_protocol_map.get(listener)
    return _of_listener(config, listener, protocol, INTER_BROKER_MECHANISM)


def problems(config: Config) -> list[str]:
    """Return the reasons why connections to the controllers of a configuration are impossible."""
    try:
        of_controllers(config)
    except ConfigError as error:
        return list(error.problems)
    return []


def security_of(config: Config) -> Security:
    """Return the security of a node's connections to the controllers.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    return Security(of_controllers(config))


def client_security(path: Path | None, environment: Mapping[str, str] = os.environ) -> Security:
    """Return the security of a client with the file of ``--command-config``; None: plain text.

    Raises:
        ConfigError: the file cannot be read or has mistakes; the error lists all of them.
        KjbodError: a keystore or truststore cannot be used.
    """
    if path is None:
        return Security()
    from kjbod.security import reading

    found = Security(reading.of_client(path, environment))
    found.load()
    return found


def _of_listener(config: Config, listener: str, protocol: str | None, mechanism_key: str) -> ChannelSettings:
    if protocol in (None, PLAINTEXT):
        return ChannelSettings()
    from kjbod.security import reading

    return reading.of_listener(config, listener, protocol, mechanism_key)


# ---- listeners


def of_own_listener(config: Config, listener: Listener) -> ListenerSettings:
    """Return the settings of a listener of this node.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
    """
    if listener.protocol == PLAINTEXT:
        return ListenerSettings()
    from kjbod.security import reading

    return reading.of_own_listener(config, listener)


def listener_problems(config: Config, listeners: Iterable[Listener]) -> list[str]:
    """Return the reasons why these listeners cannot be opened with the settings of the file."""
    found: list[str] = []
    for listener in listeners:
        try:
            of_own_listener(config, listener)
        except ConfigError as error:
            found += error.problems
    return list(dict.fromkeys(found))


async def listener_security(
    config: Config, listener: Listener, credentials: "Credentials", ready: Callable[[], Awaitable[object]]
) -> "ListenerSecurity | None":
    """Return the security of a listener of this node, with its files read; None: plain text. ``credentials`` and
    ``ready`` are those of :class:`.listener.ListenerSecurity`.

    Raises:
        ConfigError: the settings have mistakes; the error lists all of them.
        KjbodError: a keystore or truststore cannot be used.
    """
    if listener.protocol == PLAINTEXT:
        return None
    from kjbod.security.listener import ListenerSecurity

    found = ListenerSecurity(await asyncio.to_thread(of_own_listener, config, listener), credentials, ready)
    await asyncio.to_thread(found.load)
    return found
