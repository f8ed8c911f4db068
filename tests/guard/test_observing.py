"""The metadata of one broker: as the whole image has them, whatever the log says."""

from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.image import MetadataImage, Replayer
from kjbod.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from kjbod.metadata.snapshot import SnapshotId
from kjbod.metadata.versions import METADATA_VERSION
from kjbod_agent.guard.ladder import KafkaView
from kjbod_agent.guard.observing import RIVAL_MS, Held, Observed

OURS = 1
D1, D2, D3 = (Uuid.of(5, number) for number in (1, 2, 3))
ELSEWHERE = Uuid.of(6, 1)
T, U = Uuid.of(7, 1), Uuid.of(7, 2)


def registered(*log_dirs: Uuid, broker: int = OURS, epoch: int = 10) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=Uuid.of(1, epoch),
        broker_epoch=epoch,
        end_points=(),
        features=(),
        fenced=False,
        log_dirs=log_dirs,
    )


def changed(*log_dirs: Uuid, epoch: int = 10, fenced: int = 0) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id=OURS, broker_epoch=epoch, log_dirs=log_dirs, fenced=fenced)


def partition(number: int, leader: int, **directories: Uuid) -> PartitionRecord:
    """On brokers ``b1``, ``b2`` and so on, in this order."""
    brokers = tuple(int(name[1:]) for name in directories)
    return PartitionRecord(
        partition_id=number,
        topic_id=T,
        replicas=brokers,
        isr=brokers,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(directories.values()),
    )


def of(records: Iterable[Record], *, high_watermark: int | None = None) -> Observed:
    observed = Observed(OURS)
    log = tuple(enumerate(records))
    end = len(log)
    observed.committed(Committed(log, end - 1, 1, end if high_watermark is None else high_watermark, ()))
    return observed


TOPIC = TopicRecord(name="t", topic_id=T)


def test_only_replicas_of_the_broker_are_kept_with_directory_and_leadership() -> None:
    observed = of(
        [
            registered(D1, D2),
            TOPIC,
            partition(0, 1, b1=D1, b2=ELSEWHERE),
            partition(1, 2, b2=ELSEWHERE, b1=D1),
            partition(2, 2, b2=ELSEWHERE, b3=ELSEWHERE),
            partition(3, 1, b1=D2),
        ]
    )
    assert len(observed.partitions) == 3
    assert observed.held() == {D1: Held(1, 1), D2: Held(1, 0)}


def test_a_directory_that_leaves_the_registration_was_noticed_and_one_that_comes_back_is_online() -> None:
    observed = of([registered(D1, D2)])
    assert [observed.view(one) for one in (D1, D2, D3)] == [KafkaView.ONLINE, KafkaView.ONLINE, KafkaView.OFFLINE]
    observed.committed(Committed(((1, changed(D1)),), 1, 1, 2, ()))
    assert observed.view(D2) is KafkaView.OFFLINE
    observed.committed(Committed(((2, registered(D1, D2, epoch=20)),), 2, 1, 3, ()))
    assert observed.view(D2) is KafkaView.ONLINE


def test_nothing_is_concluded_before_all_that_was_committed_is_read_or_from_a_registration_without_directories() -> (
    None
):
    assert of([registered(D1)], high_watermark=5).view(D2) is KafkaView.UNKNOWN
    assert of([registered()]).view(D1) is KafkaView.UNKNOWN
    assert of([TOPIC]).view(D1) is KafkaView.UNKNOWN
    assert of([registered(D1), UnregisterBrokerRecord(broker_id=1, broker_epoch=10)]).view(D1) is KafkaView.UNKNOWN
    assert of([registered(D1)]).view(None) is KafkaView.UNKNOWN


def test_a_change_of_somebody_elses_partition_can_make_it_ours() -> None:
    observed = of([registered(D1), TOPIC, partition(0, 2, b2=ELSEWHERE)])
    change = PartitionChangeRecord(partition_id=0, topic_id=T, replicas=(2, 1), directories=(ELSEWHERE, UNASSIGNED))
    lead = PartitionChangeRecord(partition_id=0, topic_id=T, leader=1, directories=(ELSEWHERE, D1))
    observed.committed(Committed(((3, change),), 3, 1, 4, ()))
    assert observed.held() == {UNASSIGNED: Held(0, 1)}
    observed.committed(Committed(((4, lead),), 4, 1, 5, ()))
    assert observed.held() == {D1: Held(1, 0)}


def test_a_transaction_counts_at_its_end_and_one_that_is_aborted_never() -> None:
    begun = [registered(D1), TOPIC, BeginTransactionRecord(name="x"), partition(0, 1, b1=D1)]
    assert of(begun).held() == {}
    assert of([*begun, EndTransactionRecord()]).held() == {D1: Held(1, 0)}
    assert of([*begun, AbortTransactionRecord(reason="y"), partition(1, 2, b2=ELSEWHERE)]).held() == {}


