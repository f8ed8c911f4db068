"""Actions of a guard against a disk and its broker: their names, and their outcomes. Pure.

The privileged helper carries out verbs on the kernel (:class:`Helper`). The client of the controllers sends requests to
them (:class:`Controllers`). Both answer with a :class:`Done`, whatever happens: an action that fails, is refused, or
does not end within its deadline is something that the escalation goes on from, never an exception.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

REQUEST_PARTITIONS_MAX: Final = 1_000
"""Partitions in one request to a controller."""
Name: TypeAlias = tuple[str, int]
"""A partition: its topic's name, and its number."""


class Verb(StrEnum):
    """Actions of the helper. It refuses everything else, and everything on what was not frozen at its start."""

    THREADS = "threads"
    """Look at the broker's threads: which of them wait for a disk, and in which file."""
    CUT = "cut"
    """Shut the file system of a log directory down (``FS_IOC_SHUTDOWN``, without a log flush)."""
    MASK = "mask"
    """Mount something read-only over a log directory whose ``meta.properties`` cannot be read."""
    UNMASK = "unmask"
    KILL = "kill"
    """SIGKILL for the broker, by its pidfd."""
    RESET = "reset"
    """New packets to the broker's ports are answered with a TCP reset."""
    UNRESET = "unreset"
    DESTROY = "destroy"
    """Established connections of the broker's ports are destroyed (``SOCK_DESTROY``)."""


class Outcome(StrEnum):
    """Outcome of an action."""

    DONE = "done"
    PENDING = "pending"
    """It did not end within its deadline and was left behind; its effect may be there. A cut of a hung ext4 never ends,
    and has its effect at once."""
    FAILED = "failed"
    REFUSED = "refused"
    """Not tried: what it was asked for is not this broker's, or the right to do it is missing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Outcome of an action.

    Attributes:
        outcome: see there.
        reason: in words, what and where; empty for done.
        took_ms: from the request to the answer or the deadline.
        refused: partitions for which it did not work, with the reasons, where it was about many.
        changed: number of partitions for which it worked, likewise; None: it was not about partitions.
    """

    outcome: Outcome
    reason: str = ""
    took_ms: int = 0
    refused: Mapping[Name, str] = dataclasses.field(default_factory=dict)
    changed: int | None = dataclasses.field(default=None, compare=False)

    @property
    def happened(self) -> bool:
        """Whether its effect is there, or may be."""
        return self.outcome in (Outcome.DONE, Outcome.PENDING)


def in_requests(partitions: Collection[Name]) -> Iterator[list[Name]]:
    """Partitions, cut into requests."""
    names = list(partitions)
    for start in range(0, len(names), REQUEST_PARTITIONS_MAX):
        yield names[start : start + REQUEST_PARTITIONS_MAX]


def summed(answers: Sequence[Mapping[Name, Done]]) -> Done:
    """Outcome of requests about many partitions, one after the other, in one. Of a partition that was asked about twice
    the last answer counts; those to one request have its time in common."""
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
        directory: log directory, as configured, of the file that it waits for; None where that is not known.
        file: path of that file; None likewise.
        call: ``"write"``, ``"fsync"``, ``"page fault"``; None where it is not known.
        since_ms: monotonic time since when it has been seen waiting without a break.
    """

    tid: int
    name: str
    directory: str | None
    file: str | None
    call: str | None
    since_ms: int


class Helper(Protocol):
    """The privileged process, as the daemon sees it. No method raises, none takes longer than its deadline."""

    async def cut(self, directory: str, until_ms: int) -> Done:
        """Shut the file system down, not later than at this monotonic time: what allowed it may have passed then."""

    async def mask(self, directory: str) -> Done: ...

    async def unmask(self, directory: str) -> Done: ...

    async def kill(self) -> Done: ...

    async def reset(self) -> Done: ...

    async def unreset(self) -> Done: ...

    async def destroy(self) -> Done: ...

    async def threads(self) -> Sequence[Thread] | Done:
        """Threads that wait uninterruptibly; a :class:`Done` where that could not be found out."""


class Controllers(Protocol):
    """Speaker to the controllers, in the broker's name or the guard's own. No method raises."""

    async def suspect(self, value: str | None) -> Done:
        """Write the record of suspected directories of this broker (:mod:`.suspects`); None: remove it."""

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        """Send one heartbeat in the broker's name with these directories in OfflineLogDirs."""

    async def fence(self, broker_epoch: int) -> Done:
        """Send one heartbeat in the broker's name with WantFence."""

    async def reassign(self, replicas: Mapping[Name, Sequence[int] | None]) -> Mapping[Name, Done]:
        """AlterPartitionReassignments in the guard's own name: replica lists by topic name and partition."""

    async def elect(self, partitions: Sequence[Name]) -> Mapping[Name, Done]:
        """ElectLeaders in the guard's own name: the preferred ones of partitions, by topic name."""
