"""Queue of replica-to-directory assignments for the controller (AssignReplicasToDirs, KIP-858).

Theory
------
Kafka's ``AssignmentsManager`` as a machine without threads. An assignment is *queued*, then *in flight* in the one
request that may be out, then *acknowledged*: the controller has recorded it but its record has not come back through
the metadata yet. The gauge ``QueuedReplicaToDirAssignments`` counts queued and in flight; a multi-directory broker
stays fenced until it is zero.

* The newest assignment of a partition wins, also over one in flight: it is sent afterwards.
* Sent together: 100 ms after the first was queued (a new topic fills a request instead of 30), at once when more wait
  than fit in one request. At most 2,250 in a request.
* The whole request fails (no answer, no connection, an error code for all): everything in it is queued again unless
  something newer is, and the next attempt waits 100 ms * 2^k after k failures in a row, at most 10 s.
* One partition fails: Kafka tries it again each 100 ms for ever. Here it waits 100 ms * 2^k by itself, at most 10 s,
  and does not hold up the others.
* A partition that is gone from the metadata, or is no longer ours, is dropped before it is sent; that also ends the
  retries of UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION and NOT_LEADER_OR_FOLLOWER, as soon as our image shows why.
* ``acknowledged`` keeps the comparison of metadata and disk from queueing the same again in the moments between the
  answer and the record (a real broker was seen to repeat a request 80 ms later). It expires: a controller that answers
  and records nothing is asked again.

*Who waits for it.* KIP-858 keeps a broker with several directories fenced until the queue is empty; shipped Kafka does
not wait at all, and one assignment that a controller refuses for ever would keep a broker fenced for ever. Here the
broker waits, and ``kjbod.assignment.timeout.ms`` decides: what was refused or unanswered for so long is *overdue*. It
is no longer waited for, and is sent on for as long as it takes. The time is the controller's: it starts anew when there
is another one, or when the one that was silent answers again (:meth:`Assignments.restart_patience`). What was
only never its turn, among a hundred thousand, while the controller takes the others, is not overdue.

Progress is counted from the moment the queue was last empty: so many of so many.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, structs

from kjbod.ids import Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
    AssignReplicasToDirsResponse,
)
from kjbod_agent.lifecycle import error_name
from kjbod_host.partitions import TopicIdPartition

PARTITIONS_PER_REQUEST_MAX: Final = 2250
"""``AssignReplicasToDirsRequest.MAX_ASSIGNMENTS_PER_REQUEST``: stays below 64 KiB with ten directories."""
LINGER_MS: Final = 100
BACKOFF_MS: Final = 100
BACKOFF_MS_MAX: Final = 10_000
ACKNOWLEDGED_MS_MAX: Final = 5_000
"""How long an answered assignment may stay out of the metadata before it is sent again."""
TIMEOUT_MS: Final = 120_000
"""``kjbod.assignment.timeout.ms`` unless told otherwise: the two minutes after which Kafka logs an error."""
NAMED_MS: Final = 5_000
"""An assignment in trouble is worth a line from this age on: what a short trouble is ends by itself."""
NO_ANSWER: Final = "the controller left it out of its answer"

IsOurs = Callable[[TopicIdPartition], bool]
"""Whether a partition exists in the metadata image with a replica on this broker."""


class Assignment(Struct, frozen=True):
    """A replica's directory, to be sent to the controller."""

    directory_id: Uuid
    since_ms: int
    """When it was first submitted."""
    attempts: int = 0
    """How often it was sent in vain."""
    not_before_ms: int = 0
    """Not sent before this moment: it was refused."""
    error: str = ""
    """Why the last attempt was in vain: the name of an error code, or what became of the whole request."""


class Acknowledged(Struct, frozen=True):
    """An assignment that the controller has acknowledged and the metadata do not show yet."""

    directory_id: Uuid
    at_ms: int


class Stuck(Struct, frozen=True):
    """An assignment that the controller refuses, or does not answer."""

    partition: TopicIdPartition
    directory_id: Uuid
    since_ms: int
    """When the controller, this one, could have taken it first."""
    attempts: int
    error: str


class Progress(Struct, frozen=True):
    """Progress of the queue, counted from when it was last empty."""

    done: int
    """Assignments that the controller has acknowledged."""
    total: int
    """These, and those still to come."""

    def __str__(self) -> str:
        return f"assigning {self.done:,} of {self.total:,}"


class Outcome(Struct, frozen=True):
    """Effect of one answer, or of none, on the queue."""

    accepted: Mapping[TopicIdPartition, Uuid]
    failed: Mapping[TopicIdPartition, int | None]
    """Error code by partition, None for a partition that was not answered. They are queued again."""
    error: str = ""
    """Why the whole request failed."""


def backoff_ms(failures: int) -> int:
    """Return the wait after this many failures in a row: 200 ms after the first, then twice as much, at most 10 s."""
    return int(min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** min(failures, 16)))


