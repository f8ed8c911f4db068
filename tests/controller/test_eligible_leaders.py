"""Eligible leader replicas (KIP-966) in a cluster: row CT-15, min.insync.replicas, directories that are lost."""

from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import BROKER, RECOVERING, TOPIC
from kjbod.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from kjbod.wire.admin_messages import UpdateFeaturesRequest, UpdateFeaturesRequestFeatureUpdateKey
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    UnregisterBrokerRequest,
)
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import World, directory

BOTH = pytest.mark.parametrize("rules", [KIP_858, KAFKA], ids=lambda rules: rules.name)
SET, DELETE = 0, 1


def state(world: World, number: int = 0) -> dict[str, Any]:
    now = world.partition("t", number)
    return {"leader": now.leader, "isr": now.isr, "elr": now.eligible_leader_replicas, "last": now.last_known_elr}


def create(world: World, *replicas: tuple[int, ...], name: str = "t", **configs: str) -> None:
    """A topic on brokers that have one directory each or whose replicas are assigned to their first one."""
    topic = CreateTopicsRequestTopic(
        name=name,
        assignments=tuple(
            CreateTopicsRequestAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(replicas)
        ),
        configs=tuple(
            CreateTopicsRequestConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ),
    )
    assert world.ask(CreateTopicsRequest(topics=(topic,))).topics[0].error_code == 0


def configure(world: World, kind: int, resource: str, name: str, value: str | None) -> tuple[int, str | None]:
    """Set, or with None remove; the error."""
    change = IncrementalAlterConfigsRequestConfig(
        name=name, config_operation=DELETE if value is None else SET, value=value
    )
    answer = world.ask(
        IncrementalAlterConfigsRequest(
            resources=(
                IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=resource, configs=(change,)),
            )
        )
    )
    return answer.responses[0].error_code, answer.responses[0].error_message


def gone(world: World, broker_id: int) -> None:
    """The broker falls silent and its session expires."""
    world.controller.heartbeats.drop(broker_id)
    draft = world.controller._draft()
    world.controller.replication.broker_fenced(draft, world.broker(broker_id))
    world.write(draft.result(None))


def back(world: World, broker_id: int, *, number: int, clean: bool, dirs: int | tuple[Uuid, ...] = 1) -> None:
    """A new process of a broker that was fenced registers, and is not unfenced yet."""
    epoch = world.broker(broker_id).epoch if clean else -1
    assert world.register(broker_id, dirs, number=number, previous_broker_epoch=epoch).error_code == 0


def three(rules: Rules = KIP_858, min_isr: int = 2, **fields: Any) -> World:
    """Three brokers, one directory each, and a topic that they all have; broker 1 leads."""
    world = World(rules, **fields)
    for broker_id in (1, 2, 3):
        world.join(broker_id, 1)
    create(world, (1, 2, 3), min_insync_replicas=str(min_isr))
    return world


@BOTH
def test_ct15_replicas_become_eligible_as_the_isr_shrinks_and_lead_when_they_are_back(rules: Rules) -> None:
    world = three(rules)
    gone(world, 3)
    assert state(world) == {"leader": 1, "isr": (1, 2), "elr": (), "last": ()}
    gone(world, 2)
    assert state(world) == {"leader": 1, "isr": (1,), "elr": (2,), "last": ()}
    gone(world, 1)
    assert state(world) == {"leader": -1, "isr": (), "elr": (1, 2), "last": (1,)}
    world.beat(3)
    assert state(world)["leader"] == -1, "it may have missed what was acknowledged"
    world.beat(2)
    assert state(world) == {"leader": 2, "isr": (2,), "elr": (1,), "last": ()}
    assert world.partition("t").leader_recovery_state == 0
    assert world.alter_isr("t", (2, 3)).topics[0].partitions[0].error_code == 0
    assert state(world) == {"leader": 2, "isr": (2, 3), "elr": (), "last": ()}


@BOTH
def test_ct15_after_a_clean_restart_a_replica_is_still_eligible(rules: Rules) -> None:
    world = three(rules)
    for broker_id in (3, 2, 1):
        gone(world, broker_id)
    back(world, 1, number=1, clean=True)
    assert state(world)["elr"] == (1, 2)
    world.beat(1)
    assert state(world) == {"leader": 1, "isr": (1,), "elr": (2,), "last": ()}


@BOTH
def test_ct15_after_an_unclean_restart_nobody_trusts_a_replica(rules: Rules) -> None:
    world = three(rules)
    for broker_id in (3, 2, 1):
        gone(world, broker_id)
    back(world, 2, number=1, clean=False)
    assert [type(record) for record in world.last] == [PartitionChangeRecord, RegisterBrokerRecord]
    assert state(world) == {"leader": -1, "isr": (), "elr": (1,), "last": (1,)}
    world.beat(2)
    assert state(world)["leader"] == -1
    world.beat(1)
    assert state(world) == {"leader": 1, "isr": (1,), "elr": (), "last": ()}


