"""The shell of :mod:`.majority`: asks the active controller for the voters of its quorum and their fetches. Asks only
on a node that is also a controller, while that node is in doubt."""

import asyncio
import re
from collections.abc import Callable
from typing import Final

from kjbod.clock import Clock
from kjbod.errors import KjbodError
from kjbod.metadata.fetching import Leader
from kjbod.wire.messages import DescribeQuorumRequest
from kjbod_guard.majority import Quorum, heard, unanswered
from kjbod_host.channel import ControllerChannel

EVERY_MS: Final = 300
TIMEOUT_MS: Final = 800
_MILLISECONDS: Final = re.compile(r" within \d+ ms")


class VotersAsking:
    """Questions to the active controller, while :meth:`run` runs.

    Args:
        channel: leads to the active controller.
        clock: tells when.
        in_doubt: returns whether to ask.

    Attributes:
        quorum: from the answers since the doubt began.
    """

    def __init__(self, channel: ControllerChannel, clock: Clock, in_doubt: Callable[[], bool]) -> None:
        self._channel = channel
        self._clock = clock
        self._in_doubt = in_doubt
        self.quorum = Quorum()

    def on_leader(self, leader: Leader | None) -> None:
        """Set the active controller that the metadata follower has found."""
        self._channel.set_leader(leader)

    async def run(self) -> None:
        """Ask again and again while a disk is in doubt, until cancelled."""
        while True:
            began_ms = self._clock.monotonic_ms()
            if not self._in_doubt():
                self.quorum = Quorum()
            else:
                await self.ask()
            spent_ms = self._clock.monotonic_ms() - began_ms
            await asyncio.sleep(max(0, EVERY_MS - spent_ms) / 1000)

    async def ask(self) -> None:
        """Ask one question, and store the answer or the reason why there is none."""
        asked_ms = self._clock.monotonic_ms()
        if self.quorum.since_ms is None:
            self.quorum = Quorum(asked_ms)
        try:
            answer = await self._channel.request(lambda _: DescribeQuorumRequest(), timeout_ms=TIMEOUT_MS)
        except (KjbodError, OSError) as error:
            self._channel.forget()
            # Without the milliseconds, because each new reason is a new line in the audit.
            self.quorum = unanswered(self.quorum, _MILLISECONDS.sub(" in time", str(error)))
            return
        before, self.quorum = self.quorum, heard(self.quorum, answer, asked_ms)
        if self.quorum.voters is before.voters:  # the answer is not from the leader
            self._channel.forget()
