"""Failed log directories: what the controller still has to be told, by when, and when to stop instead.

Theory
------
From the moment a directory is unusable, either the controller has recorded it, or this process is down within
``log.dir.failure.timeout.ms``. Nothing else keeps a partition from having a leader that cannot write.

Each failed directory has *its own* deadline, counted from its verdict. (Kafka 4.3 has one timer with a fixed tag: a
second failure replaces the timer of the first, and only the last is guarded.) Until then the controller has to be told
two things, and KIP-858 counts both:

1. the failure itself: ``reported`` once a heartbeat *that carried the directory* was answered without error;
2. "a replica assignment into a failed directory": replicas that lie in the directory while the metadata say otherwise
   (UNASSIGNED, because the disk died before the assignment was recorded, or another directory). The controller moves
   leaders by what its metadata say, so for these the report alone moves nothing; real brokers have been seen to lead
   such a partition for ever. They are assigned to the failed directory, which the controller stores and answers by
   electing another leader. ``misplaced`` holds those that it has not answered yet.

When the deadline passes with one of the two open, the process stops **if it leads a partition there**, says KIP-858:
without leadership nobody waits for this broker. "There" is where the replica really lies. Leadership is asked of the
metadata image; while that is not known, yes is assumed. With no leadership the deadline stays passed: the moment the
image says that leadership came, the process stops.

The deadline is a promise to others, so a pause of this process (a stop signal, a machine that stood still) is not added
to it. But at the end of a pause nobody has looked: an answer may lie in the socket, and a leader that was moved in the
metadata that come next. So what passed meanwhile is decided one round with the controller later: :func:`resumed`.

Three failures leave nothing to wait for: the last usable directory (which is also the only one of a single-directory
broker), all of them, and the one with the metadata.

A directory stays failed until the process ends, as in Kafka, or until a person adds its path again (``kjbod dirs
add``): :func:`added` when the same disk is well again, :func:`retired` when another one took its place. Only a settled
failure may be retired, since the registration that follows moves no leader.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from msgspec import Struct, structs

from kjbod.ids import Uuid
from kjbod_host.partitions import TopicIdPartition

Leads = Callable[[Uuid], int | None]
"""How many partitions this broker leads whose replica lies in a directory; None while that is not known."""


class DirectoryFailure(Struct, frozen=True, kw_only=True):
    """A failed directory and what is still open about it."""

    directory_id: Uuid
    path: str
    cause: str
    """One line of evidence."""
    since_ms: int
    """Monotonic time of the verdict."""
    since_wall_ms: int
    deadline_ms: int
    reported: bool = False
    """A heartbeat that carried it was answered without error."""
    misplaced: frozenset[TopicIdPartition] = frozenset()
    """Replicas that lie in it and that the metadata do not yet place there."""

    @property
    def settled(self) -> bool:
        """Whether the controller knows everything about this failure."""
        return self.reported and not self.misplaced

    @property
    def since(self) -> str:
        """The moment of the verdict: ISO 8601, UTC, milliseconds."""
        return datetime.fromtimestamp(self.since_wall_ms / 1000, UTC).isoformat(timespec="milliseconds")

    def __str__(self) -> str:
        return f"log directory {self.path} ({self.directory_id}), failed since {self.since}: {self.cause}"


class Failures(Struct, frozen=True, kw_only=True):
    """The usable directories and the failed ones."""

    timeout_ms: int
    """``log.dir.failure.timeout.ms``"""
    usable: frozenset[Uuid]
    """Directories that hold replicas and have not failed."""
    metadata_directory: Uuid
    """The one with the cluster metadata; not one of ``usable`` when ``metadata.log.dir`` is apart."""
    failed: tuple[DirectoryFailure, ...] = ()
    """In the order of their verdicts."""

    def of(self, directory_id: Uuid) -> DirectoryFailure | None:
        """Return the failure of a directory; None: it has not failed."""
        return next((f for f in self.failed if f.directory_id == directory_id), None)


class Stop(Struct, frozen=True):
    """End the process without waiting for anything; ``reason`` is one line for a person."""

    reason: str


def directory_failed(
    state: Failures,
    directory_id: Uuid,
    *,
    path: str,
    cause: str,
    now_ms: int,
    wall_ms: int,
) -> tuple[Failures, Stop | None]:
    """Return the state after a directory failed, and whether to stop at once."""
    if state.of(directory_id) is not None:
        return state, None
    failure = DirectoryFailure(
        directory_id=directory_id,
        path=path,
        cause=cause,
        since_ms=now_ms,
        since_wall_ms=wall_ms,
        deadline_ms=now_ms + state.timeout_ms,
    )
    after = structs.replace(state, usable=state.usable - {directory_id}, failed=(*state.failed, failure))
    if directory_id == state.metadata_directory:
        return after, Stop(f"the directory of the cluster metadata is lost: {failure}")
    if not after.usable:
        return after, Stop(f"no log directory is left: {'; '.join(map(str, after.failed))}")
    return after, None


def added(state: Failures, directory_id: Uuid) -> Failures:
    """Return the state with a usable directory: a new one, or one that had failed and is healthy again."""
    failed = tuple(f for f in state.failed if f.directory_id != directory_id)
    return structs.replace(state, usable=state.usable | {directory_id}, failed=failed)


def retired(state: Failures, directory_id: Uuid) -> Failures:
    """The disk of a failed directory was replaced, and the controller is to forget its id."""
    return structs.replace(state, failed=tuple(f for f in state.failed if f.directory_id != directory_id))


def misplaced(state: Failures, directory_id: Uuid, partitions: Iterable[TopicIdPartition], now_ms: int) -> Failures:
    """Failures with replicas that lie in a failed directory and that the metadata do not, or no longer, place there.
    Where all was settled before, the deadline starts now."""
    found = frozenset(partitions)

    def add(failure: DirectoryFailure) -> DirectoryFailure:
        if failure.directory_id != directory_id or found <= failure.misplaced:
            return failure
        deadline_ms = now_ms + state.timeout_ms if failure.settled else failure.deadline_ms
        return structs.replace(failure, misplaced=failure.misplaced | found, deadline_ms=deadline_ms)

    return _each(state, add)


def reported(state: Failures, directory_ids: Iterable[Uuid]) -> Failures:
    """Return the state after a heartbeat with these directories was answered without error."""
    done = frozenset(directory_ids)
    return _each(state, lambda f: structs.replace(f, reported=True) if f.directory_id in done else f)


def forgotten(state: Failures, directory_ids: Iterable[Uuid], now_ms: int) -> Failures:
    """A new registration revived these directories at the controller: they have to be reported again, by a deadline
    that starts now. A deadline that is still running is not put off."""
    again = frozenset(directory_ids)

    def rearm(failure: DirectoryFailure) -> DirectoryFailure:
        if failure.directory_id not in again or not failure.reported:
            return failure
        deadline_ms = now_ms + state.timeout_ms if failure.settled else failure.deadline_ms
        return structs.replace(failure, reported=False, deadline_ms=deadline_ms)

    return _each(state, rearm)


def placed(state: Failures, partitions: Iterable[TopicIdPartition]) -> Failures:
    """The controller recorded where these replicas lie, or they are no longer ours."""
    done = frozenset(partitions)
    return _each(
        state,
        lambda f: f if f.misplaced.isdisjoint(done) else structs.replace(f, misplaced=f.misplaced - done),
    )


def resumed(state: Failures, decided_ms: int) -> Failures:
    """Failures after a time in which this process did not run: no deadline is decided before that moment."""
    return _each(state, lambda f: structs.replace(f, deadline_ms=max(f.deadline_ms, decided_ms)))


def decide(state: Failures, leads: Leads, now_ms: int) -> Stop | None:
    """Whether a deadline has passed that makes the process stop."""
    for failure in state.failed:
        if failure.settled or now_ms < failure.deadline_ms:
            continue
        count = leads(failure.directory_id)
        if count == 0:
            continue
        return Stop(_overdue(failure, count, state.timeout_ms))
    return None


def next_deadline_ms(state: Failures, now_ms: int) -> int | None:
    """Return the next time at which :func:`decide` may change its answer without an event."""
    ahead = [f.deadline_ms for f in state.failed if not f.settled and f.deadline_ms > now_ms]
    return min(ahead) if ahead else None


def is_overdue(state: Failures, now_ms: int) -> bool:
    """Whether a deadline has passed, so that the next change of leadership decides."""
    return any(not f.settled and now_ms >= f.deadline_ms for f in state.failed)


def _overdue(failure: DirectoryFailure, leads: int | None, timeout_ms: int) -> str:
    count = "an unknown number of" if leads is None else str(leads)
    what = (
        "could not be reported to the controller"
        if not failure.reported
        else f"{len(failure.misplaced)} replicas in it could not be assigned to it"
    )
    return (
        f"{failure}; {what} within {timeout_ms} ms (log.dir.failure.timeout.ms) "
        f"while this broker leads {count} partitions there"
    )


def _each(state: Failures, change: Callable[[DirectoryFailure], DirectoryFailure]) -> Failures:
    changed = tuple(change(f) for f in state.failed)
    return state if changed == state.failed else structs.replace(state, failed=changed)
