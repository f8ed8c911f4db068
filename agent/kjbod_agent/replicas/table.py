"""KIP-858's table: what the metadata say × what lies on the disks × what is not known yet → what to do.

Theory
------
:data:`RULES` is the table. Each rule names the cases that it is for along three axes, and the action; a test
enumerates all combinations and finds each decided by exactly one rule. It is applied to *every* replica of this broker
when the first metadata are published, and to each replica that a later change of the metadata or of the disks touches.

*What the metadata say* (:class:`Assigned`): no directory yet (UNASSIGNED), one of the directories but unknown which
(MIGRATING), an offline one but unknown which (LOST), one of ours that is online, cordoned, offline or not loaded yet,
or an id that is none of ours (a disk that was replaced, a directory that was taken out of ``log.dirs``).

*What lies on the disks* (:class:`Found`): current and future replicas. The current ones in a directory that failed in
this process are still known, and count: a replica does not stop lying where it lies. A future one there does not: its
move is over (``ReplicaManager.handleLogDirFailure``).

*Where the copy may be that was not found* (:class:`Hidden`). Only a directory whose contents were never read can hold a
copy unseen (offline since the start, or being loaded), and only of a replica that was this broker's before the start.

=====================  ===================  =====================  =====================================================
KIP-858: metadata say  on disk              other directories      action
=====================  ===================  =====================  =====================================================
a directory online     there                any                    none
a directory online     in another one       any                    assign that one (moved by hand while it was down)
one that is unread     in another one       that one is offline    none
a directory online     nowhere              any                    create there; nobody has to be told
an offline one         nowhere              any                    none
none, or MIGRATING     there                any                    assign
none, or MIGRATING     nowhere              none offline           create in the emptiest, assign
LOST, or unknown       nowhere              none offline           create in the emptiest, assign
LOST, or unknown       nowhere              some offline           none
a directory online     only its future      any                    promote it (KAFKA-16082)
any but that           its name is taken    any                    create nothing, assign LOST
=====================  ===================  =====================  =====================================================

A cordoned directory (KIP-1066) is an online one here: what the metadata place there is made there. It comes last when
this broker may choose (:mod:`kjbod_agent.replicas.choice`).

Where this goes further than shipped Kafka; each is allowed by the KIP and understood by its controllers:

* *UNASSIGNED is assigned whether or not the change mentions it.* Kafka compares only what a record with directories
  touches, so a replica that was added by a reassignment stays unassigned until a restart, and leads a dead disk then.
* *A replica in a failed directory is assigned to that directory* when the metadata say otherwise, so that the
  controller moves its leader. That is the KIP's "replica assignment into a failed directory".
* *Never a new copy while the old one may lie in an offline directory, also for UNASSIGNED and MIGRATING.* Kafka creates
  an empty one, and for a partition with one replica that is the loss of all its data, silently, with a leader. Here the
  replica is assigned to LOST, which the KIP has for just that: "a replica assignment into an offline log directory,
  which cannot be identified". The controller stops counting it as online. When the directory is back, the copy is
  found and assigned; when it is taken out of ``log.dirs``, no directory is offline any more and a new copy is made.
* *A copy that is found is not assigned while the directory that the metadata name cannot be read.* Kafka assigns it.
  But the directory that was recorded last has the newest copy: what is found may be what a disk held that was replaced,
  or the source of a move, and as the leader it would lose what was acknowledged since. Whoever saved the copy by hand
  from a dying disk takes that disk's path out of ``log.dirs``, or exchanges the disk (``kjbod dirs add``); then it is
  assigned. So is what this process made, or a person restored.
* *An offline directory whose contents are known hides nothing*, so LOST and unknown ids are made anew beside it.
* *A move in progress is not re-assigned*: its own echo in the metadata is not taken for a move by hand. A move that was
  found on the disks goes on (RESUME); the mover says how, see ``kjbod_agent.moves.machine``.
* *Nothing is decided before all directories are loaded that may have a say in it* (WAIT). Kafka loads them all first.

The price of the third: a topic that was created while this broker was down, which then starts with a bad directory,
waits for the repair, although no copy of it can exist. No rule tells it apart soundly. Its topic id is newer than the
last metadata that this agent had applied when the directory was last well; but that the directory was not used
after that, by a real broker on the same disks or by an agent whose memory is gone, is written nowhere but on the disk
that cannot be read, and an image from a snapshot does not say when a topic was created.

A topic that is deleted and created again while a directory is away is another topic id, and becomes this broker's while
the process runs (:attr:`Wanted.new`): it gets a fresh replica elsewhere, and the old copy is a stray when it returns.

Several current copies of one replica: where the metadata name one of them, that one counts; else the one that this
process made (then it was proven that no other counted), or knew and has said so before a directory with another one was
added. The others are set aside as strays, which are kept. (A creation that timed
out on a dying disk and was done elsewhere leaves such a copy; Kafka would refuse to start for ever after.) A finished
move leaves one only, see ``kjbod_agent.moves.mover``. Else nobody but a person can know which one is good.

*No replica is made, and none is assigned elsewhere, while anything that cannot be used as a copy has its name in a log
directory*: a directory whose ``partition.metadata`` cannot be read, a symbolic link, wherever it leads and also when
its disk is not mounted, a file, a directory that Kafka serves as the same partition (``t-00``), a stray that could not
be renamed. What cannot be read is not "no such topic": an empty replica beside it would lead, and the one with the data
would be cut to its length when the directories are given back to Kafka. It stays in its place and under its name, and
the replica is assigned to LOST. A copy where the metadata say counts whatever else has its name, and a replica that is
newer than this process has no other copy.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct


class Assigned(enum.Enum):
    """A replica's directory as the metadata say it."""

    UNASSIGNED = enum.auto()
    MIGRATING = enum.auto()
    LOST = enum.auto()
    ONLINE = enum.auto()
    CORDONED = enum.auto()
    """Online, and to be given nothing new where there is a choice."""
    OFFLINE = enum.auto()
    """Failed in this process: what lies there is known."""
    UNREAD = enum.auto()
    """Offline, and never read in this process."""
    LOADING = enum.auto()
    """Not loaded yet."""
    FOREIGN = enum.auto()


