"""Moves of replicas between the directories of one broker: KIP-858's promotion machine, as a table.

Theory
------
A move copies a replica into a *future* replica (``<topic>-<partition>.<32 hex>-future``) in another directory. When
both are equal the controller is asked to record the new directory, and only after its answer the future replica
becomes the current one. So there is no moment at which the controller believes that a replica is in a directory where
none is, and a directory that fails during the move fails with the replicas that the controller knows to be in it.

KIP-858 ("Intra-broker replica movement") and Kafka's ``ReplicaAlterLogDirsThread.PromotionState`` have four states:

    None ──caught up──► Queued ──controller answered──► Accepted ──caught up again──► Effective

Here they are :attr:`State.NONE`, :attr:`State.QUEUED`, :attr:`State.ACCEPTED` and :attr:`State.EFFECTIVE`. The others
are what a crash or a dead disk can come between:

* ``MAKING``: the future replica is being made. ``FOUND``: it was found at the start, and how far its move had come is
  being looked up.
* The swap, ``RENAMING``, ``RENAMED``, ``PROMOTING``: *first* the source is renamed to ``-delete``, then what changed
  until that moment is copied from under that name and verified, *then* the future replica gets the plain name. Kafka
  renames the other way round, and a crash between its two renames leaves two current replicas, with which it never
  starts again. In this order a crash at any point leaves what shipped Kafka starts with: a future replica in the
  directory that the metadata name, and no current one, which it promotes (``recoverAbandonedFutureLogs``).
  ``-delete`` and ``-future`` of one move share their 32 digits, so that the source is found again after a crash and the
  last difference is not lost.
* ``RESTORING``: the destination cannot be used after the source was renamed: the source gets its name back.
* ``FINISHING``: as ``PROMOTING``, with no source that could be reached.

and three ends: ``EFFECTIVE``, ``DROPPED`` (the future replica is removed) and ``LEFT`` (it stays where it is: on a disk
that failed, as the only copy that can be reached, or for the next start).

A rename that a process asked for before it was killed may happen when the next one has already read the directory:
the disk was stuck, and the kernel went on. So the swap goes on from ``ACCEPTED`` and ``RENAMED`` by what the names are
(``SOURCE_RENAMED``, ``SWAPPED``, ``SOURCE_RESTORED``), whoever changed them.

Rules:

* The source is given up only for what was read from it twice, the same each time, with right CRCs, while it had no
  error (:mod:`.copying`, ``MoveOwner.doubt``): ``CAUGHT_UP`` says all of that. Without it the move waits, copies again,
  or ends with the source where it was (``GIVEN_UP``).
* Promotion only after the controller's answer. A refusal leaves the move ``QUEUED``: the queue of assignments asks
  again, as Kafka's does.
* A move that ends after it asked takes it back: the original directory is assigned again (``REVERT``), since that is
  where the replica lies. If that directory has failed, it is the truth all the same, and the KIP's "assignment into a
  failed directory" that makes the controller move the leader. What was renamed is renamed back before.
* The destination fails: the move ends, its future replica is lost with it.
* The source fails: the future replica is not complete and the move ends, except when the metadata name the destination
  (``ACCEPTED`` and later) and the future replica was equal at the last look (``SOURCE_FAILED_EQUAL``): it is promoted.
* Cancelled, given up (the destination is full), or a new target: the future replica is removed, at once. Kafka keeps it
  as ``-delete`` for ``file.delete.delay.ms``, for readers that have it open; nobody reads a future replica here, and on
  a full disk each minute counts. Once its rename is asked for it is too late, and the move ends by itself.
* The replica is no longer this broker's: both copies are to be deleted.
* The agent stops: nothing is undone; the next start finds the future replica and goes on (``FOUND``):
  ``recoverAbandonedFutureLogs`` made safer, by what can be reached of the source and what the metadata say.

:data:`TABLE` decides each event in each state; a test finds each decided exactly once. :func:`judge` is the table of
AlterReplicaLogDirs (``kafka-jbod`` 4.11). Pure: no I/O, no clock.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.replicas.inventory import NAME_BYTES_MAX
from kjbod_host.partitions import TopicIdPartition


class State(enum.StrEnum):
    """State of a move; the value is what users read."""

    MAKING = "making"
    FOUND = "found"
    NONE = "copying"
    QUEUED = "queued"
    ACCEPTED = "accepted"
    RENAMING = "renaming"
    RENAMED = "renamed"
    PROMOTING = "promoting"
    FINISHING = "finishing"
    RESTORING = "restoring"
    EFFECTIVE = "effective"
    DROPPED = "dropped"
    LEFT = "left"

    @property
    def ended(self) -> bool:
        """Whether the move has ended."""
        return self in ENDS


class Event(enum.Enum):
    """An event of a move."""

    FUTURE_MADE = enum.auto()
    RESUMED = enum.auto()
    """Found at the start: a current replica can be read, the metadata do not name the destination."""
    RESUMED_ACCEPTED = enum.auto()
    """A current replica can be read, the metadata name the destination."""
    RESUMED_RENAMED = enum.auto()
    """No current replica, but the renamed source can be read; the metadata name the destination."""
    RESUMED_UNDONE = enum.auto()
    """The renamed source can be read; the metadata do not name the destination."""
    RESUMED_ALONE = enum.auto()
    """Nothing can be read but the future replica; the metadata name the destination."""
    RESUMED_LOST = enum.auto()
    """Nothing can be read but the future replica; the metadata do not name the destination."""
    CAUGHT_UP = enum.auto()
    """Both are equal, verified; in RENAMED: still equal after the rename of the source."""
    ACKNOWLEDGED = enum.auto()
    """The controller answered that it has recorded the destination."""
    REFUSED = enum.auto()
    """It answered something else."""
    SOURCE_RENAMED = enum.auto()
    SWAPPED = enum.auto()
    """The future replica has the plain name."""
    SOURCE_RESTORED = enum.auto()
    SOURCE_FAILED = enum.auto()
    """The future replica was not equal, or nobody looked."""
    SOURCE_FAILED_EQUAL = enum.auto()
    """It was equal at the last look, and nothing was written to it since."""
    DESTINATION_FAILED = enum.auto()
    BOTH_FAILED = enum.auto()
    """One directory failed after the other."""
    CANCELLED = enum.auto()
    NEW_TARGET = enum.auto()
    GIVEN_UP = enum.auto()
    """The destination is full, or an error does not go away although neither directory failed."""
    GONE = enum.auto()
    """The topic was deleted, or the replica was reassigned away."""
    STOPPING = enum.auto()
    """The agent stops."""


class Effect(enum.Enum):
    """An action to be taken at once. What takes time belongs to the state."""

    ASSIGN = "ask the controller to record the destination"
    REVERT = "ask it to record the directory of the source"
    SOURCE_BACK = "the source is the current replica again"
    PROMOTED = "the future replica is the current one"
    REMOVE_FUTURE = "rename the future replica, whatever its name is by now, to -delete, and remove it"
    REMOVE_SOURCE = "remove the source"


class Step(NamedTuple):
    """An entry of the table."""

    state: State
    effects: tuple[Effect, ...] = ()


ENDS: Final = frozenset({State.EFFECTIVE, State.DROPPED, State.LEFT})

_S, _E, _X = State, Event, Effect
_FOUND_AGAIN: Final = frozenset(
    {_E.RESUMED, _E.RESUMED_ACCEPTED, _E.RESUMED_RENAMED, _E.RESUMED_UNDONE, _E.RESUMED_ALONE, _E.RESUMED_LOST}
)
PROGRESS: Final = _FOUND_AGAIN | frozenset(
    {_E.FUTURE_MADE, _E.CAUGHT_UP, _E.ACKNOWLEDGED, _E.REFUSED, _E.SOURCE_RENAMED, _E.SWAPPED, _E.SOURCE_RESTORED}
)
"""What is on the way of a move, or on its way back; all else makes an end of it."""

_DROP: Final = Step(_S.DROPPED, (_X.REMOVE_FUTURE,))
_TAKE_BACK: Final = Step(_S.DROPPED, (_X.REVERT, _X.REMOVE_FUTURE))
_DELETE_BOTH: Final = Step(_S.DROPPED, (_X.REMOVE_FUTURE, _X.REMOVE_SOURCE))
_LEAVE: Final = Step(_S.LEFT)
_LEAVE_REVERT: Final = Step(_S.LEFT, (_X.REVERT,))
_LEAVE_SOURCE: Final = Step(_S.LEFT, (_X.SOURCE_BACK, _X.REVERT))
_DONE: Final = Step(_S.EFFECTIVE, (_X.PROMOTED, _X.REMOVE_SOURCE))

_CHANGES: Final[Mapping[State, Mapping[Event, Step]]] = {
    _S.MAKING: {
        _E.FUTURE_MADE: Step(_S.NONE),
        _E.SOURCE_FAILED: _LEAVE,
        _E.SOURCE_FAILED_EQUAL: _LEAVE,
        _E.DESTINATION_FAILED: _LEAVE,
        _E.BOTH_FAILED: _LEAVE,
        _E.CANCELLED: _DROP,
        _E.NEW_TARGET: _DROP,
        _E.GIVEN_UP: _DROP,
        _E.GONE: _DROP,
        _E.STOPPING: _LEAVE,
    },
    _S.FOUND: {
        _E.RESUMED: Step(_S.NONE),
        _E.RESUMED_ACCEPTED: Step(_S.ACCEPTED),
        _E.RESUMED_RENAMED: Step(_S.RENAMED),
        _E.RESUMED_UNDONE: Step(_S.RESTORING),
        _E.RESUMED_ALONE: Step(_S.FINISHING),
        _E.RESUMED_LOST: _LEAVE,
        _E.DESTINATION_FAILED: _LEAVE,
        _E.BOTH_FAILED: _LEAVE,
        _E.GONE: _DROP,
        _E.STOPPING: _LEAVE,
    },
    _S.NONE: {
        _E.CAUGHT_UP: Step(_S.QUEUED, (_X.ASSIGN,)),
        _E.SOURCE_FAILED: _LEAVE,
        _E.SOURCE_FAILED_EQUAL: _LEAVE,
        _E.DESTINATION_FAILED: _LEAVE,
        _E.BOTH_FAILED: _LEAVE,
        _E.CANCELLED: _DROP,
        _E.NEW_TARGET: _DROP,
        _E.GIVEN_UP: _DROP,
        _E.GONE: _DROP,
        _E.STOPPING: _LEAVE,
    },
    _S.QUEUED: {
        _E.ACKNOWLEDGED: Step(_S.ACCEPTED),
        _E.SOURCE_FAILED: _LEAVE_REVERT,
        _E.SOURCE_FAILED_EQUAL: _LEAVE_REVERT,
        _E.DESTINATION_FAILED: _LEAVE_REVERT,
        _E.BOTH_FAILED: _LEAVE_REVERT,
        _E.CANCELLED: _TAKE_BACK,
        _E.NEW_TARGET: _TAKE_BACK,
        _E.GIVEN_UP: _TAKE_BACK,
        _E.GONE: _DROP,
        _E.STOPPING: _LEAVE,
    },
    _S.ACCEPTED: {
        _E.CAUGHT_UP: Step(_S.RENAMING),
        _E.SOURCE_RENAMED: Step(_S.RENAMED),
        _E.SOURCE_FAILED: _LEAVE_REVERT,
        _E.SOURCE_FAILED_EQUAL: Step(_S.FINISHING),
        _E.DESTINATION_FAILED: _LEAVE_REVERT,
        _E.BOTH_FAILED: _LEAVE_REVERT,
        _E.CANCELLED: _TAKE_BACK,
        _E.NEW_TARGET: _TAKE_BACK,
        _E.GIVEN_UP: _TAKE_BACK,
        _E.GONE: _DROP,
        _E.STOPPING: _LEAVE,
    },
    _S.RENAMING: {
        _E.SOURCE_RENAMED: Step(_S.RENAMED),
        _E.SOURCE_FAILED: _LEAVE_SOURCE,
        _E.SOURCE_FAILED_EQUAL: Step(_S.FINISHING),
        _E.DESTINATION_FAILED: Step(_S.RESTORING),
        _E.BOTH_FAILED: _LEAVE,
        _E.CANCELLED: Step(_S.RESTORING),
        _E.NEW_TARGET: Step(_S.RESTORING),
        _E.GIVEN_UP: Step(_S.RESTORING),
        _E.GONE: _DELETE_BOTH,
        _E.STOPPING: _LEAVE,
    },
    _S.RENAMED: {
        _E.CAUGHT_UP: Step(_S.PROMOTING),
        _E.SWAPPED: _DONE,
        _E.SOURCE_RESTORED: Step(_S.ACCEPTED, (_X.SOURCE_BACK,)),
        _E.SOURCE_FAILED: _LEAVE_SOURCE,
        _E.SOURCE_FAILED_EQUAL: Step(_S.FINISHING),
        _E.DESTINATION_FAILED: Step(_S.RESTORING),
        _E.BOTH_FAILED: _LEAVE,
        _E.CANCELLED: Step(_S.RESTORING),
        _E.NEW_TARGET: Step(_S.RESTORING),
        _E.GIVEN_UP: Step(_S.RESTORING),
        _E.GONE: _DELETE_BOTH,
        _E.STOPPING: _LEAVE,
    },
    _S.PROMOTING: {
        _E.SWAPPED: _DONE,
        _E.SOURCE_FAILED: Step(_S.FINISHING),
        _E.SOURCE_FAILED_EQUAL: Step(_S.FINISHING),
        _E.DESTINATION_FAILED: Step(_S.RESTORING),
        _E.BOTH_FAILED: _LEAVE,
        _E.GIVEN_UP: Step(_S.RESTORING),
        _E.GONE: _DELETE_BOTH,
        _E.STOPPING: _LEAVE,
    },
    _S.FINISHING: {
        _E.SWAPPED: _DONE,
        _E.DESTINATION_FAILED: _LEAVE,
        _E.BOTH_FAILED: _LEAVE,
        _E.GIVEN_UP: _LEAVE,
        _E.GONE: _DELETE_BOTH,
        _E.STOPPING: _LEAVE,
    },
    _S.RESTORING: {
        _E.SOURCE_RESTORED: Step(_S.DROPPED, (_X.SOURCE_BACK, _X.REVERT, _X.REMOVE_FUTURE)),
        _E.SOURCE_FAILED: _LEAVE_SOURCE,
        _E.SOURCE_FAILED_EQUAL: _LEAVE_SOURCE,
        _E.BOTH_FAILED: _LEAVE,
        _E.GONE: _DELETE_BOTH,
        _E.STOPPING: _LEAVE,
    },
    _S.EFFECTIVE: {},
    _S.DROPPED: {},
    _S.LEFT: {},
}
"""Events that change something; what is not named here leaves the state as it is (:data:`IGNORED` says why)."""

IGNORED: Final[Mapping[State, frozenset[Event]]] = {
    state: frozenset(Event) - changes.keys() for state, changes in _CHANGES.items()
}
"""By state, events without a meaning in it: an answer to what was asked in an earlier state; a refusal, after which the
queue asks again; a cancellation that comes too late (PROMOTING, FINISHING), or again (RESTORING). FOUND lasts no time:
nobody can cancel in it."""

TABLE: Final[Mapping[tuple[State, Event], Step]] = {
    (state, event): changes.get(event, Step(state)) for state, changes in _CHANGES.items() for event in Event
}


def step(state: State, event: Event) -> Step:
    """Return the next state, and the effects to carry out at once."""
    return TABLE[state, event]


def resumed(*, current: bool, renamed: bool, assigned_here: bool) -> Event:
    """State of the move of a future replica that was found at the start.

    Args:
        current: a current replica can be read in another directory.
        renamed: the source can be read under the name that the swap gives it.
        assigned_here: the metadata name the directory of the future replica.
    """
    if current:
        return Event.RESUMED_ACCEPTED if assigned_here else Event.RESUMED
    if renamed:
        return Event.RESUMED_RENAMED if assigned_here else Event.RESUMED_UNDONE
    return Event.RESUMED_ALONE if assigned_here else Event.RESUMED_LOST


def directory_failed(failed: Uuid, source: Uuid | None, destination: Uuid, *, other_failed: bool, equal: bool) -> Event:
    """The event that the failure of the directory ``failed``, one of the two, is for a move."""
    if other_failed or source == destination:
        return Event.BOTH_FAILED
    if failed == destination:
        return Event.DESTINATION_FAILED
    return Event.SOURCE_FAILED_EQUAL if equal else Event.SOURCE_FAILED


# ---------------------------------------------------------------------------------------------------------------- names


def future_name(topic: str, partition: int, unique: str) -> str:
    """``<topic>-<partition>.<32 hex>-future`` (``UnifiedLog.logFutureDirName``): never cut short, see :func:`judge`."""
    return f"{topic}-{partition}.{unique}-future"


def source_name(future: str) -> str:
    """Name that the swap gives the source, made from that of the future replica: both share the digits."""
    return future.removesuffix("-future") + "-delete"


# ----------------------------------------------------------------------------------------------------- who may copy now


class Lane(Struct, frozen=True):
    """The two directories of a move; ``source`` None: there is nothing to read."""

    partition: TopicIdPartition
    source: Uuid | None
    destination: Uuid

    @property
    def directories(self) -> tuple[Uuid, ...]:
        """Directories that the move reads from or writes to."""
        return (self.destination,) if self.source is None else (self.source, self.destination)


def may_run(running: Iterable[Lane], waiting: Iterable[Lane], limit: int) -> list[TopicIdPartition]:
    """Waiting moves that may run beside those that do, so that at most ``limit`` read from or write to any directory.
    In their order: one that has to wait is not overtaken by a later one for the same directory."""
    used: dict[Uuid, int] = {}

    def take(lane: Lane) -> None:
        for directory in lane.directories:
            used[directory] = used.get(directory, 0) + 1

    for lane in running:
        take(lane)
    chosen = []
    for lane in waiting:
        if all(used.get(directory, 0) < limit for directory in lane.directories):
            chosen.append(lane.partition)
        take(lane)
    return chosen


# -------------------------------------------------------------------------------------------------- AlterReplicaLogDirs


class Future(enum.Enum):
    """Place of a partition's future replica, as seen from a destination."""

    NONE = enum.auto()
    HERE = enum.auto()
    ELSEWHERE = enum.auto()


