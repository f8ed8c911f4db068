"""A secured listener on real sockets: TLS, SASL, who the client is then, and what it costs who never logs in."""

import asyncio
import contextlib
import dataclasses
import hashlib
import struct
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kjbod.clock import SystemClock
from kjbod.errors import ConfigError, RemoteProtocolError
from kjbod.scram import MECHANISMS, credential
from kjbod.security.channel import Security
from kjbod.security.credentials import Token
from kjbod.security.keys import ChannelSettings, ListenerSettings, Login
from kjbod.security.listener import ListenerSecurity, nothing
from kjbod.security.principals import parse_rules
from kjbod.security.sasl import client_mechanism
from kjbod.security.sasl_server import Answer, ScramCredential, plain
from kjbod.security.tls_keys import REQUIRED, Tls
from kjbod.wire.client import AuthenticationFailed, Connection, Disconnected, ForeignPeer
from kjbod.wire.connection import api_versions_response
from kjbod.wire.frames import Request, decode_response, encode_request
from kjbod.wire.limits import Limits
from kjbod.wire.messages import (
    API,
    ApiKey,
    ApiVersionsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    MetadataRequest,
    MetadataResponse,
    ResponseBody,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kjbod.wire.server import Peer, Server, serve
from kjbod.wire.server_login import LOGIN_BYTES_MAX, Reply, ServerLogin, State
from scripts.rig.certificates import Authority
from tests.wire.conftest import SERVED, Lines, Run, until

HEARTBEAT = BrokerHeartbeatRequest(broker_id=1)
APIS = {**SERVED, ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.SASL_AUTHENTICATE: (0, 2)}
PASSWORD = "p=ä\u00a0,ss"
USERS = {"kafka": PASSWORD, "other": "x"}
TOKEN_ID = "a token's id"
Start = Callable[..., Coroutine[Any, Any, Server]]


class Site:
    """An authority, a listener's settings and a client's."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.authority = Authority.make()
        self.trust = self.authority.truststore(base)
        self.tls = Tls("server", self.authority.leaf("127.0.0.1").keystore(base), self.trust)
        self.seen: list[str] = []
        self.tokens: list[tuple[str, bool]] = []
        self.token_expires_ms = 2**62

    def listener(
        self, protocol: str, ready: Callable[[], Awaitable[object]] = nothing, **changes: Any
    ) -> ListenerSecurity:
        settings = ListenerSettings(
            protocol,
            structs.replace(self.tls, client_auth=REQUIRED if protocol == "SSL" else "none")
            if protocol.endswith("SSL")
            else None,
            {"PLAIN": USERS, **{name: {} for name in MECHANISMS}} if protocol.startswith("SASL") else {},
            principal_rules=parse_rules("RULE:^CN=(.*?),.*$/$1/,DEFAULT"),
        )
        return ListenerSecurity(dataclasses.replace(settings, **changes), self, ready)

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        if user not in USERS:
            return None
        kind, salt = MECHANISMS[mechanism], b"salt-of-some-length"
        salted = hashlib.pbkdf2_hmac(kind.hash, USERS[user].encode(), salt, 4096)
        made = credential(user, kind, salt=salt, salted_password=salted, iterations=4096)
        return ScramCredential(made.salt, made.stored_key, made.server_key, made.iterations)

    def of_token(self, token_id: str) -> Token | None:
        return Token("secret", "owner", self.token_expires_ms) if token_id == TOKEN_ID else None

    def client(
        self,
        protocol: str,
        mechanism: str = "PLAIN",
        user: str = "kafka",
        password: str = PASSWORD,
        *,
        is_token: bool = False,
    ) -> Security:
        tls = None
        if protocol.endswith("SSL"):
            own = self.authority.client("alice", "ops").keystore(self.base, "client.pem") if protocol == "SSL" else None
            tls = Tls("client", own, self.trust)
        login = Login(mechanism, user, password, is_token) if protocol.startswith("SASL") else None
        return Security(ChannelSettings(protocol, tls, login))

    async def answer(self, request: Request, peer: Peer) -> ResponseBody | None:
        self.seen.append(peer.principal)
        self.tokens.append((peer.principal, peer.token_authenticated))
        match request.message:
            case ApiVersionsRequest():
                return api_versions_response(request, APIS)
            case BrokerHeartbeatRequest():
                return BrokerHeartbeatResponse(is_caught_up=True)
            case MetadataRequest():  # what a damaged request may become
                return MetadataResponse()
        raise AssertionError(request)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def start(log: Lines, site: Site) -> Start:
    async def start(security: ListenerSecurity, **limits: Any) -> Server:
        clock = SystemClock()
        return await serve(
            "127.0.0.1", 0, site.answer, apis=APIS, clock=clock, log=log, limits=Limits(**limits), security=security
        )

    return start


async def beat(server: Server, security: Security) -> None:
    async with await Connection.open(
        "127.0.0.1", server.port, client_id="t", clock=SystemClock(), security=security
    ) as connection:
        for _ in range(3):
            assert (await connection.request(HEARTBEAT, timeout_ms=20_000)).is_caught_up


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
def test_a_client_is_known_by_its_login_or_its_certificate(
    run: Run[Any], start: Start, site: Site, log: Lines, protocol: str, mechanism: str
) -> None:
    async def story() -> None:
        async with await start(site.listener(protocol)) as server:
            await beat(server, site.client(protocol, mechanism))
            assert server.admissions.logging_in == 0

    run(story)
    known = "User:alice" if protocol == "SSL" else "User:kafka"
    assert site.seen[1:] == [known] * 3 and not log.lines
    assert site.seen[0] == ("User:alice" if protocol == "SSL" else "User:ANONYMOUS")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_with_a_delegation_token_is_its_owner(run: Run[Any], start: Start, site: Site, mechanism: str) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_PLAINTEXT")) as server:
            for _ in range(2):
                await beat(server, site.client("SASL_PLAINTEXT", mechanism, TOKEN_ID, "secret", is_token=True))
            await beat(server, site.client("SASL_PLAINTEXT", mechanism))

    run(story)
    owner, user, nobody = ("User:owner", True), ("User:kafka", False), ("User:ANONYMOUS", False)
    assert site.tokens == [*([nobody, *[owner] * 3] * 2), nobody, *[user] * 3]


@pytest.mark.parametrize(
    ("user", "password", "is_token"),
    [(TOKEN_ID, "wrong", True), ("another", "secret", True), (TOKEN_ID, "secret", False), ("kafka", PASSWORD, True)],
)
def test_a_token_and_a_user_are_not_taken_for_each_other(
    run: Run[Any], start: Start, site: Site, user: str, password: str, is_token: bool
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_PLAINTEXT")) as server:
            with pytest.raises(AuthenticationFailed, match="invalid credentials"):
                await beat(server, site.client("SASL_PLAINTEXT", "SCRAM-SHA-256", user, password, is_token=is_token))

    run(story)


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
@pytest.mark.parametrize(("user", "password"), [("kafka", "wrong"), ("nobody", PASSWORD), ("kafka", "x"), ("", "")])
def test_who_has_not_the_password_gets_nowhere(
    run: Run[Any], start: Start, site: Site, log: Lines, mechanism: str, user: str, password: str
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_SSL")) as server:
            with pytest.raises(AuthenticationFailed, match=f"does not believe {mechanism} of {user}: "):
                await beat(server, site.client("SASL_SSL", mechanism, user, password))

    run(story)
    assert site.seen == ["User:ANONYMOUS"]  # ApiVersions
    (line,) = log.lines
    assert line["reason"].startswith(f"{mechanism}: ") and PASSWORD not in str(line)


@pytest.mark.parametrize(
    ("listens", "asks", "error"),
    [
        ("SASL_SSL", "SSL", ForeignPeer),
        ("SASL_SSL", "SASL_PLAINTEXT", ForeignPeer),
        ("SASL_SSL", "PLAINTEXT", ForeignPeer),
        ("SASL_PLAINTEXT", "PLAINTEXT", ForeignPeer),
        ("SASL_PLAINTEXT", "SASL_SSL", ForeignPeer),
        ("SSL", "SASL_SSL", Disconnected),  # which says that a certificate may be wanted
        ("SSL", "PLAINTEXT", ForeignPeer),
    ],
)
def test_who_comes_with_another_protocol_learns_which_and_changes_nothing(
    run: Run[Any], start: Start, site: Site, listens: str, asks: str, error: type[Disconnected]
) -> None:
    async def story() -> None:
        async with await start(site.listener(listens)) as server:
            with pytest.raises(error):
                await beat(server, site.client(asks))

    run(story)
    assert set(site.seen) <= {"User:ANONYMOUS"} and len(site.seen) <= 3  # ApiVersions, also of the question why


def test_a_certificate_of_another_authority_or_none_is_refused_where_one_is_required(
    run: Run[Any], start: Start, site: Site, tmp_path: Path
) -> None:
    stranger = Authority.make("Another CA").client("mallory").keystore(tmp_path, "stranger.pem")

    async def story() -> None:
        async with await start(site.listener("SSL")) as server:
            for own, words in (
                (stranger, f":{server.port} "),
                (None, "does it want a certificate|certificate required"),
            ):
                security = Security(ChannelSettings("SSL", Tls("client", own, site.trust)))
                with pytest.raises(Disconnected, match=words):
                    await beat(server, security)
            await until(lambda: server.admissions.logging_in == 0)

    run(story)
    assert site.seen == []


def test_a_login_that_holds_for_a_time_is_renewed_and_one_that_is_not_ends_the_connection(
    run: Run[Any], start: Start, site: Site, log: Lines
) -> None:
    async def story() -> None:
        server = await start(site.listener("SASL_SSL", reauthentication_ms={"PLAIN": 2_500}))
        connection = await Connection.open(
            "127.0.0.1", server.port, client_id="t", clock=SystemClock(), security=site.client("SASL_SSL")
        )
        async with server, connection:
            while connection.logins < 2:
                await connection.request(HEARTBEAT, timeout_ms=20_000)
            connection._renew_at_ms = None  # a client that forgets it
            with pytest.raises(Disconnected):
                while True:
                    await connection.request(HEARTBEAT, timeout_ms=20_000)

    run(story)
    assert log.reasons() == ["its login has expired, and was not renewed"]


def test_who_never_logs_in_is_let_go_and_keeps_no_other_out(
    run: Run[Any], start: Start, site: Site, log: Lines
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_SSL"), max_logging_in=3, login_timeout_ms=1_500) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            await until(lambda: server.admissions.logging_in == 3)
            await beat(server, site.client("SASL_SSL"))
            for reader, _ in silent:
                assert await reader.read() == b""
            for _, writer in silent:
                writer.transport.abort()
            assert server.admissions.logging_in == 0

    run(story)
    gave_way, *late = log.reasons()
    assert gave_way == "no TLS handshake: it was silent, and its place was needed"
    assert late == ["no TLS handshake: it took too long"] * 2


def test_a_request_of_who_has_not_logged_in_is_not_even_decoded(
    run: Run[Any], start: Start, site: Site, log: Lines
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_PLAINTEXT")) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(struct.pack(">ihhih", 10, ApiKey.METADATA, 0, 7, -1))  # no body: it could not be decoded
            assert await reader.read() == b""
            writer.transport.abort()

    run(story)
    assert log.reasons() == ["a request of API 3 before a login"] and site.seen == []


def test_strangers_do_not_fill_the_room_of_those_who_have_logged_in(
    run: Run[Any], start: Start, site: Site, log: Lines
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_PLAINTEXT"), max_pending_bytes=100_000) as server:
            strangers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
            for _, writer in strangers:
                writer.write(LOGIN_BYTES_MAX.to_bytes(4, "big") + bytes([0, 17]) + bytes(LOGIN_BYTES_MAX - 3))
                await writer.drain()
            await beat(server, site.client("SASL_PLAINTEXT"))
            assert server.pending_bytes == 0
            for _, writer in strangers:
                writer.transport.abort()

    run(story)


def test_who_leaves_while_nothing_is_ready_gives_its_place_back(run: Run[Any], site: Site, log: Lines) -> None:
    async def story() -> None:
        ready = asyncio.Event()
        listener = site.listener("SASL_PLAINTEXT", ready.wait)
        limits = Limits(login_timeout_ms=300)
        async with await serve(
            "127.0.0.1", 0, site.answer, apis=APIS, clock=SystemClock(), log=log, limits=limits, security=listener
        ) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1, "c"))
            await until(lambda: server.admissions.logging_in == 1)
            writer.transport.abort()
            await until(lambda: server.admissions.count == 0 and server.admissions.logging_in == 0)

    run(story)


def test_connections_of_one_address_are_counted_from_the_first_byte_of_the_handshake(
    run: Run[Any], start: Start, site: Site, log: Lines
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_SSL"), max_connections_per_ip=2) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
            await until(lambda: bool(log.lines))
            assert server.admissions.count == 2
            for _, writer in silent:
                writer.transport.abort()
            await until(lambda: server.admissions.count == 0)

    run(story)
    assert "2 connections from 127.0.0.1 already" in log.reasons()[0]


async def ask_raw(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes) -> bytes:
    """The answer to a frame, without its length; nothing at the end of the connection."""
    reader, writer = stream
    writer.write(data)
    try:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    except asyncio.IncompleteReadError as error:
        assert not error.partial
        return b""


def with_length(token: bytes) -> bytes:
    return len(token).to_bytes(4) + token


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
def test_a_client_of_handshake_0_logs_in_without_requests_around_its_messages(
    run: Run[Any], start: Start, site: Site, log: Lines, mechanism: str, password: str
) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_PLAINTEXT", refusal_delay_ms=0)) as server:
            stream = await asyncio.open_connection("127.0.0.1", server.port)
            hands = await ask_raw(stream, encode_request(SaslHandshakeRequest(mechanism=mechanism), 0, 1, "c"))
            assert decode_response(hands, ApiKey.SASL_HANDSHAKE, 0).message.error_code == 0  # type: ignore[attr-defined]
            client = client_mechanism(Login(mechanism, "kafka", password), "nonce")
            token: bytes | None = client.first()
            answers = []
            while token is not None:
                answers.append(await ask_raw(stream, with_length(token)))
                token = client.answer(answers[-1]) if answers[-1] or mechanism == "PLAIN" else None
            beaten = b""
            with contextlib.suppress(ConnectionError):
                beaten = await ask_raw(stream, encode_request(HEARTBEAT, 1, 5, "c"))
            assert bool(beaten) == (password == PASSWORD)
            stream[1].transport.abort()

    run(story)
    assert site.seen == (["User:kafka"] if password == PASSWORD else [])
    assert PASSWORD not in str(log.lines)


def test_a_message_without_a_request_is_as_small_as_one_with() -> None:
    login = plain_login()
    assert login.take(request(SaslHandshakeRequest(mechanism="PLAIN"), 0), 0, 0) is not None and login.takes_tokens
    with pytest.raises(RemoteProtocolError, match="at most 65536"):
        login.take_token(bytes(LOGIN_BYTES_MAX + 1), 0, 0)
    assert login.take_token(b"\0kafka\0no", 0, 0) == Reply(
        b"", "PLAIN: Authentication failed: Invalid username or password"
    )
    assert login.state is State.REFUSED and not login.takes_tokens


def test_before_a_login_a_frame_is_small(run: Run[Any], start: Start, site: Site, log: Lines) -> None:
    async def story() -> None:
        async with await start(site.listener("SASL_PLAINTEXT")) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write((LOGIN_BYTES_MAX + 1).to_bytes(4, "big"))
            assert await reader.read() == b""
            writer.transport.abort()

    run(story)
    assert len(log.lines) == 1 and site.seen == []


def test_what_is_no_tls_is_told_and_ends(run: Run[Any], start: Start, site: Site, log: Lines) -> None:
    async def story() -> None:
        async with await start(site.listener("SSL")) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(encode_request(HEARTBEAT, 1, 5, "me"))
            await reader.read()
            writer.transport.abort()

    run(story)
    assert len(log.lines) == 1 and site.seen == []


# ---------------------------------------------------------------- the machine alone


def request(message: Any, version: int | None = None) -> Request:
    chosen = API[message.API_KEY].max_version if version is None else version
    return Request(message.API_KEY, chosen, 1, "c", message)


def plain_login(lifetime_ms: int = 0) -> ServerLogin:
    security = ListenerSecurity(ListenerSettings("SASL_PLAINTEXT", mechanisms={"PLAIN": USERS}))
    return ServerLogin(security._mechanisms, {"PLAIN": lifetime_ms} if lifetime_ms else {})


def reply(login: ServerLogin, message: Any, now_ms: int = 0, wall_ms: int = 0) -> Any:
    found = login.take(request(message), now_ms, wall_ms)
    assert isinstance(found, Reply)
    return found.message


ALICE = SaslAuthenticateRequest(auth_bytes=f"\0kafka\0{PASSWORD}".encode())
BOB = SaslAuthenticateRequest(auth_bytes=b"\0other\0x")


def logged_in(lifetime_ms: int = 0) -> ServerLogin:
    login = plain_login(lifetime_ms)
    assert reply(login, SaslHandshakeRequest(mechanism="PLAIN")) == SaslHandshakeResponse(mechanisms=("PLAIN",))
    assert reply(login, ALICE).error_code == 0
    assert login.user == "kafka" and login.is_in
    return login


@pytest.mark.parametrize("message", [HEARTBEAT, ALICE])
def test_nothing_but_the_login_has_a_place_before_it(message: Any) -> None:
    login = plain_login()
    with pytest.raises(RemoteProtocolError, match="before a login"):
        login.take(request(message), 0, 0)


def test_versions_are_asked_once_before_the_login_as_in_kafka() -> None:
    login = plain_login()
    assert login.take(request(ApiVersionsRequest()), 0, 0) is None
    with pytest.raises(RemoteProtocolError):
        login.take(request(ApiVersionsRequest()), 0, 0)


def test_between_handshake_and_proof_nothing_else_is_taken() -> None:
    login = plain_login()
    reply(login, SaslHandshakeRequest(mechanism="PLAIN"))
    for message in (HEARTBEAT, ApiVersionsRequest(), SaslHandshakeRequest(mechanism="PLAIN")):
        with pytest.raises(RemoteProtocolError):
            login.take(request(message), 0, 0)


def test_a_refused_client_is_refused_for_good() -> None:
    login = plain_login()
    reply(login, SaslHandshakeRequest(mechanism="PLAIN"))
    assert reply(login, SaslAuthenticateRequest(auth_bytes=b"\0kafka\0no")).error_code == 58
    assert login.state is State.REFUSED
    for message in (ALICE, SaslHandshakeRequest(mechanism="PLAIN"), HEARTBEAT, ApiVersionsRequest()):
        with pytest.raises(RemoteProtocolError):
            login.take(request(message), 0, 0)


def test_another_mechanism_is_refused_with_those_that_there_are() -> None:
    answer = reply(plain_login(), SaslHandshakeRequest(mechanism="GSSAPI"))
    assert answer == SaslHandshakeResponse(error_code=33, mechanisms=("PLAIN",))


def test_a_client_that_is_in_may_not_become_another_one() -> None:
    login = logged_in(lifetime_ms=5_000)
    reply(login, SaslHandshakeRequest(mechanism="PLAIN"), 2_000)
    answer = reply(login, BOB, 2_000)
    assert (answer.error_code, answer.error_message) == (58, "Cannot change principals during re-authentication")
    assert login.state is State.REFUSED


class ByToken:
    """A machine that lets in whoever has a token that expires then."""

    def __init__(self, expires_ms: int) -> None:
        self._expires_ms = expires_ms

    def answer(self, message: bytes) -> Answer:
        return Answer(b"", message.decode(), self._expires_ms)


def token_login(expires_ms: int, wall_ms: int, lifetime_ms: int = 0) -> tuple[ServerLogin, Any]:
    """A login by a token, and the answer to it."""
    login = ServerLogin({"X": lambda: ByToken(expires_ms)}, {"X": lifetime_ms} if lifetime_ms else {})
    reply(login, SaslHandshakeRequest(mechanism="X"))
    return login, reply(login, SaslAuthenticateRequest(auth_bytes=b"alice"), 100, wall_ms)


@pytest.mark.parametrize(("lifetime_ms", "holds_ms"), [(0, 2_000), (500, 500), (5_000, 2_000)])
def test_a_login_by_a_token_holds_until_that_expires_and_no_longer_than_any(lifetime_ms: int, holds_ms: int) -> None:
    login, answer = token_login(12_000, 10_000, lifetime_ms)
    assert answer.session_lifetime_ms == holds_ms
    assert login.user == "alice" and login.token_authenticated
    assert login.take(request(HEARTBEAT), 99 + holds_ms, 0) is None
    with pytest.raises(RemoteProtocolError, match="expired"):
        login.take(request(HEARTBEAT), 100 + holds_ms, 0)


def test_a_token_that_has_expired_is_no_login_and_that_is_said() -> None:
    login, answer = token_login(10_000, 10_000)
    assert (answer.error_code, answer.error_message) == (58, "Authentication failed: the delegation token has expired")
    assert login.state is State.REFUSED and not login.token_authenticated


def test_who_logs_in_again_without_a_token_is_no_longer_one_by_a_token() -> None:
    machines = iter([ByToken(12_000), plain({"alice": "x"})])
    login = ServerLogin({"X": lambda: next(machines)})
    reply(login, SaslHandshakeRequest(mechanism="X"))
    reply(login, SaslAuthenticateRequest(auth_bytes=b"alice"))
    assert login.token_authenticated
    reply(login, SaslHandshakeRequest(mechanism="X"), 2_000)
    reply(login, SaslAuthenticateRequest(auth_bytes=b"\0alice\0x"), 2_000)
    assert login.is_in and not login.token_authenticated


def test_a_second_renewal_within_a_second_is_not_taken_and_the_first_one_holds() -> None:
    login = logged_in(lifetime_ms=5_000)
    assert reply(login, SaslHandshakeRequest(mechanism="PLAIN"), 100).error_code == 0
    assert reply(login, ALICE, 100).session_lifetime_ms == 5_000
    assert reply(login, SaslHandshakeRequest(mechanism="PLAIN"), 1_099).error_code == 34
    assert login.is_in and login.take(request(HEARTBEAT), 5_099, 0) is None
    with pytest.raises(RemoteProtocolError, match="expired"):
        login.take(request(HEARTBEAT), 5_100, 0)


def test_a_client_that_renews_its_login_is_no_stranger() -> None:
    login = plain_login(5_000)
    assert login.is_stranger and not ServerLogin({}).is_stranger
    login = logged_in(5_000)
    reply(login, SaslHandshakeRequest(mechanism="PLAIN"), 2_000)
    assert not login.is_in and not login.is_stranger


def test_a_listener_with_sasl_and_no_mechanism_is_not_opened() -> None:
    with pytest.raises(ConfigError, match="everybody would be let in"):
        ListenerSecurity(ListenerSettings("SASL_SSL"))


def test_a_client_without_the_certificate_that_is_required_is_nobody() -> None:
    listener = ListenerSecurity(ListenerSettings("SSL", Tls("server", client_auth=REQUIRED)))
    with pytest.raises(ValueError, match="shown none"):
        listener.principal_of(None)


def test_without_sasl_a_handshake_is_answered_as_kafka_does() -> None:
    login = ServerLogin({})
    assert reply(login, SaslHandshakeRequest(mechanism="PLAIN")).error_code == 34
    assert reply(login, ALICE) == SaslAuthenticateResponse(
        error_code=34, error_message="SaslAuthenticate without a SaslHandshake"
    )
    assert login.take(request(HEARTBEAT), 0, 0) is None
