"""Logins gone wrong: damaged frames and messages of SASL, against the machines of the server, and against a client
whose server is hostile. ``python -m tests.wire.login_fuzz --help`` sends as many as are asked for, and tells what they
took.

Each story is drawn from a seed: a login as it should be, by any mechanism and version, with ApiVersions before it or
not, with requests, renewals and another user behind it, of which steps are damaged, left out, doubled or replaced. What
must hold of each is checked here; who is let in is judged by arithmetic of its own (:func:`is_proved`).
"""

import argparse
import base64
import collections
import contextlib
import functools
import hashlib
import hmac
import itertools
import random
import resource
import struct
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from unittest import mock

from msgspec import structs

from kjbod.errors import LocalProtocolError, ProtocolError
from kjbod.scram import MECHANISMS, credential
from kjbod.security.channel import Security
from kjbod.security.keys import ChannelSettings, Login
from kjbod.security.sasl import ClientMechanism, client_mechanism
from kjbod.security.sasl_server import Answer, ScramCredential, ServerMechanism, plain, scram
from kjbod.wire.connection import ClientConnection, ServerConnection, api_versions_response
from kjbod.wire.disconnections import Disconnected
from kjbod.wire.frames import VersionRanges, decode_request, decode_response, encode_request, encode_response
from kjbod.wire.login import log_in
from kjbod.wire.messages import (
    API,
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    MetadataRequest,
    RequestBody,
    ResponseBody,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kjbod.wire.server_login import LOGIN_BYTES_MAX, ServerLogin, require_before_login

T = TypeVar("T")
NAMES: Final = ("PLAIN", *MECHANISMS)
USERS: Final = {"kafka": "p=ä\u00a0,ss", "o,t=her": "x"}
APIS: Final[VersionRanges] = {
    key: (API[key].min_version, API[key].max_version)
    for key in (ApiKey.API_VERSIONS, ApiKey.BROKER_HEARTBEAT, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
}
LIFETIME_MS: Final = 10_000
_SALT: Final = b"salt-of-some-length"
_ITERATIONS: Final = 4096
_RAW: Final = 0.2
"""Share of the logins by SaslHandshake 0."""
_NUMBERS: Final = (-1, 0, 1, 2, 3, 127, 128, 255, 32_767, 65_536, 2**31 - 1, -(2**31))
_LENGTH_BYTES: Final = 4

salted: Callable[[str, bytes, bytes, int], bytes] = functools.cache(hashlib.pbkdf2_hmac)
"""As it is, but once for each password: there are few here, and each takes milliseconds."""


def credential_of(mechanism: str, user: str) -> ScramCredential | None:
    """The server's part of a user's password."""
    if user not in USERS:
        return None
    kind = MECHANISMS[mechanism]
    key = salted(kind.hash, USERS[user].encode(), _SALT, _ITERATIONS)
    made = credential(user, kind, salt=_SALT, salted_password=key, iterations=_ITERATIONS)
    return ScramCredential(made.salt, made.stored_key, made.server_key, made.iterations)


# ------------------------------------------------------------------------------------------------------------ judgement


def is_proved(mechanism: str, sent: list[bytes], answered: list[bytes], user: str) -> bool:
    """Whether these messages of a client prove that it knows the password of ``user`` (RFC 4616; RFC 5802, 3)."""
    if mechanism == "PLAIN":
        (message,) = sent
        return message in (f"\0{user}\0{USERS[user]}".encode(), f"{user}\0{user}\0{USERS[user]}".encode())
    first, last = sent
    name = user.replace("=", "=3D").replace(",", "=2C")
    bare = first.split(b",", 2)[2]
    unproved, _, proof = last.rpartition(b",p=")
    signed = b",".join((bare, answered[0], unproved))
    keys = _Keys.of(mechanism, USERS[user])
    signature = hmac.digest(keys.stored, signed, MECHANISMS[mechanism].hash)
    proved = bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))
    return bare.startswith(f"n={name},r=".encode()) and base64.b64decode(proof) == proved


