"""Start the TLS handshakes of a listener, a limited number per turn of the event loop.

A handshake takes some tenths of a millisecond of processor time and 50 KiB, and any client can request one. So a
connection waits in the kernel until its ClientHello is complete (RFC 8446, 5.1). Until then it takes only a socket and
an unauthenticated-connection slot. Then its handshake begins, :data:`HANDSHAKES_AT_ONCE` per turn, first come, first
served. A connection without a ClientHello is closed silently, as by asyncio and Kafka.

These sockets share a separate epoll, which the event loop watches as one file. A turn handles :data:`EVENTS_AT_ONCE` of
its events. So any number of new connections delays authenticated ones by some milliseconds at most.
"""

import asyncio
import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.wire.admission import Admission

HANDSHAKES_AT_ONCE: Final = 2
"""Handshakes begun per turn of the event loop."""
ACCEPTED_AT_ONCE: Final = 8
EVENTS_AT_ONCE: Final = 16
ACCEPT_AGAIN_MS: Final = 100
"""Pause after a connection that could not be accepted."""
_RECORD_HEADER_BYTES: Final = 5
_RECORD_BYTES_MAX: Final = 16_384
_OVER: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
_HANDSHAKE_RECORD: Final = b"\x16\x03"
"""Content type, and the major version of TLS."""

Address = tuple[str, int]


class Arrival(Struct, eq=False):
    """A connection whose handshake has not begun."""

    socket: socket.socket
    address: Address
    admission: Admission
    awaited_bytes: int = 0
    """Expected bytes of its ClientHello; the kernel wakes us when they have arrived."""


