"""What the metadata say × what lies on the disks × which directories are online → what to do: KIP-858's table.

Theory
------
:data:`RULES` is the table. Each rule names the cases that it is for along three axes, and the action; a test
enumerates all combinations and finds each decided by exactly one rule. It is applied to *every* replica of this broker
when the first metadata are published, and to each replica that a later change of the metadata or of the disks touches.

*What the metadata say* (:class:`Assigned`): no directory yet (UNASSIGNED), one of the directories but unknown which
(MIGRATING), an offline one but unknown which (LOST), one of ours that is online, one of ours that is offline, or an id
that is none of ours (a disk that was replaced, a directory that was taken out of ``log.dirs``).

*What lies on the disks* (:class:`Found`). The contents of a directory that failed in this process are still known, and
count: a replica does not stop lying where it lies.

*Where the copy may be that was not found* (:class:`Hidden`). Only a directory whose contents were never read (offline
since the start) can hold a copy unseen, and only of a replica that was this broker's before the start.

Three places where this goes further than shipped Kafka, each allowed by the KIP and understood by its controllers:

* *UNASSIGNED is assigned whether or not the change mentions it.* Kafka compares only what a record with directories
  touches, so a replica that was added by a reassignment stays unassigned until a restart, and leads a dead disk then.
* *A replica in a failed directory is assigned to that directory* when the metadata say otherwise, so that the
  controller moves its leader. That is the KIP's "replica assignment into a failed directory".
* *Never a new copy while the old one may lie in an offline directory, also for UNASSIGNED and MIGRATING.* Kafka creates
  an empty one, and for a partition with one replica that is the loss of all its data, silently, with a leader. Here the
  replica is assigned to LOST, which the KIP has for just that: "a replica assignment into an offline log directory,
  which cannot be identified". The controller stops counting it as online. When the directory is back, the copy is
  found and assigned; when it is taken out of ``log.dirs``, no directory is offline any more and a new copy is made. The
  price: a topic that was created while this broker was down, which then starts with a bad directory, waits for repair.

Several copies of one replica: where the metadata name one of them, that one counts, and the others are left as they are
and named in the log. (A creation that timed out on a dying disk and was done elsewhere leaves such a copy behind; Kafka
would refuse to start for ever after.) Where the metadata name none, nobody but a person can know which one is good.

A name can be taken: by a stray replica (another topic id, or none), which is left as it is. Then the replica goes to
the emptiest directory where its name is free, and is assigned to it.

A topic that is deleted, or a replica that is reassigned away: its directory is renamed to ``-delete`` as in Kafka, so
that the name is free for a new topic of the same name. Nothing is removed here.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod_agent.partitions import TopicIdPartition

NAME_BYTES_MAX: Final = 255


class Assigned(enum.Enum):
    """What the metadata say about the directory of a replica."""

    UNASSIGNED = enum.auto()
    MIGRATING = enum.auto()
    LOST = enum.auto()
    ONLINE = enum.auto()
    OFFLINE = enum.auto()
    FOREIGN = enum.auto()


class Found(enum.Enum):
    """Where copies of a replica lie, in directories whose contents are known, failed ones included."""

    NOWHERE = enum.auto()
    IN_PLACE = enum.auto()
    """Once, in the directory that the metadata name."""
    ELSEWHERE = enum.auto()
    """Once, in another one."""
    FUTURE_ONLY = enum.auto()
    """Only as a future replica: a move that was interrupted."""
    TWICE_DECIDED = enum.auto()
    """In several directories, and the metadata name one of them."""
    TWICE = enum.auto()
    """In several directories, and the metadata name none of them."""


class Hidden(enum.Enum):
    """Whether an offline directory may hold a copy that was not found."""

    NONE_OFFLINE = enum.auto()
    RULED_OUT = enum.auto()
    """Some directory is offline, but its contents are known, or the replica is newer than the failure."""
    POSSIBLE = enum.auto()


class Action(enum.Enum):
    """What to do about a replica."""

    LEAVE = "leave as it is"
    CREATE = "create where the metadata say"
    CREATE_AND_ASSIGN = "create in the emptiest directory and assign it"
    ASSIGN = "assign the directory where it lies"
    ASSIGN_LOST = "create nothing, assign LOST"
    REFUSE = "stop and ask a person"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the table: the cases and the action. ``why`` is for the log."""

    assigned: frozenset[Assigned]
    found: frozenset[Found]
    hidden: frozenset[Hidden]
    action: Action
    why: str