class Found(enum.Enum):
    """Places of a replica's current and future copies, in directories whose contents are known, failed ones too."""

    NOWHERE = enum.auto()
    IN_PLACE = enum.auto()
    """Once, in the directory that the metadata name."""
    ELSEWHERE = enum.auto()
    """Once, in another one."""
    TWICE_DECIDED = enum.auto()
    """In several directories; the metadata name one of them, or this process made one, or knew one before the others
    came."""
    TWICE = enum.auto()
    """In several directories, and nothing says which one counts."""
    IN_PLACE_MOVING = enum.auto()
    """Once, where the metadata say, and a future one in another directory: a move that was interrupted early."""
    ELSEWHERE_MOVING_HERE = enum.auto()
    """Once, in another one, and a future one where the metadata say: interrupted after the controller had agreed."""
    ELSEWHERE_MOVING = enum.auto()
    """Once, and a future one, neither where the metadata say."""
    FUTURE_IN_PLACE = enum.auto()
    """Only a future one, where the metadata say: interrupted within the promotion, or its source is gone."""
    FUTURE_ELSEWHERE = enum.auto()
    """Only a future one, in another directory than the metadata say: what it was copied from is gone."""
    FUTURE_AND_SOURCE = enum.auto()
    """A future one, and what it was copied from, renamed to ``-delete`` by a promotion that was interrupted."""
    TAKEN = enum.auto()
    """None where the metadata say, and something that cannot be used as a copy has its name in some directory."""


class Hidden(enum.Enum):
    """Whether a directory that was not read may hold a copy that was not found."""

    NONE_OFFLINE = enum.auto()
    RULED_OUT = enum.auto()
    """Some directory was not read or is offline, but its contents are known, or the replica is newer."""
    POSSIBLE = enum.auto()
    """In an offline directory, for all that is known."""
    LOADING = enum.auto()
    """In a directory that is being loaded: it will be known."""


class Action(enum.Enum):
    """Action for a replica."""

    LEAVE = "leave as it is"
    CREATE = "create where the metadata say"
    CREATE_AND_ASSIGN = "create in the best directory and assign it"
    ASSIGN = "assign the directory where it lies"
    ASSIGN_LOST = "create nothing, assign LOST"
    RESUME = "the mover goes on with its move, or promotes it"
    SET_ASIDE = "leave it, and set the other copies aside as strays"
    WAIT = "decide when a directory is loaded"
    REFUSE = "stop and ask a person"


class Rule(Struct, frozen=True):
    """A line of the table: the cases and the action. ``why`` is for the log."""

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
_ANY_F, _ANY_H = tuple(Found), tuple(Hidden)
_LOADED = tuple(a for a in Assigned if a is not _A.LOADING)
"""The metadata do not name a directory that is being loaded."""
_HERE = (_A.ONLINE, _A.CORDONED)
_AWAY = (_A.OFFLINE, _A.UNREAD)
_READ = tuple(a for a in _LOADED if a is not _A.UNREAD)
_NOT_HERE = tuple(a for a in _LOADED if a not in _HERE)
_UNDECIDED = (_A.UNASSIGNED, _A.MIGRATING)
_MISSING = (_A.LOST, _A.FOREIGN)
_NO_DIRECTORY = (*_UNDECIDED, *_MISSING)
_GONE = (_F.NOWHERE, _F.FUTURE_ELSEWHERE)
"""No copy that counts; a future one whose source is gone is set aside as a stray where a fresh one is made."""
_SETTLED = (_F.IN_PLACE, _F.IN_PLACE_MOVING, _F.TWICE, _F.TWICE_DECIDED)
_OPEN = tuple(f for f in Found if f not in _SETTLED)
"""A copy that is not found yet would make a difference."""
_KNOWN = (_H.NONE_OFFLINE, _H.RULED_OUT, _H.POSSIBLE)
_NOWHERE_ELSE = (_H.NONE_OFFLINE, _H.RULED_OUT)
_SOMEWHERE = (_F.ELSEWHERE, _F.ELSEWHERE_MOVING)
_TAKEN = "its name is taken by something that cannot be used as its copy"
_NOT_THERE = "it lies in another directory than the metadata say"
_MOVES_LATER = "it lies elsewhere; its move goes on after that"