def test_a_snapshot_replaces_everything() -> None:
    observed = of([registered(D1), TOPIC, partition(0, 1, b1=D1)])
    records = (
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=20),
        registered(D2),
        TopicRecord(name="u", topic_id=U),
        PartitionRecord(partition_id=4, topic_id=U, replicas=(1,), isr=(1,), leader=2, directories=(D2,)),
    )
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 3), records, None))
    assert (fresh.offset, fresh.metadata_version, fresh.topics) == (99, 20, {U: "u"})
    assert fresh.held() == {D2: Held(0, 1)}
    fresh.committed(Committed((), 99, 3, 100, ()))
    assert [fresh.view(one) for one in (D1, D2)] == [KafkaView.OFFLINE, KafkaView.ONLINE]


def test_a_partition_that_the_broker_was_taken_out_of_is_followed_until_it_is_back() -> None:
    observed = of([registered(D1), TOPIC, partition(0, 2, b2=ELSEWHERE, b1=D1), partition(1, 2, b2=ELSEWHERE, b1=D1)])
    observed.follow_evicted([(T, 0)])
    left = [PartitionChangeRecord(partition_id=n, topic_id=T, replicas=(2,), isr=(2,)) for n in (0, 1)]
    observed.committed(Committed(tuple(enumerate(left, 4)), 5, 1, 6, ()))
    assert set(observed.others) == {(T, 0)} and not observed.partitions
    back = PartitionChangeRecord(
        partition_id=0, topic_id=T, replicas=(2, 1), adding_replicas=(1,), directories=(ELSEWHERE, D1)
    )
    observed.committed(Committed(((6, back),), 6, 1, 7, ()))
    assert observed.partitions[T, 0].adding == (1,) and not observed.others


def test_a_neighbour_that_is_fenced_or_loses_a_directory_is_known_with_the_time() -> None:
    def change(fenced: int, *log_dirs: Uuid) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=7, fenced=fenced, log_dirs=log_dirs)

    observed = of([registered(D1), registered(D2, D3, broker=2, epoch=7), change(1), change(-1)])
    assert observed.neighbours[2].fenced_ms is None  # before we came
    observed.committed(Committed(((4, change(1)),), 4, 1, 5, ()), 1000)
    observed.committed(Committed(((5, change(0, D2)),), 5, 1, 6, ()), 2000)
    now = observed.neighbours[2]
    assert (now.fenced, now.fenced_ms, now.log_dirs, now.lost_ms) == (True, 1000, 1, 2000)


def test_of_a_neighbour_that_is_fenced_again_and_again_the_first_record_counts_until_it_was_well_for_a_while() -> None:
    def change(fenced: int) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=7, fenced=fenced)

    observed = of([registered(D1), registered(D2, broker=2, epoch=7)])
    last_ms = 4_000 + RIVAL_MS
    for offset, (fenced, at_ms) in enumerate([(1, 1_000), (-1, 2_000), (1, 4_000), (-1, 5_000), (1, last_ms)], 2):
        observed.committed(Committed(((offset, change(fenced)),), offset, 1, offset + 1, ()), at_ms)
        if at_ms == 4_000:
            assert (observed.neighbours[2].fenced_at, observed.neighbours[2].fenced_ms) == (2, 4_000)
    assert (observed.neighbours[2].fenced_at, observed.neighbours[2].fenced_ms) == (6, last_ms)


def test_a_snapshot_forgets_no_neighbour_in_trouble_and_says_nothing_before_all_is_read() -> None:
    change = BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=7, fenced=1)
    observed = of([registered(D1), *(registered(D2, D3, broker=one, epoch=7) for one in (2, 3, 4))])
    observed.committed(Committed(((4, change),), 4, 1, 5, ()), 1000)
    fenced = RegisterBrokerRecord(
        broker_id=2, incarnation_id=Uuid.of(1, 7), broker_epoch=7, end_points=(), features=(), fenced=True
    )
    records = (registered(D1), fenced, registered(D2, broker=3, epoch=7), registered(D2, D3, broker=4, epoch=7))
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 3), records, None), 5000)
    assert fresh.neighbours[2].fenced_ms == 1000
    assert (fresh.neighbours[3].lost_ms, fresh.neighbours[4].lost_ms) == (5000, None)
    assert fresh.view(D1) is KafkaView.UNKNOWN
    # What comes until all is read has happened while we watched, too.
    lost = BrokerRegistrationChangeRecord(broker_id=4, broker_epoch=7, log_dirs=(D2,))
    fresh.committed(Committed(((100, lost),), 100, 1, 105, ()), 6000)
    assert fresh.neighbours[4].lost_ms == 6000 and not fresh.complete
    fresh.committed(Committed((), 104, 1, 105, ()), 6001)
    assert fresh.view(D1) is KafkaView.ONLINE


