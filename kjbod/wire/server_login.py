"""The server's half of a login over Kafka's own requests, as a state machine without I/O (``SaslServerAuthenticator``
of 4.3.1, KIP-43, KIP-152, KIP-368).

A login by a delegation token is valid until the token expires. Kafka accepts an expired token that is still in the
metadata, and closes the connection at its first request; here the login is refused.

======================  ======================================  =====================================================
state                   takes                                   and then
======================  ======================================  =====================================================
``GREETING``            ApiVersions                             ``HANDSHAKE``; answered by the handler
``GREETING, HANDSHAKE`` SaslHandshake of a mechanism we have    ``PROVING``
``GREETING, HANDSHAKE`` SaslHandshake of another one            error 33 with ours, end
``PROVING``             SaslAuthenticate                        ``PROVING``, or ``IN`` where the client has proved who
                                                                it is, or error 58, end
``PROVING``             behind SaslHandshake 0, a message of    the same, without a request around the answer; refused:
                        the mechanism itself                    end without an answer
``IN``                  SaslHandshake, a second after the last  ``RENEWING``, with the same mechanism
                        renewal
``IN``                  any other one                           handler; the end where the login has expired
``RENEWING``            SaslAuthenticate                        as ``PROVING``; the client must be the same
======================  ======================================  =====================================================

Other requests end the connection. A listener without SASL is ``IN`` from the start, and answers SaslHandshake with
ILLEGAL_SASL_STATE, as Kafka does.
"""

import functools
from collections.abc import Callable, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from kjbod.errors import RemoteProtocolError
from kjbod.security.sasl_server import Answer, Refused, ServerMechanism, SlowMechanism
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request
from kjbod.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    ResponseBody,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

_WITH_REQUESTS: Final = 1
"""Version of SaslHandshake after which SASL messages are wrapped in requests (KIP-152)."""
AGAIN_AFTER_MS: Final = 1_000
"""Minimum time between two renewals of a login (``KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``)."""
BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""Requests that are allowed before a login."""
SASL_APIS: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
LOGIN_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a request before the login. Kafka accepts 512 KiB (``sasl.server.max.receive.size``), for Kerberos
tickets."""
_API_KEY_BYTES: Final = 2


def require_before_login(frame: bytes) -> None:
    """Check the API of an unauthenticated client's request, before it is decoded.

    Raises:
        RemoteProtocolError: the request needs a login.
    """
    key = int.from_bytes(frame[:_API_KEY_BYTES])
    if key not in BEFORE_LOGIN:
        raise RemoteProtocolError(f"a request of API {key} before a login")


class State(Enum):
    """State of a login; see the table of the module."""

    GREETING = auto()
    HANDSHAKE = auto()
    PROVING = auto()
    IN = auto()
    RENEWING = auto()
    REFUSED = auto()


class Reply(Struct, frozen=True):
    """Answer that no handler gives.

    Attributes:
        message: message to send; bytes: a raw SASL message with only a length, or none for a refused client.
        refused: reason for the log why the connection ends after it; empty: the connection continues.
    """

    message: ResponseBody | bytes
    refused: str = ""