class Handshakes:
    """Accepts connections, and starts their handshakes in turn.

    Args:
        listening: listening sockets, which are duplicated.
        backlog: backlog of these sockets.
        admit: returns a slot for a connection from this address; None: there is none.
        begin: begins a handshake, and owns the socket from then on.
        refuse: logs why a connection was closed.
        clock: clock for deadlines.
    """

    def __init__(
        self,
        listening: Iterable[socket.socket],
        backlog: int,
        *,
        admit: Callable[[Address], Admission | None],
        begin: Callable[[Arrival], None],
        refuse: Callable[[Address, str], None],
        clock: Clock,
    ) -> None:
        self._admit, self._begin, self._refuse, self._clock = admit, begin, refuse, clock
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._arrivals: dict[int, Arrival] = {}
        self._due: deque[Arrival] = deque()
        """Complete ClientHellos that wait for their turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._listening: dict[int, socket.socket] = {}
        for one in listening:
            accepting = socket.socket(fileno=os.dup(one.fileno()))
            accepting.setblocking(False)
            accepting.listen(backlog)
            self._listening[accepting.fileno()] = accepting
            self._epoll.register(accepting, select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def close(self) -> None:
        """Accept no more connections, and close those whose handshake has not begun."""
        self._loop.remove_reader(self._epoll.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for arrival in [*self._arrivals.values(), *self._due]:
            arrival.socket.close()
            arrival.admission.leave()
        for accepting in self._listening.values():
            accepting.close()
        self._due.clear()
        self._epoll.close()

    def _turn(self) -> None:
        for number, events in self._epoll.poll(0, EVENTS_AT_ONCE):
            if (accepting := self._listening.get(number)) is not None:
                self._accept(accepting)
            elif (arrival := self._arrivals.get(number)) is not None:
                self._look(arrival, is_over=bool(events & _OVER))

    # ---- accepting

    def _accept(self, accepting: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = accepting.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no free descriptor, or the client has already gone
                self._refuse(("unknown", 0), str(error))
                self._epoll.unregister(accepting)
                self._loop.call_later(ACCEPT_AGAIN_MS / 1000, self._accept_again, accepting)
                return
            self._take(accepted, (str(address[0]), int(address[1])))

    def _accept_again(self, accepting: socket.socket) -> None:
        if not self._epoll.closed:
            self._epoll.register(accepting, select.EPOLLIN)

    def _take(self, accepted: socket.socket, address: Address) -> None:
        admission = self._admit(address)
        if admission is None:
            accepted.close()
            return
        accepted.setblocking(False)
        arrival = Arrival(accepted, address, admission)
        self._arrivals[accepted.fileno()] = arrival
        if admission.wait_ms:
            self._loop.call_later(admission.wait_ms / 1000, self._listen_to, arrival)
        else:
            self._listen_to(arrival)
        if self._timer is None:
            self._timer = self._loop.call_later(admission.left_s(self._clock.monotonic_ms()), self._end_late_ones)

    def _listen_to(self, arrival: Arrival) -> None:
        if arrival.socket.fileno() >= 0 and not self._epoll.closed:
            self._epoll.register(arrival.socket, select.EPOLLIN | select.EPOLLRDHUP)
            arrival.admission.waits(lambda: self._gives_way(arrival))

    # ---- waiting for a ClientHello

    def _look(self, arrival: Arrival, *, is_over: bool) -> None:
        """Check the received data without consuming it; ``is_over``: no more will arrive."""
        try:
            data = arrival.socket.recv(_RECORD_HEADER_BYTES + _RECORD_BYTES_MAX, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(arrival, error.strerror or str(error))
            return
        if not data:
            self._end(arrival, "the client has gone")
        elif not data.startswith(_HANDSHAKE_RECORD[: len(data)]):
            arrival.socket.recv(len(data))  # otherwise close would send a reset
            self._end(arrival, "what came is no TLS")
        elif (size_bytes := _record_bytes(data)) > _RECORD_HEADER_BYTES + _RECORD_BYTES_MAX:
            self._end(arrival, "what came is no record of TLS")
        elif len(data) < size_bytes and is_over:
            self._end(arrival, "the client has gone")
        elif len(data) < size_bytes != arrival.awaited_bytes:
            # Only more data than now may wake us; otherwise each turn would.
            arrival.awaited_bytes = size_bytes
            arrival.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size_bytes)
        else:  # complete, or as much as socket.receive.buffer.bytes can hold
            self._is_due(arrival)

    def _gives_way(self, arrival: Arrival) -> bool:
        """Return whether the connection gave up its slot; it keeps the slot if its ClientHello has arrived
        unnoticed."""
        with contextlib.suppress(OSError, KeyError):
            data = arrival.socket.recv(_RECORD_HEADER_BYTES + _RECORD_BYTES_MAX, socket.MSG_PEEK)
            if data.startswith(_HANDSHAKE_RECORD) and len(data) >= _record_bytes(data):
                self._is_due(arrival)
                return False
        self._end(arrival, "it was silent, and its place was needed")
        return True

    def _end_late_ones(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for arrival in list(self._arrivals.values()):
            if arrival.admission.deadline_ms <= now_ms:
                self._end(arrival, "it took too long")
        self._timer = None
        if self._arrivals:
            next_s = min(arrival.admission.left_s(now_ms) for arrival in self._arrivals.values())
            self._timer = self._loop.call_later(next_s, self._end_late_ones)

    def _end(self, arrival: Arrival, why: str) -> None:
        del self._arrivals[arrival.socket.fileno()]
        arrival.socket.close()
        arrival.admission.leave()
        self._refuse(arrival.address, f"no TLS handshake: {why}")

    # ---- beginning

    def _is_due(self, arrival: Arrival) -> None:
        self._epoll.unregister(arrival.socket)
        del self._arrivals[arrival.socket.fileno()]
        arrival.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        arrival.admission.waits(None)
        self._due.append(arrival)
        if len(self._due) == 1:
            self._loop.call_soon(self._begin_some)

    def _begin_some(self) -> None:
        for _ in range(min(HANDSHAKES_AT_ONCE, len(self._due))):
            self._begin(self._due.popleft())
        if self._due:
            self._loop.call_soon(self._begin_some)


def _record_bytes(data: bytes) -> int:
    """Return the size of the record at the start of ``data``, or of its header if that is incomplete."""
    return _RECORD_HEADER_BYTES + (int.from_bytes(data[3:5]) if len(data) >= _RECORD_HEADER_BYTES else 0)
