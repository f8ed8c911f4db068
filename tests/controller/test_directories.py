"""Failed directories and assignments: rows CT-10 to CT-12, and what the KIP's rules add to shipped Kafka's."""

import itertools

import pytest

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import PartitionRegistration
from kjbod.metadata.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse, DeleteTopicsRequest
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import FOREVER, World, directories, directory, errors

BOTH = pytest.mark.parametrize("rules", [KIP_858, KAFKA], ids=lambda rules: rules.name)


@BOTH
def test_ct10_assignments_need_a_metadata_version_with_directories(rules: Rules) -> None:
    world = World(rules, metadata_version=16)
    world.join(1)
    topic = world.create("t", (1,))
    answer = world.assign(1, (directory(1, 0), topic, (0,)))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert not answer.directories


@BOTH
def test_ct11_assignments_are_answered_and_recorded_one_by_one(rules: Rules) -> None:
    world = World(rules)
    world.join(1, 2)
    world.join(2, 1)
    foo = world.create("foo", (1, 2), (1, 2), (1, 2), (1, 2))
    world.create("bar", (2,))
    bar = world.topic_id("bar")
    unknown = Uuid.of(55, 55)
    answer = world.assign(
        1,
        (directory(1, 0), foo, (0,)),
        (directory(1, 1), foo, (1,)),
        (unknown, foo, (2,)),
        (LOST, foo, (3,)),
        (directory(1, 0), Uuid.of(8, 8), (0,)),
        (directory(1, 0), foo, (77,)),
        (directory(1, 0), bar, (0,)),
    )
    assert answer.error_code == 0
    assert errors(answer) == [0, 0, 0, 0, 100, 3, 6]
    assert [place.id_ for place in answer.directories][2:4] == [unknown, LOST]
    placed, moved = world.changes()[:4], world.changes()[4:]
    other = directory(2, 0)
    assert [change.directories for change in placed] == [
        (directory(1, 0), other),
        (directory(1, 1), other),
        (unknown, other),
        (LOST, other),
    ]
    assert [(change.partition_id, change.isr, change.leader) for change in moved] == [(2, (2,), 2), (3, (2,), 2)]


@BOTH
def test_ct12_a_failed_directory_loses_its_leaders_then_its_place_in_the_registration(rules: Rules) -> None:
    world = World(rules)
    world.join(1, 2)
    world.join(2, 1)
    topic = world.create("foo", (1, 2), (1, 2), (2, 1))
    world.assign(1, (directory(1, 0), topic, (0, 1)), (directory(1, 1), topic, (2,)))
    foreign = () if rules.checks_offline_directories else (directory(2, 0),)
    assert world.beat(1, offline=(directory(1, 0), *foreign)).error_code == 0
    assert [type(record) for record in world.last] == [
        PartitionChangeRecord,
        PartitionChangeRecord,
        BrokerRegistrationChangeRecord,
    ]
    assert world.last_versions == [2, 2, 2]
    assert [(change.isr, change.leader) for change in world.changes()] == [((2,), 2), ((2,), 2)]
    assert world.broker_changes()[0].log_dirs == (directory(1, 1),)
    assert world.partition("foo", 2).isr == (2, 1)


