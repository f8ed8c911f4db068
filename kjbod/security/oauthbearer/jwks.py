"""Public keys of the token issuers, for a listener (``RefreshingHttpsJwks`` of 4.3.1).

A thread reads the keys at the start of the listener. A login reads them again after
``sasl.oauthbearer.jwks.endpoint.refresh.ms``, and once for an unknown key: that token is refused, and the next login
may succeed. While the keys cannot be read, the previous keys stay in use. Without any keys, no client can log in.

Kafka does not start while the endpoint does not answer. Here the listener starts, logs the failure, and refuses logins
until the endpoint answers. The other tasks of the process, such as the disks of a broker, do not wait for that host.
"""

import asyncio
import time
from collections import OrderedDict
from concurrent.futures import Future
from typing import Final

import structlog

from kjbod.clock import Clock, SystemClock
from kjbod.errors import KjbodError, LoginUnavailable
from kjbod.security.aside import in_thread, on_this_loop
from kjbod.security.oauthbearer.exchange import Invalid, Verified
from kjbod.security.oauthbearer.http import ask, read
from kjbod.security.oauthbearer.keys import Endpoint, ValidatorSettings
from kjbod.security.oauthbearer.tokens import pauses_ms
from kjbod.security.oauthbearer.validation import Key, UnknownKey, parse_keys, validate, validate_unsecured

FIRST_PATIENCE_MS: Final = 10_000
"""Maximum time that a login waits for keys if no keys have been read yet."""
MISSING_FOR_MS: Final = 60_000
"""Time in which a key that was not found is not requested again (``MISSING_KEY_ID_CACHE_IN_FLIGHT_MS``)."""
MISSING_MAX: Final = 16
"""Maximum remembered keys that were not found; as in Kafka a new one replaces the oldest."""
ASKED_AT_MOST_EVERY_MS: Final = 1_000
"""Minimum time between two requests for unknown keys, so that strangers cannot flood the endpoint."""
_WHAT: Final = "the key set"
_log = structlog.get_logger("kjbod.security")


class Validator:
    """Checks of tokens for a listener.

    Args:
        settings: rules of the tokens.
        clock: its wall clock is compared with the times of tokens.
    """

    def __init__(self, settings: ValidatorSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._keys: tuple[Key, ...] = ()
        self._read_ms: int | None = None
        self._asked_ms: int | None = None
        self._failed_ms: int | None = None
        self._failure = ""
        self._missing: OrderedDict[str | None, int] = OrderedDict()
        self._under_way: Future[None] | None = None

    def load(self) -> None:
        """Read the keys of a file, or begin to request them from the endpoint. Blocks for a file only.

        Raises:
            KjbodError: the file cannot be used.
        """
        if self._settings.jwks is None:
            _log.warning("security.tokens.unsecured", reason="this listener takes unsigned tokens: of whoever comes")
            return
        settings = self._settings
        lacking = [name for name, has in (("audience", settings.audiences), ("issuer", settings.issuer)) if not has]
        if lacking:  # without an expected audience, tokens with an audience are refused
            keys = " and ".join(f"sasl.oauthbearer.expected.{name}" for name in lacking)
            _log.warning("security.tokens.of.anybody", reason=f"{keys}: expected it, as tokens may be meant for others")
        if self._settings.jwks.path is not None:
            self._read(self._settings.jwks)
        else:
            self._begin(self._settings.jwks)

    async def ready(self) -> None:
        """Wait until keys are there, or until they cannot be read. Previous keys stay in use during a refresh: the
        issuer's endpoint may hang, and brokers must not wait for it."""
        if self._settings.jwks is None or self._settings.jwks.path is not None:
            return
        if not self._is_due:
            return
        asked = on_this_loop(self._begin(self._settings.jwks))
        if self._keys:
            return
        try:
            async with asyncio.timeout(FIRST_PATIENCE_MS / 1000):
                await asyncio.shield(asked)
        except (TimeoutError, KjbodError):
            return  # the failure was logged where it happened; the login is checked with the keys at hand

    def verify(self, token: str) -> Verified:
        """Check a token.

        Raises:
            Invalid: the token is refused.
        """
        now_ms = self._clock.wall_ms()
        if self._settings.jwks is None:
            return validate_unsecured(token, self._settings, now_ms)
        if not self._keys:
            raise Invalid(f"there are no keys yet: {self._failure}")
        try:
            return validate(token, self._keys, self._settings, now_ms)
        except UnknownKey as error:
            self._look_for(error.key_id)
            raise

    @property
    def _is_due(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        assert self._settings.jwks is not None
        if self._failed_ms is not None and now_ms - self._failed_ms < self._settings.jwks.backoff_max_ms:
            return False
        return self._read_ms is None or now_ms - self._read_ms >= self._settings.refresh_ms

    def _look_for(self, key_id: str | None) -> None:
        """Start to read the keys again for an unknown key. The result serves the next login."""
        now_ms, endpoint = self._clock.monotonic_ms(), self._settings.jwks
        if endpoint is None or endpoint.path is not None or now_ms < self._missing.get(key_id, 0):
            return
        if self._asked_ms is not None and now_ms - self._asked_ms < ASKED_AT_MOST_EVERY_MS:
            return
        self._missing[key_id] = now_ms + MISSING_FOR_MS
        self._missing.move_to_end(key_id)
        if len(self._missing) > MISSING_MAX:
            self._missing.popitem(last=False)
        self._begin(endpoint)

    def _begin(self, endpoint: Endpoint) -> Future[None]:
        if self._under_way is None or self._under_way.done():
            self._asked_ms = self._clock.monotonic_ms()
            self._under_way = in_thread(lambda: self._read(endpoint), "keys cannot be read")
        return self._under_way

    # ---- in the thread

    def _read(self, endpoint: Endpoint) -> None:
        """Read the keys, and retry after pauses while they are unavailable. Each failure is logged once."""
        pauses = pauses_ms(endpoint.backoff_ms, endpoint.backoff_max_ms)
        while True:
            try:
                keys = self._parsed(endpoint)
                break
            except KjbodError as error:
                if endpoint.path is None:
                    self._note_failure(str(error))
                pause_ms = next(pauses, None) if isinstance(error, LoginUnavailable) else None
                if pause_ms is None:
                    raise
            time.sleep(pause_ms / 1000)
        if self._failure:
            _log.info("security.keys.read", url=endpoint.shown, keys=len(keys))
        self._keys, self._failure, self._failed_ms = keys, "", None
        self._read_ms = self._clock.monotonic_ms()

    def _parsed(self, endpoint: Endpoint) -> tuple[Key, ...]:
        if endpoint.path is not None:
            text = read(endpoint.key, endpoint.path)
        else:
            status, text = ask(endpoint, _WHAT, "GET", {"Accept": "application/json"}, None, self._clock)
            if status != 200:
                raise LoginUnavailable(f"{_WHAT} {endpoint.shown} answers HTTP {status}")
        try:
            return parse_keys(text)
        except ValueError as error:
            raise KjbodError(f"{endpoint.key}: {endpoint.shown}: {error}") from None

    def _note_failure(self, reason: str) -> None:
        self._failed_ms = self._clock.monotonic_ms()
        if reason != self._failure:
            _log.warning("security.keys.not.read", reason=reason, keys=len(self._keys))
        self._failure = reason
