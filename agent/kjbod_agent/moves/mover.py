"""Carries out moves of replicas between the directories of this broker: the shell over :mod:`.machine`.

Each move has a task. What takes time belongs to the move's state (:meth:`Mover._act`): making the future replica,
passes of :class:`~.copying.ReplicaCopy`, the renames of the swap. When something happens that changes the
state, the activity of the old state is cancelled and that of the new one begins. A cancelled activity stops waiting,
not working: a rename that was asked for may still happen, and the next one for the same directory comes after it,
because everything that makes, renames or removes a replica goes through ``Placement.work``, in order with all other
jobs of that directory. Pieces of a copy do not: they interleave in the queue of the storage agent, so a long copy keeps
no creation waiting.

At most ``kjbod.move.concurrency`` moves read from or write to one directory; the others wait in order. The future
replica of a move that waits is there already: so a restart forgets no move. Whoever has begun the swap waits for
nobody.

An error does not end a move as long as it may go away: it is told to the health monitor, which decides whether the
directory has failed (:meth:`Mover.directory_failed`), and the move tries again. What speaks of this move alone (a full
destination, a name that is taken, something in the replica that is no file) ends it with one line, and so does an error
that is still there after :data:`ATTEMPTS_MAX` attempts. The source is as it was then.

Nothing is promoted that was read from a doubtful disk: while the source is suspect of an error, or had one since the
copy began (:meth:`MoveOwner.doubt`), the copy counts for nothing, and all of the source is read and compared once more.
"""

import asyncio
import errno
import functools
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from msgspec import Struct, field

from kjbod.clock import Clock
from kjbod.ids import Uuid
from kjbod.permissions import DENIED
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.moves import machine as moves
from kjbod_agent.moves.copying import (
    CopyFailed,
    DamagedLog,
    ReplicaCopy,
    Throttle,
    carry_checkpoints,
    new_buffer,
)
from kjbod_agent.moves.machine import Effect, Event, Future, MoveView, Situation, State
from kjbod_agent.replicas.deletions import DepartingReplica
from kjbod_agent.replicas.directory_work import rename_once
from kjbod_agent.replicas.hosting import Hosting, Update
from kjbod_agent.replicas.inventory import Wanted
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.reporter import Log
from kjbod_host.storage.api import (
    CopyBuffer,
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    StorageAgent,
    WorkerUnavailable,
)
from kjbod_host.storage.meaning import Meaning, asks_probe, in_work, remedy

__all__ = ["MoveOwner", "MoveView", "Mover"]

T = TypeVar("T")
Job = Callable[[], Awaitable[None]]

WORK_TIMEOUT_MS: Final = 30_000
AGAIN_MS: Final = 200
"""Time between two passes over a source that changes."""
RETRY_MS: Final = 1_000
"""After an error."""
_OF_THE_MOVE: Final = frozenset({Meaning.NAME, Meaning.CONFIGURATION, Meaning.ROOM})
"""Errors that speak of this move and not of a disk, and that trying again does not change."""
_WITHOUT_WAY_BACK: Final = frozenset({State.RESTORING, State.FINISHING})
"""States in which the replica has no plain name, and no other copy of it is to be had: the rename is tried until it
works."""
ATTEMPTS_MAX: Final = 30
"""Errors in a row that neither fail a directory nor go away."""
MISSING_MAX: Final = 3
"""The same for a source that is not there."""
_TOPIC_ID: Final = ("partition.metadata", 0, len("version: 0\ntopic_id: ") + 22)
"""File, offset and length of the topic id of a replica."""
TICK_MS: Final = 1_000
REASONS_MAX: Final = 1_000
"""Moves that ended otherwise than in their destination, of which the reason is remembered."""
RATE_TICKS: Final = 5
"""Over how many ticks the speed of a move is measured."""
PROGRESS_MS: Final = 10_000
"""Between two lines about the progress of a move."""
UNLIMITED: Final = (1 << 63) - 1
"""Kafka's way to say so in a rate (``Long.MaxValue``)."""


class MovingInventory(Protocol):
    """The part of :class:`kjbod_agent.replicas.inventory.Inventory` that the mover uses."""

    @property
    def online(self) -> tuple[Uuid, ...]: ...

    @property
    def some_offline(self) -> bool: ...

    def path(self, directory_id: Uuid) -> str: ...

    def copies(self, partition: TopicIdPartition) -> tuple[Uuid, ...]: ...

    def left_behind(self, partition: TopicIdPartition) -> Sequence[tuple[Uuid, str]]: ...

    def prefer(self, topic: str, partition: int, directory_id: Uuid) -> None: ...

    def begin_move(self, partition: TopicIdPartition, directory_id: Uuid, future_name: str) -> None: ...

    def end_move(self, partition: TopicIdPartition) -> None: ...

    def source_gone(self, partition: TopicIdPartition) -> None: ...

    def source_back(self, partition: TopicIdPartition, directory_id: Uuid) -> None: ...

    def promoted(self, partition: TopicIdPartition) -> None: ...