@BOTH
def test_a_broker_repeats_its_failed_directories_for_ever_and_nothing_happens(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    world.beat(1, offline=(directory(1, 0),))
    for offline in ((directory(1, 0),), (), (directory(1, 0), directory(1, 0))):
        assert world.beat(1, offline=offline).error_code == 0
        assert not world.last
    world.beat(1, offline=(directory(1, 0), directory(1, 1)))
    assert world.broker(1).log_dirs == (directory(1, 2),)


def test_repeated_failed_directories_are_known_after_the_controllers_restart() -> None:
    world = World()
    world.join(1)
    world.beat(1, offline=(directory(1, 0),))
    world.controller = world.replayed()
    assert world.beat(1, offline=(directory(1, 0),)).error_code == 0
    assert not world.last


def test_directories_that_failed_before_a_snapshot_may_be_repeated_after_it() -> None:
    """Nothing in a snapshot says that the broker ever had them, and it repeats them in every heartbeat."""
    world = World()
    world.join(1)
    world.beat(1, offline=(directory(1, 0),))
    fresh = world.new_controller()
    fresh.recover_snapshot(SnapshotId(world.controller.next_offset, 1), world.controller.image.to_records())
    fresh.activate(world.now_ms)
    world.controller = fresh
    assert world.beat(1, offline=(directory(1, 0),)) == BrokerHeartbeatResponse(is_caught_up=True, is_fenced=False)
    assert not world.last


@pytest.mark.parametrize(
    "unknown",
    [Uuid.of(55, 55), directory(2, 0), LOST, UNASSIGNED, MIGRATING],
    ids=["never seen", "other's", "L", "U", "M"],
)
def test_an_unknown_failed_directory_fails_the_heartbeat_under_kip_rules_only(unknown: Uuid) -> None:
    world = World(KIP_858)
    world.join(1)
    world.join(2)
    world.now_ms += 5_000
    answer = world.beat(1, offline=(directory(1, 0), unknown))
    assert answer.error_code == ErrorCode.LOG_DIR_NOT_FOUND
    assert not world.last
    # It may have hidden a real failure: such a heartbeat does not keep the broker alive.
    world.now_ms += 4_001
    world.beat(2)
    assert world.expire()
    assert world.broker(1).fenced

    shipped = World(KAFKA)
    shipped.join(1)
    assert shipped.beat(1, offline=(unknown,)).error_code == 0
    assert not shipped.last


def test_the_last_directory_fences_the_broker_under_kip_rules() -> None:
    world = World(KIP_858)
    world.join(1, 2)
    world.join(2, 1)
    world.create("t", (1, 2))
    world.assign_all(1)
    answer = world.beat(1, offline=directories(1, 2))
    assert answer.is_fenced
    assert world.partition("t").leader == 2
    written = len(world.log)
    for offline in (directories(1, 2), ()):
        assert world.beat(1, offline=offline).is_fenced
    assert len(world.log) == written


def test_the_last_directory_is_an_empty_record_at_every_heartbeat_in_shipped_kafka() -> None:
    world = World(KAFKA)
    world.join(1, 2)
    for _ in range(2):
        assert not world.beat(1, offline=directories(1, 2)).is_fenced
        assert world.broker_changes()[0].log_dirs == ()
        assert world.broker(1).log_dirs == directories(1, 2)


def test_a_leader_of_unknown_place_moves_when_its_broker_loses_a_directory() -> None:
    for rules, leader in ((KIP_858, 2), (KAFKA, 1)):
        world = World(rules)
        world.join(1)
        world.join(2)
        world.create("t", (1, 2))
        world.beat(1, offline=(directory(1, 0),))
        assert world.partition("t").leader == leader, rules.name


def test_a_leader_of_unknown_place_that_nobody_can_replace_stays_and_is_counted() -> None:
    world = World()
    world.join(1)
    world.create("t", (1,))
    heartbeat = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=world.broker(1).epoch,
        current_metadata_offset=FOREVER,
        offline_log_dirs=(directory(1, 0),),
    )
    result = world.controller.handle(heartbeat, Context(2), world.now_ms)
    world.write(result)
    assert world.partition("t").leader == 1
    note = next(note for note in result.notes if note.event == "directories.offline")
    assert note.fields["leaders_without_directory"] == 1


def test_a_leaderless_partition_is_led_again_when_its_replica_is_found() -> None:
    for rules, leader in ((KIP_858, 1), (KAFKA, -1)):
        world = World(rules)
        world.join(1)
        topic = world.create("t", (1,))
        world.assign(1, (directory(1, 0), topic, (0,)))
        world.beat(1, offline=(directory(1, 0),))
        assert world.partition("t").leader == -1
        world.assign(1, (directory(1, 1), topic, (0,)))
        assert world.partition("t").leader == leader, rules.name


