"""Conditions that a broker waits for before it asks to be unfenced, and the lines that tell of them.

KIP-858: "a broker with multiple log directories stays fenced until the controller knows where each of its replicas is".
Otherwise a replica whose directory nobody knows may become leader, and stay leader when that directory dies (seen on
4.3.1, whose broker does not wait). So the broker waits for creations that are under way, and for the queue of
assignments to be empty, except for those that are overdue (:mod:`kjbod_agent.assignments`): these are named as an
error, and no longer keep the healthy rest from serving. A replica that cannot be made is never assigned: it is waited
for as long (:mod:`kjbod.patience`), which is what kjbod's controller does as well. A broker with one directory has
nothing to tell apart, and does not wait for assignments.

A person who waits as well reads on the service manager's status line, and each five seconds in the log, how far it is;
and which assignment it is that does not get on: topic-partition, directory, error and since when.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from kjbod.ids import Uuid
from kjbod.patience import Patience
from kjbod_agent.assignments import NAMED_MS, Assignments, Outcome, Stuck
from kjbod_agent.lifecycle import error_name
from kjbod_host.log_lines import LogLine, error, info, warning
from kjbod_host.partitions import TopicIdPartition

if TYPE_CHECKING:
    from kjbod_agent.replicas.placement import Unmade


PROGRESS_MS: Final = 5_000
"""Between two lines of the log that say how far the assignments are."""
LOOK_MS: Final = 1_000
"""Between two looks for what is stuck: it walks over the whole queue."""
STUCK_AGAIN_MS: Final = 60_000
"""What is stuck is named again after this time, and at once when it is another one."""


@dataclass(slots=True)
class Fencing:
    """Decides whether assignments keep the broker fenced, and says what it waits for.

    Args:
        assignments: the queue.
        multiple: whether the broker has several directories.
        undecided: replicas of ours of which the metadata do not know the directory, where they have room for it.
        unmade: those that could not be made so far.
        name: a partition as people know it, ``events-3``; its topic id where the topic is gone.
        path: the path of a directory; its id where it is none of ours.
        wall_ms: the wall-clock time of a monotonic moment.
    """

    assignments: Assignments
    multiple: bool
    undecided: Callable[[], Mapping[TopicIdPartition, None]]
    unmade: "Callable[[], Mapping[TopicIdPartition, Unmade]]"
    name: Callable[[TopicIdPartition], str]
    path: Callable[[Uuid], str]
    wall_ms: Callable[[int], int]
    _progress_ms: int | None = field(default=None, init=False)
    _stuck_logged: tuple[TopicIdPartition, int] | None = field(default=None, init=False)
    _trouble: tuple[frozenset[str], int] | None = field(default=None, init=False)
    _stuck: tuple[Stuck, ...] = field(default=(), init=False)
    _looked_ms: int | None = field(default=None, init=False)
    _unmade_logged_ms: int | None = field(default=None, init=False)
    _patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self._patience = Patience(self.assignments.timeout_ms)

    @property
    def unrecorded(self) -> int:
        """``QueuedReplicaToDirAssignments``: replicas whose directory the controller has still to be told, those that
        are not made yet and so not queued among them."""
        return self.assignments.queued + len(self._unplaced())

    def holds(self, now_ms: int) -> bool:
        """Whether the broker has to stay fenced for its assignments."""
        if not self.multiple:
            return False
        if self.assignments.queued and self.assignments.holding(now_ms):
            return True
        return self._patience.holds(len(self._unplaced()), now_ms)

    def _unplaced(self) -> set[TopicIdPartition]:
        """Replicas that the metadata do not place, and that nobody can assign yet."""
        queue = self.assignments
        return self.undecided().keys() - queue.ready.keys() - queue.in_flight.keys() - queue.acknowledged.keys()

    def waived(self, now_ms: int) -> list[LogLine]:
        """The broker asks to be unfenced: what it did not wait for is an error, and named."""
        lines = []
        unplaced = self._unplaced() if self.multiple else set()
        if unplaced:
            line = error(
                "replicas.without.directory",
                count=len(unplaced),
                **self._first_unmade(),
                timeout_ms=self.assignments.timeout_ms,
                reason="no longer waited for (kjbod.assignment.timeout.ms): kjbod's controller does not elect them, "
                "Kafka's may; each is made as soon as it can be",
            )
            lines.append(line)
        overdue = self.assignments.stuck(now_ms, self.assignments.timeout_ms) if self.multiple else []
        if overdue:
            line = error(
                "assignments.overdue",
                count=len(overdue),
                **self._fields(overdue[0]),
                timeout_ms=self.assignments.timeout_ms,
                reason="no longer waited for (kjbod.assignment.timeout.ms): "
                "a replica whose directory is not recorded may lead now, and is sent on",
            )
            lines.append(line)
        return lines

    def answered(self, outcome: Outcome, now_ms: int) -> list[LogLine]:
        """Lines for what went wrong with a request: said at once when it is something else than before, and each
        minute."""
        codes = {"no answer" if code is None else error_name(code) for code in outcome.failed.values()}
        trouble = frozenset({re.sub(r"\d+", "0", outcome.error)} - {""}) | codes
        if not self.assignments.queued:
            self._trouble = None
        if not trouble:
            return []
        if self._trouble is not None and self._trouble[0] >= trouble and now_ms - self._trouble[1] < STUCK_AGAIN_MS:
            return []
        self._trouble = (trouble, now_ms)
        if outcome.error:
            return [warning("assignments.failed", reason=outcome.error, queued=self.assignments.queued)]
        return [warning("assignments.refused", count=len(outcome.failed), errors=sorted(codes))]

    def lines(self, now_ms: int, *, fenced: bool, work: Sequence[str] = ()) -> list[LogLine]:
        """Lines that say what the broker is fenced for and how far that is, and what is stuck. ``work`` is what else it
        waits for, in words."""
        lines: list[LogLine] = []
        waits = [*work, *([str(self.assignments.progress)] if self.multiple and self.assignments.queued else [])]
        if fenced and waits:
            lines += self._progress(now_ms, ", ".join(waits))
        else:
            self._progress_ms = None
        stuck = self._look(now_ms)
        if not stuck:
            self._stuck_logged = None
        elif (
            self._stuck_logged is None
            or self._stuck_logged[0] != stuck[0].partition
            or now_ms - self._stuck_logged[1] >= STUCK_AGAIN_MS
        ):
            self._stuck_logged = (stuck[0].partition, now_ms)
            lines.append(error("assignments.stuck", count=len(stuck), **self._fields(stuck[0])))
        return [*lines, *self._unmade_lines(now_ms)]

    def _unmade_lines(self, now_ms: int) -> Iterator[LogLine]:
        """Name what cannot be made: once it is no short trouble, and each minute."""
        first = next(iter(self.unmade().values()), None)
        if first is None:
            self._unmade_logged_ms = None
        elif now_ms - first.since_ms >= NAMED_MS and (
            self._unmade_logged_ms is None or now_ms - self._unmade_logged_ms >= STUCK_AGAIN_MS
        ):
            self._unmade_logged_ms = now_ms
            yield error("replicas.unmade", count=len(self.unmade()), **self._first_unmade())

    def _first_unmade(self) -> dict[str, str]:
        for unmade in self.unmade().values():
            return {"replica": unmade.name, "error": unmade.reason, "since": self._moment(unmade.since_ms)}
        return {}

    @property
    def stuck(self) -> int:
        """Number of stuck assignments, as of the last look."""
        return len(self._stuck)

    def words(self, now_ms: int) -> list[str]:
        """For the status line: how far the queue is, the oldest assignment that does not get on, and the first replica
        that cannot be made."""
        return [*self._queue_words(now_ms), *self.unmade_words()]

    def unmade_words(self) -> list[str]:
        """The first replica that could not be made so far, and why; nothing where there is none."""
        for unmade in self.unmade().values():
            count = len(self.unmade()) - 1
            more = f" and {count:,} more" if count else ""
            return [f"{unmade.name}{more} cannot be made since {self._moment(unmade.since_ms)}: {unmade.reason}"]
        return []

    def _queue_words(self, now_ms: int) -> list[str]:
        if not self.assignments.queued:
            return []
        parts = [str(self.assignments.progress)]
        stuck = self._look(now_ms)
        if stuck:
            first = stuck[0]
            more = f" and {len(stuck) - 1:,} more" if len(stuck) > 1 else ""
            where = f"{self.name(first.partition)} in {self.path(first.directory_id)}{more}"
            parts.append(f"{where} not recorded since {self._since(first)}: {first.error or 'no answer yet'}")
        return parts

    def _look(self, now_ms: int) -> tuple[Stuck, ...]:
        if not self.assignments.queued:
            self._stuck, self._looked_ms = (), None
        elif self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS:
            self._stuck, self._looked_ms = tuple(self.assignments.stuck(now_ms)), now_ms
        return self._stuck

    def _progress(self, now_ms: int, text: str) -> Iterator[LogLine]:
        if self._progress_ms is None:
            self._progress_ms = now_ms  # most starts are over before there is anything to say
        elif now_ms - self._progress_ms >= PROGRESS_MS:
            self._progress_ms = now_ms
            progress = self.assignments.progress
            yield info("agent.fenced.waiting", text=text, assigned=progress.done, to_assign=progress.total)

    def _fields(self, stuck: Stuck) -> dict[str, str | int]:
        return {
            "replica": self.name(stuck.partition),
            "path": self.path(stuck.directory_id),
            "directory_id": str(stuck.directory_id),
            "error": stuck.error or "no answer yet",
            "since": self._since(stuck),
            "attempts": stuck.attempts,
        }

    def _since(self, stuck: Stuck) -> str:
        return self._moment(stuck.since_ms)

    def _moment(self, monotonic_ms: int) -> str:
        return datetime.fromtimestamp(self.wall_ms(monotonic_ms) / 1000, UTC).isoformat(timespec="milliseconds")
