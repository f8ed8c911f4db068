"""Actions of a guard against a disk and its broker: their names, and their outcomes. Pure.

The privileged helper carries out verbs on the kernel (:class:`Helper`). The client of the controllers sends requests to
them (:class:`Controllers`). Both return a :class:`Done` and never raise. The escalation continues after an action that
failed, was refused, or missed its deadline.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

REQUEST_PARTITIONS_MAX: Final = 1_000
"""Maximum number of partitions in one request to a controller."""
Name: TypeAlias = tuple[str, int]
"""A partition: its topic's name, and its number."""


class Verb(StrEnum):
    """Actions of the privileged helper. The helper refuses all other actions, and all targets that were not frozen."""

    THREADS = "threads"
    """Look at the broker's threads: which of them wait for a disk, and in which file."""
    CUT = "cut"
    """Shut the file system of a log directory down (``FS_IOC_SHUTDOWN``, without a log flush)."""
    MASK = "mask"
    """Over-mount a log directory with a read-only tmpfs whose ``meta.properties`` cannot be read."""
    UNMASK = "unmask"
    KILL = "kill"
    """SIGKILL for the broker, by its pidfd."""
    RESET = "reset"
    """Answer new packets to the broker's ports with a TCP reset."""
    UNRESET = "unreset"
    DESTROY = "destroy"
    """Destroy established connections of the broker's ports (``SOCK_DESTROY``)."""


class Outcome(StrEnum):
    """Outcome of an action."""

    DONE = "done"
    PENDING = "pending"
    """The action missed its deadline and was left behind. It may have worked: a cut of a hung ext4 works at once, but
    the call never returns."""
    FAILED = "failed"
    REFUSED = "refused"
    """Not tried: the target is not this broker's, or a right is missing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Outcome of an action.

    Attributes:
        outcome: see :class:`Outcome`.
        reason: in words, what and where; empty for done.
        took_ms: from the request to the answer or the deadline.
        refused: partitions of the request that failed, with the reasons.
        changed: number of partitions for which the action worked; None: the action is not about partitions.
    """

    outcome: Outcome
    reason: str = ""
    took_ms: int = 0
    refused: Mapping[Name, str] = dataclasses.field(default_factory=dict)
    changed: int | None = dataclasses.field(default=None, compare=False)

    @property
    def happened(self) -> bool:
        """Whether the action worked, or may have worked."""
        return self.outcome in (Outcome.DONE, Outcome.PENDING)


def in_requests(partitions: Collection[Name]) -> Iterator[list[Name]]:
    """Yield the partitions in pieces of at most :data:`REQUEST_PARTITIONS_MAX`."""
    names = list(partitions)
    for start in range(0, len(names), REQUEST_PARTITIONS_MAX):
        yield names[start : start + REQUEST_PARTITIONS_MAX]


def summed(answers: Sequence[Mapping[Name, Done]]) -> Done:
    """Return one outcome for requests that were sent one after the other. If a partition was in two requests, the last
    answer counts. The time of each request counts once."""
    came: dict[Name, Done] = {}
    for answer in answers:
        came |= answer
    took_ms = sum(max((one.took_ms for one in answer.values()), default=0) for answer in answers)
    failed = {name: one for name, one in came.items() if not one.happened}
    if not failed:
        return Done(outcome=Outcome.DONE, took_ms=took_ms, changed=len(came))
    refused = {name: one.reason for name, one in failed.items()}
    reason = f"{len(failed)} of {len(came)} partitions: {next(iter(refused.values()))}"
    denied = all(one.outcome is Outcome.REFUSED for one in failed.values())
    outcome = Outcome.DONE if len(failed) < len(came) else Outcome.REFUSED if denied else Outcome.FAILED
    changed = len(came) - len(failed)
    return Done(outcome=outcome, reason=reason, took_ms=took_ms, refused=refused, changed=changed)


class Thread(Struct, frozen=True):
    """A thread of the broker that waits uninterruptibly.

    Attributes:
        tid: its id.
        name: ``comm``, as Java named it: at most 15 characters, ``"ReplicaFetcherT"``, ``"kafka-scheduler"``.
        directory: log directory, as configured, of the file that the thread waits for; None: not known.
        file: path of that file; None: not known.
        call: ``"write"``, ``"fsync"``, ``"page fault"``; None where it is not known.
        since_ms: monotonic time of the first look that saw the thread in this wait.
    """

    tid: int
    name: str
    directory: str | None
    file: str | None
    call: str | None
    since_ms: int


class Helper(Protocol):
    """The privileged helper, as the daemon sees it. No method raises, and no method takes longer than its deadline."""

    async def cut(self, directory: str, until_ms: int) -> Done:
        """Shut the file system down, but not after the monotonic time ``until_ms``: the facts that allow it may be old
        then."""

    async def mask(self, directory: str) -> Done: ...

    async def unmask(self, directory: str) -> Done: ...

    async def kill(self) -> Done: ...

    async def reset(self) -> Done: ...

    async def unreset(self) -> Done: ...

    async def destroy(self) -> Done: ...

    async def threads(self) -> Sequence[Thread] | Done:
        """Return the threads that wait uninterruptibly; a :class:`Done` if the look failed."""


class Controllers(Protocol):
    """Client of the controllers, in the broker's name or the guard's own. No method raises."""

    async def suspect(self, value: str | None) -> Done:
        """Write the record of suspected directories of this broker (:mod:`.suspects`); None: remove the record."""

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        """Send one heartbeat in the broker's name with these directories in OfflineLogDirs."""

    async def fence(self, broker_epoch: int) -> Done:
        """Send one heartbeat in the broker's name with WantFence."""

    async def reassign(self, replicas: Mapping[Name, Sequence[int] | None]) -> Mapping[Name, Done]:
        """Send AlterPartitionReassignments in the guard's own name: replica lists by topic name and partition."""

    async def elect(self, partitions: Sequence[Name]) -> Mapping[Name, Done]:
        """Send ElectLeaders in the guard's own name, for the preferred leaders of partitions."""
