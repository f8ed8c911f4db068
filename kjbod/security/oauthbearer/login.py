"""Get the token of a login in a thread, keep it, and renew it before its end, even while no connection needs it
(``OAuthBearerLoginCallbackHandler``, ``ExpiringCredentialRefreshingLogin``, ``Retry`` of 4.3.1).

All connections share one request to the endpoint. While no new token is available, the current token is used until its
end. After a failure the endpoint is left alone for ``sasl.login.retry.backoff.max.ms``, or for 10 s while a token is
still valid. Tokens and secrets are never logged.
"""

import asyncio
import random
import time
import uuid
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from kjbod.clock import Clock, SystemClock, system_random
from kjbod.errors import KjbodError, LoginUnavailable
from kjbod.printable import printable
from kjbod.security.aside import in_thread, on_this_loop
from kjbod.security.oauthbearer.http import ask, read
from kjbod.security.oauthbearer.keys import UNSECURED, Assertion, TokenSettings
from kjbod.security.oauthbearer.tokens import (
    SAID_MAX,
    Token,
    assertion_parts,
    object_of,
    parse_answer,
    pauses_ms,
    renew_at_ms,
    request_of,
    token_of,
    unsecured_token,
)

AGAIN_AFTER_MS: Final = 10_000
"""Pause after a failed renewal (``DELAY_SECONDS_BEFORE_NEXT_RETRY_WHEN_RELOGIN_FAILS``)."""
TIMER_MS_MAX: Final = 24 * 3_600_000
"""Longest timer of the event loop: a token may be valid for years."""
_WHAT: Final = "the token endpoint"
LOGIN_CLASS: Final = "sasl.login.callback.handler.class"
_log = structlog.get_logger("kjbod.security")


