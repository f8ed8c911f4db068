"""Whether the metadata quorum keeps its majority when a node that is a controller too is fenced."""

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod.clock import SystemClock
from kjbod.wire.client import Disconnected, RequestTimedOut
from kjbod.wire.messages import (
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplicaState,
    DescribeQuorumResponseTopic,
)
from kjbod_guard.deciding import Deciding
from kjbod_guard.majority import (
    THERE_MS,
    UNDECIDED_MS,
    Quorum,
    heard,
    is_undecided,
    there,
    unanswered,
    why_needed,
)
from kjbod_guard.voters_asking import VotersAsking
from tests.guard.test_deciding import SITE, known, situation

UNAUTHORIZED = "DescribeQuorum: CLUSTER_AUTHORIZATION_FAILED (31)"


def described(
    fetched: dict[int, int], *, leader: int = 1, epoch: int = 1, ends: dict[int, int] | None = None, error: int = 0
) -> DescribeQuorumResponse:
    """An answer; where no ends are given each has what was there when it fetched."""
    states = [
        DescribeQuorumResponseReplicaState(
            replica_id=one, last_fetch_timestamp=at, log_end_offset=(ends or {}).get(one, at)
        )
        for one, at in fetched.items()
    ]
    partition = DescribeQuorumResponsePartition(leader_id=leader, leader_epoch=epoch, current_voters=tuple(states))
    return DescribeQuorumResponse(error_code=error, topics=(DescribeQuorumResponseTopic(partitions=(partition,)),))


def told(*answers: dict[int, int], every_ms: int = 600, leader: int = 1) -> Quorum:
    """The quorum after answers with these times of fetches."""
    quorum = Quorum(0)
    for number, fetched in enumerate(answers):
        quorum = heard(quorum, described(fetched, leader=leader), number * every_ms)
    return quorum


ALL = [{1: 1_000, 2: 900, 3: 800}, {1: 1_600, 2: 1_400, 3: 1_300}, {1: 2_200, 2: 1_900, 3: 1_800}]


@pytest.mark.parametrize(
    ("quorum", "node", "reason"),
    [
        (told(*ALL), 1, None),
        (told(*ALL), 3, None),
        (told(*ALL), 7, None),
        (told(*ALL[:1]), 3, "2 of its 3 voters are needed, and no other one is there"),
        (
            told(*[{**one, 2: 900} for one in ALL]),
            3,
            "2 of its 3 voters are needed, and without it there would be node 1",
        ),
        (told(*[{**one, 2: 900} for one in ALL]), 2, None),
        (
            told(*[{**one, 2: -1} for one in ALL]),
            1,
            "2 of its 3 voters are needed, and without it there would be node 3",
        ),
        (
            told(*[{1: one[1], 2: one[2]} for one in ALL]),
            1,
            "2 of its 2 voters are needed, and without it there would be node 2",
        ),
        (told(*[one | {4: 5, 5: one[2]} for one in ALL]), 1, None),
        (
            told(*[one | {4: 5, 5: 5} for one in ALL]),
            1,
            "3 of its 5 voters are needed, and without it there would be node 2, 3",
        ),
        (told(*[{1: one[1]} for one in ALL]), 1, "this node is the only controller of its cluster"),
        (unanswered(Quorum(0), "no controller is known"), 1, "is not known: no controller is known"),
    ],
)
def test_a_node_is_fenced_only_where_the_other_voters_are_a_majority(
    quorum: Quorum, node: int, reason: str | None
) -> None:
    found = why_needed(quorum, node, 1_200)
    assert (found is None) == (reason is None) and (found or "").endswith(reason or "")


def test_what_was_heard_counts_for_a_while_and_one_lost_question_changes_nothing() -> None:
    assert why_needed(unanswered(told(*ALL), "the controller does not answer"), 3, 1_200 + THERE_MS) is None
    late = why_needed(unanswered(told(*ALL), "the controller does not answer"), 3, 1_200 + THERE_MS + 1)
    assert (late or "").endswith("is not known: the controller does not answer")


def test_a_voter_that_fetches_and_is_far_behind_keeps_no_majority_up_to_date() -> None:
    quorum = Quorum(0)
    for number in range(4):
        fetched = dict.fromkeys((1, 2, 3), 1_000 + 500 * number)
        ends = {1: 5_000 + 100 * number, 2: 700 * number, 3: 4_950 + 100 * number}
        quorum = heard(quorum, described(fetched, ends=ends), number * 500)
    assert there(quorum, 1_500) == [1, 3]


