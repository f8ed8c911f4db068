"""Pictures of this broker's log directories and of what they hold, for DescribeLogDirs and for ``kjbod``.

Everything but sizes and offsets is in memory: which replica lies where, verdicts, devices, bytes of the last probe.
Only :meth:`DirectoryViews.directories` with ``measure`` asks the directories, each through its own worker, all at once
and for at most :data:`MEASURE_TIMEOUT_MS`. A directory that does not answer in that time is told of as it was last
known; its request goes on, and there is never a second one beside it, however many clients ask. So a disk that hangs
neither delays what is said of the others nor collects a queue. A directory that has failed is not asked at all: what is
told of it is from memory, its replicas included, and of one that was never read the replicas that the metadata place in
it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from msgspec import Struct, field, structs

from kjbod.clock import Clock
from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage
from kjbod_agent.condition import DirectoryStates
from kjbod_agent.failures import Failures
from kjbod_agent.replicas.hosting import Hosted, Hosting
from kjbod_host.condition import ONLINE
from kjbod_host.directories.start_up import Opened
from kjbod_host.directories.start_up_rules import Memory
from kjbod_host.health.evidence import device_text
from kjbod_host.health.watched import DirectoryStatus
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, DirectoryTimeout, WorkerUnavailable

MEASURE_TIMEOUT_MS: Final = 3_000
"""How long an answer waits for sizes and offsets."""
ASK_TIMEOUT_MS: Final = 10_000
"""For each piece of a directory's answer, which may come for a later question."""
NAMES_PER_PIECE: Final = 500
SLICE: Final = 500
"""Replicas that are looked at before the others of the event loop have their turn."""
UNKNOWN: Final = -1
"""A size or lag that nobody knows (``DescribeLogDirsResponse.UNKNOWN_VOLUME_BYTES``, ``INVALID_OFFSET_LAG``)."""

T = TypeVar("T")
Wants = Callable[[str, int], bool]
"""Whether a topic's partition is asked about."""


class LogDirectory(Struct, frozen=True, kw_only=True):
    """An entry of ``log.dirs``, as configured and as it was at the start or when it was added.

    Attributes:
        path: as configured.
        directory_id: None where it could not be read and nobody remembers.
        total_bytes: of its file system when it was loaded, -1 unknown.
        usable_bytes: likewise.
        unreadable: why it could not be read; None when it was.
        remembered: its device as the last process knew it, where this one cannot tell.
    """

    path: str
    directory_id: Uuid | None
    total_bytes: int = UNKNOWN
    usable_bytes: int = UNKNOWN
    unreadable: str | None = None
    remembered: "Disk | None" = None


class Disk(Struct, frozen=True, kw_only=True):
    """The disk under a directory.

    Attributes:
        device: kernel names and number, ``"sdb1 8:17"``; empty when unknown.
        model: of the disk, where the kernel tells.
        serial: of the disk, where the kernel tells.
        file_system: ``"ext4"``; None where the mount table does not tell.
    """

    device: str = ""
    model: str | None = None
    serial: str | None = None
    file_system: str | None = None


class ReplicaView(Struct, frozen=True, kw_only=True):
    """A replica in a directory.

    Attributes:
        topic: its name.
        partition: its number.
        topic_id: of the topic.
        name: of its directory, ``topic-0`` or ``topic-0.<32 hex>-future``.
        size: bytes of its log segments as last measured, -1 unknown; without their indexes, as in Kafka.
        lag: of a future replica: offsets that the current one has and it has not, -1 unknown. Of a current one 0: this
            broker's high watermark is never beyond its own log; unknown where its directory is offline.
        future: whether it replaces the current one when it has caught up.
        leader: whether this broker leads the partition (never of a future replica).
    """

    topic: str
    partition: int
    topic_id: Uuid
    name: str
    size: int = UNKNOWN
    lag: int = UNKNOWN
    future: bool = False
    leader: bool = False


