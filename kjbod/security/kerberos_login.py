"""Kerberos logins through the system's library (MIT's ``libgssapi_krb5``, package ``gssapi``): client tickets and their
renewal, security contexts, and readable errors.

Everything here blocks: keytabs and ticket caches are files, and a KDC may not answer. :mod:`kjbod.security.aside` runs
it. Tickets from a keytab are kept in memory only. While a ticket is renewed, logins use the old ticket; they wait only
if the old ticket has ended.
"""

import itertools
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from kjbod.clock import Clock, SystemClock, system_random
from kjbod.errors import ConfigError, KjbodError
from kjbod.printable import printable
from kjbod.security.aside import in_thread
from kjbod.security.kerberos import Context, GssError, renewal_ms
from kjbod.security.keys import Kerberos

if TYPE_CHECKING:
    import random

    import gssapi

TROUBLE: Final = "Kerberos failed"
KDC_TIMEOUT_MS: Final = 5_000
"""Time limit of a step of ours, less than the time limit of opening a connection. A later answer of the KDC is still
used: its ticket serves the next attempt."""
ACCEPT_TIMEOUT_MS: Final = 10_000
"""Time limit of a step of a client's login. The step reads the keytab and writes the replay cache."""
_KINIT_TIMEOUT_S: Final = 30.0
_WORDS_MAX: Final = 300
"""Maximum characters of the library's message."""
_ERROR_BASE: Final = -1765328384
"""Base of MIT's error codes ``KRB5KDC_ERR_...``, ``KRB5KRB_AP_ERR_...``, ``KRB5_...`` (``ERROR_TABLE_BASE_krb5``)."""
_KEYTAB_NO_MATCH: Final = 39756033 - _ERROR_BASE
"""``KG_KEYTAB_NOMATCH``, from another error table."""
_CREDENTIALS_EXPIRED: Final = 11
"""``GSS_S_CREDENTIALS_EXPIRED``; MIT's minor code for it has no meaning."""
_TICKET_EXPIRED: Final = 32
_OLD_KEY: Final = "a key of the keytab is not that of the KDC any more: see keyTab"
_CLOCKS: Final = "the clocks of this host, of its peer and of the KDC are too far apart"
_NO_KEY: Final = "the keytab has no key of this principal: see keyTab and principal"
_HINTS: Final[Mapping[int, str]] = {
    6: "the KDC does not know us: see principal",
    7: "the KDC does not know the server: see sasl.kerberos.service.name, and the host name that was asked for",
    18: "the KDC has locked this principal",
    23: "the KDC says that the key has expired",
    24: _OLD_KEY,
    31: _OLD_KEY,
    _TICKET_EXPIRED: "a ticket has ended, or the clocks of two hosts differ",
    33: _CLOCKS,
    37: _CLOCKS,
    41: _OLD_KEY,
    45: "the server's keytab has not the key that the KDC has used",
    135: "krb5.conf cannot be read",
    154: "krb5.conf has no KDC of this realm: see [realms] in it",
    156: "no KDC of krb5.conf can be reached",
    181: _NO_KEY,
    195: "there is no ticket cache, or no key of this principal in the keytab: see ticketCache, keyTab and principal",
    224: "krb5.conf has no default_realm",
    230: "the keytab has not the version of the key that the KDC has used: see keyTab",
    _KEYTAB_NO_MATCH: _NO_KEY,
}
"""Causes or remedies by error code."""
_log = structlog.get_logger("kjbod.security")
_caches = itertools.count(1)


def require(where: str) -> None:
    """Require the Kerberos library.

    Raises:
        ConfigError: the library is not installed; one line.
    """
    try:
        import gssapi  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{where}: GSSAPI needs the Python package gssapi ({error}): run scripts/setup --kerberos in kjbod's clone"
        ) from None


