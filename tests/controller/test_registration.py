"""Registration: rows CT-1 to CT-8 and CT-17 of the reference, under both sets of rules where they differ."""

from typing import Any

import pytest

from kjbod.ids import LOST, MIGRATING, ONE, UNASSIGNED, ZERO, Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import image_of
from kjbod.metadata.records import RegisterBrokerRecord, RegisterControllerRecord, UnregisterControllerRecord
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.admin_messages import UnregisterControllerRequest
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    BrokerRegistrationRequest,
    BrokerRegistrationRequestFeature,
    BrokerRegistrationRequestListener,
    ControllerRegistrationRequest,
    ControllerRegistrationRequestListener,
    MetadataRequest,
    UnregisterBrokerRequest,
)
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.log.snapshots import with_failed
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import FEATURES, NODE_ID, World, directories, directory

BOTH = pytest.mark.parametrize("rules", [KIP_858, KAFKA], ids=lambda rules: rules.name)


@BOTH
def test_ct1_directories_that_cannot_be_a_brokers_are_refused(rules: Rules) -> None:
    world = World(rules)
    assert world.register(1).error_code == 0
    assert world.register(1).error_code == 0
    cases = {
        "reserved": (ONE,),
        "reserved, the last one": (Uuid.of(0, 99),),
        "twice": (directory(2, 0), directory(2, 0)),
        "another broker's": (directory(2, 0), directory(1, 1)),
    }
    for why, dirs in cases.items():
        assert world.register(2, dirs).error_code == ErrorCode.INVALID_REGISTRATION, why
        assert not world.last
    assert world.register(2, (Uuid.of(0, 100),)).error_code == 0


@pytest.mark.parametrize(
    ("rules", "expected"), [(KIP_858, ErrorCode.INVALID_REQUEST), (KAFKA, ErrorCode.INVALID_REGISTRATION)]
)
def test_ct1_registration_without_directories_gets_the_error_of_the_rules(rules: Rules, expected: int) -> None:
    world = World(rules)
    assert world.register(1, ()).error_code == expected
    assert not world.last


def test_ct2_ct22_a_directory_is_online_when_registered_or_not_known_yet() -> None:
    world = World()
    world.register(1, 2)
    image = world.controller.image
    for online in (*directories(1, 2), UNASSIGNED, MIGRATING):
        assert image.has_online_dir(1, online)
    for offline in (directory(1, 9), LOST):
        assert not image.has_online_dir(1, offline)
    assert not image.has_online_dir(77, directory(1, 0))


def test_ct3_new_replicas_go_to_the_only_directory_or_nowhere_yet() -> None:
    world = World()
    world.register(1, 1)
    world.register(2, 2)
    image = world.controller.image
    assert image.default_dir(1) == directory(1, 0)
    assert image.default_dir(2) == UNASSIGNED
    assert image.default_dir(3) == UNASSIGNED
    old = World(metadata_version=16)
    old.register(1, 1)
    assert old.controller.image.default_dir(1) == MIGRATING


@BOTH
def test_ct4_a_new_incarnation_gets_a_new_epoch_and_the_same_one_keeps_its_own(rules: Rules) -> None:
    world = World(rules)
    first = world.register(1).broker_epoch
    assert first == world.log[-1].offset
    assert world.register(1).broker_epoch == first
    second = world.register(1, number=1).broker_epoch
    assert second > first
    assert world.broker(1).epoch == second


def test_ct5_another_clusters_broker_is_refused() -> None:
    assert World().register(1, cluster_id="other").error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"metadata.version": None}, ErrorCode.INVALID_REGISTRATION),
        ({"metadata.version": (7, 30)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"metadata.version": (7, 32)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"metadata.version": (34, 40)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"metadata.version": (1, 99)}, 0),
        ({"kraft.version": None}, ErrorCode.UNSUPPORTED_VERSION),
        ({"group.version": (2, 1)}, ErrorCode.UNSUPPORTED_VERSION),
        ({"foo.version": (0, 3)}, 0),
        ({"foo.version": (1, 3)}, ErrorCode.UNSUPPORTED_VERSION),
    ],
    ids=str,
)
def test_ct5_ct17_a_broker_has_to_run_every_finalized_feature(
    change: dict[str, tuple[int, int] | None], expected: int
) -> None:
    ranges = {f.name: (f.min_supported_version, f.max_supported_version) for f in FEATURES} | change
    features = tuple(
        BrokerRegistrationRequestFeature(name=name, min_supported_version=r[0], max_supported_version=r[1])
        for name, r in ranges.items()
        if r is not None
    )
    assert World().register(1, features=features).error_code == expected