class DirectoryView(Struct, frozen=True, kw_only=True):
    """A log directory.

    Attributes:
        path: as configured.
        directory_id: None where nobody knows.
        online: whether it takes replicas.
        error: one line that says why it is offline; None when it is online.
        verdict: a word of :class:`~kjbod_host.health.verdict.Health`, ``unreadable`` (since the start) or ``loading``.
        since_ms: wall clock, milliseconds since the epoch: when it came into that state; None when unknown.
        cordoned: whether the cluster places no new replicas here (KIP-1066).
        device: kernel names and number, ``"sdb1 8:17"``; empty when unknown.
        model: of the disk, None when unknown.
        serial: of the disk, None when unknown.
        file_system: ``"ext4"``, None when unknown.
        total_bytes: size of the file system as last seen, -1 unknown.
        usable_bytes: what can still be allocated, as last seen, -1 unknown.
        replicas: by topic, partition, current before future.
        leaders: partitions that this broker leads from here.
        remembered: whether this is told from memory, because the directory cannot be asked.
    """

    path: str
    directory_id: Uuid | None
    online: bool
    error: str | None
    verdict: str
    since_ms: int | None
    cordoned: bool
    device: str
    model: str | None
    serial: str | None
    file_system: str | None
    total_bytes: int
    usable_bytes: int
    replicas: tuple[ReplicaView, ...]
    leaders: int
    remembered: bool


class ViewedInventory(Protocol):
    """The part of :class:`kjbod_agent.replicas.inventory.Inventory` that the views use."""

    @property
    def online(self) -> tuple[Uuid, ...]: ...

    @property
    def loading(self) -> Collection[Uuid]: ...

    @property
    def creating(self) -> Collection[TopicIdPartition]: ...

    def __contains__(self, directory_id: Uuid) -> bool: ...

    def replica_count(self, directory_id: Uuid) -> int: ...

    def names(self, directory_id: Uuid) -> Mapping[str, Uuid | None]: ...

    def copies(self, partition: TopicIdPartition) -> tuple[Uuid, ...]: ...

    def future(self, partition: TopicIdPartition) -> tuple[Uuid, str] | None: ...


class ViewedPlacement(Protocol):
    """The part of :class:`kjbod_agent.replicas.placement.Placement` that the views use."""

    @property
    def hosting(self) -> Hosting: ...

    @property
    def inventory(self) -> ViewedInventory: ...

    @property
    def agents(self) -> Mapping[Uuid, DirectoryAgent]: ...


