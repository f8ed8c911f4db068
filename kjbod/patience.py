"""Patience with a broker whose replicas are not all in known directories: one rule for agent and controller.

KIP-858 keeps a broker with several directories fenced until each of its replicas is assigned to one. A replica that
cannot be made (no disk has room, a name is taken) is never assigned, and would keep all others from serving for ever.
So ``kjbod.assignment.timeout.ms`` without progress ends the wait. The agent waits before it asks to be unfenced, the
controller before it agrees, and both count the same: replicas that the metadata have as UNASSIGNED or MIGRATING.
"""

from dataclasses import dataclass, field
from typing import Final

LOOK_MS_MAX: Final = 10_000
"""Two looks further apart count as this far: in the rest of the time nobody ran (a process that was stopped, a VM that
stood still), so that nobody could make progress either."""


@dataclass(slots=True)
class Patience:
    """A broker's wait for its replicas. All times are monotonic milliseconds.

    Args:
        timeout_ms: ``kjbod.assignment.timeout.ms``.
    """

    timeout_ms: int
    _fewest: int | None = field(default=None, init=False)
    _waited_ms: int = field(default=0, init=False)
    _looked_ms: int = field(default=0, init=False)

    def holds(self, waiting: int, now_ms: int) -> bool:
        """Look at how many replicas have no known directory; whether they are worth to wait for.

        Progress is to have fewer than ever before: new topics on the broker must not prolong the wait for one replica.
        """
        if self._fewest is None or waiting < self._fewest:
            self._fewest, self._waited_ms = waiting, 0
        else:
            self._waited_ms += min(now_ms - self._looked_ms, LOOK_MS_MAX)
        self._looked_ms = now_ms
        return waiting > 0 and self._waited_ms < self.timeout_ms
