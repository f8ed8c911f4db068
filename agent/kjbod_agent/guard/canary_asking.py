"""Asks a broker's own listener for its versions, one question at a time, and keeps what :mod:`.canary` makes of it."""

import asyncio
import contextlib
from typing import Final

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.config.endpoints import Listener
from kjbod.errors import ProtocolError
from kjbod.wire.client import Connection
from kjbod.wire.messages import ApiVersionsRequest
from kjbod_agent.guard import canary
from kjbod_agent.guard.canary import EVERY_MS, SILENT_MS, Canary

CLIENT_ID: Final = "kjbod-guard"
LATE_MS: Final = 250
"""A question that took so much longer than it may was asked by a process that stood still itself."""


def listener_to_ask(config: Config) -> Listener | str:
    """The PLAINTEXT listener of a broker that can be asked, or why there is none."""
    own = [one for one in config.listeners if one.name not in config.controller_listener_names]
    found = next((one for one in own if one.protocol == "PLAINTEXT" and one.port), None)
    if found is not None:
        return found
    protocols = ", ".join(sorted({str(one.protocol) for one in own})) or "no"
    return f"the broker cannot be asked: its listeners speak {protocols}, and the guard asks in PLAINTEXT alone"


def ports_of(config: Config) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ports of a broker's listeners, and of its controllers', which are never touched."""
    names = config.controller_listener_names
    own = [one.port for one in config.listeners if one.name not in names and one.port]
    never = [one.port for one in config.listeners if one.name in names and one.port]
    return tuple(own), tuple(never)


class CanaryAsking:
    """Questions to one listener, while :meth:`run` runs.

    Args:
        host: of the listener; empty: it binds all addresses.
        port: of it.
        clock: tells when.

    Attributes:
        canary: what was answered.
        problem: why the last question was not answered, in words; None: it was, or none was asked.
    """

    def __init__(self, host: str, port: int, *, clock: Clock) -> None:
        self._host, self._port, self._clock = host or "127.0.0.1", port, clock
        self._connection: Connection | None = None
        self.canary = Canary()
        self.problem: str | None = None

    async def run(self) -> None:
        """Ask each second until cancelled."""
        try:
            while True:
                began_ms = self._clock.monotonic_ms()
                await self.ask()
                spent_ms = self._clock.monotonic_ms() - began_ms
                await asyncio.sleep(max(0, EVERY_MS - spent_ms) / 1000)
        finally:
            await self.close()

    async def ask(self) -> None:
        """Ask one question, which is over after :data:`.canary.SILENT_MS` at the latest. The silence goes on from the
        first that was not answered; a connection that is refused is no answer either."""
        began_ms = self._clock.monotonic_ms()
        self.canary = canary.asked(self.canary, began_ms)
        try:
            if self._connection is None or self._connection.closed:
                # Versions are agreed on with the same question.
                self._connection = await Connection.open(
                    self._host, self._port, client_id=CLIENT_ID, clock=self._clock, connect_timeout_ms=SILENT_MS
                )
                epoch = self._connection.features.finalized_epoch
            else:
                epoch = (await self._connection.request(_QUESTION, timeout_ms=SILENT_MS)).finalized_features_epoch
        except (ProtocolError, OSError) as error:
            self.problem = str(error)
            await self.close()
            if self._clock.monotonic_ms() - began_ms > SILENT_MS + LATE_MS:
                self.canary = canary.stood_still(self.canary)
            return
        self.problem = None
        self.canary = canary.answered(self.canary, epoch if epoch >= 0 else None, self._clock.monotonic_ms())

    def committed(self, offset: int) -> None:
        """Tell what the quorum has committed."""
        self.canary = canary.quorum(self.canary, offset, self._clock.monotonic_ms())

    def forget(self) -> None:
        """Begin anew: another process is the broker now."""
        self.canary, self.problem = Canary(), None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(ProtocolError, OSError):
                await self._connection.close()
            self._connection = None


_QUESTION: Final = ApiVersionsRequest(client_software_name="kjbod", client_software_version="1")
