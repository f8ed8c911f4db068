"""Log directories that the helper holds open, and directories that it has released so that they can be unmounted.

=======  ===========================================================================  =============================
the helper when                                                                         then
=======  ===========================================================================  =============================
holds    it is not well, and was released, or was cut and Kafka has it offline        it lets go
holds    a disk that had failed is well, or another one is in its place               it lets go of the one before
does not it is well, and the broker runs                                              it freezes what is there now
=======  ===========================================================================  =============================

The helper does nothing to a released directory. The helper itself decides which directory it may freeze.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from kjbod.clock import Clock
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.directory_steps import Standing, is_over
from kjbod_guard.helper_link import Frozen

EVERY_MS: Final = 1_000
AGAIN_MS: Final = 5_000
"""Time to the next try after the helper has refused a directory."""


class Link(Protocol):
    """The part of :class:`.helper_link.HelperLink` that is used here."""

    problem: str | None
    directories: Mapping[str, Frozen]

    async def let_go(self, directory: str) -> Done: ...

    async def freeze(self, directory: str) -> Done: ...


class Holding:
    """Controller of the directories that a helper holds.

    Args:
        link: to the helper.
        standing: returns the state of a directory on the escalation.
        well: returns the paths of directories that are watched and healthy.
        bound: whether the broker runs.
        told: called with a path, whether the helper now holds it, and the reason of a refusal.
        clock: the time.
    """

    def __init__(
        self,
        link: Link,
        *,
        standing: Callable[[str], Standing],
        well: Callable[[], Collection[str]],
        bound: Callable[[], bool],
        told: Callable[[str, bool, str], None],
        clock: Clock,
    ) -> None:
        self._link = link
        self._standing = standing
        self._well = well
        self._bound = bound
        self._told = told
        self._clock = clock
        self._anew: set[str] = set()
        self._not_before_ms: dict[str, int] = {}
        self._refusals: dict[str, str] = {}
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()

    def watched_anew(self, path: str) -> None:
        """Note that a failed directory is healthy again, or that another directory is at its path."""
        self._anew.add(path)
        self._not_before_ms.pop(path, None)
        self._wake.set()

    async def run(self) -> None:
        """Hold or release the directories again and again, until cancelled."""
        while True:
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_MS / 1000):
                    await self._wake.wait()
            self._wake.clear()

    async def look(self) -> None:
        """Hold or release each directory, as the table says."""
        async with self._turn:
            for path in tuple(self._link.directories):
                if self._link.problem is None:
                    await self._look_at(path)

    async def let_go(self, path: str) -> str | None:
        """Have the helper close a released directory; return why it does not, in words."""
        if self._bound() and path in self._well():
            return "it is well, and the broker runs"
        async with self._turn:
            return None if self._link.problem is not None else await self._let_go(path)

    async def _look_at(self, path: str) -> None:
        well = path in self._well()
        if self._is_held(path) and (path in self._anew or (not well and is_over(self._standing(path)))):
            await self._let_go(path)
        self._anew.discard(path)
        due = self._clock.monotonic_ms() >= self._not_before_ms.get(path, 0)
        if not self._is_held(path) and well and self._bound() and due:
            await self._freeze(path)

    def _is_held(self, path: str) -> bool:
        frozen = self._link.directories.get(path)
        return frozen is not None and frozen.reason is None

    async def _let_go(self, path: str) -> str | None:
        if not self._is_held(path):
            return None
        done = await self._link.let_go(path)
        if not done.happened:
            return done.reason
        self._told(path, False, "")
        return None

    async def _freeze(self, path: str) -> None:
        done = await self._link.freeze(path)
        if done.outcome is Outcome.DONE:
            self._refusals.pop(path, None)
            self._told(path, True, "")
            return
        self._not_before_ms[path] = self._clock.monotonic_ms() + AGAIN_MS
        if self._refusals.get(path) != done.reason:
            self._refusals[path] = done.reason
            self._told(path, False, done.reason)
