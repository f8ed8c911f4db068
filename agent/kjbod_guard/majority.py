"""Majority of the metadata quorum: whether the quorum keeps it without this node, a broker and controller. Pure.

A fence kills the process, and with a combined node a voter of the quorum. Without a majority of its voters a cluster
commits no metadata, which would cost all brokers more than one disk. The leader says who fetches
(DescribeQuorum, KIP-836), by its own wall clock, which may be set. So what counts is that a voter's time or offset has
changed between two answers, on the guard's own clock: a voter fetches each half second at the latest
(``KafkaRaftClient.MAX_FETCH_WAIT_MS``), also where there is nothing to fetch. A fetch that waits at the leader when its
voter dies is still answered within 0.5 s, and counts. So a dead voter counts as present for :data:`THERE_MS` plus 0.5
s.

A voter that fetches but is far behind does not help a majority: nothing is committed until it has caught up. So a voter
counts only if it has the records that the leader had :data:`LAG_MS` before. A new leader at first knows nothing about
the voters, so the answers of the old leader are forgotten.

Two guards never fence two voters at the same time. Each guard needs its record first in the log (:mod:`.suspects`), and
only one node with a controller is fenced at a time (:mod:`.deciding`).
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.wire.error_codes import ErrorCode, name_of
from kjbod.wire.messages import DescribeQuorumResponse, DescribeQuorumResponsePartition

THERE_MS: Final = 1_500
"""A voter that fetched within this time counts as present: three fetches, or two fetches and a lost question."""
LAG_MS: Final = 1_000
UNDECIDED_MS: Final = 3_000
"""Time after the first question in which a refusal may only mean that answers are missing."""
_ALSO: Final = "this node is a controller too"


class Voter(Struct, frozen=True):
    """A voter, as the leader has described it.

    Attributes:
        mark: time of its last fetch and its offset, in the leader's words.
        there_ms: monotonic time of the last question whose answer had a new mark; None: no answer had.
        keeps_up: whether the voter has the records that the leader had :data:`LAG_MS` before.
    """

    mark: tuple[int, int]
    there_ms: int | None = None
    keeps_up: bool = False


class Quorum(Struct, frozen=True):
    """The quorum, from the answers up to now.

    Attributes:
        since_ms: monotonic time of the first question; None: no question was asked.
        problem: why the last question was not answered, in words.
        leader: node id and epoch.
        voters: by node id.
        ends: monotonic times of questions, each with the end offset of the leader's log.
    """

    since_ms: int | None = None
    problem: str = "nobody was asked yet"
    leader: tuple[int, int] = (-1, -1)
    voters: Mapping[int, Voter] = field(default_factory=dict)
    ends: tuple[tuple[int, int], ...] = ()


def unanswered(before: Quorum, reason: str) -> Quorum:
    """Return the quorum after a question without an answer. Earlier answers still count for a while."""
    return replace(before, problem=reason)


def heard(before: Quorum, answer: DescribeQuorumResponse, asked_ms: int) -> Quorum:
    """Return the quorum after an answer.

    Args:
        before: the quorum until now.
        answer: to DescribeQuorum.
        asked_ms: monotonic time of the question.
    """
    partition = next((part for topic in answer.topics for part in topic.partitions), None)
    code = answer.error_code or (partition.error_code if partition is not None else ErrorCode.NONE)
    if code != ErrorCode.NONE:
        return unanswered(before, f"DescribeQuorum: {name_of(code)} ({code})")
    described = {} if partition is None else {one.replica_id: one for one in partition.current_voters}
    if partition is None or partition.leader_id not in described:
        return unanswered(before, "DescribeQuorum: an answer without its leader")
    return _described(before, partition, asked_ms)


def _described(before: Quorum, partition: DescribeQuorumResponsePartition, asked_ms: int) -> Quorum:
    leader = (partition.leader_id, partition.leader_epoch)
    same = leader == before.leader
    marks = {one.replica_id: (one.last_fetch_timestamp, one.log_end_offset) for one in partition.current_voters}
    end = marks[partition.leader_id][1]
    ends = before.ends if same else ()
    needed = max((at for at_ms, at in ends if asked_ms - at_ms >= LAG_MS), default=None)
    voters: dict[int, Voter] = {}
    for node_id, mark in marks.items():
        known = before.voters.get(node_id) if same else None
        fetched = known is not None and known.mark != mark and mark[0] >= 0
        is_there = fetched or node_id == partition.leader_id
        there_ms = asked_ms if is_there else None if known is None else known.there_ms
        voters[node_id] = Voter(mark, there_ms, needed is not None and mark[1] >= needed)
    kept = tuple(one for one in ends if asked_ms - one[0] <= 2 * LAG_MS)
    return Quorum(before.since_ms, "it has not answered lately", leader, voters, (*kept, (asked_ms, end)))


def there(quorum: Quorum, now_ms: int) -> list[int]:
    """Return the node ids of voters that fetch, and keep up with the leader."""
    return sorted(
        node_id
        for node_id, voter in quorum.voters.items()
        if voter.there_ms is not None and now_ms - voter.there_ms <= THERE_MS and voter.keeps_up
    )


def why_needed(quorum: Quorum, node_id: int, now_ms: int) -> str | None:
    """Return why the quorum needs a node, in words; None: the quorum keeps its majority without that node."""
    leader = quorum.voters.get(quorum.leader[0])
    if leader is None or leader.there_ms is None or now_ms - leader.there_ms > THERE_MS:
        return f"{_ALSO}, and whether its quorum can do without it is not known: {quorum.problem}"
    if node_id not in quorum.voters:
        return None
    if len(quorum.voters) == 1:
        return "this node is the only controller of its cluster"
    others = [one for one in there(quorum, now_ms) if one != node_id]
    majority = len(quorum.voters) // 2 + 1
    if len(others) >= majority:
        return None
    left = f"without it there would be node {', '.join(map(str, others))}" if others else "no other one is there"
    return f"{_ALSO}: {majority} of its {len(quorum.voters)} voters are needed, and {left}"


def is_undecided(quorum: Quorum, now_ms: int) -> bool:
    """Whether the time since the first question is too short for the answers that a decision needs."""
    return quorum.since_ms is None or now_ms - quorum.since_ms < UNDECIDED_MS