def is_the_server(mechanism: str, sent: list[bytes], answered: list[bytes], password: str) -> bool:
    """Whether these messages of a server prove that it knows the password; those of PLAIN prove nothing."""
    if mechanism == "PLAIN":
        return True
    bare, unproved = sent[0].split(b",", 2)[2], sent[1].rpartition(b",p=")[0]
    fields = dict(part.split(b"=", 1) for part in answered[0].split(b","))
    name = MECHANISMS[mechanism].hash
    keys = _Keys.made(name, salted(name, password.encode(), base64.b64decode(fields[b"s"]), int(fields[b"i"])))
    signature = hmac.digest(keys.server, b",".join((bare, answered[0], unproved)), name)
    return base64.b64encode(signature) in dict(part.split(b"=", 1) for part in answered[1].split(b",")).values()


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of a password."""

    client: bytes
    stored: bytes
    server: bytes

    @classmethod
    def of(cls, mechanism: str, password: str) -> "_Keys":
        name = MECHANISMS[mechanism].hash
        return cls.made(name, salted(name, password.encode(), _SALT, _ITERATIONS))

    @classmethod
    def made(cls, name: str, key: bytes) -> "_Keys":
        client = hmac.digest(key, b"Client Key", name)
        return cls(client, hashlib.new(name, client).digest(), hmac.digest(key, b"Server Key", name))


# --------------------------------------------------------------------------------------------------------------- damage


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes with one to three things wrong."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw)) if raw else 0
        match rng.randrange(8):
            case 0 if raw:
                raw[at] ^= 1 << rng.randrange(8)
            case 1 if raw:
                raw[at] = rng.choice((0, 1, 44, 61, 127, 128, 255))
            case 2:
                del raw[at:]
            case 3:
                raw[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4:
                raw[at : at + 4] = struct.pack(">i", rng.choice(_NUMBERS))
            case 5:
                raw[at : at + 2] = struct.pack(">h", rng.randrange(-2, 90))
            case 6:
                del raw[at : at + rng.randint(1, 8)]
            case _:
                raw[at:at] = raw[: rng.randint(1, 40)]
    return bytes(raw)


_VALUES: Final = (b"", b"=", b"biws", b"-1", b"1", b"4095", b"16385", b"999999999999", b"AAAA", b"a" * 5_000, b"\xff",
                  b"\0", b"=2C", b"=41", b"eSws")  # fmt: skip
_EXTENSIONS: Final = (b"tokenauth=true", b"m=x", b"e=other-error", b"v=AAAA", b"p=AAAA", b"x", b"")
_HEADERS: Final = (b"y,,", b"p=tls-unique,,", b"n,a=other,", b"n,a=kafka,", b"n,", b",,", b"n,,n,,")


def damaged_message(rng: random.Random, message: bytes) -> bytes:
    """A message of SASL with an attribute wrong, or whatever."""
    parts = message.split(b",")
    at = rng.randrange(len(parts))
    match rng.randrange(7):
        case 0:
            parts[at] = parts[at][:2] + rng.choice(_VALUES)
        case 1:
            del parts[at]
        case 2:
            parts.insert(at, rng.choice((*parts, *_EXTENSIONS)))
        case 3:
            rng.shuffle(parts)
        case 4:
            return rng.choice(_HEADERS) + message.removeprefix(b"n,,")
        case 5:
            return damaged(rng, message)
        case _:
            return rng.choice((b"", b"\0", b"\0\0", b"\0kafka\0", b"kafka\0kafka\0x", message * 2, rng.randbytes(40)))
    return b",".join(parts)


# --------------------------------------------------------------------------------------------------------------- server


class _Watched:
    """The server's half of an exchange, which keeps its messages, and checks who it says the client is."""

    def __init__(self, name: str, machine: ServerMechanism) -> None:
        self._name, self._machine = name, machine
        self._sent: list[bytes] = []
        self._answered: list[bytes] = []

    def answer(self, message: bytes) -> Answer:
        self._sent.append(message)
        answer = self._machine.answer(message)
        self._answered.append(answer.reply)
        if answer.user is not None:
            assert is_proved(self._name, self._sent, self._answered, answer.user), (self._name, self._sent)
        return answer


def watched_mechanisms(nonce: str) -> Mapping[str, Callable[[], ServerMechanism]]:
    """Those of a listener."""
    made: dict[str, Callable[[], ServerMechanism]] = {"PLAIN": lambda: _Watched("PLAIN", plain(USERS))}
    for name in MECHANISMS:
        made[name] = functools.partial(_watched_scram, name, nonce)
    return made


def _watched_scram(name: str, nonce: str) -> ServerMechanism:
    return _Watched(name, scram(name, functools.partial(credential_of, name), nonce))


