"""Limits that keep one peer from taking what is everybody's: rates, turns, and bytes that are held for others."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, Generic, TypeVar

NO_LIMIT: Final = 2**31 - 1
"""Kafka's default where it has no limit."""
_BURST_MS = 1_000
SLOW_READER_MS: Final = 1_000
"""So long a large answer waits for readers to take theirs."""

T = TypeVar("T")


class Rate:
    """So many things per second, with a second's worth at once; what is above waits, in order.

    Args:
        per_second: from 1 on; :data:`NO_LIMIT` and above: nothing waits.
    """

    def __init__(self, per_second: int) -> None:
        self._interval_ms = 0.0 if per_second >= NO_LIMIT else _BURST_MS / per_second
        self._next_ms = 0.0

    def take(self, now_ms: int) -> float:
        """Take the next place, and say how many ms it is away."""
        interval_ms = self._interval_ms
        if not interval_ms:
            return 0.0
        place_ms = self._place_ms(now_ms)
        self._next_ms = place_ms + interval_ms
        return place_ms - now_ms if place_ms > now_ms else 0.0

    def wait_ms(self, now_ms: int) -> float:
        """Milliseconds until the next place, without taking it."""
        return max(0.0, self._place_ms(now_ms) - now_ms) if self._interval_ms else 0.0

    def has_place(self, now_ms: int) -> bool:
        """Whether there is a place now, without taking it."""
        return self._next_ms <= now_ms

    def try_take(self, now_ms: int) -> bool:
        """Take a place if there is one now."""
        if not self.has_place(now_ms):
            return False
        self.take(now_ms)
        return True

    def _place_ms(self, now_ms: int) -> float:
        earliest_ms = now_ms - _BURST_MS + self._interval_ms
        return self._next_ms if self._next_ms > earliest_ms else earliest_ms


class Pace:
    """So many begin in one turn of the event loop, all others in the next ones, first come first served.

    A connection waits here with one request at a time, so that those which send much take turns with those which send
    little, and the loop comes round to its sockets and timers in between.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._renewing = False

    async def begin(self) -> None:
        """Return when it may begin; at once if the turn has room."""
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
        """The next turn of the loop has begun."""
        self._left = self._at_once
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():  # else its connection has gone
                turn.set_result(None)
                self._left -= 1
        self._renewing = bool(self._waiting)
        if self._renewing:
            asyncio.get_running_loop().call_soon(self._renew)
        else:
            self._left = self._at_once


class Room:
    """Room for so many bytes, first come first served. What is larger than all of it gets in when it is empty."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.used_bytes = 0

    async def enter(self, size_bytes: int) -> None:
        """Return when there is room; to be given back with :meth:`leave` unless this was cancelled."""
        if not self._waiting and self._fits(size_bytes):
            self.used_bytes += size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size_bytes)  # it had got in
            raise

    def leave(self, size_bytes: int) -> None:
        """Give room back."""
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
        """With so much room."""
        await self.enter(size_bytes)
        try:
            yield
        finally:
            self.leave(size_bytes)

    def _fits(self, size_bytes: int) -> bool:
        return not self.used_bytes or self.used_bytes + size_bytes <= self._size_bytes


class Unread(Generic[T]):
    """Bytes of answers that readers have not taken, by reader, the one without progress for longest first.

    Args:
        per_reader_bytes: what each of these readers takes besides.
    """

    def __init__(self, per_reader_bytes: int = 0) -> None:
        self.bytes = 0
        self.eased = asyncio.Event()
        """Set whenever some of it is gone."""
        self._of: dict[T, int] = {}
        self._per_reader_bytes = per_reader_bytes

    def add(self, reader: T, size_bytes: int) -> None:
        """More is on its way."""
        before = self._of.get(reader)
        if before is None:
            size_bytes += self._per_reader_bytes
        self._of[reader] = (before or 0) + size_bytes
        self.bytes += size_bytes

    def taken(self, reader: T, size_bytes: int) -> None:
        """The reader took some: it is the last in line now. Nothing happens where it was forgotten."""
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
        """Forget a connection that is gone, and what it has not read."""
        self.bytes -= self._of.pop(reader, 0)
        self.eased.set()

    def slowest(self) -> T | None:
        """The connection that has made no progress for longest."""
        return next(iter(self._of), None)


class Outlet:
    """Queue of large answers that were made once for many: one leaves in each turn of the event loop, while half of the
    bytes that may be unread is free.

    Each is a copy of some megabytes. Without readers that take theirs the next one waits :data:`SLOW_READER_MS`, and
    goes out then: the slowest readers are cut off where that is too much.

    Args:
        unread: what readers have not taken.
        at_most_bytes: what may be unread.
    """

    def __init__(self, unread: Unread[Any], at_most_bytes: int) -> None:
        self._unread = unread
        self._at_most_bytes = at_most_bytes // 2
        self._next = asyncio.Lock()

    async def turn(self, size_bytes: int) -> None:
        """Return when the next answer may leave; it has to, before anything else is awaited."""
        async with self._next:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SLOW_READER_MS / 1000):
                    while self._unread.bytes and self._unread.bytes + size_bytes > self._at_most_bytes:
                        self._unread.eased.clear()
                        await self._unread.eased.wait()
            await asyncio.sleep(0)


class Addresses:
    """Numbers of connections from each address, and how many there may be; ``overrides`` for some of them."""

    def __init__(self, at_most: int, overrides: Mapping[str, int] | None = None) -> None:
        self._at_most = at_most
        self._overrides = overrides or {}
        self._connections: Counter[str] = Counter()

    def at_most(self, host: str) -> int:
        """Number of connections that an address may have."""
        return self._overrides.get(host, self._at_most)

    def enter(self, host: str) -> bool:
        """Count one more, unless there are too many."""
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
