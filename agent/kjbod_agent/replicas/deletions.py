"""Directories that are no replicas any more: renamed, then kept (``-stray``) or removed after a while (``-delete``).

*Deleted* is only what the metadata that this agent has applied say was deleted, or a move that is finished: renamed to
``-delete`` so that the name is free, removed ``file.delete.delay.ms`` later (a topic's before the broker's). Removal is
by name and topic id: what lies there under the name by then is compared. What the metadata still give to this broker
(a finished move left it) is removed only while the copy in its place (:class:`Successor`) is known to be well: it waits
while the directory of that one is suspect, slow or hung, and is kept as a stray where it is offline, or where the copy
has no data and this one has.

Everything else that must give up its name becomes a *stray*: kept, listed with its reason and since when, removed or
restored only by a person.

The name is free in the inventory at once, and the rename is queued on the directory before anything that will use the
name. Where it fails the name is taken again: nothing is made under it in another directory before that is known.

A rename or a removal that ends with an error is never forgotten: the directory is listed as a stray under its present
name, with the error and what to do. The agent tries again after :data:`REFUSED_AGAIN_MS`, after :data:`AGAIN_MS` where
there was no answer. The table of :mod:`kjbod_host.storage.meaning` says whether the error is the disk's.

Lines of the checkpoint files go with the name, as in Kafka, which writes those of current replicas only: a topic that
is created again must not begin at the old one's log start. Many are dropped with one rewrite of the files.
"""

import asyncio
import errno
import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod_agent.replicas.directory_work import DirectoryWork, rename_once
from kjbod_agent.replicas.inventory import Inventory, delete_name, stray_name
from kjbod_agent.replicas.stray_memory import Note
from kjbod_agent.replicas.strays import COPY_EMPTY, COPY_OFFLINE, LEFT_BY_MOVE, LONGER, SUPERSEDED, WRONG_NAME, Stray
from kjbod_host.reporter import Log
from kjbod_host.storage.api import DirectoryError, DirectoryTimeout, WorkerUnavailable
from kjbod_host.storage.checkpoints import CHECKPOINT_FILES
from kjbod_host.storage.meaning import asks_probe, remedy
from kjbod_host.storage.worker import parse_replica

WORK_TIMEOUT_MS: Final = 30_000
AGAIN_MS: Final = 60_000
"""A rename or a removal that got no answer is tried again after this time."""
REFUSED_AGAIN_MS: Final = 300_000
"""A rename or a removal that the file system refuses is tried again after this time."""
REMEMBERED_MAX: Final = 10_000
"""Strays that are remembered of directories that are away, when one more of them is replaced."""


class StrayError(StorageError):
    """A stray replica cannot be removed or restored; the text says why, and what would make it possible."""


class DepartingReplica(Struct, frozen=True):
    """A replica directory that is to get another name."""

    directory_id: Uuid
    name: str
    topic: str
    partition: int
    topic_id: Uuid | None

    @property
    def replica_name(self) -> str:
        """Name of the replica without suffix. The topic may be cut if the directory's name has a suffix."""
        return f"{self.topic}-{self.partition}"

    @property
    def has_replica_name(self) -> bool:
        """Whether the directory takes the name of a current replica: its name has no suffix."""
        parsed = parse_replica(self.name)
        return parsed is not None and not parsed[2]


class Successor(Struct, frozen=True):
    """The copy in the place of one that is to be removed.

    Attributes:
        directory_id: where the metadata say that it lies.
        name: its current name.
        well: it lies there, and nothing speaks against its directory.
        offline: its directory is offline.
    """

    directory_id: Uuid
    name: str
    well: bool
    offline: bool


