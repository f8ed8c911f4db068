"""Stores of listeners that were altered in the metadata (KIP-226: ``kafka-configs --alter --entity-type brokers``).

The configs of a node count before its file, key by key, and the file again when they are taken away; names with the
listener's prefix before those without. Only stores are altered so, as in Kafka
(``SslConfigs.RECONFIGURABLE_CONFIGS``). What cannot be used is said, and the stores from before go on to be used.
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
    """The entries of a node's configs that name stores of listeners."""
    return {name: value for name, value in configs.items() if _bare(name) in RECONFIGURABLE}


def counts_for(name: str, listener: str) -> bool:
    """Whether an entry of :func:`stores_in` is for this listener."""
    return not name.startswith(_PREFIX) or name.startswith(f"{_PREFIX}{listener.lower()}.")


def _bare(name: str) -> str:
    return name.split(".", 3)[-1] if name.startswith(_PREFIX) else name


class DynamicStores:
    """Secured listeners of a node, and the stores that its configs in the metadata give them.

    Args:
        config: the node's file.
        configs: those of the node in the metadata, as they are now.
        settings: reads the settings of a listener; blocks.
        log: says what was taken, and what was not.
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
        """A listener with the stores of the file."""
        self._listeners.append((listener, security))

    async def run(self) -> None:
        """Apply what is altered, until cancelled."""
        while True:
            await self.apply()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def apply(self) -> None:
        """Apply what was altered since the last time."""
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
