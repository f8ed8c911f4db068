"""A process that begins handshakes and ends none well: ``python -m scripts.bench.handshakes_flood --help``.

Each connection comes from an address of its own in 127.0.0.0/8, and is one of :class:`Kind`. Sockets and epoll alone,
so that it takes less of the machine than what it asks for. It writes a line of JSON at its end.
"""

import argparse
import collections
import contextlib
import enum
import errno
import json
import os
import random
import select
import socket
import ssl
import struct
import sys
import time
from dataclasses import dataclass
from typing import Final

from kjbod.wire.frames import encode_request
from kjbod.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from scripts.rig.secured import USER

MECHANISM: Final = "SCRAM-SHA-512"
NICE: Final = 10
"""Of the process: it shares the machine with whom it floods."""
_TURN_S: Final = 0.005
_SLOW_S: Final = 1.0
"""Between the bytes of one that is slow."""
_RESET: Final = struct.pack("ii", 1, 0)
_BIND_ADDRESS_NO_PORT: Final = 24
_READ_BYTES: Final = 65_536
_PROOF_BYTES: Final = 64


class Kind(enum.StrEnum):
    """Ways to begin a handshake and to leave it."""

    SILENT = "silent"
    """Sends nothing, and stays."""
    HALF = "half"
    """Sends half a ClientHello, and stays."""
    GARBAGE = "garbage"
    """Sends what is no TLS."""
    RESET = "reset"
    """Sends a whole ClientHello, has the server compute its answer, and is gone (RST)."""
    SLOW = "slow"
    """Sends a ClientHello, a byte a second."""
    PASSWORD = "password"
    """Shakes hands, and logs in with a wrong password."""


WEIGHTS: Final = {
    Kind.SILENT: 30,
    Kind.HALF: 20,
    Kind.GARBAGE: 20,
    Kind.RESET: 20,
    Kind.SLOW: 8,
    Kind.PASSWORD: 2,
}
"""Of a hundred connections."""


def client_hello() -> bytes:
    """A ClientHello as OpenSSL sends it."""
    return _Tls().begin()


