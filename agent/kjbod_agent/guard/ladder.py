"""Steps that a guard would take about a log directory of the broker that it stands beside. Pure.

Kafka takes a directory offline when one of its own calls there gets an error. A disk that hangs, dies idle, lies or
becomes unreadable gives it none, so the broker goes on leading from it, and with it stand partitions of healthy disks.
What helps is to make the disk answer with an error, which Kafka then finds and reports by itself:

* **cut**: the file system is shut down (``FS_IOC_SHUTDOWN``): every open file of it answers EIO at once, also where a
  thread is stuck already. It takes everything on that file system along, so it must carry this broker's log
  directories and nothing else; and only ext4 and XFS have it.
* **mask**: a read-only mount over the directory: the next call of Kafka's that goes by a path meets it. Later than a
  cut, and all else on that file system lives on.
* **report**: the directory is said to be offline in the broker's name. Where a mount is gone, swapped or covered, what
  lies under the path is not ours to cut or to mask.
* **fence**: the broker is given up: the directory of the metadata log, without which it cannot go on.
* **evict**: the broker leaves the replica lists of what lies on a directory that Kafka has offline. Kafka's leaders
  wait ``replica.lag.time.max.ms`` (30 s) for such a replica, plain EIO included; one that is not in the list holds
  nobody up. Only when the metadata show the directory gone: a broker that still has it would delete the replica.
* **demote**: other replicas lead what the broker leads on a slow disk, until it is quick again
  (:mod:`.slow_steps`). Only where the site wants it.
* **wait**: no disk is known to be well, so it may be the adapter and not the disks; or what would help is more than may
  be done now (:mod:`.budget`). Nothing is done on the guess.

The first row that fits counts:

==========================================  ==========================================================================
what is known                               what would be done
==========================================  ==========================================================================
no broker is there for which to act         nothing: why, in the binding's words
Kafka has noticed                           evict, where partitions wait for it; else nothing. Never where the mount
                                            is gone: the broker may have files open there that it would delete
slow, and ``kjbod.guard.slow=demote``       demote: others lead what it leads there, while another disk here is quick
the directory has not failed                nothing (slow, full, held, suspect: the disk works, or may yet)
it failed before the broker started, or its nothing, until it is seen to be failed still, or to be well: Kafka has
probes pass again                           read and written there since, or somebody has mended it
``meta.properties`` is gone or changed      nothing: its disk answers, and Kafka, which reads it only when it starts,
                                            works on. Loud all the same: it would not start again
nobody took it up within the deadline       fence: it leads partitions, and no controller knows that it cannot. Where
                                            no other disk is well, only when the host's fault has lasted
Kafka's view is not known                   nothing: no metadata, so nobody knows whether it has noticed
no other disk of this broker is well        wait, until the host's fault has lasted; then fence. A disk that answers
                                            again ends that time
its mount is gone, swapped or covered       report
the metadata log lies there                 fence
frozen until ``kjbod.held.timeout.ms``      fence: threads that wait for a frozen file system, a cut does not free
``kjbod.guard.ladder=fence``                fence; a cut or a mask where it may not
ext4 or XFS that carries only our dirs      cut; a mask where the only in-sync replica of a partition lies there, or
                                            errors come while another directory there is well
anything else                               mask
==========================================  ==========================================================================

Where a fence is more than may be done now it is ``wait``, with the reason. A guard in mode observe says what stands
here and does nothing; one in mode act does it (:mod:`.directory_steps`, :mod:`.broker_steps`).
"""

from enum import StrEnum
from typing import Final

from kjbod.quick_dataclass import dataclass
from kjbod_agent.health.state import Cause, Health

CUT_FILE_SYSTEMS: Final = frozenset({"ext4", "xfs"})
"""File systems that have ``FS_IOC_SHUTDOWN`` and of which it was tried that open files answer at once."""


class KafkaView(StrEnum):
    """State of a directory as the cluster's metadata have it."""

    UNKNOWN = "unknown"
    """The metadata are not followed, or not yet; or the broker is not registered."""
    ONLINE = "online"
    OFFLINE = "offline"
    """The broker's registration does not have it, or not any more: Kafka has noticed."""


