"""The shell of :mod:`.canary`: asks a broker's own listener for ApiVersions, one question at a time.

A PLAINTEXT listener is asked if there is one, else the inter-broker listener, with the broker's own login. Network
threads alone answer the question before the login, so it is asked again after the login. At a secured listener only a
missing answer is silence: certificates and passwords change, and a broker that rejects the guard is not stuck.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.config.endpoints import Listener
from kjbod.errors import ConfigError, ProtocolError
from kjbod.security.channel import NO_SECURITY, Security
from kjbod.security.keys import PLAINTEXT, SASL_PLAINTEXT
from kjbod.security.opening import of_brokers
from kjbod.wire.client import AuthenticationFailed, Connection, ForeignPeer, RequestTimedOut
from kjbod.wire.messages import ApiVersionsRequest
from kjbod_guard import canary
from kjbod_guard.canary import EVERY_MS, SILENT_MS, Canary

CLIENT_ID: Final = "kjbod-guard"
LOCAL_HOST: Final = "127.0.0.1"
ANY_HOST: Final = frozenset({"", "0.0.0.0", "::"})
LATE_MS: Final = 250
"""A question that exceeds its deadline by more than this shows that the guard itself stood still."""


class Asked(Struct, frozen=True):
    """A listener of a broker that can be asked.

    Attributes:
        listener: the listener to ask.
        name: host name that the listener's certificate must have.
        security: of the connection.
    """

    listener: Listener
    name: str = ""
    security: Security = NO_SECURITY


def listener_to_ask(config: Config) -> Asked | str:
    """Return the listener of a broker that can be asked, or why there is none."""
    own = [one for one in config.listeners if one.name not in config.controller_listener_names and one.port]
    plain = next((one for one in own if one.protocol == PLAINTEXT), None)
    if plain is not None:
        return Asked(plain)
    inner = next((one for one in own if one.name == config.inter_broker_listener_name), None)
    if inner is None:
        return "the broker cannot be asked: it has no listener with a port that is known before it starts"
    try:
        settings = of_brokers(config, inner.name)
    except ConfigError as error:
        return f"the broker cannot be asked: {error.problems[0]}"
    if settings.protocol == SASL_PLAINTEXT and settings.login is not None and settings.login.is_shown:
        secret = "password" if settings.login.token is None else "token"
        return (
            f"the broker cannot be asked: {inner.name} has {settings.login.mechanism} without TLS, and whoever has the "
            f"port while the broker is down would get the {secret}"
        )
    name = next((one.host for one in config.advertised_broker_listeners if one.name == inner.name), inner.host)
    return Asked(inner, name, Security(settings))


def ports_of(config: Config) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ports of the broker's listeners, and of its controller listeners, which are never touched."""
    names = config.controller_listener_names
    own = [one.port for one in config.listeners if one.name not in names and one.port]
    never = [one.port for one in config.listeners if one.name in names and one.port]
    return tuple(own), tuple(never)


class CanaryAsking:
    """Questions to one listener, while :meth:`run` runs.

    Args:
        asked: the listener.
        clock: tells when.
        told: gets a line when a broker cannot be asked any more, and None when it can again.

    Attributes:
        canary: state after the last answer.
        problem: why the last question was not answered, in words; None: it was, or none was asked.
    """

    def __init__(self, asked: Asked, *, clock: Clock, told: Callable[[str | None], None] = lambda line: None) -> None:
        self._address = LOCAL_HOST if asked.listener.host in ANY_HOST else asked.listener.host
        self._name, self._port, self._clock = asked.name or self._address, asked.listener.port, clock
        self._security = asked.security
        self._told = told
        self._doubtful = False
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
        """Ask one question, for :data:`.canary.SILENT_MS` at most. Silence counts from the first question without an
        answer. A refused connection is no answer."""
        began_ms = self._clock.monotonic_ms()
        self.canary = canary.asked(self.canary, began_ms)
        try:
            epoch = await self._epoch(began_ms + SILENT_MS)
        except (ProtocolError, OSError) as error:
            self.problem = str(error)
            await self.close()
            late = self._clock.monotonic_ms() - began_ms > SILENT_MS + LATE_MS
            if late or self._says_nothing(error):
                self.canary = canary.stood_still(self.canary)
            return
        self.problem = None
        if self._doubtful:
            self._doubtful = False
            self._told(None)
        self.canary = canary.answered(self.canary, epoch if epoch >= 0 else None, self._clock.monotonic_ms())

    async def _epoch(self, deadline_ms: int) -> int:
        """Return the metadata offset that the broker says it has applied; -1: it does not say."""
        if self._connection is None or self._connection.closed:
            self._connection = await Connection.open(
                self._name,
                self._port,
                address=self._address,
                client_id=CLIENT_ID,
                clock=self._clock,
                connect_timeout_ms=SILENT_MS,
                security=self._security,
            )
            if self._security.settings.login is None:  # opening the connection has asked the same question
                return self._connection.features.finalized_epoch
        left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        return (await self._connection.request(_QUESTION, timeout_ms=left_ms)).finalized_features_epoch

    def _says_nothing(self, error: Exception) -> bool:
        """Whether a failure says nothing about the broker's health. Report such a failure once."""
        if isinstance(error, RequestTimedOut):
            return False
        if not isinstance(error, (AuthenticationFailed, ForeignPeer)) and self._security.settings.protocol == PLAINTEXT:
            return False
        if not self._doubtful:
            self._doubtful = True
            self._told(str(error))
        return True

    def committed(self, offset: int) -> None:
        """Note the offset that the quorum has committed."""
        self.canary = canary.quorum(self.canary, offset, self._clock.monotonic_ms())

    def forget(self) -> None:
        """Forget all answers, because another process is the broker now."""
        self.canary, self.problem = Canary(), None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(ProtocolError, OSError):
                await self._connection.close()
            self._connection = None


_QUESTION: Final = ApiVersionsRequest(client_software_name="kjbod", client_software_version="1")