class _Tls:
    """The client's end of TLS, and of a login behind it that goes wrong."""

    _context: ssl.SSLContext | None = None

    def __init__(self) -> None:
        if _Tls._context is None:
            _Tls._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _Tls._context.check_hostname = False
            _Tls._context.verify_mode = ssl.CERT_NONE
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = _Tls._context.wrap_bio(self._in, self._out)
        self._shaken = False
        self._steps = iter((self._hands, self._first, self._final))
        self._answer = b""
        self.refused = False
        """Whether the server has answered to the wrong password."""

    def begin(self) -> bytes:
        """The ClientHello."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def take(self, data: bytes) -> bytes:
        """The answer to what the server has sent. Raises ssl.SSLError."""
        self._in.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self._tls.write(next(self._steps)())
            self._answer += self._tls.read(_READ_BYTES)
            if (step := next(self._steps, None)) is None:
                self.refused = True
            else:
                self._tls.write(step())
        return self._out.read()

    def _hands(self) -> bytes:
        return encode_request(SaslHandshakeRequest(mechanism=MECHANISM), 1, 0, "flood")

    def _first(self) -> bytes:
        return encode_request(SaslAuthenticateRequest(auth_bytes=f"n,,n={USER},r=nonce".encode()), 2, 1, "flood")

    def _final(self) -> bytes:
        nonce = self._answer[self._answer.rindex(b"r=nonce") :].partition(b",")[0].decode()
        proof = "A" * (-(-_PROOF_BYTES // 3) * 4 - 2) + "=="
        return encode_request(SaslAuthenticateRequest(auth_bytes=f"c=biws,{nonce},p={proof}".encode()), 2, 2, "flood")


@dataclass(slots=True, eq=False)
class _Open:
    """A connection."""

    kind: Kind
    socket: socket.socket
    connected: bool = False
    tls: _Tls | None = None
    sent: int = 0


class Flood:
    """So many connections, at most so many a second and so many at a time; the oldest leaves for a new one."""

    def __init__(self, port: int, total: int, rate: float, at_once: int, rng: random.Random) -> None:
        self._port, self._total, self._rate, self._at_once, self._rng = port, total, rate, at_once, rng
        self._epoll = select.epoll()
        self._open: dict[int, _Open] = {}
        self._slow: collections.deque[tuple[float, _Open]] = collections.deque()
        self._hello = client_hello()
        self._kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=997)
        self.begun = 0
        self.ends: collections.Counter[str] = collections.Counter()
        """What has become of them, by kind."""

    def run(self) -> float:
        """Seconds that it took."""
        began_s = time.monotonic()
        while self.begun < self._total:
            due = min(self._total, int((time.monotonic() - began_s) * self._rate) + 1)
            for _ in range(min(due - self.begun, int(self._rate * _TURN_S) + 1)):
                self._begin()
            self._turn(0 if self.begun < due else _TURN_S)
        for one in list(self._open.values()):
            self._end(one, "left")
        return time.monotonic() - began_s

    def _begin(self) -> None:
        while len(self._open) >= self._at_once:
            self._end(next(iter(self._open.values())), "left")
        one = _Open(self._kinds[self.begun % len(self._kinds)], socket.socket())
        self.begun += 1
        one.socket.setblocking(False)
        one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.socket.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        number = self._rng.randrange(1 << 16, (1 << 24) - 1)
        one.socket.bind((f"127.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0))
        self._open[one.socket.fileno()] = one
        match one.socket.connect_ex(("127.0.0.1", self._port)):
            case 0:
                self._epoll.register(one.socket, select.EPOLLIN)
                self._connected(one)
            case errno.EINPROGRESS:
                self._epoll.register(one.socket, select.EPOLLOUT)
            case _:
                self._end(one, "not connected", registered=False)

    def _connected(self, one: _Open) -> None:
        one.connected = True
        match one.kind:
            case Kind.HALF:
                self._send(one, self._hello[: len(self._hello) // 2])
            case Kind.GARBAGE:
                self._send(one, self._rng.randbytes(64))
            case Kind.RESET:
                self._send(one, self._hello)
            case Kind.SLOW:
                self._slow.append((time.monotonic(), one))
            case Kind.PASSWORD:
                one.tls = _Tls()
                self._send(one, one.tls.begin())

    def _send(self, one: _Open, data: bytes) -> None:
        if not data:
            return
        try:
            one.socket.send(data)
        except OSError:
            self._end(one, "closed")

    def _turn(self, timeout_s: float) -> None:
        for number, _ in self._epoll.poll(timeout_s):
            if (one := self._open.get(number)) is not None:
                self._ready(one)
        now_s = time.monotonic()
        while self._slow and self._slow[0][0] <= now_s:
            _, one = self._slow.popleft()
            if one.socket.fileno() >= 0:
                self._send(one, self._hello[one.sent : one.sent + 1])
                one.sent += 1
                self._slow.append((now_s + _SLOW_S, one))

    def _ready(self, one: _Open) -> None:
        if not one.connected:
            if one.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self._end(one, "not connected")
                return
            self._epoll.modify(one.socket, select.EPOLLIN)
            self._connected(one)
            return
        try:
            data = one.socket.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._end(one, "refused" if one.tls is not None and one.tls.refused else "closed")
        elif one.kind is Kind.RESET:
            self._end(one, "answered")
        elif one.tls is not None:
            try:
                self._send(one, one.tls.take(data))
            except (ssl.SSLError, ValueError):
                self._end(one, "closed")

    def _end(self, one: _Open, how: str, *, registered: bool = True) -> None:
        if self._open.pop(one.socket.fileno(), None) is None:
            return
        self.ends[f"{one.kind}: {how}"] += 1
        if registered:
            self._epoll.unregister(one.socket)
        one.socket.close()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.handshakes_flood", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="connections a second, at most")
    parser.add_argument("--at-once", type=int, required=True, help="open connections, at most")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # also where the rest runs before others (chrt)
    os.setpriority(os.PRIO_PROCESS, 0, NICE)
    flood = Flood(options.port, options.count, options.rate, options.at_once, random.Random(options.seed))
    seconds = flood.run()
    print(json.dumps({"seconds": seconds, "ends": flood.ends}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
