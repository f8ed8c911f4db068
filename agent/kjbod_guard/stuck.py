"""Stuck threads of a broker: threads that wait for a disk and do not return. Decides whether the broker is stuck with
them. Pure.

Each look lists the threads that wait uninterruptibly now. A thread that is in the same call with the same arguments at
the next look, and has not run in between, is stuck. Whether a broker is stuck depends on the kind of
thread, and on the locks that the thread holds while it waits (Kafka 4.3.1):

=================  ==================================================================================================
thread             what goes on without it
=================  ==================================================================================================
fetcher            nothing that is followed from that leader, on healthy disks too; it holds ``partitionMapLock``,
                   for which the failure handler waits with ``replicaStateChangeLock``
request handler    what it serves; it may hold ``leaderIsrUpdateLock``
coordinator        groups and transactions
failure handler    no metadata is applied any more
metadata thread    the same
network thread     all connections of that thread: a consumer of cold data, by sendfile
scheduler          checkpoints; the broker goes on
log cleaner        compaction; the broker goes on
=================  ==================================================================================================
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from kjbod_guard.actions import Thread

COMM_CHARACTERS: Final = 15
"""Maximum length of a thread's name in Linux."""
STUCK_MS: Final = 1_000
"""Time after an action from which a thread that still waits on that disk counts as stuck."""
WAKES_UP: Final = frozenset({"balance_dirty_pages", "balance_dirty_pages_ratelimited_flags", "io_schedule_timeout"})
"""Kernel functions that wake a waiting thread from time to time. A thread that has run in between may still be in the
same wait."""


class ThreadClass(StrEnum):
    """Kinds of a broker's threads, by work."""

    SCHEDULER = "scheduler"
    """``kafka-scheduler-3``: checkpoints, retention, flush."""
    REQUEST_HANDLER = "request handler"
    NETWORK = "network thread"
    DATA_PLANE = "request handler or network thread"
    """The names of both kinds begin with the same 15 characters."""
    FETCHER = "fetcher"
    COORDINATOR = "coordinator"
    FAILURE_HANDLER = "failure handler"
    METADATA = "metadata thread"
    """``kafka-1-metadata-loader-event-handler``, ``kafka-1-raft-io-thread``: threads that read and apply metadata."""
    CLEANER = "log cleaner"
    OTHER = "other"


_NAMES: Final[tuple[tuple[str, ThreadClass], ...]] = (
    ("kafka-scheduler-", ThreadClass.SCHEDULER),
    ("data-plane-kafka-request-handler-", ThreadClass.REQUEST_HANDLER),
    ("data-plane-kafka-network-thread-", ThreadClass.NETWORK),
    ("data-plane-kafka-socket-acceptor-", ThreadClass.NETWORK),
    ("ReplicaFetcherThread-", ThreadClass.FETCHER),
    ("ReplicaAlterLogDirsThread-", ThreadClass.OTHER),
    ("group-coordinator-", ThreadClass.COORDINATOR),
    ("transaction-coordinator-", ThreadClass.COORDINATOR),
    ("share-coordinator-", ThreadClass.COORDINATOR),
    ("transaction-log-manager-", ThreadClass.COORDINATOR),
    ("LogDirFailureHandler", ThreadClass.FAILURE_HANDLER),
    ("kafka-log-cleaner-thread-", ThreadClass.CLEANER),
)
"""Prefixes of the names of Kafka's threads (4.3.1)."""
_OF_METADATA: Final = re.compile(r"kafka-\d+-(m|raft-io)|kafka-\d\.\.(andler|thread)$")
CRIPPLING: Final = frozenset(
    {
        ThreadClass.REQUEST_HANDLER,
        ThreadClass.NETWORK,
        ThreadClass.DATA_PLANE,
        ThreadClass.FETCHER,
        ThreadClass.COORDINATOR,
        ThreadClass.FAILURE_HANDLER,
        ThreadClass.METADATA,
    }
)
"""Kinds of threads without which a broker cannot continue after the loss of a directory."""


class Sample(Struct, frozen=True, kw_only=True):
    """A thread that waits uninterruptibly, in one look of the privileged helper.

    Attributes:
        tid: its id.
        name: ``comm``.
        wchan: kernel function in which the thread waits; empty: not known.
        mark: ``syscall``: number and arguments of the call, stack pointer and program counter.
        ran: how often the thread has run on a processor; None: this kernel does not count.
        call: name of the call; None: not known.
        file: file of the call; None: not known.
        directory: log directory of that file, as configured.
    """

    tid: int
    name: str
    wchan: str = ""
    mark: str = ""
    ran: int | None = None
    call: str | None = None
    file: str | None = None
    directory: str | None = None


class Waiting(Struct, frozen=True):
    """A thread that has stayed in the same wait since it was first seen in it."""

    sample: Sample
    since_ms: int


NONE_WAITING: Final[Mapping[int, Waiting]] = MappingProxyType({})


