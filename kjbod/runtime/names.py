"""Resolve host names to addresses for event loops.

``getaddrinfo`` cannot be interrupted and waits for the name servers: 5 s for each dead server in ``resolv.conf``
(resolv.conf(5), ``timeout``), half a minute if none answers. That is longer than an attempt to reach a controller may
take, and longer than an agent with a dead disk may wait. So:

a look-up has its own thread and continues after its caller has given up. Further callers for the same name wait for the
same look-up, so one of the next attempts finds the answer;
* the last good answer is kept. It serves where a new look-up fails or takes longer than :data:`PATIENCE_MS`;
* the thread is a daemon's: neither the loop's default executor, which others need and which is joined at the end, nor
  the four threads of uvloop, for which it waits when it is closed, ever runs a look-up.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Protocol

from msgspec import Struct

from kjbod.clock import Clock, SystemClock
from kjbod.errors import KjbodError

PATIENCE_MS: Final = 300
"""Time to wait for a new answer while an older one is known."""
LOOKUPS_MAX: Final = 32
"""Maximum look-ups at a time; each has a thread."""
NAMES_MAX: Final = 1_024
"""Maximum names whose answers are kept; a peer may send any number of names."""
LISTEN_TOLD_MS: Final = 2_000
"""Time after which a listener that waits for its own name is logged."""
LISTEN_TIMEOUT_MS: Final = 60_000
"""Time limit to resolve a listener's own name: more than all servers of a ``resolv.conf`` together take by default."""

_UNKNOWN: Final = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


class Log(Protocol):
    """The part of a structlog logger that name look-ups use."""

    def warning(self, event: str, **fields: Any) -> Any: ...


class UnresolvedError(KjbodError):
    """A name has no address, or none yet: ``cannot resolve kafka1: ...``.

    Attributes:
        unknown: whether the name servers answered that the name does not exist: waiting does not help.
        slow: whether the name servers have not answered yet; the look-up continues.
    """

    def __init__(self, host: str, reason: str, *, unknown: bool = False, slow: bool = False) -> None:
        super().__init__(f"cannot resolve {host}: {reason}")
        self.reason = reason
        self.unknown = unknown
        self.slow = slow


class Resolved(Struct, frozen=True):
    """Addresses of a host, in the order in which to try them."""

    addresses: tuple[str, ...]
    doubt: str = ""
    """Reason why the addresses are from an earlier look-up; empty if they are new."""


class _LookUp(Struct, frozen=True):
    answer: Future[tuple[str, ...]]
    began_ms: int


def look_up(host: str) -> tuple[str, ...]:
    """Return the addresses of ``host``, as the system resolves them. Blocks.

    Raises:
        OSError: the name has no address.
        UnicodeError: the text is not a host name.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))


class Names:
    """Resolver with a cache of addresses. Thread-safe, and usable from several event loops.

    Args:
        ask: resolves a name; blocks.
        clock: clock for the age of answers.
    """

    def __init__(self, ask: Callable[[str], tuple[str, ...]] = look_up, clock: Clock | None = None) -> None:
        self._ask = ask
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, ...]] = {}
        self._under_way: dict[str, _LookUp] = {}

    async def resolve(self, host: str, *, timeout_ms: int) -> Resolved:
        """Return the addresses of ``host``. An IP address is returned unchanged.

        Raises:
            UnresolvedError: no address is known, and none came within ``timeout_ms``.
        """
        if _is_address(host):
            return Resolved((host,))
        known = self._known.get(host)
        try:
            return Resolved(await self._answer(host, timeout_ms if known is None else min(PATIENCE_MS, timeout_ms)))
        except UnresolvedError as error:
            if known is None:
                raise
            return Resolved(known, error.reason)

    async def _answer(self, host: str, timeout_ms: int) -> tuple[str, ...]:
        under_way = self._begin(host)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await asyncio.wrap_future(under_way.answer)
        except TimeoutError:
            age_ms = self._clock.monotonic_ms() - under_way.began_ms
            raise UnresolvedError(host, f"the name servers have not answered for {age_ms} ms", slow=True) from None
        except socket.gaierror as error:
            raise UnresolvedError(host, error.strerror or str(error), unknown=error.errno in _UNKNOWN) from None
        except OSError as error:
            raise UnresolvedError(host, error.strerror or str(error)) from None
        except UnicodeError:
            raise UnresolvedError(host, "not a name", unknown=True) from None

    def _begin(self, host: str) -> _LookUp:
        """Return the running look-up of a name, or start one."""
        with self._lock:
            found = self._under_way.get(host)
            if found is not None:
                return found
            if len(self._under_way) >= LOOKUPS_MAX:
                raise UnresolvedError(host, f"{LOOKUPS_MAX} other names are being looked up, without an answer")
            answer: Future[tuple[str, ...]] = Future()
            answer.set_running_or_notify_cancel()  # from here on, cancelling a caller does not cancel the look-up
            began = self._under_way[host] = _LookUp(answer, self._clock.monotonic_ms())
            try:
                threading.Thread(target=self._run, args=(host, answer), name="kjbod-names", daemon=True).start()
            except RuntimeError as error:
                del self._under_way[host]
                raise UnresolvedError(host, f"there is no room for a thread ({error})") from None
            return began

    def _run(self, host: str, answer: Future[tuple[str, ...]]) -> None:
        found: tuple[str, ...] = ()
        error: Exception | None = None
        try:
            found = self._ask(host)
        except Exception as trouble:  # noqa: BLE001  whatever it is belongs to those who wait
            error = trouble
        with self._lock:
            del self._under_way[host]
            if error is None:
                self._known.pop(host, None)
                self._known[host] = found
                if len(self._known) > NAMES_MAX:
                    del self._known[next(iter(self._known))]
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)


async def listening_addresses(host: str, log: Log, names: Names | None = None) -> list[str]:
    """Return the addresses of a listener's ``host``, and log if that takes long.

    Raises:
        UnresolvedError: the host has no address.
    """
    known = NAMES if names is None else names
    try:
        return list((await known.resolve(host, timeout_ms=LISTEN_TOLD_MS)).addresses)
    except UnresolvedError as error:
        if not error.slow:
            raise
        log.warning("listener.waits", reason=str(error))
    return list((await known.resolve(host, timeout_ms=LISTEN_TIMEOUT_MS)).addresses)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


NAMES: Final = Names()
"""Resolver of this process."""
