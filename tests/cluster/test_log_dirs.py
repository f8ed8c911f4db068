"""An answer to DescribeLogDirs with what the cluster tells, brought together; and the order in which it is shown."""

from msgspec import structs

from kjbod.cluster.log_dirs import (
    BrokerDirs,
    Failure,
    Known,
    LogDir,
    Node,
    answered,
    as_far_as_seen,
    by_urgency,
    is_another_cluster,
    totals,
    unanswered,
    withdraw_ids,
)
from kjbod.cluster.partitions import MinIsrs, Partition, Share, partitions_of, shares_of, trouble_of, unplaced_in
from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import MetadataImage, image_of
from kjbod.metadata.records import Endpoint, PartitionRecord, RegisterBrokerRecord, TopicRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    DescribeLogDirsResponse,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseResult,
    DescribeLogDirsResponseTopic,
)

D1, D2, D3, TOPIC = Uuid.of(9, 1), Uuid.of(9, 2), Uuid.of(9, 3), Uuid.of(7, 7)
NODE = Node(id=1, host="h1", port=9092, fenced=False)
FUTURE = True


def replica(number: int, size: int = 10, future: bool = False) -> DescribeLogDirsResponsePartition:
    return DescribeLogDirsResponsePartition(
        partition_index=number, partition_size=size, offset_lag=0, is_future_key=future
    )


def directory(
    path: str, *replicas: DescribeLogDirsResponsePartition, topic: str = "t", code: int = 0, cordoned: bool = False
) -> DescribeLogDirsResponseResult:
    topics = (DescribeLogDirsResponseTopic(name=topic, partitions=replicas),) if replicas else ()
    total, usable = (-1, -1) if code else (1000, 250)
    return DescribeLogDirsResponseResult(
        error_code=code, log_dir=path, topics=topics, total_bytes=total, usable_bytes=usable, is_cordoned=cordoned
    )


def told(*results: DescribeLogDirsResponseResult) -> DescribeLogDirsResponse:
    return DescribeLogDirsResponse(results=results)


def known(partitions: dict[int, Partition], min_isrs: MinIsrs | None = None) -> Known:
    """What brokers told of topic t."""
    found, needed = {"t": partitions}, {"t": 2} if min_isrs is None else min_isrs
    return Known(partitions=found, min_isrs=needed, shares=shares_of(found), trouble=trouble_of(found, needed))


LED_HERE = Partition(1, (1, 2), (1, 2))
FOLLOWED_HERE = Partition(2, (1, 2), (1, 2))
ONLY_HERE = Partition(1, (1,), (1,))
OFFLINE_HERE = Partition(2, (1, 2), (2,), offline=(1,))


def only(broker: BrokerDirs) -> LogDir:
    (found,) = broker.log_dirs
    return found


def test_replicas_leaders_and_losses_are_counted_and_future_replicas_apart() -> None:
    answer = told(directory("/d1", replica(0), replica(1), replica(2), replica(3, 7, FUTURE), cordoned=True))
    partitions = {0: LED_HERE, 1: FOLLOWED_HERE, 2: ONLY_HERE, 3: LED_HERE}
    found = only(answered(NODE, answer, 5, known(partitions)))
    assert found == LogDir(
        path="/d1", cordoned=True, total_bytes=1000, usable_bytes=250, replica_bytes=37, replicas=3, leaders=2,
        future=1, failure=Failure(moves=1, leaderless=1, under_min_isr=2),
    )  # fmt: skip
    assert found.used_percent == 75


def test_what_an_old_broker_does_not_tell_is_unknown_and_not_zero() -> None:
    answer = told(structs.replace(directory("/d1"), total_bytes=-1, usable_bytes=-1))
    found = only(answered(NODE, answer, 3, known({})))
    assert (found.cordoned, found.total_bytes, found.usable_bytes, found.used_percent) == (None, None, None, None)


def test_replicas_of_partitions_that_we_may_not_see_are_no_leaders_and_are_counted() -> None:
    answer = told(directory("/d1", replica(0), replica(5)), directory("/d2", replica(0), topic="hidden"))
    seen = directory("/d3", replica(1))
    one, two, three = answered(NODE, structs.replace(answer, results=(*answer.results, seen)), 5, known(
        {0: LED_HERE, 1: LED_HERE}
    )).log_dirs  # fmt: skip
    assert (one.replicas, one.leaders, one.failure, one.untold) == (2, None, None, 1)
    assert (two.replicas, two.leaders, two.failure, two.untold) == (1, None, None, 1)
    assert (three.leaders, three.failure) == (1, Failure(moves=1, leaderless=0, under_min_isr=1))


def test_a_replica_that_was_reassigned_and_is_not_deleted_yet_leads_nothing() -> None:
    elsewhere = Partition(2, (2, 3), (2, 3))
    found = only(answered(NODE, told(directory("/d1", replica(0))), 5, known({0: elsewhere})))
    assert (found.replicas, found.leaders, found.failure) == (1, 0, Failure())