class Step(StrEnum):
    """Means against a directory that Kafka does not see fail."""

    NOTHING = "nothing"
    WAIT = "wait"
    REPORT = "report"
    CUT = "cut"
    MASK = "mask"
    FENCE = "fence"
    EVICT = "evict"
    DEMOTE = "demote"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log directory, and what its fate depends on.

    Attributes:
        health: the verdict.
        cause: why.
        kafka: what the metadata say of it.
        unbound: why there is no broker for which to act, in words; None: there is one, and it is ours.
        others_well: whether another disk of this broker is known to be well.
        others_quick: whether another disk of this broker is well and not slow.
        others_answer: whether another disk that has failed answers again, and is not called well yet.
        holds_metadata: whether the metadata log lies in it.
        file_system: ``"ext4"``; None where nobody knows.
        shared: why its file system may not be cut: what else it carries, in words; None: nothing else.
        well_beside: another log directory on its file system that is well, by path; None: there is none.
        sole_copies: partitions there of which this broker has the only replica in sync.
        evictable: partitions there that this broker may leave, and that wait for it.
        not_evicted: why others may not, in words.
        demotable: partitions that it leads there and that others may lead, where slow disks are demoted.
        overdue: why nobody can have taken the failure up within ``log.dir.failure.timeout.ms``, in words, where
            partitions are led there.
        outlived: why its failure may be over, in words; None: nothing says so.
        unidentified: whether only its ``meta.properties`` is gone or another one, and its disk answers.
        lasted: whether a fault of the whole host has lasted ``kjbod.guard.host.fault.timeout.ms``.
        fence_first: whether this site prefers a lost broker (``kjbod.guard.ladder``).
        not_fenced: why the broker may not be given up now, in words; None: it may.
        undecided: whether that may be for want of an answer that is on its way.
    """

    health: Health
    cause: Cause = Cause.NONE
    kafka: KafkaView = KafkaView.ONLINE
    unbound: str | None = None
    others_well: bool = True
    others_quick: bool = True
    others_answer: bool = False
    holds_metadata: bool = False
    file_system: str | None = "ext4"
    shared: str | None = None
    well_beside: str | None = None
    sole_copies: int = 0
    evictable: int = 0
    not_evicted: str | None = None
    demotable: int = 0
    overdue: str | None = None
    outlived: str | None = None
    unidentified: bool = False
    lasted: bool = False
    fence_first: bool = False
    not_fenced: str | None = None
    undecided: bool = False


@dataclass(frozen=True, slots=True)
class Would:
    """A step and why it is this one."""

    step: Step
    reason: str = ""


NOTHING: Final = Would(Step.NOTHING)
NOTICED: Final = "Kafka has noticed"
UNIDENTIFIED: Final = (
    "its meta.properties is not what it was, and its disk answers: Kafka works on, and would not start again; "
    "put it back"
)
_SILENT: Final = frozenset({Cause.HUNG, Cause.SILENT, Cause.HELD})
ALONE: Final = "no other disk of this broker is known to be well"


def would(case: Case) -> Would:
    """The step for a directory: the first row of the table that fits."""
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
    if case.overdue is not None and (case.others_well or case.lasted):
        return _fence(case, case.overdue)
    if case.overdue is not None:
        return Would(Step.WAIT, f"{case.overdue}; {ALONE}")
    if case.kafka is KafkaView.UNKNOWN:
        return Would(Step.NOTHING, "whether Kafka has noticed is not known")
    if not case.others_well:
        return _fence(case, ALONE) if case.lasted else Would(Step.WAIT, ALONE)
    if case.cause is Cause.MOUNT:
        return Would(Step.REPORT, "its mount is not what it was")
    if case.holds_metadata:
        return _fence(case, "the metadata log lies there")
    if case.cause is Cause.HELD:
        return _fence(case, "its file system is frozen, and a cut frees no thread that waits for it")
    if case.fence_first and (case.not_fenced is None or case.undecided):
        return _fence(case, "kjbod.guard.ladder=fence")
    return _cut_or_mask(case)


def before_start(case: Case) -> Would:
    """The step for a directory of a broker that is about to start, and holds nothing yet: Kafka reads every directory
    then, and one that hangs holds up all of it. Where one answers an error, or is not mounted, it goes on without."""
    if case.health is not Health.FAILED:
        return NOTHING
    if case.cause not in _SILENT:
        return Would(Step.NOTHING, "it answers, with an error, which Kafka meets by itself when it starts")
    if case.outlived is not None:
        return Would(Step.NOTHING, case.outlived)
    if case.kafka is KafkaView.UNKNOWN:
        return Would(Step.NOTHING, "which partitions lie there only is not known: the metadata are not followed")
    if not case.others_well:
        return Would(Step.WAIT, ALONE)
    if case.holds_metadata:
        return Would(Step.NOTHING, "the metadata log lies there, without which the broker does not start")
    if case.cause is Cause.HELD:
        return Would(Step.MASK, "its file system is frozen")
    return _cut_or_mask(case)


def is_cut_in_fence(case: Case) -> bool:
    """Whether the file system of a directory is cut when the broker is given up for it, so that threads which wait for
    it come back and the process can end. Never where it may be the host, and not the disk."""
    ours = case.file_system in CUT_FILE_SYSTEMS and case.shared is None and not case.sole_copies
    return ours and not _is_its_own(case) and case.others_well and case.cause is not Cause.MOUNT


def _fence(case: Case, reason: str) -> Would:
    if case.not_fenced is None:
        return Would(Step.FENCE, reason)
    return Would(Step.WAIT, f"{reason}, and it is not fenced: {case.not_fenced}")


def _cut_or_mask(case: Case) -> Would:
    if case.file_system not in CUT_FILE_SYSTEMS:
        return Would(Step.MASK, f"{case.file_system or 'an unknown file system'} cannot be cut")
    if case.shared is not None:
        return Would(Step.MASK, case.shared)
    if _is_its_own(case):
        return Would(Step.MASK, f"{case.well_beside} lies on its file system as well, and is well")
    if case.sole_copies:
        return Would(Step.MASK, f"the only replica in sync of {_partitions(case.sole_copies)} lies there")
    return Would(Step.CUT, f"its {case.file_system} carries nothing but this broker's log directories")


def _is_its_own(case: Case) -> bool:
    """Whether the directory answers errors and its disk does not: it was removed."""
    return case.well_beside is not None and case.cause in (Cause.ERROR, Cause.REPEATED_ERRORS)


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