def default_realm() -> str:
    """Return the realm of ``krb5.conf``; empty if it has none, as in Kafka. Blocks."""
    import gssapi

    try:
        name = gssapi.Name("kjbod", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
    except gssapi.raw.GSSError:
        return ""
    return str(name).rpartition("@")[2]


class Tickets:
    """Tickets of one client. All methods block, except :meth:`doubt`.

    Args:
        settings: settings of the login.
        clock: clock for renewals.
        rng: random source for the time of renewals.
    """

    def __init__(self, settings: Kerberos, clock: Clock | None = None, rng: "random.Random | None" = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._rng = rng or system_random()
        self._lock = threading.Lock()
        self._credentials: gssapi.Credentials | None = None
        self._taken_at_ms = self._renew_at_ms = self._ends_at_ms = 0
        self._renewal: Future[None] | None = None
        self._doubted = False
        self._failure = ""

    def doubt(self) -> None:
        """Note that a server refused our ticket; the server may have a new key. Does not block."""
        self._doubted = True

    def context(self, host: str) -> Context:
        """Return a security context with the service on this host.

        Raises:
            GssError: no ticket.
        """
        import gssapi

        credentials, flag = self._current(), gssapi.RequirementFlag
        with _in_words():
            return _Context(
                gssapi.SecurityContext(
                    name=gssapi.Name(f"{self.settings.service}@{host}", gssapi.NameType.hostbased_service),
                    creds=credentials,
                    usage="initiate",
                    mech=gssapi.MechType.kerberos,
                    flags=flag.mutual_authentication | flag.integrity | flag.out_of_sequence_detection,
                )
            )

    def _current(self) -> "gssapi.Credentials":
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if self._credentials is None or now_ms >= self._ends_at_ms or not _left_ms(self._credentials):
                self._take(_acquired(self.settings))
            elif self._is_due(now_ms) and (self._renewal is None or self._renewal.done()):
                self._renewal = in_thread(self._renew, TROUBLE)
            assert self._credentials is not None
            return self._credentials

    def _is_due(self, now_ms: int) -> bool:
        again_ms = self._taken_at_ms + self.settings.renew_pause_ms
        return now_ms >= (min(again_ms, self._renew_at_ms) if self._doubted else self._renew_at_ms)

    def _take(self, found: "gssapi.Credentials") -> None:
        now_ms, lifetime_ms = self._clock.monotonic_ms(), _left_ms(found)
        chance = self._rng.uniform(0, self.settings.renew_jitter)
        factor, pause_ms = self.settings.renew_factor, self.settings.renew_pause_ms
        self._credentials, self._taken_at_ms, self._doubted = found, now_ms, False
        self._renew_at_ms = renewal_ms(now_ms, lifetime_ms, factor, chance, pause_ms)
        self._ends_at_ms = now_ms + lifetime_ms

    def _renew(self) -> None:
        """Get a new ticket while the old ticket stays in use."""
        failure = ""
        try:
            if self.settings.uses_cache:
                _run_kinit(self.settings)
            found = _acquired(self.settings)
        except KjbodError as error:
            failure = str(error)
        with self._lock:
            if not failure:
                self._take(found)
            else:
                self._doubted = False
                self._renew_at_ms = self._clock.monotonic_ms() + self.settings.renew_pause_ms
        if failure and failure != self._failure:
            _log.warning("security.ticket.not.renewed", reason=failure)
        self._failure = failure


class Acceptor:
    """The server's end: security contexts from the key of a keytab. All methods block."""

    def __init__(self, settings: Kerberos) -> None:
        self._settings = settings

    def context(self) -> Context:
        """Return a security context for one client. The keytab is read anew.

        Raises:
            GssError: the keytab has no key of ours.
        """
        import gssapi

        keys = _acquired(self._settings, usage="accept")
        with _in_words():
            return _Context(gssapi.SecurityContext(creds=keys, usage="accept"))


class _Context:
    """Security context of the library, with readable errors."""

    def __init__(self, context: "gssapi.SecurityContext") -> None:
        self._context = context
        # Or a token that tells of an error would be sent, which Kafka does not do.
        setattr(context, "__DEFER_STEP_ERRORS__", False)  # noqa: B010  no part of its type

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    def step(self, token: bytes | None) -> bytes:
        with _in_words():
            return self._context.step(token) or b""

    def wrap(self, message: bytes) -> bytes:
        with _in_words():
            return bytes(self._context.wrap(message, encrypt=False).message)

    def unwrap(self, message: bytes) -> bytes:
        with _in_words():
            return bytes(self._context.unwrap(message).message)

    def peer(self) -> str:
        with _in_words():
            return str(self._context.initiator_name)


class _in_words:  # noqa: N801  a context manager
    """Turn errors of the library into one line."""

    def __init__(self, where: str = "") -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import gssapi

        if isinstance(error, gssapi.raw.GSSError):
            raise GssError(f"{self._where}{_words(error)}") from None


def _words(error: Any) -> str:
    """Return the library's message, and a hint for a known error."""
    has_ended = error.maj_code >> 16 == _CREDENTIALS_EXPIRED
    number = _TICKET_EXPIRED if has_ended else (int(error.min_code) - _ERROR_BASE) & 0xFFFF_FFFF
    said = [] if has_ended else error.get_all_statuses(error.min_code, False)
    text = printable("; ".join(said or error.get_all_statuses(error.maj_code, True)), _WORDS_MAX)
    return f"{_HINTS[number]} ({text})" if number in _HINTS else text


def _acquired(settings: Kerberos, usage: str = "initiate") -> "gssapi.Credentials":
    """Get tickets from the cache or with the keytab, or a server's keys from the keytab.

    Raises:
        GssError: none are available.
    """
    if usage == "initiate" and settings.uses_cache:
        try:
            return _of_store(settings, usage, {"ccache": settings.cache} if settings.cache else {})
        except GssError:
            if settings.keytab is None:
                raise
    assert settings.keytab is not None
    _require_readable(settings, settings.keytab)
    if usage == "accept":
        return _of_store(settings, usage, {"keytab": settings.keytab})
    return _of_store(settings, usage, {"client_keytab": settings.keytab, "ccache": f"MEMORY:kjbod-{next(_caches)}"})


def _of_store(settings: Kerberos, usage: str, store: dict[bytes | str, bytes | str]) -> "gssapi.Credentials":
    import gssapi

    with _in_words(f"{settings.where}: "):
        principal = settings.principal
        name = None if principal is None else gssapi.Name(principal, gssapi.NameType.kerberos_principal)
        found = gssapi.Credentials(name=name, usage=usage, mechs=[gssapi.MechType.kerberos], store=store or None)
        if usage == "initiate" and found.lifetime <= 0:
            raise GssError(f"{settings.where}: the ticket of the ticket cache has ended: see kinit")
        return found


def _left_ms(credentials: "gssapi.Credentials") -> int:
    """Return the remaining lifetime of a ticket in ms; 0: it has ended. The time in which the host was suspended counts
    too."""
    import gssapi

    try:
        return credentials.lifetime * 1000
    except gssapi.raw.GSSError:
        return 0


def _require_readable(settings: Kerberos, keytab: str) -> None:
    try:
        with Path(keytab).open("rb"):
            pass
    except OSError as error:
        raise GssError(f"{settings.where}: keyTab={keytab}: {error.strerror}: expected a readable keytab") from None


def _run_kinit(settings: Kerberos) -> None:
    """Run ``kinit`` to renew the ticket of a ticket cache (``KerberosLogin``)."""
    of_cache = ["-c", settings.cache] if settings.cache else []
    try:
        done = subprocess.run(
            [settings.kinit, "-R", *of_cache],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_KINIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise GssError(f"{settings.kinit} -R: {error}") from None
    if done.returncode:
        raise GssError(f"{settings.kinit} -R: {printable(done.stderr.strip(), _WORDS_MAX)}")
