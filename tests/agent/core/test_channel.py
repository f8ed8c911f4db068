"""The connection to the controller that is there when it is needed."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.metadata.fetching import Leader
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.messages import DescribeClusterRequest
from kjbod_host.channel import ControllerChannel

LEADER = Leader(3000, 1, "c1", 9093)
TIMEOUT_MS = 20_000


class Opened:
    """A connection that answers with how many there were before it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False

    async def request(self, message: object, *, timeout_ms: int) -> Any:
        return self.number

    async def close(self) -> None:
        self.closed = True


class Net:
    """Opens connections, or fails as often as told."""

    def __init__(self, *failures: KjbodError) -> None:
        self.opened = 0
        self.failures = list(failures)
        self.tasks: list[asyncio.Task[None]] = []

    async def connect(self, *_: object, **__: object) -> Connection:
        if self.failures:
            raise self.failures.pop()
        self.opened += 1
        return cast(Connection, Opened(self.opened - 1))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def channel(self) -> ControllerChannel:
        return ControllerChannel(client_id="1", clock=SystemClock(), spawn=self.spawn, connect=self.connect)


async def asked(channel: ControllerChannel) -> Any:
    return await channel.request(lambda _: DescribeClusterRequest(), timeout_ms=TIMEOUT_MS)


async def test_a_request_goes_over_the_connection_that_was_opened_ahead() -> None:
    net = Net()
    channel = net.channel()
    channel.set_leader(LEADER)
    for _ in range(2):
        await channel.open_ahead(timeout_ms=TIMEOUT_MS)
    assert net.opened == 1
    assert cast(int, await asked(channel)) == 0 and net.opened == 1


async def test_without_a_controller_nothing_is_opened_ahead() -> None:
    net = Net()
    await net.channel().open_ahead(timeout_ms=TIMEOUT_MS)
    assert net.opened == 0


async def test_a_connection_that_could_not_be_opened_ahead_is_opened_by_the_request() -> None:
    net = Net(KjbodError("a keystore cannot be read"), Disconnected("refused"))
    channel = net.channel()
    channel.set_leader(LEADER)
    for _ in range(2):
        await channel.open_ahead(timeout_ms=TIMEOUT_MS)
    assert cast(int, await asked(channel)) == 0