class ViewedBroker(Protocol):
    """The part of :class:`kjbod_agent.broker.Broker` that the views use."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def failures(self) -> Failures: ...

    @property
    def placement(self) -> ViewedPlacement: ...

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None: ...


class ViewedMonitor(Protocol):
    """The part of :class:`kjbod_host.health.monitor.HealthMonitor` that the views use."""

    def status(self) -> tuple[DirectoryStatus, ...]: ...


class _Placed(Struct, frozen=True):
    """A replica in a directory, without its figures."""

    directory: Uuid
    partition: TopicIdPartition
    hosted: Hosted
    name: str
    source: Uuid | None
    """Where the current one lies."""
    future: bool = False

    @property
    def current_name(self) -> str:
        return f"{self.hosted.topic}-{self.partition.partition}"


class _Flight(Struct):
    """A directory is being asked for the figures of these."""

    names: frozenset[str]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class DirectoryViews:
    """Maker of :class:`DirectoryView` from the parts of the agent.

    Args:
        log_dirs: the entries of ``log.dirs`` at this moment, in their order.
        metadata: the directory of the metadata, where it is none of ``log.dirs``.
        broker: the agent.
        monitor: verdicts and devices.
        clock: the time.
        spawn: runs a coroutine for as long as the agent.
    """

    def __init__(
        self,
        log_dirs: Callable[[], Sequence[LogDirectory]],
        *,
        broker: ViewedBroker,
        monitor: ViewedMonitor,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        metadata: Callable[[], LogDirectory | None] = lambda: None,
    ) -> None:
        self._log_dirs = log_dirs
        self._metadata = metadata
        self._broker = broker
        self._monitor = monitor
        self._clock = clock
        self._spawn = spawn
        self._turn = asyncio.Lock()
        """One picture at a time is put together, however many clients ask."""
        self._flights: dict[Uuid, _Flight] = {}
        self._sizes: dict[tuple[Uuid, str], int] = {}
        self._ends: dict[tuple[Uuid, str], int] = {}
        """Log end offsets, of replicas that are being moved."""

    async def directories(self, wants: Wants | None = None, *, measure: bool = True) -> tuple[DirectoryView, ...]:
        """Every configured directory, in the order of ``log.dirs``.

        Args:
            wants: which replicas to tell of; None: all.
            measure: ask for sizes and offsets, for :data:`MEASURE_TIMEOUT_MS` at most; else as last known.
        """
        async with self._turn:
            replicas, leaders = await self._gather(wants)
        if measure:
            await self._measure(replicas)
        async with self._turn:
            self._forget_gone()
            status = {each.path: each for each in self._monitor.status()}
            views = []
            for entry in self._log_dirs():
                found = [] if entry.directory_id is None else replicas.get(entry.directory_id, [])
                shown = [self._with_figures(placed) async for placed in _in_slices(found)]
                views.append(self._directory(entry, status.get(entry.path), shown, leaders))
            return tuple(views)

    def metadata_directory(self) -> DirectoryView | None:
        """The directory of ``metadata.log.dir`` where it is one of its own; it holds no replicas."""
        entry = self._metadata()
        if entry is None:
            return None
        status = next((each for each in self._monitor.status() if each.path == entry.path), None)
        view = self._directory(entry, status, (), {})
        # It is no place for replicas, so the inventory does not know it; of its failures the agent dies.
        return structs.replace(view, online=view.error is None, remembered=view.error is not None)

    def states(self) -> DirectoryStates:
        """Return the state of each directory, as in :meth:`directories`."""
        status = {each.path: each for each in self._monitor.status()}
        metadata = self.metadata_directory()
        return DirectoryStates(
            {entry.path: self._verdict(entry, status.get(entry.path))[0] for entry in self._log_dirs()},
            ONLINE if metadata is None else metadata.verdict,
        )

    # ---- from memory

    def _directory(
        self,
        entry: LogDirectory,
        status: DirectoryStatus | None,
        replicas: Sequence[ReplicaView],
        leaders: Mapping[Uuid, int],
    ) -> DirectoryView:
        directory_id = entry.directory_id
        online = directory_id is not None and directory_id in self._broker.placement.inventory.online
        verdict, error, since_ms = self._verdict(entry, status)
        disk = disk_of(status) or entry.remembered or Disk()
        probe = None if status is None else status.last_probe
        return DirectoryView(
            path=entry.path,
            directory_id=directory_id,
            online=online,
            error=None if online else error,
            verdict=verdict,
            since_ms=since_ms,
            cordoned=directory_id in self._cordoned(),
            device=disk.device,
            model=disk.model,
            serial=disk.serial,
            file_system=disk.file_system,
            total_bytes=entry.total_bytes if probe is None else probe.total_bytes,
            usable_bytes=entry.usable_bytes if probe is None else probe.usable_bytes,
            replicas=tuple(sorted(replicas, key=_order)),
            leaders=0 if directory_id is None else leaders.get(directory_id, 0),
            remembered=not online,
        )

    def _verdict(self, entry: LogDirectory, status: DirectoryStatus | None) -> tuple[str, str | None, int | None]:
        """Return the state of a directory, why it is offline, and since when."""
        failure = None if entry.directory_id is None else self._broker.failures.of(entry.directory_id)
        if failure is not None:
            return "failed", failure.cause, failure.since_wall_ms
        if entry.unreadable is not None:
            return "unreadable", entry.unreadable, None
        if entry.directory_id in self._broker.placement.inventory.loading:
            return "loading", f"{entry.path}: its replicas are still being read", None
        if status is None:
            return "online", None, None
        ago_ms = self._clock.monotonic_ms() - status.health.since_ms
        return str(status.health.health), None, self._clock.wall_ms() - ago_ms

    def _cordoned(self) -> tuple[Uuid, ...]:
        own = self._broker.image.brokers.get(self._broker.placement.hosting.broker_id)
        return () if own is None else own.cordoned_log_dirs or ()

    async def _gather(self, wants: Wants | None) -> tuple[dict[Uuid, list[_Placed]], dict[Uuid, int]]:
        """Current and future replicas by directory, and how many this broker leads from each. A replica that is nowhere
        found is where the metadata place it, unless it is being created there: it lies on a disk that cannot be read.
        """
        placement = self._broker.placement
        inventory = placement.inventory
        online, creating = frozenset(inventory.online), inventory.creating
        found: dict[Uuid, list[_Placed]] = {}
        leaders: dict[Uuid, int] = {}
        async for partition, hosted in _in_slices(list(placement.hosting.partitions.items())):
            copies = inventory.copies(partition)
            if hosted.leads:
                where = copies[0] if copies else hosted.directory
                leaders[where] = leaders.get(where, 0) + 1
            if wants is not None and not wants(hosted.topic, partition.partition):
                continue
            if not copies and partition not in creating and hosted.directory not in online:
                copies = (hosted.directory,)
            name = f"{hosted.topic}-{partition.partition}"
            for directory in copies:
                found.setdefault(directory, []).append(_Placed(directory, partition, hosted, name, copies[0]))
            future = inventory.future(partition)
            if future is not None:
                source = copies[0] if copies else None
                found.setdefault(future[0], []).append(_Placed(future[0], partition, hosted, future[1], source, True))
        return found, leaders

    def _with_figures(self, placed: _Placed) -> ReplicaView:
        return ReplicaView(
            topic=placed.hosted.topic,
            partition=placed.partition.partition,
            topic_id=placed.partition.topic_id,
            name=placed.name,
            size=self._sizes.get((placed.directory, placed.name), UNKNOWN),
            lag=self._lag(placed),
            future=placed.future,
            leader=placed.hosted.leads and not placed.future and placed.directory == placed.source,
        )

    def _lag(self, placed: _Placed) -> int:
        if not placed.future:
            return 0 if placed.directory in self._broker.placement.inventory.online else UNKNOWN
        own = self._ends.get((placed.directory, placed.name))
        source = None if placed.source is None else self._ends.get((placed.source, placed.current_name))
        return UNKNOWN if own is None or source is None else source - own

    # ---- from the directories

    async def _measure(self, replicas: Mapping[Uuid, Sequence[_Placed]]) -> None:
        online = frozenset(self._broker.placement.inventory.online)
        moving = {p.partition for placed in replicas.values() for p in placed if p.future}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MEASURE_TIMEOUT_MS / 1000), asyncio.TaskGroup() as tasks:
                for directory, placed in replicas.items():
                    if directory in online:
                        tasks.create_task(self._measured(directory, placed, moving))

    async def _measured(self, directory: Uuid, placed: Sequence[_Placed], moving: Collection[TopicIdPartition]) -> None:
        """Wait until the sizes in a directory were measured after this was called, or its request has failed."""
        names = frozenset(each.name for each in placed)
        ends = frozenset(each.name for each in placed if each.partition in moving)
        later = False
        while (flight := self._flights.get(directory)) is not None:
            await flight.done.wait()
            if later and names <= flight.names:
                return  # another client asked the same after us
            later = True
        flight = self._flights[directory] = _Flight(names)
        self._spawn(self._ask(directory, names, ends, flight))
        await flight.done.wait()

    async def _ask(self, directory: Uuid, names: Collection[str], ends: Iterable[str], flight: _Flight) -> None:
        agent = self._broker.placement.agents.get(directory)
        try:
            if agent is not None:  # it may have been replaced just now
                await self._ask_agent(agent, directory, names, ends)
        except DirectoryError as error:
            self._broker.work_failed(directory, error)
        except (DirectoryTimeout, WorkerUnavailable):
            pass  # told of as last known; what it means for the directory is for the health monitor to find
        finally:
            del self._flights[directory]
            flight.done.set()

    async def _ask_agent(
        self, agent: DirectoryAgent, directory: Uuid, names: Collection[str], ends: Iterable[str]
    ) -> None:
        for piece in _pieces(sorted(names)):
            sizes = await agent.replica_sizes(piece, suffix=".log", timeout_ms=ASK_TIMEOUT_MS)
            for name in piece:
                self._note(self._sizes, (directory, name), sizes.get(name))
        for name in ends:
            end = await agent.log_end_offset(name, timeout_ms=ASK_TIMEOUT_MS)
            self._note(self._ends, (directory, name), end)

    def _note(self, figures: dict[tuple[Uuid, str], int], key: tuple[Uuid, str], figure: int | None) -> None:
        if figure is None:
            figures.pop(key, None)
        else:
            figures[key] = figure

    def _forget_gone(self) -> None:
        """Drop the figures of replicas that are gone, when there are more figures than replicas."""
        inventory = self._broker.placement.inventory
        known = [directory for directory in self._broker.placement.agents if directory in inventory]
        for figures in (self._sizes, self._ends):
            if len(figures) > SLICE + 2 * sum(map(inventory.replica_count, known)):
                here = {directory: inventory.names(directory) for directory in known}
                for key in [key for key in figures if key[1] not in here.get(key[0], ())]:
                    del figures[key]


def log_directories(opened: Opened, memory: Memory) -> tuple[LogDirectory, ...]:
    """The entries of ``log.dirs`` as they are now: those that were read, in their order, then those that were not."""
    read = [
        LogDirectory(
            path=each.path,
            directory_id=each.directory_id,
            total_bytes=each.loaded.total_bytes,
            usable_bytes=each.loaded.usable_bytes,
            remembered=_remembered(memory, each.path),
        )
        for each in opened.start_up.log_dirs
    ]
    unread = [
        LogDirectory(
            path=each.path,
            directory_id=each.directory_id,
            unreadable=each.reason,
            remembered=_remembered(memory, each.path),
        )
        for each in opened.start_up.unreadable
        if each.path != opened.start_up.metadata.path
    ]
    return (*read, *unread)


def metadata_directory(opened: Opened, memory: Memory) -> LogDirectory | None:
    """The directory of the metadata, None where it is one of ``log.dirs``."""
    found = opened.start_up.metadata
    if any(found.path == each.path for each in opened.start_up.log_dirs):
        return None
    return LogDirectory(
        path=found.path,
        directory_id=found.directory_id,
        total_bytes=found.loaded.total_bytes,
        usable_bytes=found.loaded.usable_bytes,
        remembered=_remembered(memory, found.path),
    )


def _remembered(memory: Memory, path: str) -> Disk | None:
    known = memory.directories.get(path)
    return None if known is None else Disk(device=known.device or "", serial=known.serial)


async def _in_slices(items: Sequence[T]) -> AsyncIterator[T]:
    """Yield all items, and let other tasks of the event loop run from time to time."""
    for start in range(0, len(items), SLICE):
        for item in items[start : start + SLICE]:
            yield item
        await asyncio.sleep(0)


def _pieces(names: Sequence[str]) -> Iterable[Sequence[str]]:
    for start in range(0, len(names), NAMES_PER_PIECE):
        yield names[start : start + NAMES_PER_PIECE]


def _order(replica: ReplicaView) -> tuple[str, int, bool]:
    return replica.topic, replica.partition, replica.future


def disk_of(status: DirectoryStatus | None) -> Disk | None:
    """The disk of a directory as the health monitor knows it; None without a monitor."""
    if status is None:
        return None
    device = status.device
    return Disk(device=device_text(device), model=device.model, serial=device.serial, file_system=status.file_system)