class MovingPlacement(Protocol):
    """The part of :class:`kjbod_agent.replicas.placement.Placement` that the mover uses."""

    @property
    def hosting(self) -> Hosting: ...

    @property
    def inventory(self) -> MovingInventory: ...

    @property
    def agents(self) -> Mapping[Uuid, DirectoryAgent]: ...

    def work(self, directory_id: Uuid, job: Job) -> None: ...

    def delete_later(self, directory_id: Uuid, name: str, topic: str, topic_id: Uuid) -> None: ...

    def keep(self, leaving: DepartingReplica) -> None: ...

    async def leave(self, leaving: DepartingReplica) -> None: ...

    def drop_checkpoints(self, leaving: DepartingReplica) -> None: ...

    def review(self, partitions: Iterable[TopicIdPartition]) -> None: ...


class MoveOwner(Protocol):
    """The agent, as the mover uses it. No method blocks."""

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """Tell the controller where a replica lies."""

    def assign_move(self, partition: TopicIdPartition, directory_id: Uuid) -> bool:
        """Tell the controller where a replica is going to lie. True: :meth:`Mover.acknowledged` follows when it has
        recorded that; False: there is nothing to wait for."""

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        """Report that the kernel refused an operation in a directory."""

    def doubt(self, directory_id: Uuid, since_ms: int) -> str | None:
        """Reason not to trust what was read in a directory since that moment (monotonic), in words that follow its
        path; None: nothing speaks against it."""

    def find_partition(self, topic: str, partition: int) -> TopicIdPartition | None:
        """A partition that the metadata have, wherever its replicas are."""

    def cordoned(self) -> Collection[Uuid]:
        """Directories that are to get no new replicas."""

    def room(self, directory_id: Uuid) -> moves.Room | None:
        """The file system of a directory as last seen; None: the file system was never seen."""


class _Move(Struct, eq=False):
    """A move. ``plain`` is the name of a current replica."""

    partition: TopicIdPartition
    topic: str
    source: Uuid | None
    destination: Uuid
    future_name: str
    state: State
    size_bytes: int | None = None
    """Of its segments, before it is copied; None: not measured yet."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it may copy."""
    waiting: bool = False
    copy: ReplicaCopy | None = None
    begun_ms: int = 0
    """When the copy began: what was read since then it rests on."""
    buffer: CopyBuffer | None = None
    equal: bool = False
    """The last pass found both equal, and none that was broken off has written anything since."""
    was_equal: bool = False
    """Once, and nothing spoke against the source: the future replica is no mere part of it."""
    activity: asyncio.Task[None] | None = None
    renamed: bool = False
    """The source lies under :attr:`source_name`, as far as is known."""
    gone: bool = False
    """The inventory was told so."""
    has_plain_name: bool = False
    """The future replica was promoted on disk."""
    carried: bool = False
    """Lines in the checkpoint files of the destination were set."""
    kept: bool = False
    """The metadata do not have the replica, and do not prove that it was deleted: nothing of it is removed."""
    next: Uuid | None = None
    """Where to go after this move."""
    attempts: int = 0
    cause: Event | None = None
    """What made an end of it."""
    reason: str = ""
    rates: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RATE_TICKS + 1))
    """Time in ms and bytes copied, at the last ticks."""
    logged_ms: int = 0

    @property
    def plain(self) -> str:
        return f"{self.topic}-{self.partition.partition}"

    @property
    def source_name(self) -> str:
        return moves.source_name(self.future_name)

    @property
    def lane(self) -> moves.Lane:
        return moves.Lane(self.partition, self.source, self.destination)