class Situation(Struct, frozen=True, kw_only=True):
    """Facts that decide the answer to AlterReplicaLogDirs, for one partition.

    Attributes:
        name_bytes: length of the name that its future replica would have.
        configured: the destination is an entry of ``log.dirs``.
        online: it is usable.
        cordoned: it is to get no new replicas (KIP-1066).
        offline: the replica lies in a directory that failed.
        hosted: a current replica is here, in an online directory.
        known: the metadata have the topic and the partition.
        current_here: the current replica is in the destination.
        future: where its future replica is.
        some_offline: any configured directory is offline.
    """

    name_bytes: int
    configured: bool
    online: bool
    cordoned: bool
    offline: bool
    hosted: bool
    known: bool
    current_here: bool
    future: Future
    some_offline: bool


class Judgement(Struct, frozen=True):
    """The answer to AlterReplicaLogDirs for one partition, and what is to be done, in this order.

    Attributes:
        code: the answer.
        cancel: the move that there is ends.
        prefer: the destination is remembered for when the replica is created.
        begin: a move begins.
    """

    code: ErrorCode
    cancel: bool = False
    prefer: bool = False
    begin: bool = False


def judge(now: Situation) -> Judgement:
    """``ReplicaManager.alterReplicaLogDirs``, in the order of ``kafka-jbod`` 4.11; a cordoned destination is refused as
    4.3.1 does (CO-4)."""
    refused = _refusal(now)
    if refused is not None:
        return Judgement(refused)
    cancel = now.future is Future.ELSEWHERE
    prefer = not now.current_here and now.future is not Future.HERE
    if not now.hosted:
        code = ErrorCode.REPLICA_NOT_AVAILABLE if now.known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Judgement(code, cancel, prefer)
    if not prefer:
        return Judgement(ErrorCode.NONE, cancel)
    if now.some_offline:
        return Judgement(ErrorCode.KAFKA_STORAGE_ERROR, cancel, prefer)
    return Judgement(ErrorCode.NONE, cancel, begin=True)