def _rule(
    assigned: Iterable[Assigned], found: Iterable[Found], hidden: Iterable[Hidden], action: Action, why: str
) -> Rule:
    return Rule(frozenset(assigned), frozenset(found), frozenset(hidden), action, why)


_A, _F, _H = Assigned, Found, Hidden
_ANY_A, _ANY_H = tuple(Assigned), tuple(Hidden)
_UNDECIDED = (_A.UNASSIGNED, _A.MIGRATING)
_MISSING = (_A.LOST, _A.FOREIGN)
_SOME_OFFLINE = (_H.RULED_OUT, _H.POSSIBLE)

RULES: Final = (
    _rule(_ANY_A, [_F.TWICE], _ANY_H, Action.REFUSE, "the same replica lies in two directories"),
    _rule(_ANY_A, [_F.TWICE_DECIDED], _ANY_H, Action.LEAVE, "it lies in two directories, the metadata say in which"),
    _rule(_ANY_A, [_F.IN_PLACE], _ANY_H, Action.LEAVE, "it lies where the metadata say"),
    _rule(_ANY_A, [_F.ELSEWHERE], _ANY_H, Action.ASSIGN, "it lies in another directory than the metadata say"),
    _rule(_ANY_A, [_F.FUTURE_ONLY], _ANY_H, Action.LEAVE, "only its future replica was found: a move to finish"),
    _rule([_A.ONLINE], [_F.NOWHERE], _ANY_H, Action.CREATE, "it is missing where the metadata say"),
    _rule([_A.OFFLINE], [_F.NOWHERE], _ANY_H, Action.LEAVE, "its directory is offline"),
    _rule(_UNDECIDED, [_F.NOWHERE], [_H.NONE_OFFLINE, _H.RULED_OUT], Action.CREATE_AND_ASSIGN, "it is new"),
    _rule(_UNDECIDED, [_F.NOWHERE], [_H.POSSIBLE], Action.ASSIGN_LOST, "its copy may lie in an offline directory"),
    _rule(_MISSING, [_F.NOWHERE], [_H.NONE_OFFLINE], Action.CREATE_AND_ASSIGN, "its directory is gone for good"),
    _rule(_MISSING, [_F.NOWHERE], _SOME_OFFLINE, Action.LEAVE, "its copy may lie in an offline directory"),
)
"""KIP-858, "Replica management", and ``kafka-jbod`` 4.6."""


def look_up(assigned: Assigned, found: Found, hidden: Hidden) -> Rule:
    """The one rule for a case."""
    for rule in RULES:
        if assigned in rule.assigned and found in rule.found and hidden in rule.hidden:
            return rule
    raise AssertionError(f"no rule for {assigned}, {found}, {hidden}")


# -------------------------------------------------------------------------------------------------------- what there is