class ServerLogin:
    """The login of one connection.

    Args:
        mechanisms: makes the state machine of one exchange, by mechanism; empty: the listener has no SASL.
        lifetimes_ms: ``connections.max.reauth.ms`` by mechanism; a mechanism without an entry has no limit.

    Attributes:
        state: current state of the login.
        user: user that the client has proved to be.
        token_authenticated: whether the client logged in by a delegation token.
        takes_tokens: whether raw SASL messages come next, without requests around them.
    """

    def __init__(
        self,
        mechanisms: Mapping[str, Callable[[], ServerMechanism]],
        lifetimes_ms: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._mechanisms = mechanisms
        self._lifetimes_ms = lifetimes_ms
        self._chosen = ""
        self._machine: ServerMechanism | None = None
        self._renewed_ms: int | None = None
        self._expires_ms: int | None = None
        self.state = State.GREETING if mechanisms else State.IN
        self.user: str | None = None
        self.token_authenticated = False
        self.takes_tokens = False
        self._session_ms = 0

    @property
    def is_in(self) -> bool:
        """Whether requests go to the handler."""
        return self.state is State.IN

    @property
    def is_stranger(self) -> bool:
        """Whether the client must authenticate and never has."""
        return self.user is None and bool(self._mechanisms)

    def serves(self, now_ms: int) -> bool:
        """Return whether a request for the handler would be accepted."""
        return self.state is State.IN and (self._expires_ms is None or now_ms < self._expires_ms)

    def mechanism_of(self, request: Request) -> str:
        """Return the mechanism of a SASL request; empty: none yet."""
        message = request.message
        return message.mechanism if isinstance(message, SaslHandshakeRequest) else self._chosen

    def work(self, token: bytes) -> Callable[[], None] | None:
        """Return work to do in a thread before a SASL message is processed; None: there is none."""
        machine = self._machine
        return functools.partial(machine.work, token) if isinstance(machine, SlowMechanism) else None

    def take(self, request: Request, now_ms: int, wall_ms: int) -> Reply | None:
        """Process a request; None: it is the handler's. ``wall_ms``: milliseconds since 1970, for the end of delegation
        tokens.

        Raises:
            RemoteProtocolError: the request is not allowed in this state; close the connection without an answer.
        """
        message = request.message
        if self.state is State.IN and not isinstance(message, (SaslHandshakeRequest, SaslAuthenticateRequest)):
            if self._expires_ms is not None and now_ms >= self._expires_ms:
                raise RemoteProtocolError("its login has expired, and was not renewed")
            return None
        match message:
            case ApiVersionsRequest() if self.state is State.GREETING:
                self.state = State.HANDSHAKE
                return None
            case SaslHandshakeRequest() if self.state in (State.GREETING, State.HANDSHAKE, State.IN):
                return self._shake_hands(message, request.version, now_ms)
            case SaslAuthenticateRequest() if self.state in (State.PROVING, State.RENEWING):
                return self._prove(message, now_ms, wall_ms)
            case SaslAuthenticateRequest() if self.state is State.IN:
                return Reply(_refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate without a SaslHandshake"))
        raise RemoteProtocolError(f"{request.api_key.name} before a login")

    def take_token(self, token: bytes, now_ms: int, wall_ms: int) -> Reply:
        """Process a raw SASL message, if :attr:`takes_tokens`.

        Raises:
            RemoteProtocolError: the message is too large.
        """
        if len(token) > LOGIN_BYTES_MAX:
            raise RemoteProtocolError(f"{len(token)} bytes of {self._chosen}: at most {LOGIN_BYTES_MAX}")
        try:
            return Reply(self._answer(token, now_ms, wall_ms))
        except Refused as error:
            return Reply(b"", f"{self._chosen}: {error.reason}")

    def _shake_hands(self, message: SaslHandshakeRequest, version: int, now_ms: int) -> Reply:
        ours = tuple(self._mechanisms)
        early = self._renewed_ms is not None and now_ms - self._renewed_ms < AGAIN_AFTER_MS
        if not ours or (self.state is State.IN and early):
            return Reply(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=ours))
        offered = (self._chosen,) if self.state is State.IN else ours
        if message.mechanism not in offered:
            self.state = State.REFUSED
            answer = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
            return Reply(answer, "it asked for a mechanism of SASL that is not offered")
        self._chosen = message.mechanism
        self._machine = self._mechanisms[message.mechanism]()
        if self.state is State.IN:
            self._renewed_ms = now_ms
        self.state = State.RENEWING if self.state is State.IN else State.PROVING
        self.takes_tokens = version < _WITH_REQUESTS
        return Reply(SaslHandshakeResponse(mechanisms=ours))

    def _prove(self, message: SaslAuthenticateRequest, now_ms: int, wall_ms: int) -> Reply:
        try:
            answer = self._answer(message.auth_bytes, now_ms, wall_ms)
        except Refused as error:
            refusal = _refusal(ErrorCode.SASL_AUTHENTICATION_FAILED, str(error))
            return Reply(refusal, f"{self._chosen}: {error.reason}")
        lifetime_ms = self._session_ms if self.is_in else 0
        return Reply(SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms))

    def _answer(self, token: bytes, now_ms: int, wall_ms: int) -> bytes:
        """Return the mechanism's answer, after which the client may be logged in. Raises :class:`Refused`."""
        assert self._machine is not None
        try:
            answer = self._machine.answer(token)
            if answer.user is not None and self.state is State.RENEWING and answer.user != self.user:
                raise Refused("Cannot change principals during re-authentication")
            if answer.token_expires_ms is not None and answer.token_expires_ms <= wall_ms:
                raise Refused("Authentication failed: the delegation token has expired")
        except Refused:
            self.state, self.takes_tokens = State.REFUSED, False
            raise
        if answer.user is not None:
            self.user, self._machine, self.state, self.takes_tokens = answer.user, None, State.IN, False
            self.token_authenticated = answer.token_expires_ms is not None
            self._begin_session(answer, now_ms, wall_ms)
        return answer.reply

    def _begin_session(self, answer: Answer, now_ms: int, wall_ms: int) -> None:
        """Note the time at which the login ends."""
        of_token_ms = None if answer.token_expires_ms is None else answer.token_expires_ms - wall_ms
        limits_ms = (self._lifetimes_ms.get(self._chosen) or None, answer.lifetime_ms, of_token_ms)
        lifetime_ms = min((one for one in limits_ms if one is not None), default=None)
        # Nothing may be left of a token that the difference of two clocks saves: then no request is taken.
        self._expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        self._session_ms = lifetime_ms or 0


def _refusal(code: ErrorCode, words: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=words)