class ServerEnd:
    """A connection of a listener that asks for a login, without a socket; its client may send what it likes.

    Attributes:
        closed: whether it has ended.
        served: requests that reached the handler after a login.
    """

    def __init__(self, nonce: str) -> None:
        self._connection = ServerConnection(APIS, max_frame_bytes=LOGIN_BYTES_MAX, decoded_at_once_bytes=-1)
        self.login = ServerLogin(watched_mechanisms(nonce), dict.fromkeys(NAMES, LIFETIME_MS))
        self.closed = False
        self.served = 0

    def feed(self, data: bytes, now_ms: int) -> bytes:
        """The answer to ``data``; an exception that is not of the protocol is a bug."""
        assert not self.closed
        out = b""
        try:
            for slot in self._connection.receive(data):
                out += self._answered(slot, now_ms)
                if self.closed:
                    break
        except ProtocolError:
            self.closed = True
        assert self.closed or (self._connection.pending_bytes <= _LENGTH_BYTES + LOGIN_BYTES_MAX)
        assert self.closed or not self._connection.outstanding, "a request without an answer"
        return out

    def _answered(self, slot: Any, now_ms: int) -> bytes:
        if self.login.takes_tokens:
            token = self.login.take_token(slot.frame, now_ms, now_ms)
            self.closed = bool(token.refused)
            assert isinstance(token.message, bytes)
            self._connection.answer_token(slot, token.message)
            return b"" if self.closed else self._connection.data_to_send()[0]
        if self.login.is_stranger:
            assert self.login.user is None
            require_before_login(slot.frame)
        self._connection.decode(slot)
        if slot.request is not None:
            reply = self.login.take(slot.request, now_ms, now_ms)
            if reply is None:
                self._connection.answer(slot, self._handled(slot.request))
            else:
                assert not isinstance(reply.message, bytes)
                self._connection.answer(slot, reply.message)
                self.closed = bool(reply.refused)
        return self._connection.data_to_send()[0]

    def _handled(self, request: Any) -> ResponseBody:
        if isinstance(request.message, ApiVersionsRequest):
            return api_versions_response(request, APIS)
        assert self.login.is_in and self.login.user in USERS, "served without a login"
        self.served += 1
        return BrokerHeartbeatResponse(is_caught_up=True)


@dataclass(slots=True)
class Figures:
    """What was seen."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    longest_s: float = 0.0
    """Processor time that one of them took at most."""


def server_story(rng: random.Random, figures: Figures) -> None:
    """Play one connection."""
    end, now_ms, answer = ServerEnd(rng.randbytes(12).hex()), 1, b""
    steps = client_steps(rng, rng.choice((0.0, 0.15, 0.15, 0.5)))
    with contextlib.suppress(StopIteration):
        while not end.closed:
            step = steps.send(answer or None)
            if isinstance(step, int):
                now_ms += step
                continue
            answer = _fed(rng, end, step, now_ms, figures)
            figures.counts["frames"] += 1
            figures.counts["answered"] += bool(answer)
    figures.counts["connections"] += 1
    figures.counts["closed"] += end.closed
    figures.counts["served"] += end.served


def _fed(rng: random.Random, end: ServerEnd, data: bytes, now_ms: int, figures: Figures) -> bytes:
    """The answer to what comes in one piece or in some."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 0, 1, 4))))
    answer = b""
    for begin, stop in itertools.pairwise((0, *cuts, len(data))):
        if begin < stop and not end.closed:
            was_in, began_s = end.login.is_in, time.thread_time()
            answer += end.feed(data[begin:stop], now_ms)
            figures.longest_s = max(figures.longest_s, time.thread_time() - began_s)
            figures.counts["logins"] += end.login.is_in and not was_in
    return answer


_OTHERS: Final[tuple[RequestBody[Any], ...]] = (
    ApiVersionsRequest(client_software_name="x", client_software_version="1"),
    SaslHandshakeRequest(mechanism="PLAIN"),
    SaslHandshakeRequest(mechanism="SCRAM-SHA-512"),
    SaslAuthenticateRequest(auth_bytes=b"n,,n=kafka,r=x"),
    SaslAuthenticateRequest(auth_bytes=b"\0kafka\0wrong"),
    BrokerHeartbeatRequest(broker_id=1),
    MetadataRequest(),
)


class _Frames:
    """Frames of a client, of which some are damaged."""

    def __init__(self, rng: random.Random, damage: float) -> None:
        self._rng, self._damage = rng, damage

    def of(self, message: RequestBody[Any], version: int | None = None) -> bytes:
        """A frame with its length."""
        chosen = API[message.API_KEY].max_version if version is None else version
        name = self._rng.choice(("c", "", "ä" * 20))
        return self._spoiled(encode_request(message, chosen, self._rng.randrange(1 << 31), name))

    def raw(self, token: bytes) -> bytes:
        """A message of a mechanism with its length."""
        return self._spoiled(len(token).to_bytes(_LENGTH_BYTES) + token)

    def _spoiled(self, data: bytes) -> bytes:
        rng = self._rng
        if rng.random() >= self._damage:
            return data
        match rng.randrange(5):
            case 0:
                return damaged(rng, data)  # its length too
            case 1:
                return data + data
            case 2:
                return self.of(rng.choice(_OTHERS))
            case _:
                body = damaged(rng, data[_LENGTH_BYTES:])
                return len(body).to_bytes(_LENGTH_BYTES) + body


