"""Delegation tokens at a controller that serves with SASL: asked for straight, kept over a restart, and as a login."""

import asyncio
import base64
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.security.channel import Security
from kjbod.security.keys import ChannelSettings, Login
from kjbod.wire.admin_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenRequestCreatableRenewers,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from kjbod.wire.client import AuthenticationFailed, Connection, Disconnected
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import encode_request
from kjbod.wire.messages import EnvelopeRequest, RequestBody
from kjbod.wire.principals import ForwardedPrincipal, encode_principal
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Serving, Site
from tests.controller.test_administration_kafka import LOCALHOST

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
ALICE = Login("PLAIN", "alice", "x")
HOUR_MS = 3_600_000
TIMEOUT_MS = 20_000


@pytest.fixture
def site(site: Site) -> Site:
    """Its users log in by PLAIN, and whoever has a token by SCRAM."""
    site.configure(
        listener_security_protocol_map="CONTROLLER:SASL_PLAINTEXT",
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        listener_name_controller_plain_sasl_jaas_config=f'{PLAIN} required user_alice="x" user_bob="x";',
        delegation_token_secret_key="the secret",
    )
    return site


@asynccontextmanager
async def known(server: ControllerServer, login: Login = ALICE) -> AsyncIterator[Connection]:
    security = Security(ChannelSettings("SASL_PLAINTEXT", None, login))
    async with await Connection.open(
        "127.0.0.1", server.port, client_id="t", clock=SystemClock(), security=security
    ) as connection:
        yield connection


async def ask(server: ControllerServer, request: RequestBody[Any], login: Login = ALICE) -> Any:
    async with known(server, login) as connection:
        return await connection.request(request, timeout_ms=TIMEOUT_MS)


async def create(server: ControllerServer, login: Login = ALICE, **fields: Any) -> CreateDelegationTokenResponse:
    answer = await ask(server, CreateDelegationTokenRequest(**{"max_lifetime_ms": -1} | fields), login)
    assert isinstance(answer, CreateDelegationTokenResponse)
    return answer


def by(token: CreateDelegationTokenResponse, mechanism: str = "SCRAM-SHA-256") -> Login:
    return Login(mechanism, token.token_id, base64.b64encode(token.hmac).decode(), is_token=True)


def renewing(token: CreateDelegationTokenResponse) -> RenewDelegationTokenRequest:
    return RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=HOUR_MS)


async def test_a_user_gets_a_token_that_is_a_login_for_all_but_tokens(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        token = await create(server)
        assert (token.error_code, token.principal_name) == (0, "alice")
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            refused = await create(server, by(token, mechanism))
            assert refused.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert refused.principal_name == "alice"
        with pytest.raises(AuthenticationFailed, match="invalid credentials"):
            await create(server, dataclasses.replace(by(token), password=token.token_id))


async def test_tokens_outlive_a_restart(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        kept, ended = await create(server), await create(server)
        await ask(server, ExpireDelegationTokenRequest(hmac=ended.hmac, expiry_time_period_ms=-1))
    async with serving(site) as server:
        async with known(server, by(kept)):
            pass
        assert (await ask(server, renewing(kept))).error_code == 0
        assert (await ask(server, renewing(ended))).error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        with pytest.raises(AuthenticationFailed, match="invalid credentials"):
            await ask(server, renewing(kept), by(ended))


async def test_a_token_that_has_expired_lets_nobody_in_before_it_is_removed(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        token = await create(server)
        await ask(server, ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=0))
        with pytest.raises(AuthenticationFailed, match="the delegation token has expired"):
            await ask(server, renewing(token), by(token))
        assert token.token_id in server.controller.image.delegation_tokens


async def test_a_connection_by_a_token_ends_with_it(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        token = await create(server, max_lifetime_ms=700)
        async with known(server, by(token)) as connection:
            with pytest.raises((Disconnected, AuthenticationFailed)):
                async with asyncio.timeout(60):
                    while True:
                        await connection.request(renewing(token), timeout_ms=TIMEOUT_MS)
        assert (await ask(server, renewing(token))).error_code == ErrorCode.DELEGATION_TOKEN_EXPIRED


async def test_a_hundred_thousand_renewers_cost_their_sender_the_connection_and_nobody_else(
    site: Site, serving: Serving
) -> None:
    names = (str(number) for number in range(100_000))
    renewers = tuple(
        CreateDelegationTokenRequestCreatableRenewers(principal_type="User", principal_name=name) for name in names
    )
    request = CreateDelegationTokenRequest(max_lifetime_ms=-1, renewers=renewers)
    envelope = EnvelopeRequest(
        request_data=encode_request(request, 3, 5, "client")[4:],
        request_principal=encode_principal(ForwardedPrincipal.of("User:alice")),
        client_host_address=LOCALHOST,
    )
    async with serving(site) as server, known(server) as other:
        with pytest.raises(Disconnected):
            await ask(server, request)
        assert (await ask(server, envelope)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert not server.controller.image.delegation_tokens
        answer = await other.request(CreateDelegationTokenRequest(max_lifetime_ms=-1), timeout_ms=TIMEOUT_MS)
        assert answer.error_code == 0
