"""Escalation: the step that a guard takes about a log directory of its broker. Pure.

Kafka takes a directory offline when one of its own calls there gets an error. A disk that hangs, fails while idle, or
returns wrong data gives Kafka no error. So the broker still leads partitions on that disk, and partitions on healthy
disks stop too. The guard makes the failure visible to Kafka:

* **cut**: the directory is reported offline in the broker's name. When the controllers have recorded that, and the
  broker is out of the in-sync replicas there, the file system is shut down (``FS_IOC_SHUTDOWN``). Every open file of it
  answers EIO at once, and every thread that waits for a write comes back. Only ext4 and XFS have it, and it takes
  everything on that file system along, so the file system must carry this broker's log directories and nothing else.
* **mask**: a read-only mount over the directory (over-mount). Kafka's next call by a path gets an error, and Kafka
  reports the directory itself. A mask works later than a cut, but leaves the other files on that file system usable.
* **report**: the directory is reported offline in the broker's name. It is for a mount that is gone, swapped or
  covered: the files under the path may not be this broker's.
* **fence**: the broker is killed and fenced, because it cannot go on without the directory of the metadata log.
* **evict**: the broker leaves the replica lists of a directory that Kafka has offline. Kafka's leaders wait
  ``replica.lag.time.max.ms`` (30 s) for such a replica, plain EIO included; a replica that is not in the list holds up
  nobody. This is done only when the broker cannot reach the files any more. Otherwise it would delete the replica.
* **demote**: other replicas lead the partitions that the broker leads on a slow disk, until the disk is quick again
  (:mod:`.slow_steps`). Only with ``kjbod.guard.slow=demote``. Never for a disk that hangs: the broker would become a
  follower there, write its leader epoch with ``fsync``, and hang while it holds the lock of a fetcher (measured, see
  ``scripts/bench/README.md``).
* **wait**: it is too early, or a rule forbids the step now (:mod:`.budget`). The log line has the reason.

Only demote and mask can be undone without a restart of the broker. So all steps except demote wait until the disk has
stood still, or answered nothing but errors, for ``kjbod.guard.cut.after.ms``. That is 3 s for flash and 10 s for other
media, and twice as long if a partition has fewer other copies than ``min.insync.replicas``. A disk that answers before
is left unchanged.

The first row that fits counts:

==========================================  ==========================================================================
condition                                   step
==========================================  ==========================================================================
no broker is there for which to act         nothing: why, in the binding's words
Kafka has noticed                           evict, where partitions wait for it; else nothing. Never where the mount
                                            is gone: the broker may have files open there that it would delete
slow, and ``kjbod.guard.slow=demote``       demote: others lead what it leads there, while another disk here is quick
the directory has not failed                nothing (slow, full, held, suspect: the disk works, or may yet)
it failed before the broker started, or its nothing, until it is seen to be failed still, or to be healthy: Kafka has
disk answers again                          read and written there since, or somebody has repaired it
``meta.properties`` is gone or changed      nothing: its disk answers, and Kafka, which reads it only when it starts,
                                            works on. Critical all the same: it would not start again
Kafka's view is not known                   nothing: no metadata, or records that kjbod does not know, so nobody knows
                                            whether Kafka has noticed
not yet for ``kjbod.guard.cut.after.ms``    wait
no other disk of this broker is healthy     wait, until the host's fault has lasted; then fence. A disk that answers
                                            again ends that time
Kafka could notice for longer than          fence: it leads partitions there, and the committed metadata still have the
``log.dir.failure.timeout.ms``              directory online
its mount is gone, swapped or covered       report
the metadata log lies there                 fence
frozen until ``kjbod.held.timeout.ms``      fence: threads that wait for a frozen file system, a cut does not free
``kjbod.guard.ladder=fence``                fence; a cut or a mask where it may not
ext4 or XFS that carries only our dirs      cut; a mask where errors come while another directory there is healthy, or
                                            where no eviction can follow
anything else                               mask
==========================================  ==========================================================================

If the step is not allowed now, the step is ``wait``, with the reason. A guard in mode observe logs the step and does
nothing. A guard in mode act carries it out (:mod:`.directory_steps`, :mod:`.broker_steps`).
"""

import dataclasses
from enum import StrEnum
from typing import Final

from msgspec import Struct

from kjbod_host.health.state import Cause, Health

CUT_FILE_SYSTEMS: Final = frozenset({"ext4", "xfs"})
"""File systems with ``FS_IOC_SHUTDOWN``, tested: after it, open files return an error at once."""


class KafkaView(StrEnum):
    """State of a directory in the cluster's metadata."""

    UNKNOWN = "unknown"
    """The metadata are not followed, or the broker is not registered."""
    ONLINE = "online"
    OFFLINE = "offline"
    """The broker's registration does not list the directory: Kafka has noticed."""