def _refusal(now: Situation) -> ErrorCode | None:
    """Rows 1 to 4: answers that change nothing."""
    if now.name_bytes > NAME_BYTES_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    if not now.configured:
        return ErrorCode.LOG_DIR_NOT_FOUND
    if not now.online:
        return ErrorCode.KAFKA_STORAGE_ERROR
    if now.cordoned:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT
    return ErrorCode.KAFKA_STORAGE_ERROR if now.offline else None


# ----------------------------------------------------------------------------------------------------------------- room

MARGIN_PERCENT: Final = 2
"""Of the destination's file system, that a move leaves free: for what its replicas take meanwhile, and for indexes."""


class Room(Struct, frozen=True, kw_only=True):
    """The file system of a directory as last seen.

    Attributes:
        file_system: the same for all directories that share it.
        total_bytes: its size.
        usable_bytes: what can still be allocated.
    """

    file_system: str
    total_bytes: int
    usable_bytes: int


class NoRoom(Struct, frozen=True, kw_only=True):
    """Figures that show why a replica does not fit, in bytes.

    Attributes:
        needed_bytes: size of the replica.
        usable_bytes: what can still be allocated at the destination.
        promised_bytes: of that, what moves that were begun before are still going to take.
        margin_bytes: of that, what is to stay free.
    """

    needed_bytes: int
    usable_bytes: int
    promised_bytes: int
    margin_bytes: int


