"""Carries out what :mod:`.table` decides: reviews replicas, makes and renames their directories.

A replica is *reviewed* when the metadata are published first, when a later change touches it, when its directory fails
or is loaded, when a creation has failed, and when the controller has acknowledged an assignment that never appeared.
Reviews, and all else that takes time in proportion to the number of replicas (the first look at the metadata, at what
lies in a directory), are worked off in small slices, so that a hundred thousand replicas do not keep the event loop
from a heartbeat.

In order, when the first metadata are published: which replicas are ours; which directories are none of them (strays,
renamed and kept; ``-delete`` ones, removed where the metadata prove the deletion); then the reviews. So what is stray
has given up its name before a replica of that name is made. A directory that is loaded later goes the same way.

Work on a directory is done by its storage agent in order, one thing after the other, and no directory waits for
another one. A creation that gets an I/O error stays where it was decided, and is tried again: whether the directory is
dead is for the health monitor to say, which is told of the error. When it says so, the replica is reviewed again and
goes elsewhere. So a creation that was only slow never leaves two directories behind. A directory that cannot take it
(full) is avoided at once. A replica that no directory can take, or that fails for a minute on, is
tried again each second, and no longer counts as work to wait for: how long the broker waits for its assignment is for
:mod:`kjbod_agent.fencing` to say. :attr:`Placement.unmade` says what is the matter with it, and one line a minute for
each directory and error.
"""

import asyncio
import dataclasses
import errno
import functools
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from kjbod.clock import Clock, SystemClock
from kjbod.ids import Uuid, is_reserved
from kjbod.metadata.image import BROKER, TOPIC, Change, ConfigChange, MetadataImage, TopicDeleted
from kjbod_agent.replicas.choice import Site
from kjbod_agent.replicas.deletions import Deletions, DepartingReplica, StrayError, Successor
from kjbod_agent.replicas.directory_work import DirectoryWork, Job
from kjbod_agent.replicas.hosting import Hosting, Update
from kjbod_agent.replicas.inventory import Claim, Decision, Inventory, StrayCopy, Wanted, delete_name
from kjbod_agent.replicas.stray_memory import Note, StrayMemory, StrayWriter, WriteFile
from kjbod_agent.replicas.strays import (
    FOUND_AT_START,
    LONGER,
    MAY_BE_NEEDED,
    NO_LONGER_THERE,
    NO_PARTITION,
    NO_TOPIC_ID,
    NOT_PROVEN_DELETED,
    Stray,
    is_deletion_proven,
    is_stray_kraft,
)
from kjbod_agent.replicas.table import Action
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.reporter import Log
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, DirectoryTimeout, Replica, WorkerUnavailable
from kjbod_host.storage.meaning import Meaning, asks_probe, in_work, remedy
from kjbod_host.storage.worker import UNFINISHED, parse_replica
from kjbod_host.strays import NO_TOPIC, NOT_HERE

__all__ = ["DirectoryWork", "Job", "Placement", "PlacementOwner", "Progress", "StrayError", "delete_name"]

WORK_TIMEOUT_MS: Final = 30_000
RETRY_MS: Final = 1_000
REVIEWS_PER_SLICE: Final = 500
LOADS_PER_SLICE: Final = 5_000
"""Partitions of the cluster that are looked at in one go; one costs a hundredth of a review."""
_UNMARKED: Final = ("", "future")
"""Suffixes of replica directories without a mark."""
_SUFFIXES: Final = (*_UNMARKED, "stray", "delete")
SITES_FRESH_MS: Final = 1_000
"""For so long what is known of the directories is good enough to choose by."""
FAILING_MS: Final = 60_000
"""A creation that fails for this long is no work to wait for. The verdict on its directory takes half of it at most."""
TOLD_AGAIN_MS: Final = 60_000
"""Between two lines about creations that fail with one error in one directory."""
CANNOT_TAKE_IT: Final = frozenset({Meaning.ROOM, Meaning.NAME, Meaning.CONFIGURATION})
"""Errors of a creation that speak for another directory, not of a dead disk."""
LOOK_MS: Final = 10_000
"""Between two looks at which replicas are in a directory."""
READ_PER_LOOK: Final = 500
"""Replicas of a directory whose ``partition.metadata`` one look reads."""
NAMED_MAX: Final = 3
"""Replicas that are named with the reason why they are missing; the others are counted."""
TOPIC_DELAY: Final = "file.delete.delay.ms"
BROKER_DELAY: Final = "log.segment.delete.delay.ms"
DELETE_DELAY_MS: Final = 60_000


class Vanished(NamedTuple):
    """A replica that a person or another program has removed or displaced: its directory, and words that follow the
    path."""

    path: str
    reason: str


class PlacementOwner(Protocol):
    """The agent, as the placement uses it. No method blocks."""

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """Tell the controller where a replica lies."""

    def forget(self, partition: TopicIdPartition) -> None:
        """A replica is no longer this broker's."""

    def created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """A replica directory was made."""

    def resume_move(self, wanted: Wanted, directory_id: Uuid, future_name: str) -> None:
        """Hand a found future replica to the mover (``Inventory.begin_move``). Repeated with each review until the
        mover takes the replica."""

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        """Report that the kernel refused an operation in a directory."""

    def doubt(self, directory_id: Uuid, since_ms: int) -> str | None:
        """Reason not to rely on a directory, as :class:`kjbod_agent.moves.mover.MoveOwner` says; None: it is."""

    def refuse(self, reason: str, *, config: bool = False) -> None:
        """End the process, because the directories cannot be used as they are. ``config``: no restart can help."""

    def settled(self) -> None:
        """All reviews and creations that were due are done."""


class Progress(Struct, frozen=True):
    """Progress of the placement, for people.

    Attributes:
        replicas: of this broker, as far as they were counted.
        to_review: of these, how many are to be looked at.
        waiting: how many wait for a directory that is not loaded yet.
        creating: how many directories are being made.
        created: how many were made since the start.
        loading: directories that are not loaded yet.
    """

    replicas: int
    to_review: int
    waiting: int
    creating: int
    created: int
    loading: int


class Unmade(Struct, frozen=True):
    """A replica that could not be made so far."""

    name: str
    """``events-3``."""
    since_ms: int
    """Of the first attempt that failed; monotonic."""
    kind: str
    """Of its error."""
    reason: str
    """In words; stays while all attempts fail with this kind of error, in whichever directory."""


