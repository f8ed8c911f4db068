"""Login of a client: TLS, and SASL over Kafka's own requests (KIP-43, KIP-152, KIP-368)."""

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
        """Return the answer to ``message``."""


async def context_of(security: "Security | None", timeout_ms: int) -> "ssl.SSLContext | None":
    """Return TLS for a connection, after a token for the later login is available.

    Raises:
        AuthenticationFailed: a keystore or truststore cannot be used, or was not read in time; or no token is possible.
        Disconnected: no token is available yet.
    """
    if security is None:
        return None
    # Before the connection: otherwise a wait for a token would look like a silent server.
    await mechanism_of(security, "", timeout_ms * 9 // 10)
    try:
        return await security.context(timeout_ms=timeout_ms)
    except KjbodError as error:
        raise AuthenticationFailed(str(error)) from None


async def mechanism_of(security: "Security", host: str, timeout_ms: int) -> "ClientMechanism | None":
    """Return the state machine for one login at this host, with its token if it needs one; None: no login.

    Raises:
        AuthenticationFailed: no token is possible until the configuration is changed.
        Disconnected: no token is available yet.
    """
    try:
        return await security.mechanism(host, timeout_ms=timeout_ms)
    except LoginUnavailable as error:
        raise Disconnected(str(error)) from None
    except KjbodError as error:
        raise AuthenticationFailed(str(error)) from None


async def log_in(server: Peer, security: "Security") -> int:
    """Authenticate by SASL if configured. Return the lifetime of the login in milliseconds, 0: no limit.

    Raises:
        AuthenticationFailed: the server lacks the mechanism, or one side does not trust the other.
        Disconnected: the connection broke, or no token is available yet.
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
    """Return a message for the server.

    Raises:
        AuthenticationFailed: the mechanism has none.
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
    """Return the mechanisms that a server offers before a login; empty if it requires no login.

    Raises:
        Disconnected: the connection broke.
        UnsupportedVersionError: the server does not know the request.
    """
    hands = await server.exchange(SaslHandshakeRequest(mechanism=""), None)
    assert isinstance(hands, SaslHandshakeResponse)
    return (
        tuple(sorted(map(said, hands.mechanisms))) if hands.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM else ()
    )