class Mover:
    """Moves of replicas between directories.

    Args:
        placement: hosts, inventory, and jobs on directories in order.
        storage: for memory to copy through.
        owner: the agent.
        directories: path and id of every entry of ``log.dirs``; None for one whose id nobody remembers.
        unique: 32 hexadecimal digits that were never given before.
        clock: the time.
        log: where users read of moves.
        concurrency: ``kjbod.move.concurrency``.
        bytes_per_second: ``kjbod.move.bytes.per.second``, for each move.
        total_bytes_per_second: ``replica.alter.log.dirs.io.max.bytes.per.second``, for all together.
    """

    def __init__(
        self,
        *,
        placement: MovingPlacement,
        storage: StorageAgent,
        owner: MoveOwner,
        directories: Callable[[], Mapping[str, Uuid | None]],
        unique: Callable[[], str],
        clock: Clock,
        log: Log,
        concurrency: int,
        bytes_per_second: int,
        total_bytes_per_second: int,
    ) -> None:
        self._placement = placement
        self._storage = storage
        self._owner = owner
        self._directories = directories
        self._unique = unique
        self._clock = clock
        self._log = log
        self._concurrency = concurrency
        self._rate = bytes_per_second
        self._configured_total = total_bytes_per_second
        self._total = _throttle(total_bytes_per_second)
        self._moves: dict[TopicIdPartition, _Move] = {}
        self._left: dict[TopicIdPartition, tuple[Uuid, str]] = {}
        """Future replicas that were left behind by moves that ended, until the replica is no longer ours."""
        self._reasons: dict[TopicIdPartition, str] = {}
        """Why the last move of a replica did not get to its destination, the oldest first."""
        self._failed: set[Uuid] = set()
        self._in_line: Counter[Uuid] = Counter()
        """Moves that copy, or wait to, by directory."""
        self._turns_due = False
        self._tasks: asyncio.TaskGroup | None = None
        self._closed = False

    # ----------------------------------------------------------------------------------------------- what users ask for

    def alter(self, topic: str, partition: int, path: str, *, size_bytes: int | None = None) -> ErrorCode:
        """AlterReplicaLogDirs for one replica; ``path`` as in ``log.dirs``. ``size_bytes``: of its segments, where that
        is known. Whether there is room is not looked at, as in Kafka: who wants to, see :meth:`space`."""
        if self._closed:
            return ErrorCode.BROKER_NOT_AVAILABLE
        key = self._owner.find_partition(topic, partition)
        destination = self._directories().get(path)
        judgement = moves.judge(self._situation(topic, partition, key, path))
        move = None if key is None else self._moves.get(key)
        if judgement.cancel and move is not None:
            self._retarget(move, destination if judgement.begin else None)
        if judgement.prefer and destination is not None:
            self._placement.inventory.prefer(topic, partition, destination)
        if judgement.begin and key is not None and destination is not None and key not in self._moves:
            self._begin(key, topic, destination, size_bytes)
        return judgement.code

    def space(self, path: str) -> tuple[moves.Room, int] | None:
        """The file system of a directory, and how many bytes moves will still write there. None: the file system was
        never seen."""
        destination = self._directories().get(path)
        room = None if destination is None else self._owner.room(destination)
        if room is None:
            return None
        rooms = {d: self._owner.room(d) for d in {move.destination for move in self._moves.values()}}
        there = {d for d, other in rooms.items() if other is not None and other.file_system == room.file_system}
        return room, sum(_missing_bytes(move) for move in self._moves.values() if move.destination in there)

    def reason(self, partition: TopicIdPartition) -> str | None:
        """Reason for which the last move of a replica ended elsewhere than in its destination; None: it did not, or
        long ago."""
        return self._reasons.get(partition)

    def cancel(self, topic: str, partition: int) -> bool:
        """End the move of a replica, which stays where it is. False: there is none, or it is too late."""
        key = self._owner.find_partition(topic, partition)
        move = None if key is None else self._moves.get(key)
        if move is None or self._closed or move.state in (State.PROMOTING, State.FINISHING):
            return False
        self._retarget(move, None)
        return True

    @property
    def moves(self) -> tuple[MoveView, ...]:
        """All moves, in the order in which they began."""
        return tuple(self._view(move) for move in self._moves.values())

    def set_rate(self, bytes_per_second: int | None) -> None:
        """``replica.alter.log.dirs.io.max.bytes.per.second`` as a dynamic configuration of this broker has it; None:
        there is none, the file's counts."""
        rate = self._configured_total if bytes_per_second is None else bytes_per_second
        self._total.rate = None if rate >= UNLIMITED else rate

    # ----------------------------------------------------------------------------------------------------- what happens

    def resume(self, wanted: Wanted, directory_id: Uuid, future_name: str) -> None:
        """Continue the move of a future replica that was found."""
        partition = wanted.partition
        if partition in self._moves or self._closed or directory_id in self._failed:
            return
        self._left.pop(partition, None)
        self._add(_Move(partition, wanted.topic, None, directory_id, future_name, State.FOUND))

    def acknowledged(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """Note that the controller has recorded this directory for a replica."""
        self._answered(partition, directory_id, Event.ACKNOWLEDGED)

    def refused(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """The controller refused to; the queue of assignments asks again."""
        self._answered(partition, directory_id, Event.REFUSED)

    def _answered(self, partition: TopicIdPartition, directory_id: Uuid, event: Event) -> None:
        move = self._moves.get(partition)
        if move is not None and move.destination == directory_id:
            self._feed(move, event)

    def directory_failed(self, directory_id: Uuid) -> None:
        """A directory is offline. To be told before the placement is: what is promoted now no longer lies there."""
        if directory_id in self._failed:
            return
        self._failed.add(directory_id)
        for move in list(self._moves.values()):
            if directory_id in (move.source, move.destination):
                self._fail(move, directory_id)

    def _fail(self, move: _Move, directory_id: Uuid) -> None:
        other = move.source if directory_id == move.destination else move.destination
        event = moves.directory_failed(
            directory_id,
            move.source,
            move.destination,
            other_failed=other in self._failed,
            equal=move.equal and _is_as_found(move),
        )
        self._feed(move, event, f"{self._path(directory_id)} failed")

    def directory_replaced(self, directory_id: Uuid) -> None:
        """Let moves use a directory that had failed, and was loaded again."""
        self._failed.discard(directory_id)

    def follow(self, updates: Iterable[Update], *, proven: bool = True) -> None:
        """Changes of the metadata, after the placement has followed them; ``proven`` as there."""
        for update in updates:
            if update.new is not None:
                continue
            if (move := self._moves.get(update.partition)) is not None:
                move.kept = not proven
                self._feed(move, Event.GONE, "the replica is no longer on this broker")
            left = self._left.pop(update.partition, None)
            if left is not None and update.old is not None and left[0] in self._placement.inventory.online:
                self._remove(left[0], left[1], update.old.topic, update.partition, kept=not proven)

    # --------------------------------------------------------------------------------------------------------- its life

    async def run(self) -> None:
        """Carry out moves until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for move in self._moves.values():
                    self._tasks.create_task(self._drive(move))
                while True:
                    await asyncio.sleep(TICK_MS / 1000)
                    self._tick()
        finally:
            self._tasks = None

    async def close(self) -> None:
        """Stop with the agent: moves stay as they are on disk, and are resumed at the next start."""
        self._closed = True
        for move in list(self._moves.values()):
            self._feed(move, Event.STOPPING)

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for move in self._moves.values():
            if move.copy is None:
                continue
            move.rates.append((now_ms, move.copy.progress.copied_bytes))
            if now_ms - move.logged_ms >= PROGRESS_MS:
                move.logged_ms = now_ms
                view = self._view(move)
                self._say(
                    "progress",
                    move,
                    state=str(view.state),
                    copied_bytes=view.copied_bytes,
                    total_bytes=view.total_bytes,
                    bytes_per_second=view.bytes_per_second,
                )

    # ---------------------------------------------------------------------------------------------------- begin and end

    def _begin(self, partition: TopicIdPartition, topic: str, destination: Uuid, size_bytes: int | None = None) -> None:
        source = self._placement.inventory.copies(partition)[0]
        name = moves.future_name(topic, partition.partition, self._unique())
        self._add(_Move(partition, topic, source, destination, name, State.MAKING, size_bytes))

    def _add(self, move: _Move) -> None:
        self._moves[move.partition] = move
        self._reasons.pop(move.partition, None)
        self._placement.inventory.begin_move(move.partition, move.destination, move.future_name)
        move.logged_ms = self._clock.monotonic_ms()
        if move.state is State.FOUND:
            self._find_source(move)
        if move.state.ended:
            return
        self._say("started", move, resumed=move.state is not State.MAKING)
        if self._tasks is not None:
            self._tasks.create_task(self._drive(move))

    def _find_source(self, move: _Move) -> None:
        """Find the reachable part of the source of a move that was found at the start, and how far the move had
        come."""
        inventory, online = self._placement.inventory, self._placement.inventory.online
        current = [d for d in inventory.copies(move.partition) if d in online and d != move.destination]
        left = [d for d, name in inventory.left_behind(move.partition) if name == move.source_name and d in online]
        if current:
            move.source = current[0]
        elif left:
            move.source, move.renamed, move.gone = left[0], True, True
        hosted = self._placement.hosting.partitions.get(move.partition)
        assigned_here = hosted is not None and hosted.directory == move.destination
        move.was_equal = assigned_here
        self._feed(move, moves.resumed(current=bool(current), renamed=bool(left), assigned_here=assigned_here))

    def _retarget(self, move: _Move, destination: Uuid | None) -> None:
        """End a move; its replica stays (None), or goes to another directory."""
        event = Event.CANCELLED if destination is None else Event.NEW_TARGET
        move.next = destination
        self._feed(move, event, "cancelled" if destination is None else f"it goes to {self._path(destination)}")

    def _ended(self, move: _Move) -> None:
        del self._moves[move.partition]
        self._leave_line(move)
        if move.buffer is not None:
            move.buffer.close()
            move.buffer = None
        if move.cause is Event.STOPPING:
            return
        self._tell_end(move)
        inventory = self._placement.inventory
        if move.state is State.LEFT:
            self._left[move.partition] = (move.destination, move.future_name)
        # With no current replica that is known the partition stays "being moved": nothing must be made in its place.
        if move.state is State.DROPPED or (move.state is State.LEFT and inventory.copies(move.partition)):
            inventory.end_move(move.partition)
        if move.cause is not Event.GONE:
            self._placement.review([move.partition])
        if move.next not in (None, move.destination if move.state is State.EFFECTIVE else move.source):
            self._go_on(move)

    def _go_on(self, move: _Move) -> None:
        """To the new target, which was asked for while the move had no way back."""
        assert move.next is not None
        online = self._placement.inventory.online
        copies = self._placement.inventory.copies(move.partition)
        if move.state is not State.LEFT and move.next in online and copies and copies[0] in online:
            self._begin(move.partition, move.topic, move.next)

    def _tell_end(self, move: _Move) -> None:
        if move.state is not State.EFFECTIVE:
            self._reasons[move.partition] = move.reason or "its source is gone"
            while len(self._reasons) > REASONS_MAX:
                del self._reasons[next(iter(self._reasons))]
        if move.state is State.EFFECTIVE:
            copied = 0 if move.copy is None else move.copy.progress.total_bytes
            self._say("promoted", move, bytes=copied)
        elif move.cause in (Event.CANCELLED, Event.NEW_TARGET, Event.GONE):
            self._say("cancelled", move, reason=move.reason)
        else:
            self._log.warning("replica.move.failed", **self._names(move), reason=move.reason or "its source is gone")

    # ------------------------------------------------------------------------------------------------------ the machine

    def _feed(self, move: _Move, event: Event, reason: str = "") -> None:
        """Tell a move what happened, and do what is to be done at once."""
        before = move.state
        if before.ended:
            return
        state, effects = moves.step(before, event)
        if state is before and not effects:
            return
        if event not in moves.PROGRESS:
            move.cause, move.reason = event, reason
        move.state = state
        move.attempts = 0
        if move.activity is not None and move.activity is not _current_task():
            move.activity.cancel()
        for effect in effects:
            self._carry_out(move, effect)
        if move.state.ended:
            self._ended(move)

    def _carry_out(self, move: _Move, effect: Effect) -> None:
        inventory = self._placement.inventory
        match effect:
            case Effect.ASSIGN:
                if not self._owner.assign_move(move.partition, move.destination):
                    self._feed(move, Event.ACKNOWLEDGED)
            case Effect.REVERT:
                if move.source is not None:
                    self._owner.assign(move.partition, move.source)
            case Effect.SOURCE_BACK:
                if move.gone and move.source is not None:
                    move.gone = False
                    inventory.source_back(move.partition, move.source)
            case Effect.PROMOTED:
                inventory.promoted(move.partition)
            case Effect.REMOVE_FUTURE:
                self._remove_future(move)
            case Effect.REMOVE_SOURCE:
                self._remove_source(move)

    async def _drive(self, move: _Move) -> None:
        """Do the work of each state of a move until the move has ended."""
        while not move.state.ended and self._tasks is not None:
            move.activity = self._tasks.create_task(self._act(move))
            await asyncio.wait([move.activity])

    async def _act(self, move: _Move) -> None:
        """Do the work of the present state of a move; return when the work is done, or must be tried again."""
        try:
            match move.state:
                case State.MAKING:
                    await self._make(move)
                case State.NONE | State.ACCEPTED:
                    await self._measure(move)
                    await self._take_turn(move)
                    await self._catch_up(move)
                case State.RENAMED:
                    await self._catch_up(move)
                case State.RENAMING:
                    await self._rename_source(move)
                case State.PROMOTING | State.FINISHING:
                    await self._rename_future(move)
                case State.RESTORING:
                    await self._restore_source(move)
                case _:
                    await asyncio.get_running_loop().create_future()  # an event changes the state
            move.attempts = 0
        except CopyFailed as failure:
            directory = move.destination if failure.side == "destination" else move.source
            await self._missing_or_trouble(move, directory, failure.error)
        except _WorkFailedError as failure:
            await self._missing_or_trouble(move, failure.directory, failure.error)

    async def _missing_or_trouble(self, move: _Move, directory: Uuid | None, error: Exception) -> None:
        if isinstance(error, DirectoryError) and error.errno == errno.ENOENT and move.source is not None:
            try:
                event = await self._renamed_by_others(move)
            except _WorkFailedError as failure:
                directory, error = failure.directory, failure.error
            else:
                if event is None and directory == move.source and move.attempts >= MISSING_MAX:
                    event = Event.SOURCE_FAILED_EQUAL if move.equal and _is_as_found(move) else Event.SOURCE_FAILED
                if event is not None:
                    self._feed(move, event, f"{move.plain} is missing in {self._path(move.source)}")
                    return
        await self._trouble(move, directory, error)

    async def _renamed_by_others(self, move: _Move) -> Event | None:
        """Event for names of a move that are others than they should be: an earlier process asked for that."""
        assert move.source is not None
        source = await self._names_there(move.source, [move.plain, move.source_name])
        there = await self._names_there(move.destination, [move.plain, move.future_name])
        if move.state is State.RENAMED and there == {move.plain} and await self._is_same_topic(move, source):
            move.has_plain_name = True
            return Event.SWAPPED
        if move.state is State.ACCEPTED and source == {move.source_name}:
            self._source_renamed(move)
            return Event.SOURCE_RENAMED
        if move.state is State.RENAMED and source == {move.plain}:
            move.renamed = False
            return Event.SOURCE_RESTORED
        return None

    async def _names_there(self, directory: Uuid, names: Sequence[str]) -> set[str]:
        try:
            return set(await self._placement.agents[directory].replica_sizes(names, timeout_ms=WORK_TIMEOUT_MS))
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
            raise _WorkFailedError(directory, error) from error

    async def _is_same_topic(self, move: _Move, source: Collection[str]) -> bool:
        """Whether the replica of the plain name in the destination has the topic id of the source."""
        assert move.source is not None
        ids = []
        for directory, name in ((move.destination, move.plain), *((move.source, name) for name in source)):
            agent = self._placement.agents[directory]
            try:
                ids.append(await agent.checksum(name, *_TOPIC_ID, cold=False, timeout_ms=WORK_TIMEOUT_MS))
            except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
                raise _WorkFailedError(directory, error) from error
        return len(ids) > 1 and len(set(ids)) == 1

    def _source_renamed(self, move: _Move) -> None:
        move.renamed = True
        if not move.state.ended:
            move.gone = True
            self._placement.inventory.source_gone(move.partition)

    async def _trouble(self, move: _Move, directory: Uuid | None, error: Exception) -> None:
        """Handle a failed step: end the move, or wait and let the move try again."""
        move.attempts += 1
        if isinstance(error, DamagedLog):
            self._feed(move, Event.GIVEN_UP, str(error))
            return
        if isinstance(error, DirectoryError):
            of_the_move = in_work(error.errno, error.call) in _OF_THE_MOVE
            # While it may be the whole directory's, a verdict is waited for: a copy that is equal is promoted then.
            hopeless = of_the_move and (error.errno in DENIED or not asks_probe(error.errno, error.call))
            if (hopeless or move.attempts >= ATTEMPTS_MAX) and move.state not in _WITHOUT_WAY_BACK:
                self._tell_monitor(directory, error)
                self._feed(move, Event.GIVEN_UP, self._given_up(directory, error))
                return
            if self._tell_monitor(directory, error) and directory == move.source:
                self._begin_anew(move)  # what was read before such an error is not trusted, see :meth:`_catch_up`
        else:
            self._begin_anew(move)
        if move.attempts == 1:
            self._log.warning("replica.move.interrupted", **self._names(move), reason=str(error))
        await asyncio.sleep(RETRY_MS / 1000)

    def _tell_monitor(self, directory: Uuid | None, error: DirectoryError) -> bool:
        """Whether the error may be the directory's; the health monitor is told then."""
        told = directory is not None and error.errno != errno.ENOENT and asks_probe(error.errno, error.call)
        if told and directory is not None:
            self._owner.work_failed(directory, error)
        return told

    def _given_up(self, directory: Uuid | None, error: DirectoryError) -> str:
        if in_work(error.errno, error.call) is Meaning.ROOM and directory is not None:
            return f"{self._path(directory)} is full: {error}"
        todo = remedy(error.errno)
        return f"{error}: {todo}" if todo else str(error)

    # -------------------------------------------------------------------------------------------------- what takes time

    async def _make(self, move: _Move) -> None:
        async def make(agent: DirectoryAgent) -> None:
            await agent.create_future(move.future_name, move.partition.topic_id, timeout_ms=WORK_TIMEOUT_MS)

        await self._in_order(move.destination, make)
        self._feed(move, Event.FUTURE_MADE)

    async def _measure(self, move: _Move) -> None:
        """The size of what is to be copied, so that it is known while it waits."""
        if move.size_bytes is None and move.source is not None and not move.turn.is_set():
            agent = self._placement.agents[move.source]
            try:
                sizes = await agent.replica_sizes([move.plain], suffix=".log", timeout_ms=WORK_TIMEOUT_MS)
            except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
                raise _WorkFailedError(move.source, error) from error
            move.size_bytes = sizes.get(move.plain, 0)

    async def _take_turn(self, move: _Move) -> None:
        if not move.turn.is_set() and not move.waiting:
            free = all(self._in_line[d] < self._concurrency for d in move.lane.directories)
            self._in_line.update(move.lane.directories)
            if free:
                move.turn.set()
            move.waiting = not free
        await move.turn.wait()

    def _leave_line(self, move: _Move) -> None:
        if move.turn.is_set() or move.waiting:
            self._in_line.subtract(move.lane.directories)
            move.waiting = False
            if not self._turns_due:  # once for all that end now
                self._turns_due = True
                asyncio.get_running_loop().call_soon(self._give_turns)

    def _give_turns(self) -> None:
        self._turns_due = False
        running = [m.lane for m in self._moves.values() if m.turn.is_set()]
        waiting = [m.lane for m in self._moves.values() if m.waiting]
        for partition in moves.may_run(running, waiting, self._concurrency):
            move = self._moves[partition]
            move.waiting = False
            move.turn.set()

    async def _catch_up(self, move: _Move) -> None:
        """A pass."""
        copy = self._copy_of(move)
        try:
            move.equal = await copy.catch_up()
        except BaseException:
            move.equal = move.equal and _is_as_found(move)
            raise
        if move.equal and not self._is_doubtful(move):
            move.was_equal = True
            self._feed(move, Event.CAUGHT_UP)
        else:
            await asyncio.sleep(AGAIN_MS / 1000)

    def _is_doubtful(self, move: _Move) -> bool:
        """Whether the source had, or has, an error since the copy began: then all of it is read once more."""
        assert move.source is not None
        doubt = self._owner.doubt(move.source, move.begun_ms)
        if doubt is None:
            return False
        move.equal = False
        self._begin_anew(move)
        self._log.warning("replica.move.repeated", **self._names(move), reason=f"{self._path(move.source)} {doubt}")
        return True

    def _copy_of(self, move: _Move) -> ReplicaCopy:
        assert move.source is not None
        if move.copy is None:
            agents = self._placement.agents
            move.buffer = new_buffer(self._storage)
            move.begun_ms = self._clock.monotonic_ms()
            move.copy = ReplicaCopy(
                agents[move.source],
                move.plain,
                agents[move.destination],
                move.future_name,
                buffer=move.buffer,
                throttles=[_throttle(self._rate), self._total],
            )
        move.copy.source_name = move.source_name if move.renamed else move.plain
        return move.copy

    def _begin_anew(self, move: _Move) -> None:
        """Give up memory that a request which was never answered may still use, and what is known of the copy."""
        if move.buffer is not None:
            move.buffer.close()
        move.copy = move.buffer = None

    async def _rename_source(self, move: _Move) -> None:
        source = move.source
        assert source is not None
        agents = self._placement.agents
        move.carried = True
        await self._checkpoints(
            move, carry_checkpoints(agents[source], agents[move.destination], move.topic, move.partition.partition)
        )

        async def rename(agent: DirectoryAgent) -> None:
            if move.state is not State.RENAMING:
                return  # undone before it was done
            await rename_once(agent, move.plain, move.source_name, timeout_ms=WORK_TIMEOUT_MS)
            self._source_renamed(move)

        await self._in_order(source, rename)
        self._feed(move, Event.SOURCE_RENAMED)

    async def _checkpoints(self, move: _Move, work: Awaitable[None]) -> None:
        """A checkpoint file that cannot be written is trouble of the destination."""
        try:
            await work
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
            here = error.path == self._placement.agents[move.destination].path
            raise _WorkFailedError(move.destination if here or move.source is None else move.source, error) from error

    async def _rename_future(self, move: _Move) -> None:
        async def rename(agent: DirectoryAgent) -> None:
            if move.state not in (State.PROMOTING, State.FINISHING):
                return
            await rename_once(agent, move.future_name, move.plain, timeout_ms=WORK_TIMEOUT_MS)
            move.has_plain_name = True

        await self._in_order(move.destination, rename)
        self._feed(move, Event.SWAPPED)

    async def _restore_source(self, move: _Move) -> None:
        async def rename(agent: DirectoryAgent) -> None:
            if not move.renamed and move.plain in await agent.replica_sizes([move.plain], timeout_ms=WORK_TIMEOUT_MS):
                return  # it never was renamed; what has the other name is of a swap long ago, and stays
            await rename_once(agent, move.source_name, move.plain, timeout_ms=WORK_TIMEOUT_MS)
            move.renamed = False

        assert move.source is not None
        await self._in_order(move.source, rename)
        self._feed(move, Event.SOURCE_RESTORED)

    async def _in_order(self, directory: Uuid, job: Callable[[DirectoryAgent], Awaitable[None]]) -> None:
        """Do a job on a directory after those that were asked for before. Raises :class:`_WorkFailedError`."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            try:
                await job(self._placement.agents[directory])
            except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
                if not done.done():
                    done.set_exception(_WorkFailedError(directory, error))
            else:
                if not done.done():
                    done.set_result(None)

        self._placement.work(directory, work)
        await done

    # --------------------------------------------------------------------------------------------------------- removing

    def _remove_future(self, move: _Move) -> None:
        if move.destination not in self._failed:
            self._placement.work(move.destination, functools.partial(self._removing_future, move))

    async def _removing_future(self, move: _Move) -> None:
        at_once = not (move.kept or move.has_plain_name or self._may_be_needed(move))
        if not at_once or not await self._removed_at_once(move):
            name = move.plain if move.has_plain_name else move.future_name
            await self._move_away(move.destination, name, move.topic, move.partition, kept=move.kept)
        if move.carried and move.partition not in self._placement.hosting:
            self._forget_offsets(move.destination, move)

    def _may_be_needed(self, move: _Move) -> bool:
        """Whether the future replica is as good as its source, and that is in doubt: it is removed as what a finished
        move left, later, if the source is well by then."""
        in_doubt = move.source is not None and self._owner.doubt(move.source, move.begun_ms) is not None
        return move.was_equal and in_doubt

    async def _removed_at_once(self, move: _Move) -> bool:
        """Nobody has a future replica open, and its disk may be full. False: it could not be."""
        try:
            agent = self._placement.agents[move.destination]
            await agent.delete_replica(move.future_name, move.partition.topic_id, timeout_ms=WORK_TIMEOUT_MS)
        except (DirectoryError, DirectoryTimeout, WorkerUnavailable) as error:
            self._not_removed(move.destination, move.future_name, error)
            return False
        return True

    def _remove(self, directory: Uuid, name: str, topic: str, partition: TopicIdPartition, *, kept: bool) -> None:
        job = functools.partial(self._move_away, directory, name, topic, partition, kept=kept)
        self._placement.work(directory, job)

    async def _move_away(
        self, directory: Uuid, name: str, topic: str, partition: TopicIdPartition, *, kept: bool
    ) -> None:
        """A copy that does not count: rename it to ``-delete``, so that no start finds it, and remove it later.
        ``kept``: make it a stray instead."""
        if kept:
            self._placement.keep(DepartingReplica(directory, name, topic, partition.partition, partition.topic_id))
            return
        await self._placement.leave(DepartingReplica(directory, name, topic, partition.partition, partition.topic_id))

    def _not_removed(self, directory: Uuid, name: str, error: Exception) -> None:
        self._log.warning("replica.rename.failed", path=f"{self._path(directory)}/{name}", reason=str(error))
        if isinstance(error, DirectoryError):
            self._tell_monitor(directory, error)

    def _remove_source(self, move: _Move) -> None:
        if move.source is not None and move.source not in self._failed:
            self._placement.work(move.source, functools.partial(self._removing_source, move))

    async def _removing_source(self, move: _Move) -> None:
        assert move.source is not None
        if move.renamed and move.kept:
            await self._move_away(move.source, move.source_name, move.topic, move.partition, kept=True)
        elif move.renamed:
            self._placement.delete_later(move.source, move.source_name, move.topic, move.partition.topic_id)
        elif move.gone:  # it had just been given its name back
            await self._move_away(move.source, move.plain, move.topic, move.partition, kept=move.kept)
        self._forget_offsets(move.source, move)

    def _forget_offsets(self, directory: Uuid, move: _Move) -> None:
        partition = move.partition
        self._placement.drop_checkpoints(
            DepartingReplica(directory, move.plain, move.topic, partition.partition, partition.topic_id)
        )

    # ---------------------------------------------------------------------------------------------------------- looking

    def _situation(self, topic: str, partition: int, key: TopicIdPartition | None, path: str) -> Situation:
        inventory, paths = self._placement.inventory, self._directories()
        destination, online = paths.get(path), inventory.online
        current = None if key is None else self._current(key)
        move = None if key is None else self._moves.get(key)
        hosted = None if key is None else self._placement.hosting.partitions.get(key)
        lies_in = current if current is not None or hosted is None else hosted.directory
        future = Future.NONE
        if move is not None:
            goes_to = move.next if move.next is not None or move.state is State.RESTORING else move.destination
            future = Future.HERE if destination == goes_to else Future.ELSEWHERE
        return Situation(
            name_bytes=len(moves.future_name(topic, partition, "0" * 32).encode("utf-8", "replace")),
            configured=path in paths,
            online=destination in online,
            cordoned=destination in self._owner.cordoned(),
            offline=hosted is not None and lies_in not in online and lies_in in self._offline(paths),
            hosted=hosted is not None and current is not None,
            known=key is not None,
            current_here=current is not None and current == destination,
            future=future,
            some_offline=inventory.some_offline,
        )

    def _offline(self, paths: Mapping[str, Uuid | None]) -> set[Uuid]:
        online = self._placement.inventory.online
        return {d for d in paths.values() if d is not None and d not in online}

    def _current(self, partition: TopicIdPartition) -> Uuid | None:
        """Directory of the current replica; that of a swap has no plain name for a moment."""
        copies = self._placement.inventory.copies(partition)
        if copies:
            return copies[0]
        move = self._moves.get(partition)
        return None if move is None else move.source

    def _view(self, move: _Move) -> MoveView:
        progress = None if move.copy is None else move.copy.progress
        total = 0 if progress is None else progress.total_bytes
        return MoveView(
            partition=move.partition,
            topic=move.topic,
            source=move.source,
            destination=move.destination,
            state=move.state,
            total_bytes=total or move.size_bytes or 0,
            copied_bytes=0 if progress is None else total if move.equal else progress.copied_bytes,
            bytes_per_second=_rate_of(move.rates),
            future_name=move.future_name,
            waiting=move.waiting,
        )

    def _path(self, directory: Uuid) -> str:
        return self._placement.inventory.path(directory)

    def _names(self, move: _Move) -> dict[str, object]:
        return {
            "topic": move.topic,
            "partition": move.partition.partition,
            "source": None if move.source is None else self._path(move.source),
            "destination": self._path(move.destination),
        }

    def _say(self, event: str, move: _Move, **fields: object) -> None:
        self._log.info(f"replica.move.{event}", **self._names(move), **fields)


class _WorkFailedError(Exception):
    """A job on a directory failed."""

    def __init__(self, directory: Uuid, error: DirectoryError | DirectoryTimeout | WorkerUnavailable) -> None:
        super().__init__(str(error))
        self.directory = directory
        self.error = error


def _throttle(rate: int) -> Throttle:
    return Throttle(None if rate >= UNLIMITED else rate)


def _is_as_found(move: _Move) -> bool:
    """Whether no pass that was broken off has changed the future replica since one found it equal: what was written may
    be a part of what is new, even where all of it was read back."""
    return move.copy is None or not move.copy.progress.changed


def _missing_bytes(move: _Move) -> int:
    """Bytes that a move is still going to write."""
    if move.copy is None:
        return move.size_bytes or 0
    return 0 if move.equal else max(0, move.copy.progress.total_bytes - move.copy.progress.copied_bytes)


def _rate_of(rates: Sequence[tuple[int, int]]) -> int:
    if len(rates) < 2:
        return 0
    (then_ms, then), (now_ms, now) = rates[0], rates[-1]
    return max(0, (now - then) * 1000 // max(1, now_ms - then_ms))


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