def test_what_an_old_leader_said_of_voters_is_forgotten() -> None:
    after = heard(told(*ALL), described({1: 2_800, 2: 2_900, 3: 2_300}, leader=2, epoch=2), 1_800)
    assert there(after, 1_800) == []
    assert (why_needed(after, 1, 1_800) or "").endswith("no other one is there")


def test_a_leader_whose_clock_was_set_back_makes_no_dead_voter_live() -> None:
    quorum = told(*ALL)
    for number in range(3, 12):  # Kafka keeps the later of both times, until the clock has come there again
        ends = {1: 1_000 + 600 * number, 2: 1_900, 3: 700 + 600 * number}
        quorum = heard(quorum, described({**ends, 3: 1_800 + number}, ends=ends), number * 600)
    assert there(quorum, 11 * 600) == [1, 3]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (described({1: 5}, error=31), "DescribeQuorum: CLUSTER_AUTHORIZATION_FAILED (31)"),
        (
            DescribeQuorumResponse(
                topics=(DescribeQuorumResponseTopic(partitions=(DescribeQuorumResponsePartition(error_code=6),)),)
            ),
            "DescribeQuorum: NOT_LEADER_OR_FOLLOWER (6)",
        ),
        (DescribeQuorumResponse(error_code=31), "DescribeQuorum: CLUSTER_AUTHORIZATION_FAILED (31)"),
        (DescribeQuorumResponse(), "DescribeQuorum: an answer without its leader"),
        (described({2: 5}), "DescribeQuorum: an answer without its leader"),
    ],
)
def test_an_answer_that_says_nothing_of_voters_is_told(answer: DescribeQuorumResponse, reason: str) -> None:
    assert (why_needed(heard(Quorum(0), answer, 0), 1, 0) or "").endswith(reason)
    assert why_needed(heard(told(*ALL), answer, 1_300), 3, 1_400) is None, "what was heard before still counts"


def test_for_a_while_a_refusal_may_be_for_want_of_answers() -> None:
    assert is_undecided(Quorum(), 5_000)
    assert is_undecided(Quorum(4_000), 5_000)
    assert not is_undecided(Quorum(4_000), 4_000 + UNDECIDED_MS)


def test_a_broker_without_a_controller_needs_no_quorum() -> None:
    now = situation()
    assert Deciding(SITE).why_not_fence(known(), now) is None
    told = Deciding(SITE).why_not_fence(known(), replace(now, quorum=Quorum()))
    assert told is not None and "nobody was asked yet" in told


def test_a_node_that_is_a_controller_too_is_fenced_while_the_others_are_a_majority() -> None:
    all_there = replace(situation(now_ms=1_200), quorum=told(*ALL))
    assert Deciding(SITE).why_not_fence(known(), all_there) is None
    one_gone = replace(all_there, quorum=told(*[{**one, 3: 800} for one in ALL]))
    assert "2 of its 3 voters are needed" in (Deciding(SITE).why_not_fence(known(), one_gone) or "")


# ---- who asks


class Channel:
    """Answers what it is told to, and counts how often the connection was dropped."""

    def __init__(self, *answers: DescribeQuorumResponse | Exception) -> None:
        self.answers = list(answers)
        self.forgotten = 0

    def set_leader(self, leader: object) -> None:
        self.leader = leader

    def forget(self) -> None:
        self.forgotten += 1

    async def request(self, prepare: Any, *, timeout_ms: int) -> DescribeQuorumResponse:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_question_that_is_not_answered_is_told_without_its_milliseconds_and_another_connection_is_made() -> None:
    channel = Channel(
        described({1: 5}),
        RequestTimedOut("127.0.0.1:9093 did not answer DESCRIBE_QUORUM within 713 ms"),
        Disconnected("it is gone"),
        DescribeQuorumResponse(error_code=31),
        described({1: 9}),
    )
    asking = VotersAsking(cast(Any, channel), SystemClock(), lambda: True)
    assert asking.quorum.since_ms is None
    problems = []
    for _ in range(5):
        asyncio.run(asking.ask())
        problems.append(asking.quorum.problem)
    assert problems[1:4] == ["127.0.0.1:9093 did not answer DESCRIBE_QUORUM in time", "it is gone", UNAUTHORIZED]
    assert list(asking.quorum.voters) == [1] and asking.quorum.since_ms is not None
    assert channel.forgotten == 3
