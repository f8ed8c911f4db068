"""Limits that keep one client from taking shared resources: rates, turns, and bytes in memory."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Generic, TypeVar

NO_LIMIT: Final = 2**31 - 1
"""Kafka's default for "no limit"."""
_BURST_MS = 1_000
SLOW_READER_MS: Final = 1_000
"""Maximum time that a large answer waits for readers of other answers."""

T = TypeVar("T")


class Rate:
    """Limit of events per second, with a burst of one second; further events wait, in order.

    Args:
        per_second: rate from 1 on; :data:`NO_LIMIT` and above: no waiting.
    """

    def __init__(self, per_second: int) -> None:
        self._interval_ms = 0.0 if per_second >= NO_LIMIT else _BURST_MS / per_second
        self._next_ms = 0.0

    def take(self, now_ms: int) -> float:
        """Take the next place, and return the milliseconds until it."""
        interval_ms = self._interval_ms
        if not interval_ms:
            return 0.0
        place_ms = self._place_ms(now_ms)
        self._next_ms = place_ms + interval_ms
        return place_ms - now_ms if place_ms > now_ms else 0.0

    def wait_ms(self, now_ms: int) -> float:
        """Return the milliseconds until the next place, without taking it."""
        return max(0.0, self._place_ms(now_ms) - now_ms) if self._interval_ms else 0.0

    def has_place(self, now_ms: int) -> bool:
        """Return whether a place is free now, without taking it."""
        return self._next_ms <= now_ms

    def try_take(self, now_ms: int) -> bool:
        """Take a place if one is free now."""
        if not self.has_place(now_ms):
            return False
        self.take(now_ms)
        return True

    def _place_ms(self, now_ms: int) -> float:
        earliest_ms = now_ms - _BURST_MS + self._interval_ms
        return self._next_ms if self._next_ms > earliest_ms else earliest_ms


class Pace:
    """Limit of starts per turn of the event loop; further starts wait for the next turns, first come, first served.

    A connection waits here with one request at a time. So busy connections take turns with quiet ones, and the event
    loop handles its sockets and timers in between.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._renewing = False

    async def begin(self) -> None:
        """Return when the caller may begin; at once if the turn has a free place."""
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)
        if self._left and not self._waiting:
            self._left -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _renew(self) -> None:
        """Begin a new turn of the event loop."""
        self._left = self._at_once
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # otherwise its connection has gone
                turn.set_result(None)
                self._left -= 1
        self._renewing = bool(self._waiting)
        if self._renewing:
            asyncio.get_running_loop().call_soon(self._renew)
        else:
            self._left = self._at_once


class Room:
    """Limit of bytes in use, first come, first served. A request above the limit enters when nothing else is in use."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    async def enter(self, size_bytes: int) -> None:
        """Return when the bytes are available. Give them back with :meth:`leave` unless this call was cancelled."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size_bytes)  # the bytes were already granted
            raise

    def leave(self, size_bytes: int) -> None:
        """Give bytes back."""
        self.used_bytes -= size_bytes
        while self._waiting:
            size_bytes, turn = self._waiting[0]
            if not turn.done():
                if not self._fits(size_bytes):
                    return
                self.used_bytes += size_bytes
                turn.set_result(None)
            self._waiting.popleft()

    @contextlib.asynccontextmanager
    async def held(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold that many bytes during the context."""
        await self.enter(size_bytes)
        try:
            yield
        finally:
            self.leave(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self._size_bytes


class Unread(Generic[T]):
    """Bytes of unread answers by reader; the reader without progress for the longest time is first.

    Args:
        per_reader_bytes: additional bytes per reader.
    """

    def __init__(self, per_reader_bytes: int = 0) -> None:
        self.bytes = 0
        self.eased = asyncio.Event()
        """Set whenever some bytes were read."""
        self._of: dict[T, int] = {}
        self._per_reader_bytes = per_reader_bytes

    def add(self, reader: T, size_bytes: int) -> None:
        """Add bytes that were sent to a reader."""
        before = self._of.get(reader)
        if before is None:
            size_bytes += self._per_reader_bytes
        self._of[reader] = (before or 0) + size_bytes
        self.bytes += size_bytes

    def taken(self, reader: T, size_bytes: int) -> None:
        """Note bytes that the reader took, and move it to the end of the order. Ignores a forgotten reader."""
        left = self._of.pop(reader, None)
        if left is None:
            return
        self.eased.set()
        if left - size_bytes > self._per_reader_bytes:
            self.bytes -= size_bytes
            self._of[reader] = left - size_bytes
        else:
            self.bytes -= left

    def forget(self, reader: T) -> None:
        """Forget a closed connection and its unread bytes."""
        self.bytes -= self._of.pop(reader, 0)
        self.eased.set()

    def slowest(self) -> T | None:
        """Return the connection without progress for the longest time."""
        return next(iter(self._of), None)


class Outlet:
    """Queue of large answers that are shared by many clients: one is sent per turn of the event loop, while half of the
    allowed unread bytes is free.

    Each answer is a copy of some megabytes. If readers make no progress, the next answer is sent after
    :data:`SLOW_READER_MS`; the slowest readers are then disconnected if the limit is exceeded.

    Args:
        unread: unread bytes by reader.
        at_most_bytes: limit of unread bytes.
    """

    def __init__(self, unread: Unread[Any], at_most_bytes: int) -> None:
        self._unread = unread
        self._at_most_bytes = at_most_bytes // 2
        self._next = asyncio.Lock()

    async def turn(self, size_bytes: int) -> None:
        """Return when the next answer may be sent; send it before anything else is awaited."""
        async with self._next:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOW_READER_MS / 1000):
                    while self._unread.bytes and self._unread.bytes + size_bytes > self._at_most_bytes:
                        self._unread.eased.clear()
                        await self._unread.eased.wait()
            await asyncio.sleep(0)


class Addresses:
    """Number of connections per address, and their limits; ``overrides`` for some addresses."""

    def __init__(self, at_most: int, overrides: Mapping[str, int] | None = None) -> None:
        self._at_most = at_most
        self._overrides = overrides or {}
        self._connections: Counter[str] = Counter()

    def at_most(self, host: str) -> int:
        """Return the maximum connections of an address."""
        return self._overrides.get(host, self._at_most)

    def enter(self, host: str) -> bool:
        """Count a connection, unless there are too many."""
        if self._connections[host] >= self.at_most(host):
            if not self._connections[host]:
                del self._connections[host]
            return False
        self._connections[host] += 1
        return True

    def leave(self, host: str) -> None:
        """Count a connection less."""
        self._connections[host] -= 1
        if not self._connections[host]:
            del self._connections[host]