def lack_of_room(needed_bytes: int, room: Room, promised_bytes: int) -> NoRoom | None:
    """Whether a replica fits beside what is promised; None: it does, or it is empty."""
    margin_bytes = room.total_bytes * MARGIN_PERCENT // 100
    if not needed_bytes or needed_bytes + promised_bytes + margin_bytes <= room.usable_bytes:
        return None
    return NoRoom(
        needed_bytes=needed_bytes,
        usable_bytes=room.usable_bytes,
        promised_bytes=promised_bytes,
        margin_bytes=margin_bytes,
    )


# ---------------------------------------------------------------------------------------------------------------- views


class MoveView(Struct, frozen=True):
    """A move, for people and tools.

    Attributes:
        partition: what moves.
        topic: its name.
        source: id of the directory that it leaves; None when its current replica cannot be reached.
        destination: id of the directory that it goes to.
        state: how far it is.
        total_bytes: size of the source at the last look; of its segments alone while it waits.
        copied_bytes: of them, in the future replica.
        bytes_per_second: over the last seconds.
        future_name: directory name of the future replica.
        waiting: it waits for its turn (``kjbod.move.concurrency``).
    """

    partition: TopicIdPartition
    topic: str
    source: Uuid | None
    destination: Uuid
    state: State
    total_bytes: int
    copied_bytes: int
    bytes_per_second: int
    future_name: str
    waiting: bool = False