def test_min_insync_replicas_is_the_topics_the_brokers_the_clusters_or_the_files() -> None:
    def config(kind: int, name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=kind, resource_name=name, name="min.insync.replicas", value=value)

    observed = of([TOPIC])
    assert observed.min_insync_replicas(T, 1) == 1
    for record, expected in (
        (config(4, "", "2"), 2),
        (config(4, "1", "3"), 3),
        (config(2, "t", "4"), 4),
        (config(2, "t", None), 3),
        (config(4, "1", None), 2),
    ):
        observed.committed(Committed(((1, record),), 1, 1, 2, ()))
        assert observed.min_insync_replicas(T, 1) == expected
    observed.committed(Committed(((1, config(2, "t", "4")), (2, RemoveTopicRecord(topic_id=T))), 2, 1, 3, ()))
    assert not observed.min_isr


# -------------------------------------------------------------------------------------- the same as the whole image has

BROKERS = st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records that fit together: topics, partitions, their changes."""
    records: list[Record] = [registered(D1, D2)]
    shapes: dict[tuple[Uuid, int], tuple[int, ...]] = {}
    alive: set[Uuid] = set()
    for _ in range(draw(st.integers(1, 25))):
        topic = draw(st.sampled_from([T, U]))
        if topic not in alive:
            alive.add(topic)
            records.append(TopicRecord(name=str(topic), topic_id=topic))
        deed = draw(st.sampled_from(["put", "change", "remove"]))
        key = (topic, draw(st.integers(0, 3)))
        replicas = draw(BROKERS)
        directories = tuple(draw(st.sampled_from([D1, D2, ELSEWHERE, MIGRATING])) for _ in replicas)
        if deed == "remove":
            alive.discard(topic)
            shapes = {one: shape for one, shape in shapes.items() if one[0] != topic}
            records.append(RemoveTopicRecord(topic_id=topic))
        elif deed == "put" or key not in shapes:
            if key in shapes:
                continue
            shapes[key] = replicas
            leader = draw(st.sampled_from([-1, *replicas]))
            records.append(
                PartitionRecord(
                    partition_id=key[1],
                    topic_id=topic,
                    replicas=replicas,
                    isr=replicas,
                    leader=leader,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=directories,
                )
            )
        else:
            records.append(_change(draw, key, replicas, directories, shapes))
    return records


def _change(
    draw: st.DrawFn,
    key: tuple[Uuid, int],
    replicas: Sequence[int],
    directories: Sequence[Uuid],
    shapes: dict[tuple[Uuid, int], tuple[int, ...]],
) -> PartitionChangeRecord:
    moved = draw(st.booleans())
    now = tuple(replicas) if moved else shapes[key]
    shapes[key] = now
    # As controllers have it: whoever leads is one of the replicas, so that who leaves the list leads no more.
    leader = draw(st.sampled_from([-1, *now]))
    return PartitionChangeRecord(
        partition_id=key[1],
        topic_id=key[0],
        replicas=now if moved else None,
        directories=tuple(directories[: len(now)]) + (D1,) * (len(now) - len(directories)) if moved else None,
        leader=leader,
    )


@given(logs())
def test_what_is_kept_is_what_the_whole_image_has_of_this_broker(records: list[Record]) -> None:
    replayer = Replayer(MetadataImage())
    for offset, record in enumerate(records):
        replayer.replay(offset, 1, record)
    expected = {
        (topic.id, number): (found.directory(OURS), found.leader == OURS, found.replicas, found.isr)
        for topic in replayer.image.topics.values()
        for number, found in topic.partitions.items()
        if OURS in found.replicas
    }
    observed = of(records)
    last = {(one.topic_id, one.partition_id): one for one in records if isinstance(one, PartitionRecord)}
    whole = (*(one for one in records if isinstance(one, TopicRecord | RegisterBrokerRecord)), *last.values())
    reader = Observed(OURS)
    wanted = tuple(record for record in whole if reader.wants(record))
    one, other = (reader.snapshot(Snapshot(SnapshotId(100, 1), some, None)) for some in (whole, wanted))
    assert (one.partitions, one.topics, one.neighbours) == (other.partitions, other.topics, other.neighbours)
    kept = {
        # Who is in sync is not known of what was somebody else's, until that changes.
        key: (one.directory, one.leads, one.replicas, one.isr or expected[key][3])
        for key, one in observed.partitions.items()
    }
    assert kept == expected
    assert observed.topics == {topic.id: topic.name for topic in replayer.image.topics.values()}
    assert observed.registration == replayer.image.brokers[OURS]
