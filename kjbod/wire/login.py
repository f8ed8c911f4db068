"""The client's login: TLS as it is to be, and SASL over Kafka's own requests (KIP-43, KIP-152, KIP-368)."""

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from kjbod.errors import KjbodError, LoginUnavailable, RemoteProtocolError
from kjbod.wire import error_codes
from kjbod.wire.connection_setup import TIMEOUT_MS
from kjbod.wire.disconnections import WHERE, AuthenticationFailed, Disconnected, said
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    RequestBody,
    ResponseBody,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    import ssl

    from kjbod.security.channel import Security
    from kjbod.security.sasl import ClientMechanism


class Peer(Protocol):
    """A connection that has agreed on versions."""

    peer: str

    def exchange(self, message: RequestBody[Any], version: int | None) -> Awaitable[ResponseBody]:
        """The answer to ``message``."""


async def context_of(security: "Security | None", timeout_ms: int) -> "ssl.SSLContext | None":
    """TLS of a connection; a token for the login behind it is there then, too.

    Raises:
        AuthenticationFailed: a keystore or truststore cannot be used, or was not read in time; there is no token.
        Disconnected: there is no token yet.
    """
    if security is None:
        return None
    # Before it is connected: whoever waits for a token is not to be told that the server has not answered.
    await mechanism_of(security, "", timeout_ms * 9 // 10)
    try:
        return await security.context(timeout_ms=timeout_ms)
    except KjbodError as error:
        raise AuthenticationFailed(str(error)) from None


async def mechanism_of(security: "Security", host: str, timeout_ms: int) -> "ClientMechanism | None":
    """The machine for one login at this host, with a token where it has one; None: there is no login.

    Raises:
        AuthenticationFailed: there is no token before somebody has changed something.
        Disconnected: there is none yet.
    """
    try:
        return await security.mechanism(host, timeout_ms=timeout_ms)
    except LoginUnavailable as error:
        raise Disconnected(str(error)) from None
    except KjbodError as error:
        raise AuthenticationFailed(str(error)) from None


async def log_in(server: Peer, security: "Security") -> int:
    """Authenticate by SASL, where it is to be; for how many milliseconds that holds, 0: for good.

    Raises:
        AuthenticationFailed: the server does not have the mechanism, or does not believe us, or we not it.
        Disconnected: the connection broke, or there is no token yet.
    """
    mechanism = await mechanism_of(security, server.peer.rpartition(":")[0], TIMEOUT_MS)
    login = security.settings.login
    if mechanism is None or login is None:
        return 0
    hands = await server.exchange(SaslHandshakeRequest(mechanism=login.mechanism), None)
    assert isinstance(hands, SaslHandshakeResponse)
    if hands.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(f"{server.peer} asks for no SASL, and {security.settings.protocol} does: {WHERE}")
    if hands.error_code:
        offered = said(", ".join(sorted(hands.mechanisms)) or "none")
        raise AuthenticationFailed(f"{server.peer} does not offer {login.mechanism}: its mechanisms are {offered}")
    message = await _step(server, security, mechanism, mechanism.first)
    lifetime_ms = 0
    while message is not None:
        answer = await server.exchange(SaslAuthenticateRequest(auth_bytes=message), None)
        assert isinstance(answer, SaslAuthenticateResponse)
        if answer.error_code:
            security.not_believed()
            why = said(answer.error_message or error_codes.name_of(answer.error_code))
            raise AuthenticationFailed(f"{server.peer} does not believe {login.mechanism} of {login.whose}: {why}")
        lifetime_ms = answer.session_lifetime_ms
        message = await _step(server, security, mechanism, functools.partial(mechanism.answer, answer.auth_bytes))
    return lifetime_ms


async def _step(
    server: Peer, security: "Security", mechanism: "ClientMechanism", work: Callable[[], bytes | None]
) -> bytes | None:
    """A message for the server.

    Raises:
        AuthenticationFailed: there is none.
    """
    try:
        return await security.step(mechanism, work)
    except RemoteProtocolError as error:
        raise AuthenticationFailed(f"{server.peer} is not believed: {error}") from None
    except KjbodError as error:
        login = security.settings.login
        assert login is not None
        raise AuthenticationFailed(f"no {login.mechanism} of {login.whose} at {server.peer}: {error}") from None


async def mechanisms(server: Peer) -> tuple[str, ...]:
    """Mechanisms that a server offers to who has not logged in yet; none where it asks for no login.

    Raises:
        Disconnected: the connection broke.
        UnsupportedVersionError: it does not know the question.
    """
    hands = await server.exchange(SaslHandshakeRequest(mechanism=""), None)
    assert isinstance(hands, SaslHandshakeResponse)
    return (
        tuple(sorted(map(said, hands.mechanisms))) if hands.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else ()
    )