Suffix = Literal["", "future", "delete", "stray"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A replica of this broker, as the metadata have it."""

    partition: TopicIdPartition
    topic: str
    assigned: Uuid
    new: bool
    """It became this broker's while this process was running: no directory can hold a copy from before."""

    @property
    def name(self) -> str:
        """The name of its directory."""
        return f"{self.topic}-{self.partition.partition}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a replica; ``directory_id`` where to create it, or what to assign."""

    wanted: Wanted
    action: Action
    why: str
    directory_id: Uuid | None = None
    assign: bool = False
    """Whether the controller has to be told ``directory_id`` (after the creation, where there is one)."""


@dataclass(slots=True)
class _Contents:
    """What is known to lie in one directory."""

    path: str
    names: dict[str, Uuid | None] = field(default_factory=dict)
    """Topic id by name of a replica directory, whatever its suffix; None: without a readable topic id."""
    replicas: int = 0
    """Current and future ones, and those being created: what "emptiest" counts."""


class Inventory:
    """Directories and the replicas in them, as read at the start and changed by this process since. No I/O.

    Args:
        online: id and path of the directories that were read, in the order of ``log.dirs``.
        unread: ids of the configured directories that could not be read, None for an id that nobody remembers.
    """

    def __init__(self, online: Iterable[tuple[Uuid, str]], unread: Iterable[Uuid | None] = ()) -> None:
        self._contents = {directory: _Contents(path) for directory, path in online}
        self._alone = {directory: (directory,) for directory in self._contents}
        """One tuple for all replicas that lie in one directory only."""
        self._failed: set[Uuid] = set()
        self._unread = tuple(unread)
        self._copies: dict[TopicIdPartition, tuple[Uuid, ...]] = {}
        self._futures: dict[TopicIdPartition, Uuid] = {}
        self._creating: dict[TopicIdPartition, tuple[Uuid, str]] = {}
        self._avoid: dict[TopicIdPartition, set[Uuid]] = {}

    # ---- reading

    @property
    def online(self) -> tuple[Uuid, ...]:
        """Directories that take replicas, in the order of ``log.dirs``."""
        return tuple(d for d in self._contents if d not in self._failed)

    @property
    def creating(self) -> Collection[TopicIdPartition]:
        """Creations under way."""
        return self._creating

    def path(self, directory_id: Uuid) -> str:
        """The path of a directory that was read at the start."""
        return self._contents[directory_id].path

    def replica_count(self, directory_id: Uuid) -> int:
        """Current and future replicas in a directory, those being created included."""
        return self._contents[directory_id].replicas

    def locate(self, partition: TopicIdPartition) -> Uuid | None:
        """The directory, online or failed, where a replica lies or is being created; None when nowhere known."""
        copies = self._copies.get(partition)
        if copies:
            return copies[0]
        creating = self._creating.get(partition)
        return None if creating is None else creating[0]

    def strays(self, is_ours: Callable[[TopicIdPartition], bool]) -> Iterator[tuple[Uuid, str, Uuid | None]]:
        """Directory, name and topic id of current replicas that the metadata do not give to this broker
        (``LogManager.isStrayKraftReplica``): unknown topic id or none, unknown partition, another broker's."""
        for directory, contents in self._contents.items():
            for name, topic_id in contents.names.items():
                if name.endswith(("-delete", "-stray", "-future")) and "." in name:
                    continue
                number = int(name.rpartition("-")[2])
                if topic_id is None or not is_ours(TopicIdPartition(topic_id, number)):
                    yield directory, name, topic_id

    # ---- changing

    def add(self, directory_id: Uuid, name: str, partition: int, topic_id: Uuid | None, suffix: Suffix) -> None:
        """A replica directory was found at the start."""
        contents = self._contents[directory_id]
        contents.names[name] = topic_id
        if suffix in ("", "future"):
            contents.replicas += 1
        if topic_id is None:
            return
        key = TopicIdPartition(topic_id, partition)
        if suffix == "":
            others = self._copies.get(key)
            self._copies[key] = (*others, directory_id) if others else self._alone[directory_id]
        elif suffix == "future":
            self._futures[key] = directory_id

    def fail(self, directory_id: Uuid) -> None:
        """A directory failed. What lies in it is remembered; what was being created in it is not there."""
        self._failed.add(directory_id)
        for partition in [p for p, (d, _) in self._creating.items() if d == directory_id]:
            self._uncreate(partition)

    def created(self, partition: TopicIdPartition) -> Uuid | None:
        """A creation is complete: where; None when the directory failed in the meantime."""
        creating = self._creating.pop(partition, None)
        if creating is None:
            return None
        self._copies[partition] = self._alone[creating[0]]
        self._avoid.pop(partition, None)
        return creating[0]

    def not_created(self, partition: TopicIdPartition) -> None:
        """A creation failed: the next decision avoids that directory if it may choose. When it failed in all of them
        they get their turn again."""
        creating = self._creating.get(partition)
        if creating is not None:
            self._uncreate(partition)
            avoid = self._avoid.setdefault(partition, set())
            avoid.add(creating[0])
            if avoid.issuperset(self.online):
                self._avoid[partition] = {creating[0]}

    def remove(self, partition: TopicIdPartition, name: str) -> tuple[Uuid, ...]:
        """A replica is no longer this broker's: the online directories in which it is to be renamed. Forgotten here."""
        self._avoid.pop(partition, None)
        copies = self._copies.pop(partition, ())
        for directory in copies:
            self._contents[directory].names.pop(name, None)
            self._contents[directory].replicas -= 1
        return tuple(d for d in copies if d not in self._failed)

    def _uncreate(self, partition: TopicIdPartition) -> None:
        directory, name = self._creating.pop(partition)
        self._contents[directory].replicas -= 1
        self._contents[directory].names.pop(name, None)

    # ---- deciding

    def decide(self, wanted: Wanted) -> Decision:
        """What to do about a replica. A decision to create reserves the directory: :meth:`created` or
        :meth:`not_created` must follow."""
        partition = wanted.partition
        if partition in self._creating:
            return Decision(wanted, Action.LEAVE, "it is being created")
        rule = look_up(self._assigned(wanted.assigned), self._found(wanted), self._hidden(wanted))
        match rule.action:
            case Action.CREATE | Action.CREATE_AND_ASSIGN:
                return self._create(wanted, rule)
            case Action.ASSIGN:
                return Decision(wanted, rule.action, rule.why, self._copies[partition][0], assign=True)
            case Action.ASSIGN_LOST:
                return Decision(wanted, rule.action, rule.why, LOST, assign=True)
            case Action.REFUSE:
                why = f"{rule.why}: {self._paths(wanted)}: move one of them out of its log directory"
                return Decision(wanted, rule.action, why)
            case _:
                return Decision(wanted, rule.action, rule.why)

    def duplicates(self, wanted: Wanted) -> tuple[str, ...]:
        """Paths of the copies that the metadata do not name, of a replica that lies in several directories: from here
        on they do not count, and are left as they are."""
        copies = self._copies.get(wanted.partition, ())
        if len(copies) < 2 or wanted.assigned not in copies:
            return ()
        self._copies[wanted.partition] = (wanted.assigned,)
        return tuple(f"{self.path(d)}/{wanted.name}" for d in copies if d != wanted.assigned)

    def _paths(self, wanted: Wanted) -> str:
        return " and ".join(f"{self.path(d)}/{wanted.name}" for d in self._copies[wanted.partition])

    def _create(self, wanted: Wanted, rule: Rule) -> Decision:
        given = wanted.assigned if rule.action is Action.CREATE else None
        if given is not None and self._is_free(given, wanted):
            directory: Uuid | None = given
        else:
            directory = self._emptiest(wanted)
        if directory is None:
            return Decision(wanted, Action.LEAVE, "no online directory can take it: its name is taken in each of them")
        contents = self._contents[directory]
        contents.replicas += 1
        contents.names[wanted.name] = wanted.partition.topic_id
        self._creating[wanted.partition] = (directory, wanted.name)
        return Decision(wanted, rule.action, rule.why, directory, assign=directory != wanted.assigned)

    def _emptiest(self, wanted: Wanted) -> Uuid | None:
        """The directory with the fewest replicas, the first of ``log.dirs`` among equals; one where the creation
        failed before only when there is no other."""
        free = [d for d in self.online if self._is_free(d, wanted)]
        avoid = self._avoid.get(wanted.partition, set())
        return min(free, key=lambda d: (d in avoid, self._contents[d].replicas), default=None)

    def _is_free(self, directory: Uuid, wanted: Wanted) -> bool:
        names = self._contents[directory].names
        return wanted.name not in names or names[wanted.name] == wanted.partition.topic_id

    def _assigned(self, directory: Uuid) -> Assigned:
        named = {UNASSIGNED: _A.UNASSIGNED, MIGRATING: _A.MIGRATING, LOST: _A.LOST}.get(directory)
        if named is not None:
            return named
        if directory in self._failed or directory in self._unread:
            return _A.OFFLINE
        return _A.ONLINE if directory in self._contents else _A.FOREIGN

    def _found(self, wanted: Wanted) -> Found:
        copies = self._copies.get(wanted.partition, ())
        if len(copies) > 1:
            return _F.TWICE_DECIDED if wanted.assigned in copies else _F.TWICE
        if copies:
            return _F.IN_PLACE if copies[0] == wanted.assigned else _F.ELSEWHERE
        return _F.FUTURE_ONLY if wanted.partition in self._futures else _F.NOWHERE

    def _hidden(self, wanted: Wanted) -> Hidden:
        if self._unread and not wanted.new:
            return _H.POSSIBLE
        return _H.RULED_OUT if self._unread or self._failed else _H.NONE_OFFLINE


def delete_name(topic: str, partition: int, unique: str) -> str:
    """The name of a replica directory that is to be removed: ``topic-0.<32 hex>-delete``, the topic cut so that it has
    255 bytes at most (``UnifiedLog.logDeleteDirName``). ``unique`` are the 32 hex digits."""
    suffix = f"-{partition}.{unique}-delete"
    return topic[: NAME_BYTES_MAX - len(suffix)] + suffix
