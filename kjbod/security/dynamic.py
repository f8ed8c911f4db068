"""Stores of listeners that were altered in the metadata (KIP-226: ``kafka-configs --alter --entity-type brokers``).

The configs of a node in the metadata override its file, key by key. When they are removed, the file applies again.
Names with the listener's prefix come first. Only stores can be altered this way, as in Kafka
(``SslConfigs.RECONFIGURABLE_CONFIGS``). A store that cannot be used is logged, and the previous store stays in use.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kjbod.config.endpoints import Listener
from kjbod.config.keys import Config
from kjbod.errors import KjbodError
from kjbod.security.keys import ListenerSettings

RECONFIGURABLE: Final = frozenset(
    {
        *("ssl.keystore.type", "ssl.keystore.location", "ssl.keystore.password", "ssl.key.password"),
        *("ssl.keystore.certificate.chain", "ssl.keystore.key"),
        *("ssl.truststore.type", "ssl.truststore.location", "ssl.truststore.password", "ssl.truststore.certificates"),
    }
)
LOOK_INTERVAL_S: Final = 1.0
_PREFIX: Final = "listener.name."


class Log(Protocol):
    """The part of a structlog logger that is used here."""

    def info(self, event: str, **fields: object) -> object: ...

    def warning(self, event: str, **fields: object) -> object: ...


class Reconfigured(Protocol):
    """The part of :class:`.listener.ListenerSecurity` that is used here."""

    async def reconfigure(self, read: Callable[[], ListenerSettings]) -> None: ...


def stores_in(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of a node's configs that name stores of listeners."""
    return {name: value for name, value in configs.items() if _bare(name) in RECONFIGURABLE}


def counts_for(name: str, listener: str) -> bool:
    """Return whether an entry of :func:`stores_in` applies to this listener."""
    return not name.startswith(_PREFIX) or name.startswith(f"{_PREFIX}{listener.lower()}.")


def _bare(name: str) -> str:
    return name.split(".", 3)[-1] if name.startswith(_PREFIX) else name


class DynamicStores:
    """Secured listeners of a node, with the stores from the node's configs in the metadata.

    Args:
        config: configuration file of the node.
        configs: returns the node's current configs in the metadata.
        settings: reads the settings of a listener; blocks.
        log: gets the changes that were applied, and those that were refused.
    """

    def __init__(
        self,
        config: Config,
        configs: Callable[[], Mapping[str, str]],
        settings: Callable[[Config, Listener], ListenerSettings],
        log: Log,
    ) -> None:
        self._config = config
        self._configs = configs
        self._settings = settings
        self._log = log
        self._listeners: list[tuple[Listener, Reconfigured]] = []
        self._applied: dict[str, dict[str, str]] = {}

    def add(self, listener: Listener, security: Reconfigured) -> None:
        """Add a listener that uses the stores of the file."""
        self._listeners.append((listener, security))

    async def run(self) -> None:
        """Apply altered configs until cancelled."""
        while True:
            await self.apply()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def apply(self) -> None:
        """Apply the configs that were altered since the last call."""
        stores = stores_in(self._configs())
        for listener, security in self._listeners:
            wanted = {name: value for name, value in stores.items() if counts_for(name, listener.name)}
            if wanted == self._applied.get(listener.name, {}):
                continue
            self._applied[listener.name] = wanted
            overlaid = dataclasses.replace(self._config, properties={**self._config.properties, **wanted})
            try:
                await security.reconfigure(functools.partial(self._settings, overlaid, listener))
            except KjbodError as error:
                self._log.warning("security.not.reconfigured", listener=listener.name, reason=str(error))
            else:
                self._log.info("security.reconfigured", listener=listener.name, keys=sorted(wanted))