class Tokens:
    """Tokens of one login.

    Args:
        settings: settings with which tokens are requested.
        clock: its wall clock is compared with the times of tokens.
        rng: random source for renewal times and assertion ids.
    """

    def __init__(self, settings: TokenSettings, clock: Clock | None = None, rng: "random.Random | None" = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._token: Token | None = None
        self._got_ms = 0
        self._renew_at_ms = 0
        self._not_before_ms = 0
        self._failure: KjbodError | None = None
        self._under_way: Future[Token] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if settings.grant == UNSECURED:
            _log.warning("security.login.unsecured", reason=f"no {LOGIN_CLASS}: its token has no signature")

    async def current(self, *, timeout_ms: int) -> Token:
        """Return a token that has not ended.

        Raises:
            LoginUnavailable: no token is available now, or none in time.
            KjbodError: no token is possible until the configuration is changed.
        """
        token, now_ms = self._token, self._clock.wall_ms()
        if token is None or now_ms >= token.expires_ms:
            if self._failure is not None and self._clock.monotonic_ms() < self._not_before_ms:
                kind = LoginUnavailable if isinstance(self._failure, LoginUnavailable) else KjbodError
                raise kind(str(self._failure))
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    token = await asyncio.shield(on_this_loop(self._begin()))
            except TimeoutError:
                raise LoginUnavailable(f"{self._where} gave no token within {timeout_ms} ms") from None
        self._plan(asyncio.get_running_loop())
        return token

    def not_believed(self) -> None:
        """Note that a server refused the token. The next call gets a new token, unless this one was just obtained.
        Kafka uses a refused token until its end, even after the cause was repaired."""
        if self._clock.monotonic_ms() - self._got_ms >= AGAIN_AFTER_MS:
            self._token = None

    @property
    def _where(self) -> str:
        endpoint = self.settings.endpoint
        if endpoint is None:
            return "the JAAS entry"
        return f"{_WHAT} {endpoint.shown}" if endpoint.path is None else f"{endpoint.key}: {endpoint.path}"

    def _plan(self, loop: asyncio.AbstractEventLoop) -> None:
        """Plan the renewal on this event loop; the previous event loop may have ended."""
        if self._timer is not None and self._loop is loop:
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_ms = self._renew_at_ms - self._clock.wall_ms()
        if self._failure is not None:
            wait_ms = max(wait_ms, AGAIN_AFTER_MS)
        self._loop = loop
        self._timer = loop.call_later(min(TIMER_MS_MAX, max(0, wait_ms)) / 1000, self._renew, loop)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._clock.wall_ms() < self._renew_at_ms:
            self._plan(loop)
            return
        on_this_loop(self._begin()).add_done_callback(lambda _: self._plan(loop))

    def _begin(self) -> Future[Token]:
        if self._under_way is None or self._under_way.done():
            self._under_way = in_thread(self._get, "no token can be got")
        return self._under_way

    # ---- in the thread

    def _get(self) -> Token:
        """Return a new token. Each failure is logged once."""
        try:
            token = self._read(self._text())
        except KjbodError as error:
            self._not_before_ms = self._clock.monotonic_ms() + self._spared_ms
            if str(error) != str(self._failure or "") and self._token is not None:
                _log.warning("security.token.not.renewed", reason=str(error))
            self._failure = error
            raise
        again = self._token is not None
        now_ms = self._clock.wall_ms()
        self._renew_at_ms = renew_at_ms(token, self.settings.refresh, now_ms, self._rng.random())
        self._token, self._failure, self._got_ms = token, None, self._clock.monotonic_ms()
        if again:
            expires_at = datetime.fromtimestamp(min(token.expires_ms // 1000, 253_402_300_799), UTC).isoformat()
            _log.info("security.token.renewed", subject=printable(token.subject, SAID_MAX), expires_at=expires_at)
        return token

    @property
    def _spared_ms(self) -> int:
        return 0 if self.settings.endpoint is None else self.settings.endpoint.backoff_max_ms

    def _read(self, text: str) -> Token:
        settings, now_ms = self.settings, self._clock.wall_ms()
        try:
            token = token_of(text, settings)
        except ValueError as error:
            raise KjbodError(f"{self._where} gives no token that can be used: its {error}") from None
        if now_ms >= token.expires_ms:
            ago = f"{(now_ms - token.expires_ms) // 1000} s ago"
            raise LoginUnavailable(f"{self._where} gives a token that ended {ago}: are the clocks of both right?")
        return token

    def _text(self) -> str:
        settings = self.settings
        if settings.grant == UNSECURED or settings.endpoint is None:
            return unsecured_token(settings.options, self._clock.wall_ms())[0]
        if settings.endpoint.path is not None:
            return _decoded(settings.endpoint.key, read(settings.endpoint.key, settings.endpoint.path))
        endpoint, pauses = settings.endpoint, pauses_ms(settings.endpoint.backoff_ms, settings.endpoint.backoff_max_ms)
        while True:
            try:
                headers, body = request_of(settings, self._assertion())
                return parse_answer(endpoint.shown, *ask(endpoint, _WHAT, "POST", headers, body, self._clock))
            except LoginUnavailable:
                pause_ms = next(pauses, None)
                if pause_ms is None:
                    raise
                time.sleep(pause_ms / 1000)

    def _assertion(self) -> str:
        assertion = self.settings.assertion
        if assertion is None:
            return ""
        if assertion.file is not None:
            key = "sasl.oauthbearer.assertion.file"
            return _decoded(key, read(key, assertion.file)).strip()
        return self._signed(assertion)

    def _signed(self, assertion: Assertion) -> str:
        template: Any = {}
        try:
            if assertion.template is not None:
                template = object_of(read("sasl.oauthbearer.assertion.template.file", assertion.template))
            token_id = str(uuid.UUID(bytes=self._rng.randbytes(16), version=4))
            header, claims = assertion_parts(assertion, template, self._clock.wall_ms() // 1000, token_id)
        except ValueError as error:
            raise KjbodError(f"sasl.oauthbearer.assertion.template.file: {assertion.template}: {error}") from None
        from kjbod.security.oauthbearer.signing import sign

        key = "sasl.oauthbearer.assertion.private.key.file"
        assert assertion.private_key is not None
        pem = read(key, assertion.private_key)
        try:
            return sign(header, claims, pem, assertion.passphrase)
        except ValueError as error:
            raise KjbodError(f"{key}: {assertion.private_key}: {error}") from None


def _decoded(key: str, data: bytes) -> str:
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise KjbodError(f"{key}: expected a file with a token") from None