@BOTH
def test_an_offline_replica_is_not_elected_when_its_broker_is_unfenced(rules: Rules) -> None:
    world = World(rules)
    world.join(1, 2)
    topic = world.create("t", (1,))
    world.assign(1, (directory(1, 0), topic, (0,)))
    world.beat(1, offline=(directory(1, 0),))
    world.now_ms += 9_001
    world.expire()
    world.beat(1, offline=(directory(1, 0),))
    assert not world.broker(1).fenced
    assert world.partition("t").leader == -1


def test_unfencing_with_a_failed_directory_elects_with_what_is_left() -> None:
    world = World()
    world.join(1, 2)
    world.join(2, 2)
    topic = world.create("t", (1,), (1,))
    world.assign(1, (directory(1, 0), topic, (0,)), (directory(1, 1), topic, (1,)))
    world.now_ms += 9_001
    world.beat(2)
    world.expire()
    answer = world.beat(1, offline=(directory(1, 0),))
    assert not answer.is_fenced
    assert (world.partition("t", 0).leader, world.partition("t", 1).leader) == (-1, 1)


def test_fencing_with_a_failed_directory_changes_a_leader_once_under_kip_rules() -> None:
    for rules, epoch in ((KIP_858, 1), (KAFKA, 2)):
        world = World(rules)
        world.join(1)
        world.join(2)
        topic = world.create("t", (1, 2))
        world.assign(1, (directory(1, 0), topic, (0,)))
        world.beat(1, fence=True, offline=(directory(1, 0),))
        assert (world.partition("t").leader, world.partition("t").leader_epoch) == (2, epoch), rules.name


def test_isr_never_takes_an_offline_replica_under_kip_rules() -> None:
    for rules, expected in ((KIP_858, ErrorCode.INELIGIBLE_REPLICA), (KAFKA, 0)):
        world = World(rules)
        world.join(1)
        world.join(2)
        topic = world.create("t", (1, 2))
        world.assign(1, (directory(1, 0), topic, (0,)))
        world.beat(1, offline=(directory(1, 0),))
        answer = world.alter_isr("t", (2, 1))
        assert answer.topics[0].partitions[0].error_code == expected, rules.name