@BOTH
def test_ct15_the_last_known_leader_leads_when_nobody_is_eligible(rules: Rules) -> None:
    world = three(rules)
    for broker_id in (3, 2, 1):
        gone(world, broker_id)
    for broker_id in (1, 2):
        back(world, broker_id, number=1, clean=False)
    assert state(world) == {"leader": -1, "isr": (), "elr": (), "last": (1,)}
    world.beat(2)
    assert state(world)["leader"] == -1
    world.beat(1)
    assert state(world) == {"leader": 1, "isr": (1,), "elr": (), "last": ()}
    assert world.partition("t").leader_recovery_state == RECOVERING


@BOTH
def test_a_registration_before_version_3_cannot_say_that_the_shutdown_was_clean(rules: Rules) -> None:
    world = three(rules)
    for broker_id in (3, 2, 1):
        gone(world, broker_id)
    request: Any = {"previous_broker_epoch": world.broker(2).epoch}
    assert world.register(2, 1, number=1, version=2, **request).error_code == 0
    assert state(world)["elr"] == (1,)


@BOTH
def test_ct15_a_replica_of_an_unregistered_broker_leaves_the_isr(rules: Rules) -> None:
    world = three(rules, min_isr=3)
    world.ask(UnregisterBrokerRequest(broker_id=2))
    assert [type(record) for record in world.last] == [PartitionChangeRecord, UnregisterBrokerRecord]
    assert state(world) == {"leader": 1, "isr": (1, 3), "elr": (2,), "last": ()}
    world.join(2, 1, number=1)
    assert state(world)["elr"] == (), "of what it was before nothing is known"


@BOTH
def test_without_the_feature_the_last_member_stays_in_the_isr(rules: Rules) -> None:
    world = three(rules, with_elr=False)
    for broker_id in (3, 2, 1):
        gone(world, broker_id)
    assert state(world) == {"leader": -1, "isr": (1,), "elr": (), "last": ()}
    back(world, 1, number=1, clean=False)
    world.beat(1)
    assert state(world) == {"leader": 1, "isr": (1,), "elr": (), "last": ()}
    assert configure(world, TOPIC, "t", "min.insync.replicas", "1") == (0, None)
    assert not [record for record in world.last if isinstance(record, ClearElrRecord)]


def test_the_feature_is_finalized_from_4_1_on_and_its_records_exist_from_4_0_on() -> None:
    assert World(metadata_version=25).controller.image.features.get(versions.ELIGIBLE_LEADER_REPLICAS_VERSION) is None
    world = World()
    assert world.controller.image.features[versions.ELIGIBLE_LEADER_REPLICAS_VERSION] == 1
    assert world.log[-1].record == ConfigRecord(
        resource_type=BROKER, resource_name="", name="min.insync.replicas", value="1"
    )
    old = three(metadata_version=22)
    gone(old, 3)
    assert old.last_versions == [1, 0]
    new = three(metadata_version=26)
    gone(new, 3)
    assert new.last_versions == [2, 0]


# ---- min.insync.replicas


@BOTH
def test_a_change_of_min_insync_replicas_clears_what_was_eligible_before(rules: Rules) -> None:
    world = three(rules)
    create(world, (1, 2, 3), name="other", min_insync_replicas="2")
    for broker_id in (3, 2):
        gone(world, broker_id)
    before = world.partition("t").partition_epoch
    assert configure(world, TOPIC, "t", "min.insync.replicas", "1") == (0, None)
    assert world.last[-1] == ClearElrRecord(topic_name="t")
    assert (state(world)["elr"], world.partition("t").partition_epoch) == ((), before + 1)
    assert world.partition("other").eligible_leader_replicas == (2,)
    assert configure(world, BROKER, "", "min.insync.replicas", "2") == (0, None)
    assert world.last[-1] == ClearElrRecord(topic_name="")
    assert world.partition("other").eligible_leader_replicas == ()
    world.beat(2)
    assert world.controller.index.in_elr(2) == ()


@BOTH
def test_a_topic_follows_its_own_value_then_the_clusters(rules: Rules) -> None:
    world = World(rules)
    for broker_id in (1, 2, 3):
        world.join(broker_id, 1)
    create(world, (1, 2, 3))
    assert configure(world, BROKER, "", "min.insync.replicas", "3") == (0, None)
    gone(world, 3)
    assert state(world)["elr"] == (3,)
    create(world, (1, 2), name="small")  # no more than it has replicas
    assert world.partition("small").eligible_leader_replicas == ()
    gone(world, 2)
    assert world.partition("small").eligible_leader_replicas == (2,)


