"""Time limit for a broker whose replicas are not all in known directories; agent and controller share the rule.

KIP-858 keeps a broker with several directories fenced until each replica is assigned to one. A replica that cannot be
created (no free space, a name is taken) is never assigned, and would block all others. So
``kjbod.assignment.timeout.ms`` without progress ends the wait. The agent waits before it asks to be unfenced, the
controller before it agrees. Both count the replicas that are UNASSIGNED or MIGRATING in the metadata.
"""

from dataclasses import dataclass, field
from typing import Final

LOOK_MS_MAX: Final = 10_000
"""Maximum time counted between two checks: in a longer gap the process was stopped or its VM suspended, so no progress
was possible."""


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
        """Check the number of replicas without a known directory, and return whether to keep waiting.

        Progress means fewer than ever before: new topics on the broker must not prolong the wait for one replica.
        """
        if self._fewest is None or waiting < self._fewest:
            self._fewest, self._waited_ms = waiting, 0
        else:
            self._waited_ms += min(now_ms - self._looked_ms, LOOK_MS_MAX)
        self._looked_ms = now_ms
        return waiting > 0 and self._waited_ms < self.timeout_ms
