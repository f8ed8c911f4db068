"""Connections that a listener takes: so many in all and of one address, so many in a second, and, where clients have
to show who they are, so many that have not."""

from kjbod.clock import Clock
from kjbod.wire.limits import Limits
from kjbod.wire.pressure import Addresses, Rate


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
        self.wait_ms = wait_ms
        self.deadline_ms = deadline_ms

    def left_s(self, now_ms: int) -> float:
        """Seconds until that moment; never none, which would be for ever to some."""
        return max(0.001, (self.deadline_ms - now_ms) / 1000)

    def logged_in(self) -> None:
        """Its client has shown who it is: the place among those who have not is another one's."""
        if self._is_logging_in:
            self._is_logging_in = False
            self._admissions.logging_in -= 1

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

    def enter(self, host: str) -> Admission | str:
        """A place for a connection from ``host``, or why there is none."""
        limits = self._limits
        if self.count >= limits.max_connections:
            return f"there are {self.count} connections already"
        now_ms = self._clock.monotonic_ms()
        if self._rate.wait_ms(now_ms) > limits.stall_timeout_ms:
            return f"more than {limits.max_connection_creation_rate} connections a second come for long"
        if self._secured and self.logging_in >= self._logging_in_max:
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

    def left(self, host: str) -> None:
        """A connection from ``host`` has ended."""
        self.count -= 1
        self._addresses.leave(host)