def follow(before: Mapping[int, Waiting], samples: Iterable[Sample], now_ms: int) -> Mapping[int, Waiting]:
    """Return the threads that wait now, by id, each with the time of the first look that saw it in this wait."""
    found = {}
    for one in samples:
        known = before.get(one.tid)
        since_ms = known.since_ms if known is not None and is_same_wait(known.sample, one) else now_ms
        found[one.tid] = Waiting(one, since_ms)
    return MappingProxyType(found)


def is_same_wait(before: Sample, now: Sample) -> bool:
    """Whether a thread has stayed in the same wait between two looks."""
    if (before.name, before.mark, before.file) != (now.name, now.mark, now.file):
        return False
    return before.ran == now.ran or (before.wchan == now.wchan and now.wchan in WAKES_UP)


def threads(waiting: Mapping[int, Waiting]) -> tuple[Thread, ...]:
    """Return the threads that wait, longest wait first."""
    rows = sorted(waiting.values(), key=lambda one: (one.since_ms, one.sample.tid))
    return tuple(
        Thread(
            tid=one.sample.tid,
            name=one.sample.name,
            directory=one.sample.directory,
            file=one.sample.file,
            call=one.sample.call,
            since_ms=one.since_ms,
        )
        for one in rows
    )


def class_of(name: str) -> ThreadClass:
    """Return the kind of a thread, by its name in Linux: the first 15 characters or, in newer Java, the first seven and
    the last six characters (``data-pl..dler-3``)."""
    if _OF_METADATA.match(name):
        return ThreadClass.METADATA
    head, dots, tail = name.partition("..")
    if dots and len(head) == 7 and len(tail) == 6:
        return _shortened(head, tail)
    found = {kind for beginning, kind in _NAMES if _begins(name, beginning)}
    if len(found) == 1:
        return found.pop()
    return ThreadClass.DATA_PLANE if found else ThreadClass.OTHER


def _begins(name: str, beginning: str) -> bool:
    return name.startswith(beginning[:COMM_CHARACTERS] if len(name) == COMM_CHARACTERS else beginning)


def _shortened(head: str, tail: str) -> ThreadClass:
    found = {kind for beginning, kind in _NAMES if beginning.startswith(head)}
    if head == "Replica":  # "...Thread-0-2" fetches, "...Thread-0" moves between directories
        return ThreadClass.OTHER if re.search(r"[a-z]-\d+$", tail[2:]) else ThreadClass.FETCHER
    if head == "data-pl":
        is_handler = tail.rstrip("0123456789").endswith("ler-")
        return ThreadClass.REQUEST_HANDLER if is_handler else ThreadClass.DATA_PLANE
    return found.pop() if len(found) == 1 else ThreadClass.OTHER


# ------------------------------------------------------------------------------------------------------------- verdicts


class Crippled(Struct, frozen=True):
    """Proof that a broker is stuck.

    Attributes:
        thread: the stuck thread that has waited longest.
        kind: kind of that thread.
        reason: in words.
    """

    thread: Thread
    kind: ThreadClass
    reason: str


def stuck_on(waiting: Iterable[Thread], directory: str, failed: Collection[str]) -> list[Thread]:
    """Return the threads that wait on a directory. If the file of a thread is not known (a page fault, a call by a
    path), the thread counts if no other directory has failed or is late."""
    alone = len(failed) == 1 and directory in failed
    return [one for one in waiting if one.directory == directory or (one.directory is one.file is None and alone)]


def crippled(
    waiting: Iterable[Thread], acted_ms: Mapping[str, int], failed: Collection[str], now_ms: int
) -> Crippled | None:
    """Return why a broker is stuck; None: nothing proves it.

    Args:
        waiting: threads that wait uninterruptibly.
        acted_ms: times of the guard's actions on directories, by path. An action has not freed a thread that still
            waits there.
        failed: paths of the directories that have failed or are late, those of ``acted_ms`` included.
        now_ms: monotonic time of the look.
    """
    for one, directory, waited_ms in _lingering(waiting, acted_ms, failed, now_ms):
        kind = class_of(one.name)
        if kind in CRIPPLING and waited_ms >= STUCK_MS:
            where = one.file or one.call or "a place that is not known"
            when = f"{waited_ms / 1000:.1f} s after the guard acted on {directory}"
            return Crippled(one, kind, f"the {kind} {one.name} (thread {one.tid}) is stuck in {where} {when}")
    return None


def waits(waiting: Iterable[Thread], acted_ms: Mapping[str, int], failed: Collection[str], now_ms: int) -> bool:
    """Whether any thread still waits on a directory that the guard acted on. Such a thread may hold a lock that other
    threads need."""
    return any(waited_ms >= STUCK_MS for _, _, waited_ms in _lingering(waiting, acted_ms, failed, now_ms))


def _lingering(
    waiting: Iterable[Thread], acted_ms: Mapping[str, int], failed: Collection[str], now_ms: int
) -> Iterator[tuple[Thread, str, int]]:
    """Yield threads that wait on directories that the guard acted on, each with the directory and the wait in ms since
    the action."""
    ordered = sorted(waiting, key=lambda one: one.since_ms)
    for directory, at_ms in acted_ms.items():
        for one in stuck_on(ordered, directory, failed):
            yield one, directory, now_ms - max(one.since_ms, at_ms)