def test_who_may_not_see_a_topic_gets_no_numbers_of_brokers() -> None:
    hidden = directory("/d1", replica(0), topic="hidden")
    nothing = structs.replace(known({}), strangers={})
    brokers = [answered(NODE, told(hidden), 5, nothing), unanswered(structs.replace(NODE, id=2), "silent", nothing)]
    after = as_far_as_seen(brokers, nothing)
    assert [broker.share for broker in brokers] == [None, None]
    assert (after.trouble, after.strangers) == (None, None)


def test_numbers_stand_where_all_that_lies_anywhere_is_seen_but_0_is_no_proof() -> None:
    seen = known({0: LED_HERE})
    silent = [unanswered(structs.replace(NODE, id=number), "silent", seen) for number in (2, 3)]
    brokers = [answered(NODE, told(directory("/d1", replica(0))), 5, seen), *silent]
    assert as_far_as_seen(brokers, seen) is seen
    assert [broker.share and broker.share.replicas for broker in brokers] == [1, 1, None]
    certain = structs.replace(seen, whole=True)
    broker = unanswered(structs.replace(NODE, id=3), "silent", certain)
    assert as_far_as_seen([broker], certain) is certain and broker.share == Share()


def test_space_that_makes_no_sense_is_unknown() -> None:
    found = only(answered(NODE, told(structs.replace(directory("/d1"), usable_bytes=1001)), 5, known({})))
    assert (found.total_bytes, found.usable_bytes, found.used_percent) == (None, None, None)


def test_of_some_topics_only_these_are_counted() -> None:
    answer = told(directory("/d1", replica(0, 5)), directory("/d2", replica(0), topic="another"))
    chosen = structs.replace(known({0: LED_HERE}), partial=True)
    one, two = answered(NODE, answer, 5, chosen).log_dirs
    assert (one.replicas, one.replica_bytes, one.untold) == (1, 5, 0)
    assert (two.replicas, two.replica_bytes, two.untold) == (0, 0, 0)


def test_without_min_insync_replicas_nothing_is_said_of_it() -> None:
    found = only(answered(NODE, told(directory("/d1", replica(0))), 5, known({0: LED_HERE}, {})))
    assert found.failure == Failure(moves=1, leaderless=0, under_min_isr=None)


def test_what_lies_in_an_offline_directory_is_not_known_even_of_the_only_one() -> None:
    partitions = {0: LED_HERE, 1: OFFLINE_HERE, 2: OFFLINE_HERE}
    answer = told(directory("/d1", replica(0)), directory("/d2", code=56))
    broker = answered(NODE, answer, 5, known(partitions))
    _, gone = broker.log_dirs
    assert (gone.offline, gone.error, gone.replicas, gone.leaders) == (True, "KAFKA_STORAGE_ERROR", None, None)
    assert (gone.failure, gone.replica_bytes, gone.used_percent) == (None, None, None)
    assert broker.share is not None and broker.share.offline == 2


def test_a_broker_that_refuses_is_one_that_did_not_answer_and_says_what_it_takes() -> None:
    refused = DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    found = answered(NODE, refused, 5, known({0: LED_HERE}))
    assert found.error == "h1:9092: CLUSTER_AUTHORIZATION_FAILED: it takes DESCRIBE on the cluster"
    assert found.log_dirs == () and found.share is not None and found.share.leaders == 1


# ---------------------------------------------------------------- with the metadata


def image(*directories: Uuid, registered: tuple[Uuid, ...] = (D1, D2)) -> MetadataImage:
    """Broker 1, and partitions of topic t of which it alone has a replica in these directories."""
    broker = RegisterBrokerRecord(
        broker_id=1, incarnation_id=Uuid.of(1, 1), broker_epoch=1, log_dirs=registered, fenced=False, features=(),
        end_points=(Endpoint(name="PLAINTEXT", host="h1", port=9092, security_protocol=0),),
    )  # fmt: skip
    partitions = [
        PartitionRecord(
            partition_id=number, topic_id=TOPIC, replicas=(1,), isr=(1,), leader=1, directories=(at,),
            leader_epoch=0, partition_epoch=0,
        )
        for number, at in enumerate(directories)
    ]  # fmt: skip
    return image_of([broker, TopicRecord(name="t", topic_id=TOPIC), *partitions])


def read(metadata: MetadataImage) -> Known:
    partitions = partitions_of(metadata)
    return Known(
        partitions=partitions, min_isrs={}, shares=shares_of(partitions), trouble=trouble_of(partitions, {}),
        image=metadata, unplaced=unplaced_in(metadata),
    )  # fmt: skip


def ids(broker: BrokerDirs) -> dict[str, Uuid | None]:
    return {each.path: each.directory.directory_id for each in broker.log_dirs if each.directory is not None}


