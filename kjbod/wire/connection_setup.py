"""Time limit to open a connection, growing as in Kafka's clients (``ClusterConnectionStates``)."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from kjbod.errors import ProtocolError

if TYPE_CHECKING:
    import random

TIMEOUT_MS: Final = 10_000
"""Kafka's default of ``socket.connection.setup.timeout.ms``."""
TIMEOUT_MAX_MS: Final = 30_000
"""Kafka's default of ``socket.connection.setup.timeout.max.ms``."""
ADDRESSES_MAX: Final = 1_000
"""Maximum remembered addresses with failures, the latest ones."""
_JITTER: Final = 0.2
_DOUBLED_MAX: Final = 62


class ConnectionSetup:
    """Time limit of the next connection to each address; it doubles after each failed attempt in a row.

    Args:
        timeout_ms: ``socket.connection.setup.timeout.ms``.
        timeout_max_ms: ``socket.connection.setup.timeout.max.ms``; if it is less than ``timeout_ms``, the time limit
            does not grow, as in Kafka.
        rng: random source for a jitter of a fifth, so that the connections of a host do not all end at once; None: no
            jitter.
    """

    def __init__(
        self,
        timeout_ms: int = TIMEOUT_MS,
        timeout_max_ms: int = TIMEOUT_MAX_MS,
        rng: "random.Random | None" = None,
    ) -> None:
        self._timeout_ms = timeout_ms
        self._timeout_max_ms = max(timeout_ms, timeout_max_ms)
        self._rng = rng
        self._failures: dict[tuple[str, int], int] = {}

    @contextlib.contextmanager
    def attempt(self, address: tuple[str, int]) -> Iterator[int]:
        """Run one attempt to connect to ``address`` in this context; yields its time limit in milliseconds. An
        exception marks the attempt as failed; a cancellation does not."""
        failures = self._failures.get(address, 0)
        try:
            yield self._limit_ms(failures)
        except ProtocolError:
            self._failed(address, failures + 1)
            raise
        self._failures.pop(address, None)

    def _limit_ms(self, failures: int) -> int:
        limit_ms = min(self._timeout_ms << min(failures, _DOUBLED_MAX), self._timeout_max_ms)
        if self._rng is not None:
            limit_ms = int(limit_ms * self._rng.uniform(1 - _JITTER, 1 + _JITTER))
        return max(1, limit_ms)

    def _failed(self, address: tuple[str, int], failures: int) -> None:
        self._failures.pop(address, None)
        self._failures[address] = failures
        while len(self._failures) > ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
