"""Connections that a listener takes: so many in all and of one address, so many in a second, and, where clients have
to show who they are, so many that have not.

Where none of the latter places is left, a newcomer gets that of the connection which has said nothing for longest, else
of the one which has tried to log in for longest, :data:`LOGIN_GRACE_MS` at least. So those who hold places for nothing,
from however many addresses, keep nobody out who logs in at once.
"""

import itertools
from collections.abc import Callable
from typing import Final

from kjbod.clock import Clock
from kjbod.wire.limits import Limits
from kjbod.wire.pressure import Addresses, Rate

LOGIN_GRACE_MS: Final = 2_000
"""For so long a handshake and a login that were begun are let alone, whoever else wants the place."""
_ASKED_AT_ONCE: Final = 8
"""Of those who are silent, to give way to one newcomer: most of them will."""


class Admission:
    """The place of a connection. Made by :meth:`Admissions.enter`.

    Attributes:
        wait_ms: for so long it is not read from, since connections come faster than they may.
        deadline_ms: monotonic milliseconds until which TLS handshake and login are to be done.
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
        """Seconds until that moment; never none, which would be for ever to some."""
        return max(0.001, (self.deadline_ms - now_ms) / 1000)

    def waits(self, gives_way: Callable[[], bool] | None) -> None:
        """Its client has said nothing yet: ``gives_way`` ends it, or finds that it has; None: it has, and it is our
        turn."""
        if gives_way is None:
            self._admissions.silent.pop(self, None)
        else:
            self._admissions.silent[self] = gives_way

    def begins(self, end: Callable[[], None], now_ms: int) -> None:
        """Its client begins a handshake or a login, or goes on with it; ``end`` ends it."""
        if self._is_logging_in:
            if self._begun_ms is None:
                self._begun_ms = now_ms
            self._admissions.trying[self] = end

    def gives_way(self, now_ms: int) -> bool:
        """Whether it has tried for long enough."""
        return self._begun_ms is not None and now_ms - self._begun_ms >= LOGIN_GRACE_MS

    def logged_in(self) -> None:
        """Its client has shown who it is: the place among those who have not is another one's."""
        if self._is_logging_in:
            self._is_logging_in = False
            self._admissions.logging_in -= 1
            self._admissions.silent.pop(self, None)
            self._admissions.trying.pop(self, None)

    def leave(self) -> None:
        """The connection has ended."""
        self.logged_in()
        if not self._has_left:
            self._has_left = True
            self._admissions.left(self._host)


class Admissions:
    """Places of a listener.

    Args:
        limits: how many there are.
        clock: for the rate, and for deadlines.
        secured: whether clients have to show who they are.

    Attributes:
        count: connections that have a place.
        logging_in: those of them whose clients have not shown who they are.
        silent: those of these who have said nothing, the first to come first; how to have them give way.
        trying: those who have begun to log in, the first first; how to end them.
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
        """A place for a connection from ``host``, or why there is none."""
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
        """Whether somebody who has not logged in has given way."""
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
        """A connection from ``host`` has ended."""
        self.count -= 1
        self._addresses.leave(host)
