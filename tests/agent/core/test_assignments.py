"""The queue of assignments to the controller. Ids are those of kafka-jbod 9.5."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import MetadataImage, Replayer
from kjbod.metadata.records import PartitionRecord, TopicRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from kjbod_agent.assignments import ACKNOWLEDGED_MS_MAX, LINGER_MS, Assignments, backoff_ms
from kjbod_agent.replicas.hosting import Hosting
from kjbod_host.partitions import TopicIdPartition
from tests.agent.core.recording import answer
from tests.depth import examples

D1, D2 = Uuid.of(2, 1), Uuid.of(2, 2)
T1, T2 = Uuid.of(3, 1), Uuid.of(3, 2)
P0, P1 = TopicIdPartition(T1, 0), TopicIdPartition(T1, 1)


def ours(_partition: TopicIdPartition) -> bool:
    return True


def partition_record(number: int, replicas: tuple[int, ...]) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=T1,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(UNASSIGNED,) * len(replicas),
    )


def take(queue: Assignments, now_ms: int) -> AssignReplicasToDirsRequest:
    request = queue.take(5, ours, now_ms)
    assert request is not None
    return request


def sent(request: AssignReplicasToDirsRequest) -> dict[TopicIdPartition, Uuid]:
    return {
        TopicIdPartition(topic.topic_id, p.partition_index): directory.id_
        for directory in request.directories
        for topic in directory.topics
        for p in topic.partitions
    }


def test_am_1_the_gauge_counts_what_the_controller_has_not_acknowledged() -> None:
    queue = Assignments(1)
    assert queue.queued == 0
    queue.submit(P0, D1, 0)
    assert queue.queued == 1
    request = take(queue, LINGER_MS)
    assert queue.queued == 1
    assert queue.answered(answer(request), 130).accepted == {P0: D1}
    assert queue.queued == 0


@pytest.mark.parametrize("error", ["INVALID_REQUEST", "Timeout"])
def test_am_2_a_failed_request_is_sent_again_and_a_good_one_resets_the_backoff(error: str) -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    take(queue, 100)
    if error == "Timeout":
        outcome = queue.failed(error, 200)
    else:
        outcome = queue.answered(AssignReplicasToDirsResponse(error_code=ErrorCode.INVALID_REQUEST), 200)
    assert error in outcome.error
    assert (queue.queued, queue.failures, queue.wakeup_ms()) == (1, 1, 400)
    queue.answered(answer(take(queue, 400)), 420)
    assert (queue.queued, queue.failures) == (0, 0)


def test_am_3_what_is_gone_from_the_metadata_is_dropped_before_it_is_sent() -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    queue.submit(P1, D1, 0)
    request = queue.take(5, lambda p: p == P1, 100)
    assert request is not None and sent(request) == {P1: D1}
    assert queue.queued == 1


@pytest.mark.parametrize("missing", [False, True])
def test_am_4_one_refused_partition_does_not_hold_up_the_other(missing: bool) -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    queue.submit(P1, D1, 0)
    request = take(queue, 100)
    response = answer(request, leave_out=(P0,)) if missing else answer(request, {P0: ErrorCode.UNKNOWN_TOPIC_ID})
    outcome = queue.answered(response, 120)
    assert outcome.accepted == {P1: D1}
    assert outcome.failed == {P0: None if missing else ErrorCode.UNKNOWN_TOPIC_ID}
    assert (queue.queued, queue.failures) == (1, 0)
    assert sent(take(queue, queue.wakeup_ms() or 0)) == {P0: D1}


def test_am_4_a_partition_that_is_refused_for_ever_is_asked_less_and_less_often() -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    now_ms, times = 0, []
    for _ in range(10):
        now_ms = queue.wakeup_ms() or 0
        times.append(now_ms)
        queue.answered(answer(take(queue, now_ms), {P0: ErrorCode.UNKNOWN_SERVER_ERROR}), now_ms)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
    assert queue.stuck(now_ms, now_ms + 1) == []
    (stuck,) = queue.stuck(now_ms + 120_000)
    assert (stuck.partition, stuck.directory_id, stuck.attempts) == (P0, D1, 10)
    assert stuck.error == "UNKNOWN_SERVER_ERROR"


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER, 12345])
def test_am_5_an_error_for_the_whole_request_is_named(code: int) -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    take(queue, 100)
    outcome = queue.answered(AssignReplicasToDirsResponse(error_code=int(code)), 120)
    assert outcome.error.startswith("Response-level error: ")


def test_am_6_a_request_is_grouped_by_directory_topic_and_partition() -> None:
    queue = Assignments(1)
    for partition, directory in (((T2, 0), D2), ((T1, 1), D1), ((T1, 0), D1), ((T1, 2), D2), ((T2, 1), D1)):
        queue.submit(TopicIdPartition(*partition), directory, 0)
    request = take(queue, 100)
    assert (request.broker_id, request.broker_epoch) == (1, 5)
    shape = [
        (d.id_, [(t.topic_id, [p.partition_index for p in t.partitions]) for t in d.topics])
        for d in request.directories
    ]
    assert shape == [(D1, [(T1, [0, 1]), (T2, [1])]), (D2, [(T1, [2]), (T2, [0])])]


def test_am_7_the_next_attempt_follows_kafka_s_delays() -> None:
    queue = Assignments(1, partitions_per_request_max=2)
    queue.submit(P0, D1, 1_000)
    assert queue.wakeup_ms() == 1_100
    queue.submit(P1, D1, 1_050)
    assert queue.wakeup_ms() == 1_100
    queue.submit(TopicIdPartition(T2, 0), D1, 1_060)
    assert queue.wakeup_ms() == 1_060
    take(queue, 1_060)
    assert queue.wakeup_ms() is None
    assert [backoff_ms(k) for k in (1, 2, 3, 6, 7, 50)] == [200, 400, 800, 6_400, 10_000, 10_000]


def test_am_8_only_what_the_metadata_give_to_this_broker_is_sent() -> None:
    """Topic unknown, partition unknown, broker no replica of it, and the one that is right (``AssignmentTest``)."""
    image = MetadataImage()
    replayer = Replayer(image)
    records = [TopicRecord(name="t", topic_id=T1), *(partition_record(n, (n + 1,)) for n in (0, 1))]
    for offset, record in enumerate(records):
        replayer.replay(offset, 1, record)
    hosting = Hosting(1)
    hosting.load(image)
    queue = Assignments(1)
    for partition in (TopicIdPartition(T2, 0), TopicIdPartition(T1, 7), P1, P0):
        queue.submit(partition, D1, 0)
    request = queue.take(5, hosting.__contains__, 100)
    assert request is not None and sent(request) == {P0: D1}
    assert queue.queued == 1


def test_am_9_the_2251st_partition_goes_into_the_next_request() -> None:
    queue = Assignments(1)
    for number in range(2_251):
        queue.submit(TopicIdPartition(T1, number), D1, 0)
    first = take(queue, 0)
    assert len(sent(first)) == 2_250
    assert queue.take(5, ours, 10_000) is None
    queue.answered(answer(first), 30)
    assert sent(take(queue, queue.wakeup_ms() or 0)) == {TopicIdPartition(T1, 2_250): D1}


def test_the_newest_assignment_wins_also_over_one_that_is_out() -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    first = take(queue, 100)
    queue.submit(P0, D2, 110)
    queue.answered(answer(first, {P0: ErrorCode.UNKNOWN_SERVER_ERROR}), 120)
    assert queue.target(P0) == D2
    assert sent(take(queue, queue.wakeup_ms() or 0)) == {P0: D2}


def test_what_was_just_told_is_not_told_again_but_a_controller_that_records_nothing_is_asked_again() -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    queue.answered(answer(take(queue, 100)), 130)
    queue.submit(P0, D1, 140)
    assert queue.queued == 0
    assert queue.expired(130 + ACKNOWLEDGED_MS_MAX) == [P0]
    queue.submit(P0, D1, 6_000)
    assert queue.queued == 1


def test_a_record_that_came_back_ends_the_matter() -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    queue.answered(answer(take(queue, 100)), 130)
    queue.recorded(P0, D2)
    assert queue.target(P0) == D1
    queue.recorded(P0, D1)
    assert queue.target(P0) is None


def test_a_new_controller_is_asked_without_waiting_for_the_backoff() -> None:
    queue = Assignments(1)
    queue.submit(P0, D1, 0)
    take(queue, 100)
    queue.failed("Disconnected", 110)
    queue.retry_now(115)
    assert sent(take(queue, 115)) == {P0: D1}


def test_progress_is_counted_from_when_the_queue_was_last_empty() -> None:
    queue = Assignments(1, partitions_per_request_max=2)
    for number in range(5):
        queue.submit(TopicIdPartition(T1, number), D1, 0)
    assert str(queue.progress) == "assigning 0 of 5"
    queue.answered(answer(take(queue, 0)), 30)
    assert (queue.progress.done, queue.progress.total) == (2, 5)
    while queue.queued:
        queue.answered(answer(take(queue, queue.wakeup_ms() or 0)), 200)
    queue.submit(P0, D2, 300)
    assert (queue.progress.done, queue.progress.total) == (0, 1)


def test_what_is_refused_or_unanswered_for_the_timeout_is_no_longer_waited_for_and_sent_on() -> None:
    queue = Assignments(1, timeout_ms=1_000)
    queue.submit(P0, D1, 0)
    queue.submit(P1, D1, 0)
    request = take(queue, 100)
    queue.answered(answer(request, {P0: ErrorCode.UNKNOWN_SERVER_ERROR}), 130)
    assert queue.holding(999) == 1
    assert queue.holding(1_000) == 0
    assert queue.queued == 1
    assert [(s.partition, s.error) for s in queue.stuck(1_000, 1_000)] == [(P0, "UNKNOWN_SERVER_ERROR")]
    assert sent(take(queue, 1_000)) == {P0: D1}
    queue.submit(P1, D2, 1_000)
    assert queue.holding(1_500) == 1, "the newer one has its own time"


def test_an_answer_that_never_comes_is_overdue_too_and_says_so() -> None:
    queue = Assignments(1, timeout_ms=1_000)
    queue.submit(P0, D1, 0)
    take(queue, 100)
    assert queue.holding(1_000) == 0
    queue.failed("controller did not answer within 10000 ms", 10_100)
    assert queue.stuck(10_100)[0].error == "controller did not answer within 10000 ms"


def test_what_only_waits_for_its_turn_is_not_overdue() -> None:
    queue = Assignments(1, partitions_per_request_max=1, timeout_ms=1_000)
    queue.submit(P0, D1, 0)
    queue.submit(P1, D1, 0)
    queue.answered(answer(take(queue, 5_000)), 5_030)
    assert queue.holding(5_030) == 1
    take(queue, 5_030 + LINGER_MS)
    queue.failed("Disconnected", 5_200)
    assert queue.holding(5_200) == 0, "now that requests fail, it is"


def test_the_time_starts_anew_with_a_controller_that_is_new_or_back() -> None:
    queue = Assignments(1, timeout_ms=1_000)
    queue.submit(P0, D1, 0)
    take(queue, 100)
    queue.failed("Disconnected", 110)
    queue.restart_patience(50_000)
    assert queue.holding(50_999) == 1
    assert queue.holding(51_000) == 0
    assert queue.stuck(60_000)[0].since_ms == 50_000


@settings(max_examples=examples(200))
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_in_the_end_the_controller_has_the_newest_directory_of_every_partition(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    queue = Assignments(1, partitions_per_request_max=limit)
    newest: dict[TopicIdPartition, Uuid] = {}
    controller: dict[TopicIdPartition, Uuid] = {}
    gone: set[TopicIdPartition] = set()
    now_ms, request = 0, None
    for round_number in range(400):
        now_ms += rng.randint(0, 300)
        if round_number < 60 and rng.random() < 0.6:
            partition = TopicIdPartition(T1, rng.randrange(6))
            newest[partition] = rng.choice([D1, D2])
            queue.submit(partition, newest[partition], now_ms)
        if round_number == 40:
            gone.add(TopicIdPartition(T1, 0))
        if request is None:
            request = queue.take(5, lambda p: p not in gone, now_ms)
        if request is None:
            continue
        assert len(sent(request)) <= limit
        troubled = round_number < 100
        if troubled and rng.random() < 0.4:
            queue.failed("Timeout", now_ms)
        else:
            codes = {p: rng.choice([0, 0, -1]) if troubled else 0 for p in sent(request)}
            controller.update({p: d for p, d in sent(request).items() if codes[p] == 0})
            queue.answered(answer(request, codes), now_ms)
        request = None
    assert queue.queued == 0
    assert {p: d for p, d in controller.items() if p not in gone} == {p: d for p, d in newest.items() if p not in gone}
