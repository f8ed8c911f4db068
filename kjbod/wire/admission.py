"""Limits on accepted connections of a listener: in total, per address, per second and, with TLS or SASL, of connections
that are not authenticated.

When all unauthenticated slots are taken, a new connection replaces the one that has been silent for longest. If none is
silent, it replaces the one that has been logging in for longest, after at least :data:`LOGIN_GRACE_MS`. So idle
connections from any number of addresses cannot keep out clients that log in at once.
"""

import itertools
from collections.abc import Callable
from typing import Final

from kjbod.clock import Clock
from kjbod.wire.limits import Limits
from kjbod.wire.pressure import Addresses, Rate

LOGIN_GRACE_MS: Final = 2_000
"""Time in which a handshake or a login in progress is not replaced."""
_ASKED_AT_ONCE: Final = 8
"""Number of silent connections that are asked to give way to one new connection; most of them do."""


class Admission:
    """Slot of a connection, made by :meth:`Admissions.enter`.

    Attributes:
        wait_ms: time before it is read from, because connections arrive faster than the allowed rate.
        deadline_ms: monotonic milliseconds by which TLS handshake and login must be done.
    """

    def __init__(self, admissions: "Admissions", host: str, wait_ms: float, deadline_ms: int) -> None:
        self._admissions = admissions
        self._host = host
        self._is_logging_in = True
        self._has_left = False
        self._begun_ms: int | None = None
        self.wait_ms = wait_ms
        self.deadline_ms = deadline_ms

    def left_s(self, now_ms: int) -> float:
        """Return the seconds until the deadline; never 0, which some calls treat as no limit."""
        return max(0.001, (self.deadline_ms - now_ms) / 1000)

    def waits(self, gives_way: Callable[[], bool] | None) -> None:
        """Note that the client has sent nothing yet. ``gives_way`` ends the connection, or returns False if the client
        has sent data. None: the client has sent data and the connection may start."""
        if gives_way is None:
            self._admissions.silent.pop(self, None)
        else:
            self._admissions.silent[self] = gives_way

    def begins(self, end: Callable[[], None], now_ms: int) -> None:
        """Note that the client begins or continues a handshake or a login; ``end`` closes the connection."""
        if self._is_logging_in:
            if self._begun_ms is None:
                self._begun_ms = now_ms
            self._admissions.trying[self] = end

    def gives_way(self, now_ms: int) -> bool:
        """Return whether the connection has tried for long enough to be replaced."""
        return self._begun_ms is not None and now_ms - self._begun_ms >= LOGIN_GRACE_MS

    def logged_in(self) -> None:
        """Release the unauthenticated-connection slot after a login."""
        if self._is_logging_in:
            self._is_logging_in = False
            self._admissions.logging_in -= 1
            self._admissions.silent.pop(self, None)
            self._admissions.trying.pop(self, None)

    def leave(self) -> None:
        """Note that the connection has ended."""
        self.logged_in()
        if not self._has_left:
            self._has_left = True
            self._admissions.left(self._host)


class Admissions:
    """Slots of a listener.

    Args:
        limits: numbers of slots.
        clock: clock for the rate and for deadlines.
        secured: whether clients must authenticate.

    Attributes:
        count: connections with a slot.
        logging_in: those whose clients are not authenticated.
        silent: unauthenticated connections without data so far, oldest first, with a function to make each give way.
        trying: connections that have begun to log in, oldest first, with a function to end each.
    """

    def __init__(self, limits: Limits, clock: Clock, *, secured: bool) -> None:
        self._limits = limits
        self._clock = clock
        self._logging_in_max = max(1, min(limits.max_logging_in, limits.max_connections // 2))
        self._secured = secured
        self._addresses = Addresses(limits.max_connections_per_ip, limits.max_connections_per_ip_overrides)
        self._rate = Rate(limits.max_connection_creation_rate)
        self.count = 0
        self.logging_in = 0
        self.silent: dict[Admission, Callable[[], bool]] = {}
        self.trying: dict[Admission, Callable[[], None]] = {}

    def enter(self, host: str) -> Admission | str:
        """Return a slot for a connection from ``host``, or the reason why there is none."""
        limits = self._limits
        if self.count >= limits.max_connections:
            return f"there are {self.count} connections already"
        now_ms = self._clock.monotonic_ms()
        if self._rate.wait_ms(now_ms) > limits.stall_timeout_ms:
            return f"more than {limits.max_connection_creation_rate} connections a second come for long"
        if self._secured and self.logging_in >= self._logging_in_max and not self._made_room(now_ms):
            return f"{self.logging_in} others have not logged in yet"
        if not self._addresses.enter(host):
            return f"there are {self._addresses.at_most(host)} connections from {host} already"
        self.count += 1
        self.logging_in += 1
        wait_ms = self._rate.take(now_ms)
        made = Admission(self, host, wait_ms, now_ms + int(wait_ms) + limits.login_timeout_ms)
        if not self._secured:
            made.logged_in()
        return made

    def _made_room(self, now_ms: int) -> bool:
        """Return whether an unauthenticated connection has given way."""
        for gives_way in list(itertools.islice(self.silent.values(), _ASKED_AT_ONCE)):
            if gives_way():
                return True
        place = next(iter(self.trying), None)
        if place is None or not place.gives_way(now_ms):
            return False
        self.trying[place]()
        place.leave()
        return True

    def left(self, host: str) -> None:
        """Note that a connection from ``host`` has ended."""
        self.count -= 1
        self._addresses.leave(host)