class Step(StrEnum):
    """Action on a failed directory that Kafka has not noticed."""

    NOTHING = "nothing"
    WAIT = "wait"
    REPORT = "report"
    CUT = "cut"
    MASK = "mask"
    FENCE = "fence"
    EVICT = "evict"
    DEMOTE = "demote"


class Case(Struct, frozen=True, kw_only=True):
    """Facts about a log directory that decide its step.

    Attributes:
        health: the verdict.
        cause: cause of the verdict.
        kafka: state of the directory in the metadata.
        unbound: why the broker of this file was not found, in words; None: it was found.
        patience: why it is too early for irreversible actions, in words; None: it is not.
        others_well: whether another disk of this broker is known to be healthy.
        others_answer: whether another failed disk answers again, but does not count as healthy yet.
        holds_metadata: whether the metadata log is in the directory.
        file_system: ``"ext4"``; None: not known.
        shared: why its file system may not be shut down: other files on it, in words; None: there are none.
        well_beside: another log directory on its file system that is healthy, by path; None: there is none.
        helpless: why the guard cannot act on disks of this host, in words; None: it can.
        unheard: why no action that needs the controllers begins now, in words; None: a controller has just answered.
        needed: why the replicas on its file system may not leave the ISR, in words; None: they may.
        in_sync: why the file system may not be shut down yet for a broker that is about to start, in words; None: it
            may.
        last: whether this is the last directory that the broker has online.
        behind: why other brokers come first, in words; empty: none does.
        evictable: number of partitions there that this broker may leave, and whose leaders wait for it.
        not_evicted: why the broker may not leave the other partitions, in words.
        demotable: number of partitions there whose leadership may move to other brokers; 0 if demotion is off.
        overdue: why Kafka is late in taking the directory offline, in words; None: it is not late.
        outlived: why the failure may be over, in words; None: nothing shows that.
        unidentified: whether only ``meta.properties`` is missing or changed, and the disk answers.
        lasted: whether a fault of the whole host has lasted ``kjbod.guard.host.fault.timeout.ms``.
        fence_first: whether a fence is preferred to a cut (``kjbod.guard.ladder=fence``).
        evicts: whether the broker can leave replica lists: ``kjbod.guard.evict``, and ALTER on the cluster.
        not_fenced: why the broker may not be fenced now, in words; None: it may.
        undecided: whether ``not_fenced`` may change with an answer that is on its way.
        incomplete: why the picture of the metadata is incomplete, in words; None: it is complete.
    """

    health: Health
    cause: Cause = Cause.NONE
    kafka: KafkaView = KafkaView.ONLINE
    unbound: str | None = None
    patience: str | None = None
    others_well: bool = True
    others_answer: bool = False
    holds_metadata: bool = False
    file_system: str | None = "ext4"
    shared: str | None = None
    well_beside: str | None = None
    helpless: str | None = None
    unheard: str | None = None
    needed: str | None = None
    in_sync: str | None = None
    last: bool = False
    behind: str = ""
    evictable: int = 0
    not_evicted: str | None = None
    demotable: int = 0
    overdue: str | None = None
    outlived: str | None = None
    unidentified: bool = False
    lasted: bool = False
    fence_first: bool = False
    evicts: bool = True
    not_fenced: str | None = None
    undecided: bool = False
    incomplete: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Would:
    """A step with its reason; ``waits``: reason to wait, a word of :data:`WAITS_FOR`."""

    step: Step
    reason: str = ""
    waits: str = dataclasses.field(default="", compare=False)


WAITS_FOR: Final = ("time", "host", "helper", "controller", "copies", "budget", "fence", "last")
"""Reasons to wait, for metrics."""
NOTHING: Final = Would(Step.NOTHING)
NOTICED: Final = "Kafka has noticed"
UNIDENTIFIED: Final = (
    "its meta.properties is not what it was, and its disk answers: Kafka works on, and would not start again; "
    "put it back"
)
LAST: Final = "it is the last directory that the broker has online"
UNEVICTED: Final = "the broker could not be evicted after a cut, and would be in sync again where nobody writes"
"""A leader puts a follower back into the ISR if there is nothing new to fetch, and no controller looks at its directory
then. A cut drops the page cache. So after a restart, as a leader, the broker would lack acknowledged records."""
_SILENT: Final = frozenset({Cause.HUNG, Cause.SILENT, Cause.HELD})
ALONE: Final = "no other disk of this broker is known to be healthy"