class Assignments:
    """The queue. All times are monotonic milliseconds.

    ``ready`` to send, ``in_flight`` in the request that is out, ``acknowledged`` and not yet in the metadata.

    Args:
        broker_id: ours.
        partitions_per_request_max: limit of one request.
        timeout_ms: ``kjbod.assignment.timeout.ms``: from this age on one that is in trouble is overdue.
    """

    def __init__(
        self,
        broker_id: int,
        partitions_per_request_max: int = PARTITIONS_PER_REQUEST_MAX,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.broker_id = broker_id
        self.ready: dict[TopicIdPartition, Assignment] = {}
        self.in_flight: dict[TopicIdPartition, Assignment] = {}
        self.acknowledged: dict[TopicIdPartition, Acknowledged] = {}
        self.failures = 0
        """Requests in a row that failed as a whole."""
        self.timeout_ms = timeout_ms
        self._limit = partitions_per_request_max
        self._send_ms: int | None = None
        self._patience_ms = 0  # since when this controller could have taken what is queued
        self._done = 0

    @property
    def queued(self) -> int:
        """``QueuedReplicaToDirAssignments``: assignments that the controller has not acknowledged."""
        return len(self.ready) + len(self.in_flight)

    @property
    def progress(self) -> Progress:
        """Number of acknowledged assignments, and of all, since the queue was last empty."""
        return Progress(self._done, self._done + self.queued)

    def target(self, partition: TopicIdPartition) -> Uuid | None:
        """The directory that the controller has been told, or will be; None when the metadata are the last word."""
        waiting = self.ready.get(partition) or self.in_flight.get(partition) or self.acknowledged.get(partition)
        return None if waiting is None else waiting.directory_id

    def submit(self, partition: TopicIdPartition, directory_id: Uuid, now_ms: int) -> None:
        """Queue an assignment; nothing happens when just this is the last one already."""
        if self.target(partition) == directory_id:
            return
        if not self.queued:
            self._done = 0
        self.acknowledged.pop(partition, None)
        self.ready[partition] = Assignment(directory_id, now_ms)
        self._schedule(now_ms, earliest_ms=now_ms)

    def discard(self, partition: TopicIdPartition) -> None:
        """Remove a partition that is gone, or has no replica here any more."""
        self.ready.pop(partition, None)
        self.acknowledged.pop(partition, None)

    def recorded(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """Note that the metadata now show this directory for the replica."""
        acknowledged = self.acknowledged.get(partition)
        if acknowledged is not None and acknowledged.directory_id == directory_id:
            del self.acknowledged[partition]

    def expired(self, now_ms: int) -> list[TopicIdPartition]:
        """Forget and return assignments that were acknowledged long ago without a record. They must be compared
        again."""
        # The oldest come first: looking at all of a hundred thousand, each time, would cost more than all else here.
        until_ms = now_ms - ACKNOWLEDGED_MS_MAX
        old = [p for p, _ in itertools.takewhile(lambda item: item[1].at_ms <= until_ms, self.acknowledged.items())]
        for partition in old:
            del self.acknowledged[partition]
        return old

    def wakeup_ms(self) -> int | None:
        """Moment at which :meth:`take` may have something; None while only an event can change that."""
        if self.in_flight or not self.ready:
            return None
        return self._send_ms

    def take(self, broker_epoch: int, is_ours: IsOurs, now_ms: int) -> AssignReplicasToDirsRequest | None:
        """Return the request to send now, if any; its assignments are in flight from now on."""
        if self.in_flight or not self.ready or self._send_ms is None or now_ms < self._send_ms:
            return None
        self._send_ms = None
        gone = []
        for partition, assignment in self.ready.items():
            if not is_ours(partition):
                gone.append(partition)
            elif assignment.not_before_ms <= now_ms:
                self.in_flight[partition] = assignment
                if len(self.in_flight) == self._limit:
                    break
        for partition in (*gone, *self.in_flight):
            del self.ready[partition]
        if not self.in_flight:
            self._schedule(now_ms, self._earliest_ms())
            return None
        return build_request(self.broker_id, broker_epoch, self.in_flight)

    def answered(self, response: AssignReplicasToDirsResponse, now_ms: int) -> Outcome:
        """The controller's answer to the request in flight."""
        if response.error_code != ErrorCode.NONE:
            return self.failed(f"Response-level error: {error_name(response.error_code)}", now_ms)
        codes = {
            (directory.id_, TopicIdPartition(topic.topic_id, partition.partition_index)): partition.error_code
            for directory in response.directories
            for topic in directory.topics
            for partition in topic.partitions
        }
        accepted: dict[TopicIdPartition, Uuid] = {}
        failed: dict[TopicIdPartition, int | None] = {}
        sent, self.in_flight = self.in_flight, {}
        for partition, assignment in sent.items():
            code = codes.get((assignment.directory_id, partition))
            if code == ErrorCode.NONE:
                accepted[partition] = assignment.directory_id
                self._done += 1
                if partition not in self.ready:
                    self.acknowledged[partition] = Acknowledged(assignment.directory_id, now_ms)
            else:
                failed[partition] = code
                error = NO_ANSWER if code is None else error_name(code)
                self._again(partition, assignment, now_ms + backoff_ms(assignment.attempts), error)
        self.failures = 0
        self._schedule(now_ms, self._earliest_ms())
        return Outcome(accepted, failed)

    def failed(self, error: str, now_ms: int) -> Outcome:
        """Handle the failure of the whole request in flight: no answer, no connection, or an error code for all of
        it."""
        sent, self.in_flight = self.in_flight, {}
        self.failures += 1
        for partition, assignment in sent.items():
            self._again(partition, assignment, assignment.not_before_ms, error)
        self._send_ms = None
        self._schedule(now_ms, self._earliest_ms())
        return Outcome({}, {}, error)

    def retry_now(self, now_ms: int) -> None:
        """Retry at once, because a controller is available again."""
        if self.failures and not self.in_flight and self.ready:
            self._send_ms = now_ms

    def restart_patience(self, now_ms: int) -> None:
        """Restart the time limits for a new or returned controller: assignments that it has not seen are not
        overdue."""
        self._patience_ms = now_ms

    def stuck(self, now_ms: int, age_ms: int = NAMED_MS) -> list[Stuck]:
        """Assignments that this controller has refused or left unanswered for ``age_ms``, oldest first."""
        old = [
            Stuck(partition, a.directory_id, max(a.since_ms, self._patience_ms), a.attempts, a.error)
            for partition, a in self._in_trouble(now_ms, age_ms)
        ]
        return sorted(old, key=lambda one: (one.since_ms, -one.attempts, one.partition))

    def holding(self, now_ms: int) -> int:
        """Number of assignments that keep a broker with several directories fenced: those that are not overdue."""
        return self.queued - sum(1 for _ in self._in_trouble(now_ms, self.timeout_ms))

    def _in_trouble(self, now_ms: int, age_ms: int) -> Iterator[tuple[TopicIdPartition, Assignment]]:
        if now_ms - self._patience_ms < age_ms:
            return
        for partition, assignment in self.in_flight.items():
            if now_ms - assignment.since_ms >= age_ms:
                yield partition, assignment
        for partition, assignment in self.ready.items():
            if now_ms - assignment.since_ms >= age_ms and (assignment.attempts or self.failures):
                yield partition, assignment

    def _again(self, partition: TopicIdPartition, assignment: Assignment, not_before_ms: int, error: str) -> None:
        if partition not in self.ready:
            self.ready[partition] = structs.replace(
                assignment, attempts=assignment.attempts + 1, not_before_ms=not_before_ms, error=error
            )

    def _earliest_ms(self) -> int:
        earliest_ms: int | None = None
        for assignment in self.ready.values():
            if not assignment.not_before_ms:
                return 0  # as a rule the first one: what was refused is queued behind the others
            if earliest_ms is None or assignment.not_before_ms < earliest_ms:
                earliest_ms = assignment.not_before_ms
        return earliest_ms or 0

    def _schedule(self, now_ms: int, earliest_ms: int) -> None:
        """Plan the next attempt, not before ``earliest_ms``; one that is planned earlier stays."""
        if not self.ready:
            return
        if self.failures:
            delay_ms = backoff_ms(self.failures)
        else:
            delay_ms = 0 if len(self.ready) > self._limit and not self.in_flight else LINGER_MS
        at_ms = max(now_ms + delay_ms, earliest_ms)
        self._send_ms = at_ms if self._send_ms is None else min(self._send_ms, at_ms)


def build_request(
    broker_id: int, broker_epoch: int, assignments: Mapping[TopicIdPartition, Assignment]
) -> AssignReplicasToDirsRequest:
    """The request that tells these assignments: by directory, then topic, then partition, each in order."""
    grouped: dict[Uuid, dict[Uuid, list[int]]] = {}
    for (topic_id, partition), assignment in assignments.items():
        grouped.setdefault(assignment.directory_id, {}).setdefault(topic_id, []).append(partition)
    return AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        directories=tuple(
            AssignReplicasToDirsRequestDirectory(id_=directory, topics=_topics(topics))
            for directory, topics in sorted(grouped.items())
        ),
    )


def _topics(topics: Mapping[Uuid, Iterable[int]]) -> tuple[AssignReplicasToDirsRequestTopic, ...]:
    return tuple(
        AssignReplicasToDirsRequestTopic(
            topic_id=topic_id,
            partitions=tuple(AssignReplicasToDirsRequestPartition(partition_index=p) for p in sorted(partitions)),
        )
        for topic_id, partitions in sorted(topics.items())
    )
