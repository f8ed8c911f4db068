"""Directories that may be marked as cleanly shut down.

``.kafka_cleanshutdown`` says to a broker: every log in this directory is complete, recover none. A broker that crashed
leaves none, and its next start cuts torn ends off its logs. The agent writes no log and recovers none. So it may pass
on a mark that it found, and it must not make one where a crashed broker's logs wait for recovery, however often the
agent itself was started and stopped in between: the broker that comes back would start on a torn log.

A directory is *clean* that had the mark when the agent took it, or that has no data, which is what the agent makes by
itself. Until that was looked at a directory without mark counts as not clean. A replica that is moved out of a
directory that is not clean takes its torn end along: its destination is not clean from then on.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod_host.directories.start_up_rules import Directory
from kjbod_host.storage.api import DirectoryAgent

LOOK_MS: Final = 2_000
"""Between two looks for directories that were not looked at yet."""
SLICE: Final = 100
TIMEOUT_MS: Final = 30_000
EMPTY_REPLICA_BYTES_MAX: Final = 64
"""A replica without a log has ``partition.metadata``, 43 bytes, and perhaps an empty ``leader-epoch-checkpoint``. The
smallest record batch has 68 bytes, and a log that a broker has opened has an index."""


class CleanShutdown:
    """Memory of the directories that are clean.

    Args:
        directories: those that were read, failed ones too.
        agent: the storage agent of each; None where it failed, or has something more urgent to do.
        unread: whether there are directories that were never read.
    """

    def __init__(
        self,
        directories: Callable[[], Iterable[Directory]],
        agent: Callable[[Uuid], DirectoryAgent | None],
        unread: Callable[[], bool],
    ) -> None:
        self._directories = directories
        self._agent = agent
        self._unread = unread
        self._looked_at: set[Uuid] = set()
        self._empty: set[Uuid] = set()
        self._tainted: set[Uuid] = set()

    async def run(self) -> None:
        """Look at each directory that has no mark, those that are added later too, until cancelled."""
        while True:
            await asyncio.gather(*(self._look_at(d) for d in self._directories() if self._in_doubt(d)))
            await asyncio.sleep(LOOK_MS / 1000)

    def moving(self, source: Uuid | None, destination: Uuid) -> None:
        """A replica is about to lie in ``destination`` as it lay in ``source``."""
        if source not in (None, destination) and source not in self.clean():
            self._tainted.add(destination)

    def clean(self) -> set[Uuid]:
        """Return the directories that may be marked."""
        directories = list(self._directories())
        clean = {d.directory_id for d in directories if self._is_clean(d)}
        if self._unread() or len(clean) < len(directories):
            # A move that goes on after a restart may end before anybody tells of it.
            clean -= {d.directory_id for d in directories if any(r.suffix == "future" for r in d.loaded.replicas)}
        return clean - self._tainted

    def _is_clean(self, directory: Directory) -> bool:
        loaded = directory.loaded
        return loaded.clean_shutdown or not loaded.replicas or directory.directory_id in self._empty

    def _in_doubt(self, directory: Directory) -> bool:
        return not self._is_clean(directory) and directory.directory_id not in self._looked_at

    async def _look_at(self, directory: Directory) -> None:
        agent = self._agent(directory.directory_id)
        if agent is None:
            return
        names = [replica.name for replica in directory.loaded.replicas]
        try:
            for start in range(0, len(names), SLICE):
                sizes = await agent.replica_sizes(names[start : start + SLICE], timeout_ms=TIMEOUT_MS)
                if any(size > EMPTY_REPLICA_BYTES_MAX for size in sizes.values()):
                    break
            else:
                self._empty.add(directory.directory_id)
        except StorageError:
            return  # looked at again, as long as it is there
        self._looked_at.add(directory.directory_id)