RULES: Final = (
    _rule([_A.LOADING], _ANY_F, _ANY_H, Action.WAIT, "its directory is not loaded yet"),
    _rule(_LOADED, _OPEN, [_H.LOADING], Action.WAIT, "its copy may lie in a directory that is not loaded yet"),
    # There.
    _rule(_LOADED, [_F.IN_PLACE], _ANY_H, Action.LEAVE, "it lies where the metadata say"),
    _rule(_HERE, [_F.IN_PLACE_MOVING], _ANY_H, Action.RESUME, "a move to another directory was interrupted"),
    _rule(_NOT_HERE, [_F.IN_PLACE_MOVING], _ANY_H, Action.LEAVE, "its directory is offline"),
    # Twice.
    _rule(_LOADED, [_F.TWICE], _ANY_H, Action.REFUSE, "the same replica lies in two directories"),
    _rule(_HERE, [_F.TWICE_DECIDED], _ANY_H, Action.SET_ASIDE, "it lies twice, the metadata say in which directory"),
    _rule(_NO_DIRECTORY, [_F.TWICE_DECIDED], _ANY_H, Action.SET_ASIDE, "it lies twice, it is known which one counts"),
    _rule(_AWAY, [_F.TWICE_DECIDED], _ANY_H, Action.LEAVE, "it lies twice; where the metadata say is offline"),
    # Elsewhere.
    _rule([_A.UNREAD], _SOMEWHERE, [_H.POSSIBLE], Action.LEAVE, "its newer copy may lie in an offline directory"),
    _rule([_A.UNREAD], [_F.ELSEWHERE], _NOWHERE_ELSE, Action.ASSIGN, _NOT_THERE),
    _rule([_A.UNREAD], [_F.ELSEWHERE_MOVING], _NOWHERE_ELSE, Action.ASSIGN, _MOVES_LATER),
    _rule(_READ, [_F.ELSEWHERE], _KNOWN, Action.ASSIGN, _NOT_THERE),
    _rule(_READ, [_F.ELSEWHERE_MOVING], _KNOWN, Action.ASSIGN, _MOVES_LATER),
    _rule(_LOADED, [_F.ELSEWHERE_MOVING_HERE], _KNOWN, Action.RESUME, "the controller has agreed to its move"),
    _rule(_LOADED, [_F.FUTURE_AND_SOURCE], _KNOWN, Action.RESUME, "its promotion was interrupted"),
    _rule(_LOADED, [_F.FUTURE_IN_PLACE], _KNOWN, Action.RESUME, "its future replica is all there is: promote it"),
    # Taken.
    _rule([*_HERE, *_UNDECIDED], [_F.TAKEN], _KNOWN, Action.ASSIGN_LOST, _TAKEN),
    _rule([*_MISSING, *_AWAY], [_F.TAKEN], _KNOWN, Action.LEAVE, _TAKEN),
    # Nowhere.
    _rule(_HERE, _GONE, _KNOWN, Action.CREATE, "it is missing where the metadata say"),
    _rule(_AWAY, _GONE, _KNOWN, Action.LEAVE, "its directory is offline"),
    _rule(_UNDECIDED, _GONE, _NOWHERE_ELSE, Action.CREATE_AND_ASSIGN, "it is new"),
    _rule(_UNDECIDED, _GONE, [_H.POSSIBLE], Action.ASSIGN_LOST, "its copy may lie in an offline directory"),
    _rule(_MISSING, _GONE, _NOWHERE_ELSE, Action.CREATE_AND_ASSIGN, "its directory is gone for good"),
    _rule(_MISSING, _GONE, [_H.POSSIBLE], Action.LEAVE, "its copy may lie in an offline directory"),
)
"""KIP-858, "Replica management", and ``kafka-jbod`` 4.6, 4.7, 4.11."""

_TABLE: Final[Mapping[tuple[Assigned, Found, Hidden], Rule]] = {
    (assigned, found, hidden): rule
    for rule in RULES
    for assigned in rule.assigned
    for found in rule.found
    for hidden in rule.hidden
}


def look_up(assigned: Assigned, found: Found, hidden: Hidden) -> Rule:
    """The one rule for a case."""
    return _TABLE[assigned, found, hidden]