def client_steps(rng: random.Random, damage: float) -> Generator[bytes | int, bytes | None, None]:
    """Frames of a client, to each of which it is sent the answer, and milliseconds that pass; ``damage``: the
    probability of it at each step."""
    frames = _Frames(rng, damage)
    for _ in range(rng.choice((0, 1, 1, 2) if damage else (0, 1))):
        yield frames.of(ApiVersionsRequest(client_software_name="x", client_software_version="1"), rng.randint(0, 4))
    user, mechanism = rng.choice(list(USERS)), rng.choice(NAMES)
    for renewal in range(rng.randint(1, 4)):
        if renewal and rng.random() < damage:
            user, mechanism = rng.choice(list(USERS)), rng.choice(NAMES)
        asked = mechanism if rng.random() >= damage / 4 else rng.choice((*NAMES, "GSSAPI", "", "x" * 30_000))
        raw = rng.random() < _RAW
        yield frames.of(SaslHandshakeRequest(mechanism=asked), 0 if raw else 1)
        password = USERS[user] if rng.random() >= damage / 4 else "wrong"
        client = client_mechanism(Login(mechanism, user, password), rng.randbytes(9).hex())
        message: bytes | None = client.first()
        while message is not None:
            version = rng.randint(0, 2)
            sent = damaged_message(rng, message) if rng.random() < damage else message
            frame = frames.raw(sent) if raw else frames.of(SaslAuthenticateRequest(auth_bytes=sent), version)
            message = _goes_on(client, (yield frame), None if raw else version)
        for _ in range(rng.randrange(3)):
            yield frames.of(BrokerHeartbeatRequest(broker_id=1))
        yield rng.choice((0, 500, 1_100, 1_100, 5_000, LIFETIME_MS))


def _goes_on(client: ClientMechanism, answer: bytes | None, version: int | None) -> bytes | None:
    """A client's answer to what it makes of the server's; None: there was no response around it."""
    try:
        if version is None:
            return client.answer((answer or b"")[_LENGTH_BYTES:])
        got = decode_response((answer or b"")[_LENGTH_BYTES:], ApiKey.SASL_AUTHENTICATE, version).message
        assert isinstance(got, SaslAuthenticateResponse)
        return client.answer(got.auth_bytes)
    except ProtocolError:
        return None


# --------------------------------------------------------------------------------------------------------------- client


class HostileServer:
    """A server whose answers are damaged, as a client that logs in meets it.

    Attributes:
        peer: its name.
        sent: messages of SASL that the client has sent.
        got: those that it has got.
    """

    peer = "hostile:1"

    def __init__(self, rng: random.Random, damage: float, figures: Figures) -> None:
        self._rng, self._damage, self._figures = rng, damage, figures
        self._end = ServerEnd(rng.randbytes(12).hex())
        self._client = ClientConnection(client_id="c")
        self.sent: list[bytes] = []
        self.got: list[bytes] = []

    async def exchange(self, message: RequestBody[Any], version: int | None) -> ResponseBody:
        """The answer to a request, as the client's connection reads it."""
        if isinstance(message, SaslAuthenticateRequest):
            self.sent.append(message.auth_bytes)
        _, data = self._client.send(message, version)
        if (answer := self._read(self._answer_to(data[_LENGTH_BYTES:]))) is None:
            raise Disconnected(self.peer)
        if isinstance(answer, SaslAuthenticateResponse):
            self.got.append(answer.auth_bytes)
        return answer

    async def meet(self) -> None:
        """Agree on versions. Raises :class:`ProtocolError`."""
        version = None
        while True:
            _, data = self._client.hello(version)
            answer = self._read(self._answer_to(data[_LENGTH_BYTES:]))
            if not isinstance(answer, ApiVersionsResponse):
                raise Disconnected(self.peer)
            asked_before, version = version, self._client.negotiated(answer)
            if version is None:
                return
            if asked_before is not None:
                raise Disconnected(self.peer)

    def _read(self, data: bytes) -> ResponseBody | None:
        self._figures.counts["frames"] += 1
        answers = [response.message for response in self._client.receive(data)]
        return answers[0] if answers else None

    def _answer_to(self, frame: bytes) -> bytes:
        """What the server would say, damaged."""
        rng = self._rng
        request = decode_request(frame, APIS)
        slot_answer = b"" if self._end.closed else self._end.feed(len(frame).to_bytes(_LENGTH_BYTES) + frame, 1)
        if rng.random() >= self._damage or not slot_answer:
            return slot_answer
        match rng.randrange(4):
            case 0:
                return damaged(rng, slot_answer)
            case 1:
                body = damaged(rng, slot_answer[_LENGTH_BYTES:])
                return len(body).to_bytes(_LENGTH_BYTES) + body
            case _:
                read = decode_response(slot_answer[_LENGTH_BYTES:], request.api_key, request.version).message
                return encode_response(_lied(rng, read), request.version, request.correlation_id)