@BOTH
@pytest.mark.parametrize(
    ("isr", "fields", "expected"),
    [
        ((1, 2), {}, 0),
        ((1,), {}, 0),
        ((1, 3), {}, ErrorCode.INVALID_REQUEST),
        ((2,), {}, ErrorCode.INVALID_REQUEST),
        ((), {}, ErrorCode.INVALID_REQUEST),
        ((1, 1), {}, ErrorCode.INVALID_REQUEST),
        ((1,), {"broker_id": 2}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1,), {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1,), {"leader_recovery_state": 2}, ErrorCode.INVALID_REQUEST),
        ((1,), {"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_alter_partition_is_checked_in_kafkas_order(
    rules: Rules, isr: tuple[int, ...], fields: dict[str, int], expected: int
) -> None:
    world = World(rules)
    world.join(1)
    world.join(2)
    world.create("t", (1, 2))
    answer = world.alter_isr("t", isr, **fields)
    assert answer.topics[0].partitions[0].error_code == expected
    assert len(world.last) == (isr == (1,) and not expected)


@BOTH
def test_ct14_a_fenced_broker_does_not_join_the_isr(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    world.join(2)
    world.create("t", (1, 2))
    world.beat(2, fence=True)
    answer = world.alter_isr("t", (1, 2))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    world.beat(2)
    answer = world.alter_isr("t", (1, 2))
    assert (answer.topics[0].partitions[0].error_code, world.partition("t").isr) == (0, (1, 2))


@BOTH
def test_assignments_of_another_epoch_are_stale(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    topic = world.create("t", (1,))
    answer = world.assign(1, (directory(1, 0), topic, (0,)), epoch=1)
    assert (answer.error_code, answer.directories) == (ErrorCode.STALE_BROKER_EPOCH, ())
    answer = world.assign(99, (directory(1, 0), topic, (0,)), epoch=5)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


@BOTH
def test_more_assignments_than_a_shipped_broker_sends_at_once_are_taken(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    topic = world.create("t", *[(1,)] * 2_300)
    answer = world.assign(1, *((directory(1, number % 3), topic, tuple(range(2_300))) for number in range(5)))
    assert errors(answer) == [0] * 11_500


def test_a_directory_that_a_repeated_registration_leaves_out_loses_its_leaders_under_kip_rules() -> None:
    for rules, leader in ((KIP_858, 2), (KAFKA, 1)):
        world = World(rules)
        world.join(1, 2)
        world.join(2, 2)
        topic = world.create("t", (1, 2))
        world.assign(1, (directory(1, 1), topic, (0,)))
        assert world.register(1, 1).error_code == 0
        assert world.partition("t").leader == leader, rules.name


def test_a_replica_that_is_moved_often_in_one_request_takes_time_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(KIP_858)
    world.join(1)
    topic = world.create("t", (1,))
    merges = itertools.count()
    real = PartitionRegistration.merge

    def counted(self: PartitionRegistration, record: PartitionChangeRecord) -> PartitionRegistration:
        next(merges)
        return real(self, record)

    monkeypatch.setattr(PartitionRegistration, "merge", counted)
    moves = 300
    world.assign(1, *((directory(1, number % 2), topic, (0,)) for number in range(moves)))
    assert next(merges) <= 3 * moves
    assert world.partition("t").directory(1) == directory(1, 1)


@BOTH
def test_only_directories_that_a_broker_has_are_remembered_as_offline(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    for number in range(20):
        world.beat(1, offline=(Uuid.of(77, number), directory(1, 0)))
        world.beat(1, offline=(directory(1, 0),))
    contact = world.controller.heartbeats.contact(1, world.broker(1).epoch)
    assert contact is not None
    assert contact.offline <= {directory(1, 0)}


@BOTH
def test_a_directory_that_held_a_deleted_topic_fails(rules: Rules) -> None:
    # A real controller of 4.3.1 resigns here: its index of directories still has the topic.
    world = World(rules)
    world.join(1)
    topic = world.create("t", (1,))
    world.assign(1, (directory(1, 0), topic, (0,)))
    world.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
    assert world.beat(1, offline=(directory(1, 0),)).error_code == 0
    assert world.broker(1).log_dirs == (directory(1, 1), directory(1, 2))


def test_a_broker_whose_directory_failed_before_a_snapshot_may_repeat_it_to_the_controller_that_starts_from_it() -> (
    None
):
    world = World()
    world.join(1)
    assert world.beat(1, offline=(directory(1, 0),)).error_code == 0
    restarted = world.new_controller()
    restarted.recover_snapshot(SnapshotId(world.controller.next_offset, 1), list(world.controller.image.to_records()))
    restarted.activate(world.now_ms)
    world.controller = restarted
    answer = world.beat(1, offline=(directory(1, 0),))
    assert (answer.error_code, answer.is_fenced, world.last) == (0, False, [])


@pytest.mark.parametrize("nowhere", [UNASSIGNED, MIGRATING], ids=["U", "M"])
def test_an_assignment_to_no_directory_takes_the_replica_offline(nowhere: Uuid) -> None:
    """KIP-858: "If the indicated log directory UUID is not one of the Broker's online log directories, then the replica
    is considered offline and the leader and ISR is updated accordingly"."""
    for rules, leader, isr in ((KIP_858, 2, (2,)), (KAFKA, 1, (1, 2))):
        world = World(rules)
        world.join(1)
        world.join(2)
        topic = world.create("t", (1, 2))
        world.assign_all(1)
        world.assign_all(2)
        assert errors(world.assign(1, (nowhere, topic, (0,)))) == [0]
        partition = world.partition("t")
        assert (partition.leader, partition.isr, partition.directories[0]) == (leader, isr, nowhere)
