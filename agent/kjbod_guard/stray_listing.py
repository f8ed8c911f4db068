"""The shell that lists stray replicas on the disks of a guard's broker, for ``kjbod strays``. Changes nothing.

The worker process of each disk lists the directory. A disk in doubt is not listed: only probes may touch such a disk.
The reason is named instead. No disk waits for another disk.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod_guard.observing import Observed
from kjbod_guard.stray_rules import Found, strays
from kjbod_guard.watching import Watching

LIST_TIMEOUT_MS: Final = 10_000
"""Timeout of each of the two requests to a disk: list, and sizes."""
PIECE: Final = 500
"""Maximum number of strays in one piece of an answer."""
NOT_FOLLOWED: Final = (
    "the guard does not follow them, so that only directories that end in -stray or -delete are listed"
)


class StrayListing:
    """Lister of the strays in all log directories.

    Args:
        paths: ``log.dirs``.
        watching: the directories.
        observed: the metadata; None: they are not followed.
    """

    def __init__(self, paths: Sequence[str], watching: Watching, observed: Callable[[], Observed | None]) -> None:
        self._paths = paths
        self._watching = watching
        self._observed = observed

    async def list_all(self) -> AsyncIterator[list[dict[str, Any]] | dict[str, Any]]:
        """Yield rows as those of an agent, then the directories that were not listed or not compared, with the
        reason, by path."""
        results = await asyncio.gather(*map(self._list, self._paths))
        unread = {path: reason for path, (_, reason) in zip(self._paths, results, strict=True) if reason is not None}
        for rows, _ in results:
            for start in range(0, len(rows), PIECE):
                yield rows[start : start + PIECE]
        yield {"role": "guard", "unread": unread}

    async def _list(self, path: str) -> tuple[list[dict[str, Any]], str | None]:
        """Return the rows of one directory, and why rows may be missing, in words; None: the rows are complete."""
        if (reason := self._watching.why_not_listed(path)) is not None:
            return [], _not_listed(path, reason)
        agent, owned = self._watching.storage.directory(path), self._watching.owned[path]
        try:
            listed = await agent.list_replicas(timeout_ms=LIST_TIMEOUT_MS)
            replicas = [replica for replica in listed if replica.is_directory]
        except StorageError as error:
            return [], _not_listed(path, str(error))
        observed = self._observed()
        found = strays(replicas, owned.directory_id, observed, self._paths_by_id())
        sizes = await self._sizes(path, found)
        blind = None if observed is not None else f"{path} was not compared with the metadata: {NOT_FOLLOWED}"
        return [_row(path, one, sizes.get(one.replica.name)) for one in found], blind

    async def _sizes(self, path: str, found: Sequence[Found]) -> Mapping[str, int]:
        """Return the bytes of strays by name; empty if the disk does not answer."""
        names = [one.replica.name for one in found]
        if not names or self._watching.why_not_listed(path) is not None:
            return {}
        try:
            return await self._watching.storage.directory(path).replica_sizes(names, timeout_ms=LIST_TIMEOUT_MS)
        except StorageError:
            return {}

    def _paths_by_id(self) -> Mapping[Uuid, str]:
        return {owned.directory_id: path for path, owned in self._watching.owned.items()}


def _not_listed(path: str, reason: str) -> str:
    return f"not listed: {reason}" if path in reason else f"not listed: {path}: {reason}"


def _row(path: str, found: Found, size: int | None) -> dict[str, Any]:
    replica = found.replica
    return {
        "name": replica.name,
        "topic": replica.topic,
        "partition": replica.partition,
        "topic_id": None,
        "directory": path,
        "online": True,
        "reason": found.reason,
        "since_ms": None,
        "size": size,
    }