def test_a_path_has_the_id_that_its_replicas_are_assigned_to() -> None:
    answer = told(directory("/d1", replica(0)), directory("/d2", replica(1), replica(2)))
    found = answered(NODE, answer, 5, read(image(D1, D2, UNASSIGNED)))
    assert ids(found) == {"/d1": D1, "/d2": D2}
    assert found.unplaced is not None and found.unplaced.unassigned == 1


def test_a_replica_that_is_assigned_to_where_it_is_only_copied_to_tells_nothing() -> None:
    answer = told(directory("/d1", replica(0), replica(1)), directory("/d2", replica(1, 1, FUTURE), replica(2)))
    assert ids(answered(NODE, answer, 5, read(image(D1, D2, D2)))) == {"/d1": D1, "/d2": D2}
    alone = told(directory("/d1", replica(1)), directory("/d2", replica(1, 1, FUTURE)))
    assert ids(answered(NODE, alone, 5, read(image(D1, D2)))) == {"/d1": None, "/d2": None}


def test_an_offline_directory_has_the_id_that_is_left_while_the_controller_does_not_know() -> None:
    answer = told(directory("/d1", replica(0)), directory("/d2", code=56))
    metadata = image(D1, D2, D3)
    found = answered(NODE, answer, 5, read(metadata))
    assert (ids(found), found.log_dirs[1].replicas) == ({"/d1": D1, "/d2": D2}, 1)
    withdraw_ids([found], metadata, image(D1, D2, D3, registered=(D1,)))
    assert (ids(found), found.log_dirs[1].replicas) == ({"/d1": None, "/d2": None}, None)


def test_an_id_that_is_gone_is_not_taken_for_that_of_an_offline_directory() -> None:
    answer = told(directory("/d1", replica(0)), directory("/d2", code=56))
    found = answered(NODE, answer, 5, read(image(D1, D3, registered=(D1,))))
    assert (ids(found), found.log_dirs[1].replicas) == ({"/d1": D1, "/d2": None}, None)


def test_ids_are_taken_back_where_a_replica_was_moved_meanwhile() -> None:
    answer, before = told(directory("/d1", replica(0)), directory("/d2", replica(1), replica(2))), image(D1, D2, D2)
    moved, same = "replicas of this broker, or its directories, changed", None
    for after, reason in ((image(D1, D1, D2), moved), (image(D1, D2, D2), same), (image(D1, D2), same)):
        found = answered(NODE, answer, 5, read(before))
        withdraw_ids([found], before, after)
        assert ids(found) == ({"/d1": None, "/d2": None} if reason else {"/d1": D1, "/d2": D2})
        assert all(reason is None or reason in str(each.directory) for each in found.log_dirs)


def test_a_replica_that_got_a_directory_meanwhile_has_misled_nobody() -> None:
    answer, before = told(directory("/d1", replica(0)), directory("/d2", replica(1))), image(D1, UNASSIGNED)
    found = answered(NODE, answer, 5, read(before))
    withdraw_ids([found], before, image(D1, D2))
    assert ids(found) == {"/d1": D1, "/d2": D2}


def test_ids_are_taken_back_where_nobody_knows_what_was_moved_meanwhile() -> None:
    before = image(D1, D2)
    found = answered(NODE, told(directory("/d1", replica(0)), directory("/d2", replica(1))), 5, read(before))
    withdraw_ids([found], before, None)
    assert ids(found) == {"/d1": None, "/d2": None}
    assert "could not be read again" in str(found.log_dirs[0].directory)


def test_a_broker_that_registered_since_has_no_ids() -> None:
    found = answered(structs.replace(NODE, id=2), told(directory("/d1")), 5, read(image(D1)))
    assert (ids(found), found.unplaced) == ({}, None)


def test_the_metadata_of_another_cluster_are_recognised_by_the_addresses() -> None:
    assert not is_another_cluster(image(), [NODE, Node(id=2, host="h2", port=9092)])
    assert is_another_cluster(image(), [Node(id=1, host="h2", port=9092), Node(id=2, host="h1", port=9092)])


# ---------------------------------------------------------------- what is shown


def test_trouble_comes_first_then_what_is_full() -> None:
    nothing = known({})
    full, empty = (
        structs.replace(directory(path), usable_bytes=usable) for path, usable in (("/full", 10), ("/empty", 990))
    )
    brokers = [
        answered(NODE, told(empty, full, directory("/bad", code=56)), 5, nothing),
        unanswered(structs.replace(NODE, id=2), "silent", nothing),
        answered(structs.replace(NODE, id=3), told(directory("/d1"), directory("/d0")), 5, nothing),
        answered(structs.replace(NODE, id=4), told(directory("/cordoned", cordoned=True)), 3, nothing),
    ]
    order = [(broker.node.id, found and found.path) for broker, found in by_urgency(brokers)]
    assert order == [(2, None), (1, "/bad"), (1, "/full"), (3, "/d0"), (3, "/d1"), (4, "/cordoned"), (1, "/empty")]
    sums = totals(brokers)
    assert (sums.brokers, sums.unanswered, sums.log_dirs, sums.offline, sums.cordoned) == (4, 1, 6, 1, 0)
