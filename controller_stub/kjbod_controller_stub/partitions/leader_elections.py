"""Elections on request, and periodic elections by the controller (KIP-460, KIP-966).

Three occasions, one rule for each partition (``ReplicationControlManager.electLeader``): ElectLeaders, the return of
leadership to preferred replicas, and unclean elections where a topic allows them. The two periodic ones look at what
an index says, in pieces, so that heartbeats are read in between.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage, Topic
from kjbod.metadata.records import NO_LEADER
from kjbod.wire.admin_messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseReplicaElection,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.partitions.elections import Election
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.partitions.replication import Replication
from kjbod_controller_stub.results import ApiError, Draft, PartitionKey

ELECTIONS_PER_PASS_MAX: Final = 1_000
"""Records of one pass of a periodic task (``MAX_ELECTIONS_PER_IMBALANCE``)."""
EXAMINED_PER_PASS_MAX: Final = 2_000
"""Partitions looked at in one pass of a periodic task: what others wait for it stays some tens of milliseconds."""
ELECTIONS_PER_REQUEST_MAX: Final = 10_000
"""Records that one request may make (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_NOT_NEEDED: Final = "Leader election not needed for topic partition."
_NOT_AVAILABLE: Final[Mapping[int, tuple[ErrorCode, str]]] = {
    _PREFERRED: (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
    _UNCLEAN: (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available."),
}


class LeaderElections:
    """Makes the records of elections. Remembers the partitions that the current pass of each periodic task has left."""

    def __init__(self, image: MetadataImage, index: PartitionIndex, replication: Replication) -> None:
        self._image = image
        self._index = index
        self._replication = replication
        self._to_balance: deque[PartitionKey] = deque()
        self._to_rescue: deque[PartitionKey] = deque()

    # ---- on request

    def elect(self, draft: Draft, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """Elect leaders for the named partitions, or for all. The answer for all leaves out partitions that need no
        election.

        Raises:
            ApiError: INVALID_REQUEST: no such kind of election; POLICY_VIOLATION: too many at once.
        """
        kind = request.election_type
        if kind not in _NOT_AVAILABLE:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {kind}")
        return ElectLeadersResponse(
            replica_election_results=tuple(
                ElectLeadersResponseReplicaElection(
                    topic=name, partition_result=tuple(self._answers(draft, name, topic, numbers, kind))
                )
                for name, topic, numbers in self._wanted(request)
            )
        )

    def _wanted(self, request: ElectLeadersRequest) -> Iterator[tuple[str, Topic | None, Iterable[int]]]:
        """Yield name, topic and partitions; the topic is None if it does not exist."""
        if request.topic_partitions is not None:
            for wanted in request.topic_partitions:
                topic_id = self._image.topic_ids.get(wanted.topic)
                yield wanted.topic, None if topic_id is None else self._image.topics[topic_id], wanted.partitions
            return
        unclean = request.election_type == _UNCLEAN
        needed: dict[Uuid, list[int]] = {}
        for topic_id, number in self._index.leaderless() if unclean else self._index.imbalanced():
            needed.setdefault(topic_id, []).append(number)
        for topic in self._image.topics.values():
            yield topic.name, topic, sorted(needed.get(topic.id, ()))

    def _answers(
        self, draft: Draft, name: str, topic: Topic | None, numbers: Iterable[int], kind: int
    ) -> Iterator[ElectLeadersResponsePartition]:
        for number in numbers:
            yield self._answer(draft, name, topic, number, kind)
            if len(draft.records) > ELECTIONS_PER_REQUEST_MAX:
                raise ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")

    def _answer(
        self, draft: Draft, name: str, topic: Topic | None, number: int, kind: int
    ) -> ElectLeadersResponsePartition:
        try:
            if topic is None:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
            if number not in topic.partitions:
                raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{number}")
            self._elect_one(draft, (topic.id, number), kind)
        except ApiError as error:
            return ElectLeadersResponsePartition(
                partition_id=number, error_code=error.code, error_message=error.message
            )
        return ElectLeadersResponsePartition(partition_id=number)

    def _elect_one(self, draft: Draft, key: PartitionKey, kind: int) -> None:
        partition = draft.partition(key)
        assert partition is not None
        needed = partition.leader == NO_LEADER if kind == _UNCLEAN else partition.leader != partition.replicas[0]
        if not needed:
            raise ApiError(ErrorCode.ELECTION_NOT_NEEDED, _NOT_NEEDED)
        builder = self._replication.builder(draft, key, partition)
        builder.election = Election.UNCLEAN if kind == _UNCLEAN else Election.PREFERRED
        record = builder.build()
        if record is None:
            raise ApiError(*_NOT_AVAILABLE[kind])
        draft.add(record)

    # ---- from time to time

    def balance(self, draft: Draft) -> bool:
        """Return leadership to preferred replicas that can lead (``maybeBalancePartitionLeaders``).

        Returns:
            Whether the pass ended before all were looked at, and another one should follow at once.
        """
        if not self._to_balance:
            self._to_balance.extend(self._index.imbalanced())
        more = self._pass(draft, self._to_balance, _PREFERRED, lambda key: True)
        if draft.records:
            draft.note("leaders.balanced", count=len(draft.records), more=more)
        return more

    def rescue(self, draft: Draft) -> bool:
        """Elect leaders for partitions without one, if the topic allows unclean elections
        (``maybeElectUncleanLeaders``).

        Returns:
            As :meth:`balance`.
        """
        if not self._to_rescue:
            self._to_rescue.extend(self._index.leaderless())
        more = self._pass(draft, self._to_rescue, _UNCLEAN, self._replication.allows_unclean)
        if draft.records:
            draft.note("leaders.elected.unclean", count=len(draft.records), more=more)
        return more

    def _pass(
        self, draft: Draft, waiting: deque[PartitionKey], kind: int, wanted: Callable[[PartitionKey], bool]
    ) -> bool:
        for _ in range(EXAMINED_PER_PASS_MAX):
            if not waiting or len(draft.records) >= ELECTIONS_PER_PASS_MAX:
                break
            key = waiting.popleft()
            if draft.partition(key) is None or not wanted(key):
                continue  # deleted since the pass began, or not for us
            try:
                self._elect_one(draft, key, kind)
            except ApiError:
                continue  # led as it should be by now, or no replica can lead
        return bool(waiting)