@dataclasses.dataclass(slots=True)
class Placement:
    """The replicas of this broker, on disk and in the metadata.

    Args:
        hosting: what the metadata give to this broker.
        inventory: what lies where.
        agents: storage agent of each directory that was read or is being loaded.
        owner: the agent.
        unique: 32 hexadecimal digits that were never given before, for names of deleted and stray replicas.
        log: for what has no place in the health report.
        clock: the time.
        delete_delay_ms: ``log.segment.delete.delay.ms`` as configured.
        memory: why each stray is one; None: it is not remembered over a restart.
        notes: what ``memory`` said at the start.
        sites: how each directory is now, for the choice among them.
    """

    hosting: Hosting
    inventory: Inventory
    agents: Mapping[Uuid, DirectoryAgent]
    owner: PlacementOwner
    unique: Callable[[], str]
    log: Log
    clock: Clock = dataclasses.field(default_factory=SystemClock)
    delete_delay_ms: int = DELETE_DELAY_MS
    memory: StrayMemory | None = None
    write_file: WriteFile | None = None
    notes: Mapping[tuple[Uuid, str], Note] = dataclasses.field(default_factory=dict)
    sites: Callable[[], Mapping[Uuid, Site]] = dict
    published: bool = False
    deletions: Deletions = dataclasses.field(init=False)
    _work: dict[Uuid, DirectoryWork] = dataclasses.field(init=False)
    _writer: StrayWriter | None = dataclasses.field(init=False)
    _tasks: asyncio.TaskGroup | None = None
    _image: MetadataImage = dataclasses.field(default_factory=MetadataImage)
    _delays: dict[str, int] = dataclasses.field(default_factory=dict)
    """``file.delete.delay.ms`` of the topics that have one; kept until their replicas are renamed."""
    _chores: deque[Iterator[None]] = dataclasses.field(default_factory=deque)
    """What goes before all reviews, in slices."""
    _known: bool = False
    """All replicas of the first metadata were counted, and what is stray was found."""
    _deleted: list[DepartingReplica] = dataclasses.field(default_factory=list)
    """``-delete`` directories that were found and wait for a verdict."""
    _unproven: bool = False
    """The history of the metadata is not known to contain what an earlier process, or this one, had applied."""
    _due: set[TopicIdPartition] = dataclasses.field(default_factory=set)
    """To be reviewed."""
    _queue: deque[TopicIdPartition] = dataclasses.field(default_factory=deque)
    """In this order; those that are not due any more are passed over."""
    _waiting: dict[TopicIdPartition, None] = dataclasses.field(default_factory=dict)
    _behind: bool = False
    """The metadata that follow are known to the controllers, and not here yet."""
    _postponed: dict[TopicIdPartition, None] = dataclasses.field(default_factory=dict)
    """New replicas that are not made before the metadata are current: their topics may be deleted by now."""
    _parted_from: set[Uuid] = dataclasses.field(default_factory=set)
    """Directories that are gone, of which it was said that they had the only copy of a replica."""
    _retrying: set[TopicIdPartition] = dataclasses.field(default_factory=set)
    """To be made once more after a moment."""
    _unmade: dict[TopicIdPartition, Unmade] = dataclasses.field(default_factory=dict)
    _told: dict[tuple[str, str], int] = dataclasses.field(default_factory=dict)
    """When a creation that failed was last told, by its directory and kind of error."""
    _created: int = 0
    _new: set[TopicIdPartition] = dataclasses.field(default_factory=set)
    _left: dict[TopicIdPartition, str] = dataclasses.field(default_factory=dict)
    _taken: dict[TopicIdPartition, str] = dataclasses.field(default_factory=dict)
    """Replicas that cannot be made because something else has their name, with what has it."""
    _vanished: dict[TopicIdPartition, Vanished] = dataclasses.field(default_factory=dict)
    """Replicas that a person or another program has removed or replaced."""
    _looked: dict[Uuid, int] = dataclasses.field(default_factory=dict)
    """How many replicas of each directory the looks have read so far, round and round."""
    _refusals: dict[TopicIdPartition, int] = dataclasses.field(default_factory=dict)
    """How often directories could not take a replica that is not made yet."""
    _unable: dict[Uuid, str] = dataclasses.field(default_factory=dict)
    """Directories whose file systems cannot make a replica, and why; until one is made there."""
    _sites_ms: int | None = None
    _doubtful: frozenset[Uuid] = frozenset()
    """Directories that are slow, held or suspect, as :meth:`observe` saw them last."""
    _wake: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.agents = dict(self.agents)
        self._work = {directory: DirectoryWork(agent) for directory, agent in self.agents.items()}
        self.deletions = Deletions(
            inventory=self.inventory,
            works=self._work,
            work_failed=self.owner.work_failed,
            unique=self.unique,
            successor=self._successor,
            delay_ms=self.delete_delay_of,
            wall_ms=self.clock.wall_ms,
            changed=self._strays_changed,
            renamed_away=self._renamed_away,
            log=self.log,
            remembered=dict(self.notes),
        )
        self._writer = None
        if self.memory is not None and self.write_file is not None:
            self._writer = StrayWriter(self.memory, self.write_file, self.deletions.notes, self._not_remembered)

    # ---- what others ask

    @property
    def busy(self) -> bool:
        """Whether a review or a creation is outstanding. Creations that fail repeatedly do not count."""
        if self._chores or self._waiting or self._postponed:
            return True
        for partitions in (self._due, self.inventory.creating, self._retrying):
            # Asked after each creation: a walk over all of them would make a start quadratic.
            if len(partitions) > len(self._unmade):
                return True
            if partitions and not all(map(self._fails_on, partitions)):
                return True
        return False

    @property
    def unmade(self) -> Mapping[TopicIdPartition, Unmade]:
        """Replicas that could not be made so far, in the order of their first failure."""
        return self._unmade

    @property
    def taken(self) -> Mapping[TopicIdPartition, str]:
        """Replicas that cannot be made because something else has their name, with what has it."""
        return self._taken

    def missing(self) -> list[str]:
        """Replicas that the metadata place here and that cannot be used, and why, in words."""
        told = [f"{self._name(partition)} cannot be used: {why}" for partition, why in self._taken.items()]
        told += [f"{gone.path} {gone.reason}" for gone in self._vanished.values()]
        longer = [stray for stray in self.deletions.strays.values() if stray.reason.startswith(LONGER)]
        told += [f"{stray.path}: {stray.reason}: restore or remove it (kjbod strays)" for stray in longer]
        more = len(told) - NAMED_MAX
        return told if more <= 0 else [*told[:NAMED_MAX], f"{more:,} more replicas cannot be used"]

    def _name(self, partition: TopicIdPartition) -> str:
        hosted = self.hosting.partitions.get(partition)
        return f"{partition.topic_id if hosted is None else hosted.topic}-{partition.partition}"

    @property
    def progress(self) -> Progress:
        """Progress of the placement."""
        return Progress(
            replicas=len(self.hosting.partitions),
            to_review=len(self._due),
            waiting=len(self._waiting),
            creating=len(self.inventory.creating),
            created=self._created,
            loading=len(self.inventory.loading),
        )

    @property
    def strays(self) -> tuple[Stray, ...]:
        """Stray replicas that are kept, those in directories that failed in this process included."""
        return tuple(self.deletions.strays.values())

    def _fails_on(self, partition: TopicIdPartition) -> bool:
        unmade = self._unmade.get(partition)
        if unmade is None:
            return False
        return self._has_no_room(partition) or self.clock.monotonic_ms() - unmade.since_ms >= FAILING_MS

    def _has_no_room(self, partition: TopicIdPartition) -> bool:
        return self._refusals.get(partition, 0) >= max(1, len(self.inventory.online))

    async def run(self) -> None:
        """Review replicas, and work on directories, until cancelled."""
        async with asyncio.TaskGroup() as self._tasks:
            for work in self._work.values():
                self._tasks.create_task(work.run())
            if self._writer is not None:
                self._tasks.create_task(self._writer.run())
            self._tasks.create_task(self._look_again())
            await self._review_all()

    def work(self, directory_id: Uuid, job: Job) -> None:
        """Queue a job on a directory, behind what is queued there. It must not raise. Dropped when the directory
        fails first."""
        self._work[directory_id].add(job)

    def delete_later(self, directory_id: Uuid, name: str, topic: str, topic_id: Uuid | None) -> None:
        """Remove a ``-delete`` directory after ``file.delete.delay.ms``, the topic's before the broker's."""
        self.inventory.occupy(directory_id, name, topic_id)
        self._deleted = [each for each in self._deleted if (each.directory_id, each.name) != (directory_id, name)]
        self.deletions.delete_later(directory_id, name, topic, topic_id)

    async def leave(self, leaving: DepartingReplica) -> None:
        """In the queue of its directory: rename a copy that a move left, which no start may find, and remove it
        later."""
        await self.deletions.leave(leaving)

    def drop_checkpoints(self, leaving: DepartingReplica) -> None:
        """Remove the lines of a replica from the checkpoint files of a directory that it has left."""
        self.deletions.drop_checkpoints(leaving.directory_id, {(leaving.topic, leaving.partition)})

    def delete_delay_of(self, topic: str) -> int:
        """``file.delete.delay.ms`` of a topic, in milliseconds: its own, the broker's dynamic one, that of all brokers,
        the configured one."""
        delay = self._delays.get(topic)
        if delay is not None:
            return delay
        for broker in (str(self.hosting.broker_id), ""):
            value = self._image.configs.get((BROKER, broker), {}).get(BROKER_DELAY, "")
            if value.isdecimal():
                return int(value)
        return self.delete_delay_ms

    def leaders(self) -> Mapping[Uuid, int] | None:
        """Number of partitions that this broker leads, by the directory where they really lie; None before the metadata
        are known."""
        if not self._known:
            return None
        return self.hosting.leaders_by(lambda partition, hosted: self.inventory.locate(partition) or hosted.directory)

    # ---- what happens

    def publish(self, image: MetadataImage) -> None:
        """Review every replica, because the first metadata are complete."""
        self.published = True
        self._image = image
        self._delays = _topic_delays(image)
        self.observe()
        self._do(self._first_look(self.hosting.load_in_steps(lambda: self._image, LOADS_PER_SLICE)))

    def doubt(self) -> None:
        """The metadata may be of another history than those by which an earlier process marked replicas as deleted:
        from now on what is missing in them proves nothing of that."""
        self._unproven = True

    def follow(
        self,
        changes: Iterable[Change],
        image: MetadataImage | None = None,
        *,
        proven: bool = True,
        behind: bool = False,
    ) -> list[Update]:
        """Changes of the metadata after :meth:`publish`; what they were for this broker.

        Args:
            image: where another one has taken the place of that which was published (a snapshot).
            proven: whether what is missing in it was deleted. A history that is not known to contain what was applied
                proves no deletion: all is judged as at a start, and kept as strays.
            behind: whether more changes are known to the controllers. What is new is not made before they are here.
        """
        self._behind = behind
        replaced = image is not None and image is not self._image
        was_incomplete = self._image.newer.incomplete
        self._image = self._image if image is None else image
        changes = list(changes)
        if any(isinstance(change, ConfigChange) and change.resource_type == BROKER for change in changes):
            self._sites_ms = None  # directories may be cordoned now
        self.observe()
        updates = self.hosting.apply(changes)
        for update in updates:
            if update.new is None:
                self._remove(update, proven)
                continue
            if update.old is None:
                self._new.add(update.partition)
            if update.old is None or update.old.directory != update.new.directory:
                self.review([update.partition])
        # After the replicas of deleted topics were seen to: their configuration is gone from the image before.
        if replaced:
            self._delays = _topic_delays(self._image)
        else:
            self._follow_delays(changes)
        if not behind:
            self.review(self._postponed)
        if not proven:
            self._deleted.extend(self.deletions.recall())
            self._judge_deleted()
            self.doubt()
        if was_incomplete and not self._image.newer.incomplete:
            self._do(self._look_again_through_all())
        return updates

    def keep(self, leaving: DepartingReplica) -> None:
        """Make a stray of a replica that belongs to another history than that of the metadata."""
        self.deletions.set_aside(leaving, NO_LONGER_THERE)

    def fail(self, directory_id: Uuid) -> list[TopicIdPartition]:
        """A directory failed: replicas of this broker that lie in it while the metadata say otherwise. Those that are
        being moved are the mover's to assign."""
        if directory_id not in self.inventory:
            return []
        if directory_id in self._work:
            self._work[directory_id].clear()
        self.inventory.fail(directory_id)
        self.deletions.directory_failed(directory_id)
        self._judge_deleted()
        self.review(self.hosting.partitions)
        return [
            partition
            for partition, hosted in self.hosting.partitions.items()
            if hosted.directory != directory_id
            and directory_id in self.inventory.copies(partition)
            and partition not in self.inventory.moving
        ]

    def add_directory(self, directory_id: Uuid, agent: DirectoryAgent, path: str, replicas: Iterable[Replica]) -> None:
        """A directory was loaded, or added while running: from its last replica on, in slices, it is online. What
        waited for it is reviewed then, and all that lies in it."""
        agents = dict(self.agents)
        agents[directory_id] = agent
        self.agents = agents
        known = self._work.get(directory_id)
        if known is None or known.agent is not agent:
            self._work[directory_id] = DirectoryWork(agent)
            if self._tasks is not None:
                self._tasks.create_task(self._work[directory_id].run())
        self.inventory.begin_directory(directory_id, path)
        self._do(self._take(directory_id, tuple(replicas)))

    def forget_directory(self, directory_id: Uuid | None) -> None:
        """Its disk was replaced: nothing that was known of it counts any more. None: it was never known."""
        self.inventory.forget_directory(directory_id)
        if directory_id is not None:
            if directory_id in self._work:
                self._work[directory_id].clear()
            self._looked.pop(directory_id, None)
            self.deletions.forget_directory(directory_id)
        self._judge_deleted()
        self.review(self.hosting.partitions)

    def review(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Decide about these again, soon."""
        fresh = [partition for partition in partitions if partition not in self._due]
        self._due.update(fresh)
        self._queue.extend(fresh)
        if self._due:
            self._wake.set()

    # ---- strays, by a person

    async def remove_stray(self, directory_id: Uuid, name: str) -> str:
        """Delete a stray replica for good; says what was done.

        Raises:
            StorageError: there is no such stray, or it could not be removed.
        """
        stray = self.deletions.find(directory_id, name)
        await self.deletions.remove_stray(stray)
        return f"removed {stray.path}"

    async def restore_stray(self, directory_id: Uuid, name: str) -> str:
        """Give a stray replica its plain name, and review it; says what was done.

        Raises:
            StorageError: it cannot be this broker's replica as things are, or could not be renamed.
        """
        stray = self.deletions.find(directory_id, name)
        wanted = self._restorable(stray)
        self.inventory.reserve(wanted, directory_id)
        try:
            await self.deletions.rename_stray(stray, wanted.name)
        except BaseException:
            self.inventory.unreserve(wanted.partition)
            raise
        self.inventory.give_up_offline(wanted.partition)
        if self.inventory.created(wanted.partition) is None:
            raise StrayError(f"{stray.path}: its log directory has failed in the meantime")
        self.review([wanted.partition])
        said = f"restored {stray.path} as {wanted.name}"
        if self.inventory.is_offline(wanted.assigned):
            said += f"; what lies in the offline directory {wanted.assigned} is a stray when it is back"
        return said

    def _restorable(self, stray: Stray) -> Wanted:
        """The replica that a stray becomes when it is restored.

        Raises:
            StrayError: why not, and what would make it possible.
        """
        if not self._known:
            raise StrayError(f"{stray.path}: the metadata are not known yet: try again when the broker is unfenced")
        why = is_stray_kraft(self.hosting.broker_id, stray.topic_id, stray.partition, self._replicas)
        if why is not None or stray.topic_id is None:
            raise StrayError(f"{stray.path} cannot be restored: {why}{_REMEDY[why or NO_TOPIC_ID]}")
        partition = TopicIdPartition(stray.topic_id, stray.partition)
        hosted = self.hosting.partitions[partition]
        wanted = Wanted(partition, hosted.topic, hosted.directory, new=False)
        at = self.inventory.locate(partition) or (self.inventory.future(partition) or (None,))[0]
        if at is not None and (not self.inventory.is_offline(at) or partition in self.inventory.moving):
            raise StrayError(
                f"{stray.path} cannot be restored: the replica lies in {self.inventory.path(at)} already; to take this "
                f"one instead, stop the agent, move {wanted.name} out of there and rename this one to {wanted.name}"
            )
        if wanted.name in self.inventory.names(stray.directory_id):
            raise StrayError(
                f"{stray.path} cannot be restored: {wanted.name} lies beside it: restore or remove that one first"
            )
        if (taken := self.inventory.why_taken(wanted)) is not None:
            raise StrayError(f"{stray.path} cannot be restored: its name is taken: {taken}")
        return wanted

    # ---- the first look, and at a directory that was loaded

    def _do(self, chore: Iterator[None]) -> None:
        """In slices, before all reviews; a small one at once."""
        if self._chores or next(chore, chore) is None:
            self._chores.append(chore)
        self._wake.set()

    def _first_look(self, counting: Iterator[None]) -> Iterator[None]:
        yield from counting
        for directory in self.inventory.online:
            yield from self._look_through(directory)
        self._known = True
        self._judge_deleted()
        # A copy of the whole index in one go is cheaper than any loop over it.
        self.review(self.hosting.partitions)

    def _take(self, directory_id: Uuid, replicas: tuple[Replica, ...]) -> Iterator[None]:
        """Put what lies in a directory into the inventory."""
        for number, replica in enumerate(replicas, start=1):
            self.inventory.put(directory_id, replica)
            if number % REVIEWS_PER_SLICE == 0:
                yield
        if directory_id not in self.inventory.loading:
            return  # it failed in the meantime
        self.inventory.loaded(directory_id)
        if self._known:
            yield from self._look_through(directory_id)
            self._judge_deleted()
            self.review(
                TopicIdPartition(r.topic_id, r.partition)
                for r in replicas
                if r.topic_id is not None and r.suffix in ("", "future")
            )
            taken = (self._hosted_as(f"{r.topic}-{r.partition}") for r in replicas if r.trouble)
            self.review(partition for partition in taken if partition is not None)
            self.review(self._waiting)

    def _look_again_through_all(self) -> Iterator[None]:
        """Find what was left in its place while the metadata were incomplete, and is no replica of this broker."""
        for directory in self.inventory.online:
            yield from self._look_through(directory, _UNMARKED)

    def _look_through(self, directory_id: Uuid, suffixes: Container[str] = _SUFFIXES) -> Iterator[None]:
        """Find what is no replica of this broker in a directory, among the names with these suffixes."""
        for number, (name, topic_id) in enumerate(list(self.inventory.names(directory_id).items()), start=1):
            parsed = parse_replica(name)
            if parsed is not None and parsed[2] in suffixes:
                topic, partition, suffix = parsed
                self._look_at(
                    DepartingReplica(directory_id, name, self._topic(topic_id, topic), partition, topic_id), suffix
                )
            if number % REVIEWS_PER_SLICE == 0:
                yield
        self.deletions.looked_through(directory_id)

    def _look_at(self, found: DepartingReplica, suffix: str) -> None:
        if suffix == "stray":
            self.deletions.keep(found, FOUND_AT_START)
        elif suffix == "delete":
            self._deleted.append(found)
        else:
            if self._keeps_its_name(found):
                return
            reason = is_stray_kraft(self.hosting.broker_id, found.topic_id, found.partition, self._replicas)
            plain = found.name if suffix == "" else found.name.rpartition(".")[0]
            if reason is None and found.topic_id and plain != (name := f"{found.topic}-{found.partition}"):
                key = TopicIdPartition(found.topic_id, found.partition)
                self.inventory.misname(found.directory_id, found.name, key, name)
                return
            creating = found.topic_id and TopicIdPartition(found.topic_id, found.partition) in self.inventory.creating
            # What an incomplete picture lacks may be in it when it is whole: an empty replica would take its name then.
            if reason is not None and not creating and not self._image.newer.incomplete:
                self.inventory.take_out(found.directory_id, found.name, found.partition)
                self.deletions.set_aside(found, reason)

    def _keeps_its_name(self, found: DepartingReplica) -> bool:
        """Whether something that cannot be used as a copy stays as it is: it is no directory, or a replica of this
        broker has its name. What cannot be read is not "no such topic"."""
        claimed = self.inventory.claim_of(found.directory_id, found.name)
        return claimed is not None and (not claimed[1].is_directory or self._hosted_as(claimed[0]) is not None)

    def _hosted_as(self, name: str) -> TopicIdPartition | None:
        """The replica of this broker with this name."""
        topic, _, number = name.rpartition("-")
        topic_id = self._image.topic_ids.get(topic)
        partition = None if topic_id is None else TopicIdPartition(topic_id, int(number))
        return partition if partition in self.hosting.partitions else None

    def _judge_deleted(self) -> None:
        """Remove later what was found as ``-delete``, where the metadata prove it. Where they contradict it, it gets
        its name back; else it is kept as a stray. Not before all directories are loaded, and not what a move that was
        interrupted still needs."""
        if not self._known or self.inventory.loading:
            return
        found, self._deleted = self._deleted, []
        online = frozenset(self.inventory.online)
        undeleted = self._contradicted(found)
        for each in found:
            if each.directory_id not in online or each.name not in self.inventory.names(each.directory_id):
                continue
            key = None if each.topic_id is None else TopicIdPartition(each.topic_id, each.partition)
            hosted = None if key is None else self.hosting.partitions.get(key)
            # Of another history only that counts: a current copy of it lies where that has it.
            missing = hosted is None or hosted.directory is None
            proven = not (self._unproven and missing) and is_deletion_proven(
                self.hosting.broker_id,
                each.topic_id,
                each.partition,
                self._replicas,
                assigned=None if hosted is None else hosted.directory,
                copies=() if key is None else online.intersection(self.inventory.copies(key)),
            )
            if proven or each.name.endswith(UNFINISHED):
                self.deletions.hide(each)
                self.deletions.delete_later(each.directory_id, each.name, each.topic, each.topic_id)
            elif each in undeleted and hosted is not None and key is not None:
                self.deletions.hide(each)
                self._undelete(each, Wanted(key, hosted.topic, hosted.directory, new=False))
            elif hosted is None or key is None or not self._may_be_a_source(key):
                self.deletions.hide(each)
                self.inventory.release(each.directory_id, each.name)
                self.deletions.set_aside(each, NOT_PROVEN_DELETED)
            else:
                self._deleted.append(each)
                if self.inventory.future(key) is not None:
                    self.deletions.hide(each)
                else:
                    self.deletions.show(each, MAY_BE_NEEDED)

    def _contradicted(self, found: Iterable[DepartingReplica]) -> set[DepartingReplica]:
        """Replicas of which the metadata, set back to before the deletion, have the replica here, and that are all that
        is left of it: an empty one in its place would be the loss of its data, with a leader."""
        left: dict[TopicIdPartition, list[DepartingReplica]] = {}
        for each in found:
            key = None if each.topic_id is None else TopicIdPartition(each.topic_id, each.partition)
            if key is not None and key in self.hosting and each.directory_id in self.inventory.online:
                left.setdefault(key, []).append(each)
        undeleted = set()
        for key, marked in left.items():
            if self.inventory.may_lie_elsewhere(key):
                continue
            plain = f"{self.hosting.partitions[key].topic}-{key.partition}"
            if self.inventory.claims(plain):
                continue
            # Of several nobody knows which was the last, or whether one is what a move that was given up had copied.
            if len(marked) == 1 and plain not in self.inventory.names(marked[0].directory_id):
                undeleted.add(marked[0])
        return undeleted

    def _undelete(self, marked: DepartingReplica, wanted: Wanted) -> None:
        self.inventory.reserve(wanted, marked.directory_id)
        self._work[marked.directory_id].add(functools.partial(self._rename_back, marked, wanted))

    async def _rename_back(self, marked: DepartingReplica, wanted: Wanted) -> None:
        """Rename a replica back to the name that :meth:`_undelete` has reserved."""
        agent = self._work[marked.directory_id].agent
        try:
            await agent.rename_replica(marked.name, wanted.name, timeout_ms=WORK_TIMEOUT_MS)
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
            self.inventory.unreserve(wanted.partition)
            path = f"{agent.path}/{marked.name}"
            self.log.error("replica.rename.failed", path=path, reason=str(error))
            if isinstance(error, DirectoryError):
                self.owner.work_failed(marked.directory_id, error)
            self.inventory.release(marked.directory_id, marked.name)
            self.deletions.set_aside(marked, NOT_PROVEN_DELETED)
        else:
            self.inventory.release(marked.directory_id, marked.name)
            self._new.discard(wanted.partition)
            self.log.warning(
                "replica.undeleted",
                path=f"{agent.path}/{wanted.name}",
                was=marked.name,
                reason="it was marked as deleted, and the metadata place it here",
            )
            self.inventory.created(wanted.partition)
        self.review([wanted.partition])

    def _successor(self, name: str, topic_id: Uuid | None) -> Successor | None:
        """The copy in the place of a ``-delete`` directory that a move left, or of one that is this broker's again."""
        parsed = parse_replica(name)
        if parsed is None or topic_id is None or name.endswith(UNFINISHED):
            return None
        partition = TopicIdPartition(topic_id, parsed[1])
        hosted = self.hosting.partitions.get(partition)
        if hosted is None:
            return None
        self.observe()
        directory = hosted.directory
        well = directory in self.inventory.online and directory in self.inventory.copies(partition)
        if well:
            doubt = self.owner.doubt(directory, self.clock.monotonic_ms())
            well = directory in self._work and directory not in self._doubtful and doubt is None
        return Successor(
            directory_id=directory,
            name=f"{hosted.topic}-{partition.partition}",
            well=well,
            offline=self.inventory.is_offline(directory),
        )

    def _may_be_a_source(self, partition: TopicIdPartition) -> bool:
        """Whether the mover may need what is marked as deleted: its future replica is here, or may be where nobody can
        look. Then it keeps its name, by which the mover finds it."""
        if self.inventory.future(partition) is not None:
            return True
        return self.inventory.some_offline and not self.inventory.copies(partition)

    def _replicas(self, topic_id: Uuid, partition: int) -> tuple[int, ...] | None:
        registration = self._image.partition(topic_id, partition)
        return None if registration is None else registration.replicas

    def _topic(self, topic_id: Uuid | None, otherwise: str) -> str:
        """The whole name; in that of a directory it can be cut."""
        topic = None if topic_id is None else self._image.topics.get(topic_id)
        return otherwise if topic is None else topic.name

    # ---- reviews

    async def _review_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._chores or self._queue:
                if self._chores:
                    if next(self._chores[0], self._chores) is not None:
                        self._chores.popleft()
                else:
                    self._review_slice()
                await asyncio.sleep(0)
            self._due.clear()  # an emptied set keeps the table of its largest size
            self.owner.settled()

    def _review_slice(self) -> None:
        self.observe()
        for _ in range(min(REVIEWS_PER_SLICE, len(self._queue))):
            partition = self._queue.popleft()
            if partition in self._due:
                self._due.discard(partition)
                self._review(partition)

    def observe(self) -> None:
        """Tell the chooser how the directories are; once in :data:`SITES_FRESH_MS` at most."""
        now_ms = self.clock.monotonic_ms()
        if self._sites_ms is None or now_ms - self._sites_ms >= SITES_FRESH_MS:
            self._sites_ms = now_ms
            sites = self.sites()
            self._doubtful = frozenset(d for d, site in sites.items() if site.doubtful)
            self.inventory.chooser.observe(sites, {d: self.inventory.replica_count(d) for d in sites}, now_ms)

    def _review(self, partition: TopicIdPartition) -> None:
        self._waiting.pop(partition, None)
        hosted = self.hosting.partitions.get(partition)
        if hosted is None:
            return
        wanted = Wanted(partition, hosted.topic, hosted.directory, partition in self._new)
        if self._behind and wanted.new and self.inventory.locate(partition) is None:
            self._postponed[partition] = None
            return
        self._postponed.pop(partition, None)
        decision = self.inventory.decide(wanted)
        for aside in decision.aside:
            self._set_aside(wanted, aside)
        if decision.action not in (Action.CREATE, Action.CREATE_AND_ASSIGN):
            self._unmade.pop(partition, None)
        self._note_taken(decision)
        match decision.action:
            case Action.REFUSE:
                self.owner.refuse(decision.why)
            case Action.CREATE | Action.CREATE_AND_ASSIGN:
                self._create(decision)
            case Action.ASSIGN | Action.ASSIGN_LOST:
                assert decision.directory_id is not None
                self._left.pop(partition, None)
                self.owner.assign(partition, decision.directory_id)
            case Action.RESUME:
                assert decision.directory_id is not None
                self.owner.resume_move(wanted, decision.directory_id, decision.future)
            case Action.WAIT:
                self._waiting[partition] = None
            case Action.SET_ASIDE:
                self.review([partition])  # what is left may lie elsewhere than the metadata say, or be moving
            case Action.LEAVE:
                self._leave(decision)

    def _note_taken(self, decision: Decision) -> None:
        """Log once which object has the name of a replica, so that the replica is not made."""
        wanted = decision.wanted
        if not decision.taken:
            self._taken.pop(wanted.partition, None)
        elif self._taken.get(wanted.partition) != decision.why:
            self._taken[wanted.partition] = decision.why
            self.log.error(
                "replica.name.taken",
                topic=wanted.topic,
                partition=wanted.partition.partition,
                directory_id=str(wanted.assigned),
                reason=decision.why,
            )

    def _set_aside(self, wanted: Wanted, aside: StrayCopy) -> None:
        partition = wanted.partition
        if aside.claim is not None:
            self._set_claim_aside(aside.directory_id, aside.name, aside.claim.topic_id, aside.reason)
            return
        leaving = DepartingReplica(
            aside.directory_id, aside.name, wanted.topic, partition.partition, partition.topic_id
        )
        self.deletions.set_aside(leaving, aside.reason)

    def _set_claim_aside(self, directory_id: Uuid, name: str, topic_id: Uuid | None, reason: str) -> None:
        parsed = parse_replica(name)
        assert parsed is not None, "it has the name of a replica"
        self.deletions.set_aside(DepartingReplica(directory_id, name, parsed[0], parsed[1], topic_id), reason)

    # ---- what changes in a directory without the agent

    async def _look_again(self) -> None:
        """Look from time to time whether each replica is still there, and each name that was taken. Behind what is
        queued on a directory, so that nothing of it is half done."""
        waiting: dict[Uuid, DirectoryWork] = {}
        """Queues in which a look waits; that of a disk that was replaced is another one."""

        async def look(directory_id: Uuid) -> None:
            waiting.pop(directory_id, None)
            await self._look_into(directory_id)

        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            for directory_id in self.inventory.online if self._known else ():
                if waiting.get(directory_id) is not self._work[directory_id]:
                    waiting[directory_id] = self._work[directory_id]
                    self.work(directory_id, functools.partial(look, directory_id))

    async def _look_into(self, directory_id: Uuid) -> None:
        agent = self._work[directory_id].agent
        missed = {self._name(partition) for partition in self._taken}
        try:
            listed = {one.name: one for one in await agent.list_replicas(timeout_ms=WORK_TIMEOUT_MS)}
            if directory_id not in self.inventory.online:
                return
            seen = self.inventory.compare(directory_id, listed, missed)
            again = await agent.load_replicas(seen.changed, timeout_ms=WORK_TIMEOUT_MS) if seen.changed else ()
            read = self._to_read(directory_id, seen.present)
            current = await agent.load_replicas(read, known=True, timeout_ms=WORK_TIMEOUT_MS) if read else ()
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable):
            return  # whether its disk is dead is for the health monitor to say
        if directory_id not in self.inventory.online or self._work[directory_id].agent is not agent:
            return
        self._note_vanished(directory_id, {**seen.vanished, **self._displaced(directory_id, current)})
        for name in seen.gone:
            self.inventory.release(directory_id, name)
            self.deletions.gone(directory_id, name)
        for replica in again:
            self.inventory.release(directory_id, replica.name)
            self.inventory.put(directory_id, replica)
            found = DepartingReplica(
                directory_id,
                replica.name,
                self._topic(replica.topic_id, replica.topic),
                replica.partition,
                replica.topic_id,
            )
            self._look_at(found, replica.suffix)
        self.review(self._taken)

    def _to_read(self, directory_id: Uuid, present: Sequence[Replica]) -> list[Replica]:
        """The current replicas whose topic ids this look reads: the next ones, and those that were displaced."""
        start = self._looked.get(directory_id, 0) % max(1, len(present))
        self._looked[directory_id] = start + READ_PER_LOOK
        turn = {replica.name for replica in (*present[start:], *present[:start])[:READ_PER_LOOK]}
        there = self.inventory.path(directory_id)
        displaced = {self._name(key) for key, gone in self._vanished.items() if gone.path.startswith(f"{there}/")}
        return [replica for replica in present if replica.name in turn or replica.name in displaced]

    def _displaced(self, directory_id: Uuid, read: Iterable[Replica]) -> dict[TopicIdPartition, str]:
        """Replicas whose directories are no longer theirs, and what is the matter with them."""
        found = {}
        for replica in read:
            key = self.inventory.current(directory_id, replica.name)
            if key is not None and replica.topic_id != key.topic_id:
                other = NO_TOPIC_ID if replica.topic_id is None else "it is another topic's"
                found[key] = replica.trouble or other
        return found

    def _note_vanished(self, directory_id: Uuid, vanished: Mapping[TopicIdPartition, str]) -> None:
        there = self.inventory.path(directory_id)
        found = {
            partition: Vanished(
                f"{there}/{self._name(partition)}",
                f"was changed while the agent ran: {instead}: put back what was there"
                if instead
                else "was removed while the agent ran: put it back",
            )
            for partition, instead in vanished.items()
        }
        for partition, gone in list(self._vanished.items()):
            if partition not in found and gone.path.startswith(f"{there}/"):
                del self._vanished[partition]
        for partition, gone in found.items():
            if self._vanished.get(partition) != gone and partition in self.hosting:
                self._vanished[partition] = gone
                self.log.error("replica.vanished", path=gone.path, reason=f"it {gone.reason}")

    def _leave(self, decision: Decision) -> None:
        """Nothing to do; said once where a person would expect something."""
        wanted = decision.wanted
        if decision.taken:
            return
        copies, moving = self.inventory.copies(wanted.partition), wanted.partition in self.inventory.moving
        elsewhere = bool(copies) and wanted.assigned not in copies and not moving
        missing = self.inventory.locate(wanted.partition) is None
        if (missing or elsewhere) and self._left.get(wanted.partition) != decision.why:
            self._left[wanted.partition] = decision.why
            self.log.warning(
                "replica.left",
                topic=wanted.topic,
                partition=wanted.partition.partition,
                directory_id=str(wanted.assigned),
                reason=decision.why,
            )

    def _strays_changed(self) -> None:
        if self._writer is not None:
            self._writer.changed()

    def _not_remembered(self, error: OSError) -> None:
        self.log.warning("strays.not.remembered", path=str(error.filename), reason=error.strerror)

    # ---- creations

    def _create(self, decision: Decision) -> None:
        directory = decision.directory_id
        assert directory is not None
        self._left.pop(decision.wanted.partition, None)
        self._warn_of_the_only_copy(decision.wanted)
        self._work[directory].add(functools.partial(self._make, decision.wanted, directory))

    def _warn_of_the_only_copy(self, wanted: Wanted) -> None:
        """An empty replica takes the place of one in a directory that is none of ours any more, which no other broker
        has: once for each directory."""
        directory, partition = wanted.assigned, wanted.partition
        gone = not (
            wanted.new or is_reserved(directory) or directory in self.inventory or directory in self._parted_from
        )
        known = self._image.partition(partition.topic_id, partition.partition)
        if gone and known is not None and set(known.isr) <= {self.hosting.broker_id}:
            self._parted_from.add(directory)
            self.log.warning(
                "replica.only.copy.gone",
                topic=wanted.topic,
                partition=partition.partition,
                directory_id=str(directory),
                reason="no other replica is in sync, and the directory that has it is not in log.dirs: an empty one is "
                "made; put the path back into log.dirs to keep its data (one line for each directory)",
            )

    async def _make(self, wanted: Wanted, directory: Uuid) -> None:
        """An attempt to make a replica directory."""
        partition = wanted.partition
        if partition not in self.hosting:
            self._made_for_nobody(wanted)
            return
        agent = self.agents[directory]
        try:
            await agent.create_replica(
                wanted.topic, partition.partition, partition.topic_id, timeout_ms=WORK_TIMEOUT_MS
            )
        except DirectoryError as error:
            self._not_made(wanted, directory, error)
        except (DirectoryTimeout, WorkerUnavailable) as trouble:
            self._failed_to_make(wanted, agent.path, type(trouble).__name__, str(trouble))
            self._again(wanted, directory)
        else:
            self._made(wanted)

    def _made(self, wanted: Wanted) -> None:
        partition = wanted.partition
        self._refusals.pop(partition, None)
        self._unmade.pop(partition, None)
        directory = self.inventory.created(partition)
        if directory is None:
            return
        self._unable.pop(directory, None)
        self._created += 1
        self.owner.created(wanted.topic, partition, directory)
        hosted = self.hosting.partitions.get(partition)
        if hosted is None:
            self._rename(partition, wanted.name, wanted.topic)
            self._review_successor(wanted)
        elif hosted.directory != directory:
            self.owner.assign(partition, directory)
        if len(self.inventory.copies(partition)) > 1:
            self.review([partition])
        if not self.busy:
            self.owner.settled()

    def _made_for_nobody(self, wanted: Wanted) -> None:
        """Forget a creation for a replica that is no longer this broker's."""
        self.inventory.unreserve(wanted.partition)
        self._unmade.pop(wanted.partition, None)
        self._review_successor(wanted)
        if not self.busy:
            self.owner.settled()

    def _review_successor(self, wanted: Wanted) -> None:
        """Review the replica of a topic that was created again: the name was taken until now."""
        again = self._image.topic_ids.get(wanted.topic)
        if again is not None:
            self.review([TopicIdPartition(again, wanted.partition.partition)])

    def _not_made(self, wanted: Wanted, directory: Uuid, error: DirectoryError) -> None:
        if wanted.partition not in self.hosting:
            self._made_for_nobody(wanted)
            return
        meaning, todo = in_work(error.errno, error.call), remedy(error.errno)
        self._failed_to_make(wanted, error.path, str(error.errno), f"{error}: {todo}" if todo else str(error))
        if error.errno == errno.EEXIST:  # it came after the load: the next look says what it is
            self.inventory.not_created(wanted.partition)
            if wanted.name not in self.inventory.names(directory):
                self._found_in_the_way(directory, wanted.name)
            self.review([wanted.partition])
            return
        if asks_probe(error.errno, error.call):
            self.owner.work_failed(directory, error)
        if meaning is Meaning.CONFIGURATION:
            self._unable[directory] = f"{error}: {todo}"
            self._require_one_able()
        if meaning in CANNOT_TAKE_IT:
            self._refused(wanted)
        else:
            self._again(wanted, directory)

    def _found_in_the_way(self, directory: Uuid, name: str) -> None:
        """Note what has the name of a replica that was to be made: a stray that could not be renamed, or who knows."""
        strays = (stray for stray in self.strays if (stray.directory_id, stray.name) == (directory, name))
        if (stray := next(strays, None)) is not None:
            self.inventory.occupy(directory, name, stray.topic_id)
        else:
            self.inventory.claim(directory, name, Claim("something else has its name", is_directory=False), name)

    def _require_one_able(self) -> None:
        """End where no replica can be made in any directory, because of how they are set up, and none is served: the
        mistake is seen at once then. With replicas the broker goes on, and says which could not be made."""
        directories = self.inventory.online
        serves = sum(map(self.inventory.replica_count, directories)) > len(self.inventory.creating)
        if not serves and not self.inventory.loading and self._unable.keys() >= set(directories):
            self.owner.refuse("; ".join(self._unable[d] for d in directories), config=True)

    def _failed_to_make(self, wanted: Wanted, path: str, kind: str, reason: str) -> None:
        now_ms = self.clock.monotonic_ms()
        known = self._unmade.get(wanted.partition)
        if known is None or known.kind != kind:
            since_ms = now_ms if known is None else known.since_ms
            self._unmade[wanted.partition] = Unmade(wanted.name, since_ms, kind, reason)
        told_ms = self._told.get((path, kind))
        if told_ms is None or now_ms - told_ms >= TOLD_AGAIN_MS:
            self._told[path, kind] = now_ms
            self.log.warning(
                "replica.create.failed", topic=wanted.topic, path=path, reason=reason, replicas=len(self._unmade)
            )

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
            self._call_later(partition, lambda: self.review([partition]))

    def _again(self, wanted: Wanted, directory: Uuid) -> None:
        """Try the same once more later, unless the directory has failed by then: then it was reviewed anew."""

        def retry() -> None:
            if self.inventory.locate(wanted.partition) == directory and directory in self.inventory.online:
                self._work[directory].add(lambda: self._make(wanted, directory))

        self._call_later(wanted.partition, retry)

    def _call_later(self, partition: TopicIdPartition, call: Callable[[], None]) -> None:
        self._retrying.add(partition)

        def run() -> None:
            self._retrying.discard(partition)
            call()
            self._wake.set()

        asyncio.get_running_loop().call_later(RETRY_MS / 1000, run)

    # ---- deletions

    def _remove(self, update: Update, proven: bool) -> None:
        partition, old = update.partition, update.old
        assert old is not None
        self._new.discard(partition)
        self._left.pop(partition, None)
        self._refusals.pop(partition, None)
        self._unmade.pop(partition, None)
        self._taken.pop(partition, None)
        self._vanished.pop(partition, None)
        self._postponed.pop(partition, None)
        self._due.discard(partition)
        self._waiting.pop(partition, None)
        self.owner.forget(partition)
        if self._image.newer.incomplete:
            return  # it stays in its place, until the metadata are whole
        name = f"{old.topic}-{partition.partition}"
        for (directory, each), claim in list(self.inventory.claims(name).items()):
            if claim.is_directory and directory in self.inventory.online:
                self.inventory.take_out(directory, each, partition.partition)
                self._set_claim_aside(directory, each, claim.topic_id, NO_TOPIC_ID)
        if proven:
            self._rename(partition, name, old.topic)
            return
        for directory, each in self.inventory.forget(partition, name):
            self.keep(DepartingReplica(directory, each, old.topic, partition.partition, partition.topic_id))

    def _rename(self, partition: TopicIdPartition, name: str, topic: str) -> None:
        """The metadata no longer give this replica to this broker: free its name, and remove it later."""
        lay_in = self.inventory.copies(partition)
        renamed = self.inventory.remove(partition, name)
        for directory, each in renamed:
            self.deletions.delete(DepartingReplica(directory, each, topic, partition.partition, partition.topic_id))
        for directory in set(lay_in).difference(d for d, _ in renamed):
            # ReplicaManager.applyDelta: "may be in offline log directory". When it returns it is a stray.
            self.log.error("replica.delete.offline", path=f"{self.inventory.path(directory)}/{name}")

    def _renamed_away(self, leaving: DepartingReplica) -> None:
        """The way is free for this replica, where it has become this broker's again meanwhile, and for another one of
        its name."""
        if leaving.topic_id is not None:
            partition = TopicIdPartition(leaving.topic_id, leaving.partition)
            self.inventory.renamed_away(partition, leaving.directory_id)
            self.review([partition])
        if leaving.has_replica_name and (waits := self._hosted_as(leaving.replica_name)) is not None:
            self.review([waits])

    def _follow_delays(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, ConfigChange) and change.resource_type == TOPIC and change.name == TOPIC_DELAY:
                self._delays.pop(change.resource_name, None)
                if change.new is not None and change.new.isdecimal():
                    self._delays[change.resource_name] = int(change.new)
            elif isinstance(change, TopicDeleted) and change.topic.name not in self._image.topic_ids:
                self._delays.pop(change.topic.name, None)


_REMEDY: Final = {
    NO_TOPIC_ID: ", so nothing says of which topic it is: restore that file first",
    NO_TOPIC: ": it was deleted, and one that is created again under its name is another topic; possible only while a "
    "topic with this id exists",
    NO_PARTITION: ": possible once its topic has that many partitions",
    NOT_HERE: ": to get it back, stop the agent, reassign the partition to this broker, take everything after the last "
    "dot out of the name, and start the agent",
}
"""By the reason: what would make it possible."""


def _topic_delays(image: MetadataImage) -> dict[str, int]:
    """``file.delete.delay.ms`` by topic, in milliseconds."""
    return {
        resource: int(values[TOPIC_DELAY])
        for (kind, resource), values in image.configs.items()
        if kind == TOPIC and values.get(TOPIC_DELAY, "").isdecimal()
    }