@BOTH
@pytest.mark.parametrize(("level", "last", "said"), [
    (33, 14, True), (33, 16, True), (17, 14, True), (16, 14, True), (15, 8, True), (33, 17, False), (33, 30, False),
])  # fmt: skip
def test_a_broker_before_kafka_3_7_is_named_as_one_with_what_to_do(
    rules: Rules, level: int, last: int, said: bool
) -> None:
    world = World(rules, metadata_version=level)
    request = BrokerRegistrationRequest(
        broker_id=1,
        cluster_id=world.cluster_id,
        incarnation_id=Uuid.of(1, 1),
        listeners=(BrokerRegistrationRequestListener(name="PLAINTEXT", host="localhost", port=9092),),
        features=(
            BrokerRegistrationRequestFeature(
                name="metadata.version", min_supported_version=1, max_supported_version=last
            ),
        ),
        rack=None,
    )
    result = world.controller.handle(request, Context(1), world.now_ms)
    (reason,) = (note.fields["reason"] for note in result.notes if note.event == "broker.refused")
    assert isinstance(reason, str)
    assert ("Kafka before 3.7 has no JBOD in KRaft (KIP-858): upgrade the broker" in reason) == said
    if level < versions.DIRECTORY_ASSIGNMENT:
        assert f"finalized version {level} of metadata.version" in reason


@pytest.mark.parametrize(("level", "version"), [(7, 1), (8, 2), (16, 2), (17, 3), (29, 3), (30, 4)])
def test_ct6_registration_records_follow_the_metadata_version(level: int, version: int) -> None:
    world = World(metadata_version=level)
    assert world.register(1).error_code == 0
    assert world.last_versions == [version]
    record = world.last[0]
    assert isinstance(record, RegisterBrokerRecord)
    assert record.log_dirs == (directories(1) if level >= versions.DIRECTORY_ASSIGNMENT else ())
    assert record.fenced


def test_ct7_unregistering_frees_the_directories() -> None:
    world = World()
    world.join(1)
    assert world.register(2, directories(1)).error_code == ErrorCode.INVALID_REGISTRATION
    assert world.ask(UnregisterBrokerRequest(broker_id=1)).error_message == ""
    assert world.register(2, directories(1)).error_code == 0


def test_ct8_directories_are_kept_in_the_order_of_ids_whatever_the_request_has() -> None:
    world = World()
    negative = Uuid.of(-5, 1)
    world.register(1, (directory(1, 1), directory(1, 0), negative))
    assert world.broker(1).log_dirs == (negative, directory(1, 0), directory(1, 1))


