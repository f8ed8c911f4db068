"""Carries out what :mod:`kjbod_agent.replicas` decides: reviews replicas, makes and renames their directories.

A replica is *reviewed* when the metadata are published first, when a later change touches it, when its directory fails,
when a creation has failed, and when the controller has acknowledged an assignment that never appeared. Reviews are
worked off in small slices, so that a hundred thousand replicas do not keep the event loop from a heartbeat.

Work on a directory is done by its storage agent in order, one thing after the other, and no directory waits for
another one. A creation that gets an I/O error stays where it was decided, and is tried again: whether the directory is
dead is for the health monitor to say, which is told of the error. When it says so, the replica is reviewed again and
goes elsewhere. So a creation that was only slow never leaves two directories behind. A directory that cannot take it
(full, or its name taken) is avoided at once. A replica that no directory can take is tried again each second, and no
longer counts as work to wait for: one topic without room must not keep a whole broker fenced.
"""

import asyncio
import errno
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kjbod.ids import Uuid
from kjbod.metadata.image import Change, MetadataImage
from kjbod_agent.hosting import Hosting, Update
from kjbod_agent.partitions import TopicIdPartition
from kjbod_agent.replicas import Action, Decision, Inventory, Wanted, delete_name
from kjbod_agent.reporting import Log
from kjbod_agent.storage.api import DirectoryAgent, DirectoryError, DirectoryTimeout, WorkerUnavailable

WORK_TIMEOUT_MS: Final = 30_000
RETRY_MS: Final = 1_000
REVIEWS_PER_SLICE: Final = 500
CANNOT_TAKE_IT: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EEXIST, errno.EMLINK})
"""Errors of a creation that speak for another directory, not of a dead disk."""

Job = Callable[[], Awaitable[None]]


class PlacementOwner(Protocol):
    """What the placement needs of the agent. Nothing blocks."""

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """Tell the controller where a replica lies."""

    def forget(self, partition: TopicIdPartition) -> None:
        """A replica is no longer this broker's."""

    def created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """A replica directory was made."""

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        """The kernel refused something in a directory."""

    def refuse(self, reason: str) -> None:
        """The directories cannot be used as they are: end the process."""

    def settled(self) -> None:
        """All reviews and creations that were due are done."""


class DirectoryWork:
    """Jobs on one directory, one after the other."""

    def __init__(self, agent: DirectoryAgent) -> None:
        self.agent = agent
        self._jobs: deque[Job] = deque()
        self._wake = asyncio.Event()

    def add(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)
        self._wake.set()

    def clear(self) -> None:
        """Forget what has not begun: the directory failed."""
        self._jobs.clear()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            while self._jobs:
                await self._jobs.popleft()()
            self._wake.clear()
            await self._wake.wait()