def would(case: Case) -> Would:
    """Return the step for a directory: the first row of the table that fits."""
    if case.unbound is not None:
        return NOTHING if case.health is not Health.FAILED else Would(Step.NOTHING, case.unbound)
    if case.kafka is KafkaView.OFFLINE and case.evictable and case.cause is not Cause.MOUNT:
        return Would(Step.EVICT, f"{_partitions(case.evictable)} would wait for it")
    if case.health is Health.SLOW and case.demotable and case.kafka is KafkaView.ONLINE:
        return Would(Step.DEMOTE, f"others can lead {_partitions(case.demotable)} of it")
    if case.health is not Health.FAILED:
        return NOTHING
    if case.kafka is KafkaView.OFFLINE:
        return Would(Step.NOTHING, NOTICED if case.not_evicted is None else f"{NOTICED}; {case.not_evicted}")
    if case.outlived is not None:
        return Would(Step.NOTHING, case.outlived)
    if case.unidentified:
        return Would(Step.NOTHING, UNIDENTIFIED)
    if case.kafka is KafkaView.UNKNOWN:
        return Would(Step.NOTHING, case.incomplete or "whether Kafka has noticed is not known")
    if case.patience is not None:
        return Would(Step.WAIT, case.patience, "time")
    if not case.others_well:
        return _fence(case, ALONE) if case.lasted else Would(Step.WAIT, ALONE, "host")
    return _irreversible(case)


def _irreversible(case: Case) -> Would:
    if case.overdue is not None:
        return _fence(case, case.overdue)
    if case.cause is Cause.MOUNT:
        return _apart(case, Would(Step.REPORT, "its mount is not what it was"))
    if case.holds_metadata:
        return _fence(case, "the metadata log lies there")
    if case.cause is Cause.HELD:
        return _fence(case, "its file system is frozen, and a cut frees no thread that waits for it")
    if case.fence_first and (case.not_fenced is None or case.undecided):
        return _fence(case, "kjbod.guard.ladder=fence")
    return _apart(case, _cut_or_mask(case))


def before_start(case: Case) -> Would:
    """Return the step for a directory of a broker that is about to start. Kafka reads every directory at its start, and
    waits for a directory that hangs. Kafka starts without a directory that returns errors or is not mounted."""
    if case.health is not Health.FAILED:
        return NOTHING
    if case.cause not in _SILENT:
        return Would(Step.NOTHING, "it answers, with an error, which Kafka meets by itself when it starts")
    if case.outlived is not None:
        return Would(Step.NOTHING, case.outlived)
    if case.kafka is KafkaView.UNKNOWN:
        text = "which partitions lie there only is not known"
        return Would(Step.NOTHING, f"{text}: {case.incomplete or 'the metadata are not followed'}")
    if case.holds_metadata:
        return Would(Step.NOTHING, "the metadata log lies there, without which the broker does not start")
    if case.helpless is not None:
        return Would(Step.NOTHING, case.helpless)
    if case.needed is not None:
        return Would(Step.NOTHING, case.needed)
    if case.unheard is not None:
        return Would(Step.WAIT, case.unheard, "controller")
    if case.patience is not None:
        return Would(Step.WAIT, case.patience, "time")
    if not case.others_well:
        return Would(Step.WAIT, ALONE, "host")
    if case.behind:
        return Would(Step.WAIT, case.behind, "budget")
    if case.cause is Cause.HELD:
        return Would(Step.MASK, "its file system is frozen")
    decided = _cut_or_mask(case)
    return (
        Would(Step.WAIT, case.in_sync, "copies") if decided.step is Step.CUT and case.in_sync is not None else decided
    )


def may_be_shut_down(case: Case) -> bool:
    """Whether a fence also shuts the file system of the directory down, so that waiting threads return and the process
    can end. Never if the cause may be the host. The metadata are checked later, when they show the fence
    (:func:`.copies.need`)."""
    ours = case.file_system in CUT_FILE_SYSTEMS and case.shared is None
    return ours and not _is_its_own(case) and case.others_well and case.cause is not Cause.MOUNT


def _fence(case: Case, reason: str) -> Would:
    if case.not_fenced is None:
        return Would(Step.FENCE, reason)
    return Would(Step.WAIT, f"{reason}, and it is not fenced: {case.not_fenced}", "fence")


def _apart(case: Case, decided: Would) -> Would:
    """Return the step that takes the directory away from the broker, or a wait with the reason."""
    speaks_against = (
        ("helper", case.helpless if decided.step is not Step.REPORT else None),
        ("controller", case.unheard),
        ("copies", case.needed),
        ("last", LAST if case.last else None),
        ("budget", case.behind),
    )
    for word, reason in speaks_against:
        if reason:
            return Would(Step.WAIT, f"no {decided.step} yet: {reason}", word)
    return decided


def _cut_or_mask(case: Case) -> Would:
    if case.file_system not in CUT_FILE_SYSTEMS:
        return Would(Step.MASK, f"{case.file_system or 'an unknown file system'} cannot be cut")
    if case.shared is not None:
        return Would(Step.MASK, case.shared)
    if not case.evicts:
        return Would(Step.MASK, UNEVICTED)
    if _is_its_own(case):
        return Would(Step.MASK, f"{case.well_beside} lies on its file system as well, and is healthy")
    return Would(Step.CUT, f"its {case.file_system} carries nothing but this broker's log directories")


def _is_its_own(case: Case) -> bool:
    """Whether only the directory returns errors, not its disk: the directory was removed."""
    return case.well_beside is not None and case.cause in (Cause.ERROR, Cause.REPEATED_ERRORS)


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