@BOTH
def test_ct17_an_unregistered_broker_is_stale_and_unknown(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    epoch = world.broker(1).epoch
    assert world.ask(UnregisterBrokerRequest(broker_id=1)).error_code == 0
    assert world.beat(1, epoch=epoch).error_code == ErrorCode.STALE_BROKER_EPOCH
    again = world.ask(UnregisterBrokerRequest(broker_id=1))
    assert again.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert again.error_message == "Broker ID 1 is not currently registered"
    assert world.register(1).broker_epoch > epoch


@BOTH
@pytest.mark.parametrize(("host", "port", "protocol"), [("h", 0, 0), ("", 9, 0), ("h", 9, 77), ("h", 9, -1)], ids=str)
def test_endpoint_that_makes_a_shipped_controller_resign_is_refused(
    rules: Rules, host: str, port: int, protocol: int
) -> None:
    world = World(rules)
    listener = BrokerRegistrationRequestListener(name="X", host=host, port=port, security_protocol=protocol)
    assert world.register(1, listeners=(listener,)).error_code == ErrorCode.INVALID_REGISTRATION
    assert world.register(2).error_code == 0


def controller_registration(
    controller_id: int = 7, host: str = "h", port: int = 9093, security_protocol: int = 0
) -> ControllerRegistrationRequest:
    listener = ControllerRegistrationRequestListener(
        name="CONTROLLER", host=host, port=port, security_protocol=security_protocol
    )
    return ControllerRegistrationRequest(
        controller_id=controller_id, incarnation_id=Uuid.of(7, 7), listeners=(listener,)
    )


@BOTH
@pytest.mark.parametrize(
    "fields",
    [
        {"security_protocol": 25},
        {"security_protocol": -1},
        {"host": ""},
        {"port": 0},
        {"controller_id": -1},
        {"controller_id": NODE_ID},
    ],
    ids=str,
)
def test_a_controller_that_no_controller_of_kafka_could_load_is_not_written(
    rules: Rules, fields: dict[str, Any]
) -> None:
    world = World(rules)
    assert world.ask(controller_registration(**fields)).error_code == ErrorCode.INVALID_REGISTRATION
    assert not world.last
    assert world.ask(controller_registration()).error_code == 0
    (record,) = world.last
    assert isinstance(record, RegisterControllerRecord)
    assert (record.controller_id, record.end_points[0].port) == (7, 9093)


OLD = "The current MetadataVersion is too old to support controller unregistration."
ITSELF = "Controller cannot unregister itself while it is active."


@BOTH
def test_a_controllers_registration_ends_once_and_may_come_again(rules: Rules) -> None:
    world = World(rules)
    assert world.ask(controller_registration()).error_code == 0
    answer = world.ask(UnregisterControllerRequest(controller_id=7))
    assert (answer.error_code, answer.error_message) == (0, "")
    assert world.last == [UnregisterControllerRecord(controller_id=7)]
    assert world.last_versions == [0]
    assert 7 not in world.controller.image.controllers
    assert 7 not in world.replayed().image.controllers
    assert world.ask(UnregisterControllerRequest(controller_id=7)).error_code == ErrorCode.CONTROLLER_ID_NOT_REGISTERED
    assert world.ask(controller_registration()).error_code == 0


@pytest.mark.parametrize(
    ("level", "controller_id", "code", "message"),
    [
        (33, NODE_ID, ErrorCode.INVALID_REQUEST, ITSELF),
        (30, NODE_ID, ErrorCode.INVALID_REQUEST, ITSELF),
        (32, 7, ErrorCode.UNSUPPORTED_VERSION, OLD),
        (31, 7, ErrorCode.UNSUPPORTED_VERSION, OLD),
        (30, 7, ErrorCode.UNSUPPORTED_VERSION, OLD),
        (15, 7, ErrorCode.UNSUPPORTED_VERSION, OLD),
        (7, 9, ErrorCode.UNSUPPORTED_VERSION, OLD),
        (33, 9, ErrorCode.CONTROLLER_ID_NOT_REGISTERED, "Controller ID 9 is not currently registered."),
        (33, -1, ErrorCode.CONTROLLER_ID_NOT_REGISTERED, "Controller ID -1 is not currently registered."),
        (33, 1, ErrorCode.CONTROLLER_ID_NOT_REGISTERED, "Controller ID 1 is not currently registered."),
    ],
)
def test_a_registration_that_cannot_end_is_refused_in_kafkas_words(
    level: int, controller_id: int, code: ErrorCode, message: str
) -> None:
    world = World(KAFKA, metadata_version=level)
    world.register(1)
    world.ask(controller_registration())
    answer = world.ask(UnregisterControllerRequest(controller_id=controller_id))
    assert (answer.error_code, answer.error_message) == (code, message)
    assert not world.last


@pytest.mark.parametrize(
    "fields", [{"broker_id": -1}, {"broker_id": NODE_ID}, {"broker_id": 1, "incarnation_id": ZERO}], ids=str
)
def test_identity_that_nobody_can_have_is_refused_by_the_kip_rules_only(fields: dict[str, int]) -> None:
    broker_id = fields["broker_id"]
    rest = {name: value for name, value in fields.items() if name != "broker_id"}
    assert World(KIP_858).register(broker_id, **rest).error_code == ErrorCode.INVALID_REGISTRATION
    assert World(KAFKA).register(broker_id, **rest).error_code == 0


@BOTH
def test_second_process_with_the_id_of_a_live_broker_is_refused_until_its_session_ends(rules: Rules) -> None:
    world = World(rules)
    world.join(1)
    assert world.register(1, number=1).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.now_ms += 9_000
    assert world.register(1, number=1).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.now_ms += 1
    assert world.register(1, number=1).error_code == 0


def test_registration_that_replaces_a_silent_leader_takes_its_leaderships() -> None:
    world = World()
    world.join(1)
    world.join(2)
    world.create("t", (1, 2))
    world.now_ms += 9_001  # its session is over and nobody has looked yet
    world.beat(2)
    world.register(1, number=1)
    assert world.partition("t").leader == 2
    assert world.partition("t").isr == (2,)


@BOTH
def test_zookeeper_brokers_are_refused(rules: Rules) -> None:
    answer = World(rules).register(1, is_migrating_zk_broker=True)
    assert answer.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_repeated_registration_does_not_revive_failed_directories_under_kip_rules() -> None:
    for rules, online in ((KIP_858, directories(1)[1:]), (KAFKA, directories(1))):
        world = World(rules)
        world.join(1)
        world.beat(1, offline=(directory(1, 0),))
        assert world.register(1).error_code == 0
        assert world.broker(1).log_dirs == online, rules.name


@pytest.mark.parametrize("count", [1, 2])
def test_a_failed_directory_is_not_revived_after_a_snapshot_and_a_restart_of_the_controller(count: int) -> None:
    """Whether a partition lies in it or none; in a snapshot of a snapshot too. A new directory is taken."""
    for rules in (KIP_858, KAFKA):
        world = World(rules)
        world.join(1, dirs=3)
        world.beat(1, offline=(directory(1, 0),))
        for _ in range(count):
            records = list(
                with_failed(world.controller.image.to_records(), world.controller.cluster.failed_directories())
            )
            assert image_of(records).brokers == world.controller.image.brokers
            fresh = world.new_controller()
            fresh.recover_snapshot(SnapshotId(world.controller.next_offset, 1), records)
            world.controller = fresh
            world.write(fresh.activate(world.now_ms))
        assert world.register(1, dirs=4).error_code == 0
        online = directories(1, 4)
        assert set(world.broker(1).log_dirs) == set(online[1:] if rules is KIP_858 else online)


def test_on_a_combined_node_the_broker_has_the_id_of_the_controller() -> None:
    world = World(also_broker=True)
    world.join(NODE_ID)
    assert not world.broker(NODE_ID).fenced
    assert world.register(-1).error_code == ErrorCode.INVALID_REGISTRATION
    world.join(1)
    listed = world.ask(MetadataRequest(topics=None))
    assert sorted(broker.node_id for broker in listed.brokers) == [1, NODE_ID], "each once"
    assert listed.controller_id == NODE_ID


def test_after_a_crash_of_a_combined_node_its_own_broker_comes_back_at_once_and_others_keep_their_sessions() -> None:
    world = World(also_broker=True)
    world.join(NODE_ID)
    world.join(1)
    world.controller = world.replayed()
    world.write(world.controller.activate(world.now_ms))
    assert world.register(1, number=1).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert world.register(NODE_ID, number=1).error_code == 0, "the process of the one before has ended"


def test_after_a_crash_of_a_combined_node_its_own_broker_is_fenced_until_it_registers() -> None:
    world = World(also_broker=True)
    world.join(NODE_ID)
    world.join(1)
    world.controller = world.replayed()
    world.write(world.controller.activate(world.now_ms))
    world.tick()
    assert world.broker(NODE_ID).fenced
    assert not world.broker(1).fenced


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_a_failed_directory_that_another_broker_has_by_now_is_registered_once_in_a_snapshot(
    first: int, second: int
) -> None:
    world = World(KIP_858)
    world.join(first)
    world.join(second)
    moved = directory(first, 0)
    world.beat(first, offline=(moved,))
    dirs = (*directories(second), moved)
    world.now_ms += 9_001  # its session is over
    answer = world.register(second, tuple(sorted(dirs)), number=1)
    assert answer.error_code == 0 and moved in world.broker(second).log_dirs
    controller = world.controller
    image = image_of(with_failed(controller.image.to_records(), controller.cluster.failed_directories()))
    assert image.brokers == controller.image.brokers