class Deletions(Struct):
    """Renames, removals and strays of all directories.

    Args:
        inventory: what lies where.
        works: the queue of each directory.
        work_failed: the kernel refused something in a directory.
        unique: 32 hexadecimal digits that were never given before.
        successor: the copy in the place of a ``-delete`` directory, by its name and topic id; None: it needs none, the
            metadata prove that it was deleted.
        delay_ms: how long a replica of a topic is kept as ``-delete``, by the name of the topic.
        wall_ms: the time.
        changed: the strays are others than before, for who remembers them.
        renamed_away: a deleted replica, or a stray, has its new name, or could not get it.
        log: for what has no place in the health report.
    """

    inventory: Inventory
    works: Mapping[Uuid, DirectoryWork]
    work_failed: Callable[[Uuid, DirectoryError], None]
    unique: Callable[[], str]
    successor: Callable[[str, Uuid | None], Successor | None]
    delay_ms: Callable[[str], int]
    wall_ms: Callable[[], int]
    changed: Callable[[], None]
    renamed_away: Callable[["DepartingReplica"], None]
    log: Log
    strays: dict[tuple[Uuid, str], Stray] = field(default_factory=dict)
    """By directory and name."""
    remembered: dict[tuple[Uuid, str], Note] = field(default_factory=dict)
    """Strays of earlier processes, as long as it is unknown whether they still exist."""
    _due: list[tuple[float, int, Uuid, str, Uuid | None, bool]] = field(default_factory=list)
    """Time, order, directory, name, topic id, and whether the removal needs a copy in the replica's place."""
    _checked: dict[tuple[Uuid, str], Uuid | None] = field(default_factory=dict)
    """Topic id of those that are due and whose successor is being looked at."""
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _timer: asyncio.Handle | None = None
    _timer_at: float = 0.0
    """When :attr:`_timer` is due. A handle need not know it: uvloop's do not, for what is due at once."""
    _drops: dict[Uuid, set[tuple[str, int]]] = field(default_factory=dict)
    _tried: dict[tuple[Uuid, str], str] = field(default_factory=dict)
    """New name of each failed rename. A rename without an answer may have happened, or may still happen."""

    # ---- what is deleted

    def delete(self, leaving: DepartingReplica) -> None:
        """The metadata no longer give this replica to this broker: free its name, which the inventory has done."""
        new_name = self._new_name(leaving, delete_name)
        self.inventory.occupy(leaving.directory_id, new_name, leaving.topic_id)
        self._departs(leaving)
        # The configuration of a topic that was deleted is forgotten soon.
        delay_ms = self.delay_ms(leaving.topic)
        self.works[leaving.directory_id].add(functools.partial(self._delete, leaving, new_name, delay_ms))

    async def _delete(self, leaving: DepartingReplica, new_name: str, delay_ms: int) -> None:
        renamed = await self._rename(leaving, new_name, "it was deleted", functools.partial(self.delete, leaving))
        self._departed(leaving)
        if renamed:
            self.log.info("replica.deleted", path=self._path(leaving.directory_id, new_name))
            self._push(delay_ms, leaving.directory_id, new_name, leaving.topic_id, replaced=False)

    async def leave(self, leaving: DepartingReplica) -> None:
        """Rename a copy that a move left, in the queue of its directory, and remove it later. None need be there."""
        new_name = self._new_name(leaving, delete_name)
        self.inventory.occupy(leaving.directory_id, new_name, leaving.topic_id)

        def again() -> None:
            self.works[leaving.directory_id].add(functools.partial(self.leave, leaving))

        if await self._rename(leaving, new_name, LEFT_BY_MOVE, again, may_lack=True):
            self.delete_later(leaving.directory_id, new_name, leaving.topic, leaving.topic_id)

    def delete_later(self, directory_id: Uuid, name: str, topic: str, topic_id: Uuid | None) -> None:
        """Remove a ``-delete`` directory after the delay of its topic. A successor, if there is one, must be well
        then."""
        if not self._is_kept(directory_id, name, topic_id):
            self._push(self.delay_ms(topic), directory_id, name, topic_id, replaced=True)

    def recall(self) -> list[DepartingReplica]:
        """All ``-delete`` directories that wait for their removal, which are not removed now: to be judged again."""
        found = [(directory_id, name, topic_id) for _, _, directory_id, name, topic_id, _ in self._due]
        found += [(directory_id, name, topic_id) for (directory_id, name), topic_id in self._checked.items()]
        self._due, self._checked = [], {}
        self._set_timer()
        return [leaving for each in found if (leaving := _leaving(*each)) is not None]

    def directory_failed(self, directory_id: Uuid) -> None:
        """Keep what waits for its removal while the copy in its place is in a directory that is offline by now. What
        waits in the failed one is found again when that is loaded."""
        self._drops.pop(directory_id, None)
        checked, self._checked = self._checked, {}  # the queue of a failed directory has forgotten its jobs
        for key, topic_id in checked.items():
            self._push(AGAIN_MS, *key, topic_id, replaced=True)
        due, self._due = self._due, []
        for each in due:
            _, _, where, name, topic_id, replaced = each
            if where != directory_id and not (replaced and self._is_kept(where, name, topic_id)):
                self._due.append(each)
        heapq.heapify(self._due)
        self._set_timer()

    def _is_kept(self, directory_id: Uuid, name: str, topic_id: Uuid | None) -> bool:
        """Whether it has just become a stray, since the copy in its place is offline."""
        successor = self.successor(name, topic_id)
        if successor is None or not successor.offline or directory_id not in self.inventory.online:
            return False
        self._keep_after_all(directory_id, name, topic_id, COPY_OFFLINE, successor)
        return True

    def _keep_after_all(
        self, directory_id: Uuid, name: str, topic_id: Uuid | None, reason: str, successor: Successor
    ) -> None:
        leaving = _leaving(directory_id, name, topic_id)
        assert leaving is not None, "it has a successor"
        leaving = replace(leaving, topic=successor.name.rpartition("-")[0])  # whole; that of the name can be cut
        self.inventory.release(directory_id, name)
        where = self.inventory.path(successor.directory_id) if successor.directory_id in self.inventory else None
        self.set_aside(leaving, reason + (where or str(successor.directory_id)))

    def _push(self, delay_ms: int, directory_id: Uuid, name: str, topic_id: Uuid | None, *, replaced: bool) -> None:
        at = asyncio.get_running_loop().time() + delay_ms / 1000
        heapq.heappush(self._due, (at, next(self._order), directory_id, name, topic_id, replaced))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            if self._due and self._timer_at <= self._due[0][0]:
                return
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer_at = self._due[0][0]
            self._timer = asyncio.get_running_loop().call_at(self._timer_at, self._remove_due)

    def _remove_due(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        while self._due and self._due[0][0] <= now:
            _, _, directory_id, name, topic_id, replaced = heapq.heappop(self._due)
            if directory_id in self.works and directory_id in self.inventory.online:
                self._begin_removal(directory_id, name, topic_id, replaced=replaced)
        self._set_timer()

    def _begin_removal(self, directory_id: Uuid, name: str, topic_id: Uuid | None, *, replaced: bool) -> None:
        successor = self.successor(name, topic_id) if replaced else None
        if successor is None:
            job = functools.partial(self._remove, directory_id, name, topic_id, replaced=replaced)
            self.works[directory_id].add(job)
        elif successor.well:
            # In the queue of its own directory: no other one waits for what does not answer there.
            self._checked[directory_id, name] = topic_id
            self.works[successor.directory_id].add(
                functools.partial(self._check, directory_id, name, topic_id, successor)
            )
        elif not self._is_kept(directory_id, name, topic_id):
            self._push(AGAIN_MS, directory_id, name, topic_id, replaced=True)

    async def _check(self, directory_id: Uuid, name: str, topic_id: Uuid | None, successor: Successor) -> None:
        """Check whether the copy in the directory's place answers, and has data."""
        try:
            agent = self.works[successor.directory_id].agent
            sizes = await agent.replica_sizes([successor.name], suffix=".log", timeout_ms=WORK_TIMEOUT_MS)
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as trouble:
            self.log.warning("replica.remove.put.off", path=self._path(directory_id, name), reason=str(trouble))
            if isinstance(trouble, DirectoryError):
                self.work_failed(successor.directory_id, trouble)
            if self._checked.pop((directory_id, name), _NOT_THERE) is not _NOT_THERE:
                self._push(AGAIN_MS, directory_id, name, topic_id, replaced=True)
            return
        if (directory_id, name) in self._checked:
            has_data = bool(sizes.get(successor.name))
            job = functools.partial(self._remove_replaced, directory_id, name, topic_id, successor, has_data)
            self.works[directory_id].add(job)

    async def _remove_replaced(
        self, directory_id: Uuid, name: str, topic_id: Uuid | None, successor: Successor, has_data: bool
    ) -> None:
        own_bytes = 0
        if not has_data:
            try:
                agent = self.works[directory_id].agent
                sizes = await agent.replica_sizes([name], suffix=".log", timeout_ms=WORK_TIMEOUT_MS)
                own_bytes = sizes.get(name, 0)
            except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as trouble:
                self.log.warning("replica.remove.put.off", path=self._path(directory_id, name), reason=str(trouble))
                own_bytes = 1  # for all that is known
        if self._checked.pop((directory_id, name), _NOT_THERE) is _NOT_THERE:
            return  # judged again meanwhile
        if own_bytes:
            self._keep_after_all(directory_id, name, topic_id, COPY_EMPTY, successor)
        elif self.successor(name, topic_id) in (successor, None):
            await self._remove(directory_id, name, topic_id, replaced=True)
        else:
            self._push(AGAIN_MS, directory_id, name, topic_id, replaced=True)

    async def _remove(self, directory_id: Uuid, name: str, topic_id: Uuid | None, *, replaced: bool) -> None:
        """An attempt to remove a ``-delete`` directory."""
        path = self._path(directory_id, name)
        try:
            await self.works[directory_id].agent.delete_replica(name, topic_id, timeout_ms=WORK_TIMEOUT_MS)
        except DirectoryError as error:
            self._tell_monitor(directory_id, error)
            self._not_removed(directory_id, name, topic_id, error)
            self._push(REFUSED_AGAIN_MS, directory_id, name, topic_id, replaced=replaced)
        except (DirectoryTimeout, WorkerUnavailable) as trouble:
            self._not_removed(directory_id, name, topic_id, trouble)
            self._push(AGAIN_MS, directory_id, name, topic_id, replaced=replaced)
        else:
            self.inventory.release(directory_id, name)
            self.log.info("replica.removed", path=path)
            if self.strays.pop((directory_id, name), None) is not None:
                self.changed()

    def _not_removed(self, directory_id: Uuid, name: str, topic_id: Uuid | None, trouble: StorageError) -> None:
        """List it, and say so where it is news."""
        leaving = _leaving(directory_id, name, topic_id)
        path = self._path(directory_id, name)
        if leaving is None or self.show(leaving, f"it was to be removed, and cannot be: {_with_remedy(trouble)}"):
            self.log.error("replica.remove.failed", path=path, reason=str(trouble))

    def _tell_monitor(self, directory_id: Uuid, error: DirectoryError) -> None:
        if asks_probe(error.errno, error.call):
            self.work_failed(directory_id, error)

    # ---- what is kept

    def show(self, leaving: DepartingReplica, reason: str) -> bool:
        """List what keeps its name as a stray, so that a person can decide before the agent can; whether that is
        news."""
        known = self.strays.get((leaving.directory_id, leaving.name))
        if known is not None and known.reason == reason:
            return False
        since_ms = self.wall_ms() if known is None else known.since_ms
        self._add_stray(leaving, leaving.name, Note(reason, since_ms))
        self.log.warning("replica.kept", path=self._path(leaving.directory_id, leaving.name), reason=reason)
        self.changed()
        return True

    def hide(self, leaving: DepartingReplica) -> None:
        """:meth:`show` no longer holds."""
        self.gone(leaving.directory_id, leaving.name)

    def gone(self, directory_id: Uuid, name: str) -> None:
        """Forget what :meth:`show` has listed: it is not there any more."""
        if self.strays.pop((directory_id, name), None) is not None:
            self.changed()

    def set_aside(self, leaving: DepartingReplica, reason: str) -> None:
        """Something that does not count must give up its name, which the inventory has freed: a stray, kept."""
        new_name = self._new_name(leaving, stray_name)
        self.inventory.occupy(leaving.directory_id, new_name, leaving.topic_id)
        self._add_stray(leaving, new_name, Note(reason, self.wall_ms()))
        self.changed()
        self.log.warning(
            "replica.stray",
            path=self._path(leaving.directory_id, leaving.name),
            renamed=new_name,
            topic_id=None if leaving.topic_id is None else str(leaving.topic_id),
            reason=reason,
        )
        self._departs(leaving)
        self.works[leaving.directory_id].add(functools.partial(self._set_aside, leaving, new_name, reason))

    async def _set_aside(self, leaving: DepartingReplica, new_name: str, reason: str) -> None:
        again = functools.partial(self.set_aside, leaving, reason)
        renamed = await self._rename(leaving, new_name, reason, again)
        self._departed(leaving)
        if not renamed:
            self.strays.pop((leaving.directory_id, new_name), None)
            self.changed()
        elif reason in (SUPERSEDED, WRONG_NAME):
            await self._compare(leaving, new_name)

    async def _compare(self, leaving: DepartingReplica, name: str) -> None:
        """Say where the copy that was set aside has more records than the one in its place; the directory of each is
        asked in its own turn."""
        end = await self._end_of(leaving.directory_id, name)
        successor = self.successor(name, leaving.topic_id)
        if isinstance(end, int) and successor is not None and successor.directory_id in self.inventory.online:
            work = self.works[successor.directory_id]
            work.add(functools.partial(self._compare_with, (leaving.directory_id, name), end, successor))

    async def _compare_with(self, key: tuple[Uuid, str], end: int, successor: Successor) -> None:
        kept = await self._end_of(successor.directory_id, successor.name)
        stray = self.strays.get(key)
        if stray is None or isinstance(kept, StorageError) or (kept is not None and end <= kept):
            return
        shorter = self._path(successor.directory_id, successor.name)
        reason = f"{LONGER}it ends at offset {end:,}, {shorter} at {'an unknown one' if kept is None else f'{kept:,}'}"
        self.strays[key] = replace(stray, reason=reason)
        self.changed()
        self.log.error("replica.longer.set.aside", path=stray.path, kept=shorter, reason=reason)

    async def _end_of(self, directory_id: Uuid, name: str) -> int | StorageError | None:
        """The offset at which the log of a replica ends, None where its files do not say; or why it is not known."""
        try:
            return await self.works[directory_id].agent.log_end_offset(name, timeout_ms=WORK_TIMEOUT_MS)
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as trouble:
            self.log.warning("replica.not.compared", path=self._path(directory_id, name), reason=str(trouble))
            return trouble

    def keep(self, leaving: DepartingReplica, otherwise: str) -> None:
        """A stray of an earlier process was found, under its own name; ``otherwise`` is the reason where nobody
        remembers it."""
        key = (leaving.directory_id, leaving.name)
        note = self.remembered.pop(key, None)
        self._add_stray(leaving, leaving.name, note or Note(otherwise, self.wall_ms()))
        if note is None:
            self.changed()

    def _add_stray(self, leaving: DepartingReplica, name: str, note: Note) -> None:
        self.strays[leaving.directory_id, name] = Stray(
            directory_id=leaving.directory_id,
            path=self._path(leaving.directory_id, name),
            name=name,
            topic=leaving.topic,
            partition=leaving.partition,
            topic_id=leaving.topic_id,
            reason=note.reason,
            since_ms=note.since_ms,
        )

    def looked_through(self, directory_id: Uuid) -> None:
        """All strays of a directory were told: what else is remembered of it is gone."""
        gone = [key for key in self.remembered if key[0] == directory_id]
        for key in gone:
            del self.remembered[key]
        if gone:
            self.changed()

    def forget_directory(self, directory_id: Uuid) -> None:
        """Its disk was replaced; what is remembered of it stays, since it may come back."""
        for key in [key for key in self.strays if key[0] == directory_id]:
            stray = self.strays.pop(key)
            self.remembered[key] = Note(stray.reason, stray.since_ms)
        for key in list(self.remembered)[: max(0, len(self.remembered) - REMEMBERED_MAX)]:
            del self.remembered[key]

    def notes(self) -> dict[tuple[Uuid, str], Note]:
        """Notes that are to be remembered."""
        return self.remembered | {key: Note(stray.reason, stray.since_ms) for key, stray in self.strays.items()}

    # ---- by a person

    def find(self, directory_id: Uuid, name: str) -> Stray:
        """A stray that can be worked on.

        Raises:
            StrayError: there is none of this name, it still has that of a replica, or its directory is offline.
        """
        stray = self.strays.get((directory_id, name))
        if stray is None:
            raise StrayError(f"{name}: no such stray replica: see `kjbod strays`")
        if directory_id not in self.inventory.online:
            raise StrayError(f"{stray.path}: its log directory is offline: nothing was done")
        if not name.endswith(("-delete", "-stray")):
            raise StrayError(
                f"{stray.path}: nothing was done, since it has the name of a replica still: {stray.reason}"
            )
        return stray

    async def remove_stray(self, stray: Stray) -> None:
        """Delete it for good.

        Raises:
            StorageError: it could not be removed; a timeout does not say that it was not.
        """
        work = self.works[stray.directory_id]
        await work.ask(lambda: work.agent.delete_replica(stray.name, stray.topic_id, timeout_ms=WORK_TIMEOUT_MS))
        self._forget(stray)
        self.log.info("replica.stray.removed", path=stray.path)

    async def rename_stray(self, stray: Stray, name: str) -> None:
        """Give it another name; it is no stray then.

        Raises:
            StorageError: it could not be renamed.
        """
        work = self.works[stray.directory_id]
        await work.ask(lambda: work.agent.rename_replica(stray.name, name, timeout_ms=WORK_TIMEOUT_MS))
        self._forget(stray)
        self.log.info("replica.stray.restored", path=self._path(stray.directory_id, name), was=stray.name)

    def _forget(self, stray: Stray) -> None:
        self.strays.pop((stray.directory_id, stray.name), None)
        self._tried.pop((stray.directory_id, stray.name), None)
        self.inventory.release(stray.directory_id, stray.name)
        self.changed()

    # ---- names

    def _departs(self, leaving: DepartingReplica) -> None:
        if leaving.has_replica_name:
            self.inventory.departs(leaving.directory_id, leaving.replica_name)

    def _departed(self, leaving: DepartingReplica) -> None:
        if leaving.has_replica_name:
            self.inventory.departed(leaving.directory_id, leaving.replica_name)
        self.renamed_away(leaving)

    def _new_name(self, leaving: DepartingReplica, name: Callable[[str, int, str], str]) -> str:
        """The name that it is to get; once more that of an attempt before."""
        tried = self._tried.get((leaving.directory_id, leaving.name))
        fresh = name(leaving.topic, leaving.partition, self.unique())
        return tried if tried and tried.rpartition("-")[2] == fresh.rpartition("-")[2] else fresh

    async def _rename(
        self,
        leaving: DepartingReplica,
        new_name: str,
        reason: str,
        again: Callable[[], None],
        *,
        may_lack: bool = False,
    ) -> bool:
        """Rename a replica; whether that worked. Where it did not, the replica keeps its name and is listed as a stray
        with ``reason``, and ``again`` is called later to repeat it. ``may_lack``: it may be gone already."""
        directory_id, key = leaving.directory_id, (leaving.directory_id, leaving.name)
        try:
            await rename_once(self.works[directory_id].agent, leaving.name, new_name, timeout_ms=WORK_TIMEOUT_MS)
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as trouble:
            if (
                isinstance(trouble, DirectoryError)
                and trouble.errno == errno.EEXIST
                and self._tried.get(key) == new_name
            ):
                del self._tried[key]  # an attempt before has done it, and another replica has the name by now
                self.hide(leaving)
                return True
            self.inventory.release(directory_id, new_name)
            if isinstance(trouble, DirectoryError) and trouble.errno == errno.ENOENT:
                self._tried.pop(key, None)
                self.hide(leaving)
                if not may_lack:
                    self.log.warning("replica.rename.failed", path=self._path(*key), reason=str(trouble))
                return False  # nothing is there
            self._tried[key] = new_name
            if isinstance(trouble, DirectoryError) and trouble.errno == errno.EEXIST:
                del self._tried[key]  # both are there: another name is needed
            if not self.inventory.is_replica(directory_id, leaving.name, leaving.partition):
                self.inventory.occupy(directory_id, leaving.name, leaving.topic_id)
            self._not_renamed(leaving, reason, trouble, again)
            return False
        self._tried.pop(key, None)
        self.hide(leaving)
        self._drop_checkpoints(leaving)
        return True

    def _not_renamed(
        self, leaving: DepartingReplica, reason: str, trouble: StorageError, again: Callable[[], None]
    ) -> None:
        again_ms = AGAIN_MS
        if isinstance(trouble, DirectoryError):
            again_ms = REFUSED_AGAIN_MS
            self._tell_monitor(leaving.directory_id, trouble)
        if self.show(leaving, f"{reason}, and cannot be renamed: {_with_remedy(trouble)}"):
            path = self._path(leaving.directory_id, leaving.name)
            self.log.error("replica.rename.failed", path=path, reason=_with_remedy(trouble))
        asyncio.get_running_loop().call_later(again_ms / 1000, self._rename_again, leaving, again)

    def _rename_again(self, leaving: DepartingReplica, again: Callable[[], None]) -> None:
        """Unless another replica, or this one, has the name by now, or a person was faster."""
        directory_id, name = leaving.directory_id, leaving.name
        if (directory_id, name) not in self.strays:
            return
        if directory_id not in self.inventory.online or self.inventory.is_replica(
            directory_id, name, leaving.partition
        ):
            self.hide(leaving)
            self._tried.pop((directory_id, name), None)
            return
        self.inventory.release(directory_id, name)
        again()

    def _drop_checkpoints(self, leaving: DepartingReplica) -> None:
        if leaving.name.endswith(f"-{leaving.partition}"):  # future replicas and deleted ones have none
            self.drop_checkpoints(leaving.directory_id, {(leaving.topic, leaving.partition)})

    def drop_checkpoints(self, directory_id: Uuid, lines: Collection[tuple[str, int]]) -> None:
        """Remove the lines of these replicas, soon; with those of all others that are renamed now."""
        drops = self._drops.setdefault(directory_id, set())
        if not drops:
            self.works[directory_id].add(functools.partial(self._write_checkpoints, directory_id))
        drops.update(lines)

    async def _write_checkpoints(self, directory_id: Uuid) -> None:
        lines = dict.fromkeys(self._drops.pop(directory_id, ()), None)
        try:
            await self.works[directory_id].agent.change_checkpoints(
                dict.fromkeys(CHECKPOINT_FILES, lines), timeout_ms=WORK_TIMEOUT_MS
            )
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as trouble:
            self.log.warning("checkpoints.drop.failed", path=trouble.path, reason=str(trouble))
            if isinstance(trouble, DirectoryError):
                self._tell_monitor(directory_id, trouble)
            asyncio.get_running_loop().call_later(AGAIN_MS / 1000, self._drop_again, directory_id, tuple(lines))

    def _drop_again(self, directory_id: Uuid, lines: Collection[tuple[str, int]]) -> None:
        """But for replicas that are there by now, current or future: the lines may be theirs."""
        if directory_id not in self.works or directory_id not in self.inventory.online:
            return
        names = self.inventory.names(directory_id)
        there = {name.rpartition(".")[0] if name.endswith("-future") else name for name in names}
        if gone := {(topic, partition) for topic, partition in lines if f"{topic}-{partition}" not in there}:
            self.drop_checkpoints(directory_id, gone)

    def _path(self, directory_id: Uuid, name: str) -> str:
        return f"{self.works[directory_id].agent.path}/{name}"


_NOT_THERE: Final = object()


def _with_remedy(trouble: StorageError) -> str:
    """Describe an error without what differs from one try to the next, so that it is logged once."""
    if isinstance(trouble, DirectoryTimeout):
        return f"{trouble.path}: no answer at {trouble.call}"
    todo = remedy(trouble.errno) if isinstance(trouble, DirectoryError) else ""
    return f"{trouble}: {todo}" if todo else str(trouble)


def _leaving(directory_id: Uuid, name: str, topic_id: Uuid | None) -> DepartingReplica | None:
    """By the name of a ``-delete`` directory; None: it is none of a replica."""
    parsed = parse_replica(name)
    return None if parsed is None else DepartingReplica(directory_id, name, parsed[0], parsed[1], topic_id)