@dataclass(slots=True)
class Placement:
    """The replicas of this broker, on disk and in the metadata.

    Args:
        hosting: what the metadata give to this broker.
        inventory: what lies where.
        agents: storage agent of each directory that was read.
        owner: the agent.
        unique: 32 hexadecimal digits that were never given before, for names of deleted replicas.
        log: for what has no place in the health report.
    """

    hosting: Hosting
    inventory: Inventory
    agents: Mapping[Uuid, DirectoryAgent]
    owner: PlacementOwner
    unique: Callable[[], str]
    log: Log
    published: bool = False
    _work: dict[Uuid, DirectoryWork] = field(init=False)
    _due: dict[TopicIdPartition, None] = field(default_factory=dict)
    _later: int = 0
    _new: set[TopicIdPartition] = field(default_factory=set)
    _left: dict[TopicIdPartition, str] = field(default_factory=dict)
    _refusals: dict[TopicIdPartition, int] = field(default_factory=dict)
    """How often directories could not take a replica that is not made yet."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._work = {directory: DirectoryWork(agent) for directory, agent in self.agents.items()}

    @property
    def busy(self) -> bool:
        """Whether a review or a creation is outstanding; those without room do not count."""
        return bool(self._later) or any(
            not self._has_no_room(partition)
            for partitions in (self._due, self.inventory.creating)
            for partition in partitions
        )

    def _has_no_room(self, partition: TopicIdPartition) -> bool:
        return self._refusals.get(partition, 0) >= max(1, len(self.inventory.online))

    async def run(self) -> None:
        """Review and work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for work in self._work.values():
                tasks.create_task(work.run())
            await self._review_all()

    # ---- what happens

    def publish(self, image: MetadataImage) -> None:
        """The first metadata are complete: review every replica."""
        self.hosting.load(image)
        self.published = True
        self._report_strays()
        self.review(self.hosting.partitions)

    def follow(self, changes: Iterable[Change]) -> list[Update]:
        """Changes of the metadata after :meth:`publish`; what they were for this broker."""
        updates = self.hosting.apply(changes)
        for update in updates:
            if update.new is None:
                self._remove(update)
                continue
            if update.old is None:
                self._new.add(update.partition)
            if update.old is None or update.old.directory != update.new.directory:
                self.review([update.partition])
        return updates

    def fail(self, directory_id: Uuid) -> list[TopicIdPartition]:
        """A directory failed: replicas of this broker that lie in it while the metadata say otherwise."""
        if directory_id not in self.agents:
            return []
        self._work[directory_id].clear()
        self.inventory.fail(directory_id)
        self.review(self.hosting.partitions)
        return [
            partition
            for partition, hosted in self.hosting.partitions.items()
            if hosted.directory != directory_id and self.inventory.locate(partition) == directory_id
        ]

    def review(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Decide about these again, soon."""
        self._due.update(dict.fromkeys(partitions))
        if self._due:
            self._wake.set()

    def leaders(self) -> Mapping[Uuid, int] | None:
        """How many partitions this broker leads, by the directory where they really lie; None before the metadata are
        known."""
        if not self.published:
            return None
        return self.hosting.leaders_by(lambda partition, hosted: self.inventory.locate(partition) or hosted.directory)

    # ---- reviews

    async def _review_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._due:
                for partition in [p for p, _ in zip(self._due, range(REVIEWS_PER_SLICE), strict=False)]:
                    del self._due[partition]
                    self._review(partition)
                await asyncio.sleep(0)
            self._due.clear()  # an emptied dict keeps the table of its largest size
            self.owner.settled()

    def _review(self, partition: TopicIdPartition) -> None:
        hosted = self.hosting.partitions.get(partition)
        if hosted is None:
            return
        wanted = Wanted(partition, hosted.topic, hosted.directory, partition in self._new)
        decision = self.inventory.decide(wanted)
        if decision.action is Action.REFUSE:
            self.owner.refuse(decision.why)
        elif decision.action in (Action.CREATE, Action.CREATE_AND_ASSIGN):
            self._create(decision)
        elif decision.assign and decision.directory_id is not None:
            self._left.pop(partition, None)
            self.owner.assign(partition, decision.directory_id)
        else:
            self._leave(decision)

    def _leave(self, decision: Decision) -> None:
        """Nothing to do; said once where a person would expect something."""
        wanted = decision.wanted
        for path in self.inventory.duplicates(wanted):
            self.log.error("replica.duplicate", topic=wanted.topic, partition=wanted.partition.partition, path=path)
        missing = self.inventory.locate(wanted.partition) is None
        if missing and self._left.get(wanted.partition) != decision.why:
            self._left[wanted.partition] = decision.why
            self.log.warning(
                "replica.left",
                topic=wanted.topic,
                partition=wanted.partition.partition,
                directory_id=str(wanted.assigned),
                reason=decision.why,
            )

    def _report_strays(self) -> None:
        for directory, name, topic_id in self.inventory.strays(self.hosting.partitions.__contains__):
            self.log.warning(
                "replica.stray",
                path=f"{self.inventory.path(directory)}/{name}",
                topic_id=None if topic_id is None else str(topic_id),
            )

    # ---- creations

    def _create(self, decision: Decision) -> None:
        directory = decision.directory_id
        assert directory is not None
        self._left.pop(decision.wanted.partition, None)
        self._work[directory].add(functools.partial(self._make, decision.wanted, directory))

    async def _make(self, wanted: Wanted, directory: Uuid) -> None:
        """One attempt to make a replica directory."""
        partition = wanted.partition
        agent = self.agents[directory]
        try:
            await agent.create_replica(
                wanted.topic, partition.partition, partition.topic_id, timeout_ms=WORK_TIMEOUT_MS
            )
        except DirectoryError as error:
            self._not_made(wanted, directory, error)
        except (DirectoryTimeout, WorkerUnavailable) as trouble:
            self.log.warning("replica.create.failed", topic=wanted.topic, path=agent.path, reason=str(trouble))
            self._again(wanted, directory)
        else:
            self._made(wanted)

    def _made(self, wanted: Wanted) -> None:
        partition = wanted.partition
        self._refusals.pop(partition, None)
        directory = self.inventory.created(partition)
        if directory is None:
            return
        self.owner.created(wanted.topic, partition, directory)
        hosted = self.hosting.partitions.get(partition)
        if hosted is None:
            self._rename(partition, wanted.name, wanted.topic)
        elif hosted.directory != directory:
            self.owner.assign(partition, directory)
        if not self.busy:
            self.owner.settled()

    def _not_made(self, wanted: Wanted, directory: Uuid, error: DirectoryError) -> None:
        self.log.warning("replica.create.failed", topic=wanted.topic, path=error.path, reason=str(error))
        if error.errno in CANNOT_TAKE_IT:
            self._refused(wanted)
            return
        self.owner.work_failed(directory, error)
        self._again(wanted, directory)

    def _refused(self, wanted: Wanted) -> None:
        """A directory cannot take a replica: another one may."""
        partition = wanted.partition
        self.inventory.not_created(partition)
        had_room = not self._has_no_room(partition)
        self._refusals[partition] = self._refusals.get(partition, 0) + 1
        if self._has_no_room(partition):
            if had_room:
                self.log.error("replica.no.room", topic=wanted.topic, partition=partition.partition)
            asyncio.get_running_loop().call_later(RETRY_MS / 1000, self.review, [partition])
            self.owner.settled()
        else:
            self._call_later(lambda: self.review([partition]))

    def _again(self, wanted: Wanted, directory: Uuid) -> None:
        """Try the same once more later, unless the directory has failed by then: then it was reviewed anew."""

        def retry() -> None:
            if self.inventory.locate(wanted.partition) == directory and directory in self.inventory.online:
                self._work[directory].add(lambda: self._make(wanted, directory))

        self._call_later(retry)

    def _call_later(self, call: Callable[[], None]) -> None:
        self._later += 1

        def run() -> None:
            self._later -= 1
            call()
            self._wake.set()

        asyncio.get_running_loop().call_later(RETRY_MS / 1000, run)

    # ---- deletions

    def _remove(self, update: Update) -> None:
        partition, old = update.partition, update.old
        assert old is not None
        self._new.discard(partition)
        self._left.pop(partition, None)
        self._refusals.pop(partition, None)
        self._due.pop(partition, None)
        self.owner.forget(partition)
        self._rename(partition, f"{old.topic}-{partition.partition}", old.topic)

    def _rename(self, partition: TopicIdPartition, name: str, topic: str) -> None:
        """The metadata no longer give this replica to this broker: free its name. Nothing is removed."""
        for directory in self.inventory.remove(partition, name):
            new_name = delete_name(topic, partition.partition, self.unique())
            self._work[directory].add(functools.partial(self._move_away, directory, name, new_name))

    async def _move_away(self, directory: Uuid, name: str, new_name: str) -> None:
        agent = self.agents[directory]
        try:
            await agent.rename_replica(name, new_name, timeout_ms=WORK_TIMEOUT_MS)
        except DirectoryError as error:
            self.log.warning("replica.rename.failed", path=f"{agent.path}/{name}", reason=str(error))
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.EINVAL):
                self.owner.work_failed(directory, error)
        except (DirectoryTimeout, WorkerUnavailable) as trouble:
            # It becomes a stray at the next start, and is listed then.
            self.log.warning("replica.rename.failed", path=f"{agent.path}/{name}", reason=str(trouble))
        else:
            self.log.info("replica.deleted", path=f"{agent.path}/{new_name}")