def _lied(rng: random.Random, message: ResponseBody) -> ResponseBody:
    """An answer that is well formed, and not true."""
    codes = (0, 0, 0, 33, 34, 35, 58, 74, 999, -1)
    match message:
        case SaslAuthenticateResponse():
            return structs.replace(
                message,
                error_code=rng.choice(codes),
                auth_bytes=damaged_message(rng, message.auth_bytes),
                error_message=rng.choice((None, "", "no", "\n\x1b[2J" * 9, "x" * 30_000)),
            )
        case SaslHandshakeResponse():
            names = rng.choice(((), NAMES, ("\n\x1b[2J",), ("x" * 9_000,) * 3))
            return SaslHandshakeResponse(error_code=rng.choice(codes), mechanisms=names)
        case ApiVersionsResponse():
            keys = tuple(
                structs.replace(one, min_version=rng.randint(-1, 3), max_version=rng.randint(-1, 9))
                for one in message.api_keys
            )
            return structs.replace(message, error_code=rng.choice(codes), api_keys=keys)
    return message


def client_story(rng: random.Random, figures: Figures) -> None:
    """Have a client log in at a hostile server."""
    user, mechanism = rng.choice(list(USERS)), rng.choice(NAMES)
    server = HostileServer(rng, rng.choice((0.0, 0.2, 0.5)), figures)
    security = Security(ChannelSettings("SASL_PLAINTEXT", None, Login(mechanism, user, USERS[user])), rng)
    began_s = time.thread_time()
    outcome = "let in"
    try:
        _run(server.meet())
        lifetime_ms = _run(log_in(server, security))
        assert isinstance(lifetime_ms, int)
        assert is_the_server(mechanism, server.sent, server.got, USERS[user]), (mechanism, server.sent, server.got)
    except ProtocolError as error:
        outcome = type(error).__name__
        assert not isinstance(error, LocalProtocolError), error
        text = str(error)
        assert text.isprintable() and USERS[user] not in text.replace("x", "") and len(text) < 2_000, text
    figures.longest_s = max(figures.longest_s, time.thread_time() - began_s)
    figures.counts["connections"] += 1
    figures.counts[outcome] += 1


def _run(story: Coroutine[Any, Any, T]) -> T:
    """The result of what waits for nothing."""
    try:
        story.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("it waits")


# ------------------------------------------------------------------------------------------------------------------ run

Story = Callable[[random.Random, Figures], None]


def play(story: Story, frames: int, seed: int, tell: Callable[[Figures], None] = lambda _: None) -> Figures:
    """Play stories until so many frames have been sent. An AssertionError names the seed of the story."""
    figures = Figures()
    with mock.patch("hashlib.pbkdf2_hmac", salted):
        number = 0
        while figures.counts["frames"] < frames:
            number += 1
            try:
                story(random.Random(f"{seed}/{number}"), figures)
            except Exception as error:
                raise AssertionError(f"{story.__name__}, seed {seed}/{number}: {error!r}") from error
            if number % 1_000 == 0:
                tell(figures)
    return figures


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.login_fuzz", description="Logins gone wrong.")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--client", action="store_true", help="a hostile server (a hostile client)")
    options = parser.parse_args()
    began_s = time.monotonic()
    tenth_kib = 0

    def tell(figures: Figures) -> None:
        nonlocal tenth_kib
        if not tenth_kib and figures.counts["frames"] >= options.frames / 10:
            tenth_kib = rss_kib()

    figures = play(client_story if options.client else server_story, options.frames, options.seed, tell)
    print(f"{dict(figures.counts)}\n{time.monotonic() - began_s:.0f} s; longest of processor time "
          f"{1000 * figures.longest_s:.1f} ms; RSS {tenth_kib / 1024:.1f} MiB at a tenth, {rss_kib() / 1024:.1f} at "
          "the end")  # fmt: skip
    return 0


def rss_kib() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


if __name__ == "__main__":
    sys.exit(main())
