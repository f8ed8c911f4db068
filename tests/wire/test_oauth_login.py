"""Our clients at our listener by OAUTHBEARER, over real connections, with a real identity provider: who is let in, for
how long, and what either side says of it."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from kjbod.clock import SystemClock
from kjbod.security.channel import Security
from kjbod.security.keys import ChannelSettings, ListenerSettings, Login
from kjbod.security.listener import ListenerSecurity
from kjbod.security.oauthbearer.exchange import Server as Exchange
from kjbod.security.oauthbearer.exchange import Verified
from kjbod.security.oauthbearer.keys import CLIENT_SECRET, Endpoint, TokenSettings, ValidatorSettings
from kjbod.wire.client import AuthenticationFailed, Connection, Disconnected
from kjbod.wire.connection import api_versions_response
from kjbod.wire.frames import Request
from kjbod.wire.limits import Limits
from kjbod.wire.messages import (
    ApiVersionsRequest,
    BrokerHeartbeatResponse,
    ResponseBody,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from kjbod.wire.server import Peer, Server, serve
from kjbod.wire.server_login import ServerLogin
from scripts.rig.identity_provider import AUDIENCE, ISSUER, IdentityProvider
from scripts.rig.identity_provider import CLIENT_SECRET as SECRET
from tests.wire.conftest import Lines, Run
from tests.wire.test_server_login import APIS, HEARTBEAT, request

MECHANISM = "OAUTHBEARER"


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


class Site:
    """A listener that takes the provider's tokens, and clients that have them."""

    def __init__(self, provider: IdentityProvider, log: Lines) -> None:
        self.provider = provider
        self.log = log
        self.seen: list[str] = []

    async def serve(self, reauthentication_ms: int = 0, **changes: Any) -> Server:
        jwks = Endpoint("s: url", self.provider.keys_url, backoff_ms=1, backoff_max_ms=2)
        given: dict[str, Any] = {"jwks": jwks, "audiences": (AUDIENCE,), "issuer": ISSUER, **changes}
        lifetimes = {MECHANISM: reauthentication_ms} if reauthentication_ms else {}
        settings = ListenerSettings(
            "SASL_PLAINTEXT", None, {MECHANISM: {}}, lifetimes, tokens=ValidatorSettings(**given)
        )
        security = ListenerSecurity(settings)
        with capture_logs():
            security.load()
        return await serve(
            "127.0.0.1",
            0,
            self._answer,
            apis=APIS,
            clock=SystemClock(),
            log=self.log,
            limits=Limits(),
            security=security,
        )

    def client(self, secret: str = SECRET, user: str = "alice") -> Security:
        endpoint = Endpoint("c: url", self.provider.token_url, backoff_ms=1, backoff_max_ms=2)
        settings = TokenSettings(CLIENT_SECRET, endpoint, client_id=user, client_secret=secret, extensions={"a": "b"})
        return Security(ChannelSettings("SASL_PLAINTEXT", None, Login(MECHANISM, user, token=settings)))

    async def _answer(self, request: Request, peer: Peer) -> ResponseBody:
        self.seen.append(peer.principal)
        if isinstance(request.message, ApiVersionsRequest):
            return api_versions_response(request, APIS)
        return BrokerHeartbeatResponse(is_caught_up=True)


@pytest.fixture
def site(provider: IdentityProvider, log: Lines) -> Site:
    return Site(provider, log)


async def connect(server: Server, security: Security) -> Connection:
    return await Connection.open("127.0.0.1", server.port, client_id="t", clock=SystemClock(), security=security)


def test_a_client_is_who_its_token_says(run: Run[Any], site: Site) -> None:
    async def story() -> None:
        client = site.client()
        async with await site.serve() as server:
            for _ in range(3):
                async with await connect(server, client) as connection:
                    assert (await connection.request(HEARTBEAT, timeout_ms=20_000)).is_caught_up
        assert set(site.seen) == {"User:ANONYMOUS", "User:alice"}
        assert [path for path, *_ in site.provider.asked].count("/token") == 1

    run(story)


def test_a_token_that_is_not_taken_is_told_to_both_and_only_the_server_says_why(run: Run[Any], site: Site) -> None:
    async def story() -> None:
        async with await site.serve(audiences=("another",)) as server:
            with pytest.raises(AuthenticationFailed) as caught:
                await connect(server, site.client())
            said = f'127.0.0.1:{server.port} does not believe OAUTHBEARER of alice: {{"status":"invalid_token"}}'
        assert str(caught.value) == said
        assert site.log.reasons()[:1] == [
            f'OAUTHBEARER: the token is for ["{AUDIENCE}"] (aud), not for sasl.oauthbearer.expected.audience'
        ]
        assert site.seen == ["User:ANONYMOUS"]

    run(story)


def test_without_a_token_nobody_is_even_connected_to(run: Run[Any], site: Site) -> None:
    async def story() -> None:
        async with await site.serve() as server:
            with pytest.raises(AuthenticationFailed, match="/token answers HTTP 401: invalid_client"):
                await connect(server, site.client("wrong"))
            site.provider.answers.extend([(503, b"")] * 20)
            with pytest.raises(Disconnected, match="/token answers HTTP 503") as caught:
                await connect(server, site.client())
            assert not isinstance(caught.value, AuthenticationFailed)
            assert server.connections == 0 and site.seen == []

    run(story)


@pytest.mark.parametrize(("reauthentication_ms", "lifetime_s"), [(1_500, 3_600), (0, 3)])
def test_a_login_holds_as_long_as_its_token_or_the_listener_says_and_is_renewed(
    run: Run[Any], site: Site, reauthentication_ms: int, lifetime_s: int
) -> None:
    """KIP-368: what ends first, ``exp`` or ``connections.max.reauth.ms``."""

    async def story() -> None:
        began = SystemClock().wall_ms() // 1000
        site.provider.changes = {"exp": began + lifetime_s} if lifetime_s < 60 else {}
        async with await site.serve(reauthentication_ms) as server, await connect(server, site.client()) as connection:
            site.provider.changes = {}
            while connection.logins < 1:  # the story's timeout bounds it
                assert (await connection.request(HEARTBEAT, timeout_ms=20_000)).is_caught_up
                await asyncio.sleep(0.05)

    run(story)


def test_a_token_that_only_the_skew_saves_lets_nobody_ask_anything() -> None:
    login = ServerLogin({MECHANISM: lambda: Exchange(lambda _: Verified("alice", 0))}, {MECHANISM: 60_000})
    login.take(request(SaslHandshakeRequest(mechanism=MECHANISM)), 1_000, 1_000)
    login.take(request(SaslAuthenticateRequest(auth_bytes=b"n,,\x01auth=Bearer a.b.c\x01\x01")), 1_000, 1_000)
    assert login.is_in and not login.serves(1_000)


async def test_only_a_login_by_a_token_waits_for_the_keys_of_others() -> None:
    listener = ListenerSecurity(ListenerSettings("SASL_PLAINTEXT", mechanisms={"PLAIN": {"a": "b"}, MECHANISM: {}}))
    asked: list[str] = []

    class Hanging:
        async def ready(self) -> None:
            asked.append("keys")

    listener._validator = cast(Any, Hanging())
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "GSSAPI", ""):
        await listener.ready(mechanism)
    assert asked == []
    await listener.ready(MECHANISM)
    assert asked == ["keys"]