@BOTH
def test_brokers_cannot_have_different_values_and_the_cluster_always_has_one(rules: Rules) -> None:
    world = three(rules)
    assert configure(world, BROKER, "1", "min.insync.replicas", "2") == (
        ErrorCode.INVALID_CONFIG,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )
    assert configure(world, BROKER, "", "min.insync.replicas", None) == (
        ErrorCode.INVALID_CONFIG,
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert not world.last


@BOTH
def test_finalizing_the_feature_gives_the_cluster_a_value_and_takes_those_of_brokers(rules: Rules) -> None:
    world = three(rules, with_elr=False)
    assert configure(world, BROKER, "1", "min.insync.replicas", "2") == (0, None)
    update = UpdateFeaturesRequestFeatureUpdateKey(
        feature=versions.ELIGIBLE_LEADER_REPLICAS_VERSION, max_version_level=1, upgrade_type=1
    )
    assert world.ask(UpdateFeaturesRequest(feature_updates=(update,))).error_code == 0
    assert world.last == [
        ConfigRecord(resource_type=BROKER, resource_name="", name="min.insync.replicas", value="1"),
        ConfigRecord(resource_type=BROKER, resource_name="1", name="min.insync.replicas", value=None),
        FeatureLevelRecord(name=versions.ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=1),
    ]


def test_a_partition_that_was_offline_when_the_feature_came_finds_its_leader_again() -> None:
    world = three(with_elr=False)
    for broker_id in (3, 2, 1):
        gone(world, broker_id)
    feature = FeatureLevelRecord(name=versions.ELIGIBLE_LEADER_REPLICAS_VERSION, feature_level=1)
    world.write(Result(records=(feature,)))
    back(world, 1, number=1, clean=False)
    assert state(world) == {"leader": -1, "isr": (), "elr": (), "last": (1,)}
    world.beat(1)
    assert (state(world)["leader"], world.partition("t").leader_recovery_state) == (1, RECOVERING)


# ---- directories


def two_dirs(rules: Rules, min_isr: int = 2) -> World:
    """Brokers 1 and 2 with two directories each; the topic is in the first one of each, and broker 1 leads."""
    world = World(rules)
    for broker_id in (1, 2):
        world.join(broker_id, 2)
    create(world, (1, 2), min_insync_replicas=str(min_isr))
    for broker_id in (1, 2):
        world.assign(broker_id, (directory(broker_id, 0), world.topic_id("t"), (0,)))
    return world


def test_a_replica_whose_directory_failed_is_not_eligible() -> None:
    world = two_dirs(KIP_858)
    world.beat(2, offline=(directory(2, 0),))
    assert state(world) == {"leader": 1, "isr": (1,), "elr": (), "last": ()}
    shipped = two_dirs(KAFKA)
    shipped.beat(2, offline=(directory(2, 0),))
    assert state(shipped) == {"leader": 1, "isr": (1,), "elr": (2,), "last": ()}


@BOTH
def test_a_replica_in_a_failed_directory_never_leads(rules: Rules) -> None:
    world = two_dirs(rules)
    world.beat(2, offline=(directory(2, 0),))
    gone(world, 1)
    world.beat(2, offline=(directory(2, 0),))
    assert state(world)["leader"] == -1
    world.beat(1)
    assert state(world)["leader"] == 1


def test_a_replica_that_was_made_anew_after_a_clean_restart_is_not_elected_as_if_it_had_all() -> None:
    # The directory failed while the broker was down, and was taken out of log.dirs: the other ones were shut down
    # in order, so that the broker says the restart was clean. Its replica is made anew, empty.
    for rules, leader in ((KIP_858, -1), (KAFKA, 2)):
        world = two_dirs(rules)
        for broker_id in (2, 1):
            gone(world, broker_id)
        assert state(world)["elr"] == (1, 2)
        back(world, 2, number=1, clean=True, dirs=(directory(2, 1),))
        world.assign(2, (directory(2, 1), world.topic_id("t"), (0,)))
        world.beat(2)
        assert state(world)["leader"] == leader


def test_an_eligible_replica_that_appears_in_another_directory_is_not_eligible_any_more() -> None:
    world = two_dirs(KIP_858)
    lost = Uuid.of(77, 7)
    for broker_id in (2, 1):
        gone(world, broker_id)
    world.assign(2, (directory(2, 1), world.topic_id("t"), (0,)))
    assert state(world)["elr"] == (1, 2), "it was moved between directories that the broker has"
    world.assign(2, (lost, world.topic_id("t"), (0,)))
    assert state(world)["elr"] == (1,)


@BOTH
def test_directories_that_a_broker_keeps_stay_eligible_over_a_clean_restart(rules: Rules) -> None:
    world = two_dirs(rules)
    for broker_id in (2, 1):
        gone(world, broker_id)
    back(world, 2, number=1, clean=True, dirs=2)
    world.beat(2)
    assert state(world) == {"leader": 2, "isr": (2,), "elr": (1,), "last": ()}
