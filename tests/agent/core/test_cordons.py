"""Directories that a person cordoned (KIP-1066), told to the controller. Ids are those of kafka-jbod 9.9."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.ids import Uuid, is_agent_incarnation, random_agent_incarnation, random_uuid
from kjbod.metadata.image import BROKER
from kjbod.metadata.records import ConfigRecord, FeatureLevelRecord, RegisterBrokerRecord, UnregisterBrokerRecord
from kjbod.metadata.versions import METADATA_VERSION
from kjbod.wire.messages import BrokerHeartbeatRequest
from kjbod_agent.cordons import ALWAYS, Admission
from kjbod_agent.replicas.choice import Capacity, Site
from kjbod_agent.replicas.hosting import cordoned_log_dirs
from kjbod_host.health.evidence import Evidence, Verdict
from kjbod_host.health.state import Cause, Health
from tests.agent.core.test_broker import D1, D2, World

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
PATHS = {D1: "/d1", D2: "/d2"}


def cordons(world: World) -> Any:
    """What the last heartbeat said."""
    return world.controller.of(BrokerHeartbeatRequest)[-1].cordoned_log_dirs


def configured(world: World, *paths: str) -> None:
    """As with ``cordoned.log.dirs`` in the file."""

    def sites() -> dict[Uuid, Site]:
        cordoned = cordoned_log_dirs(world.broker.image, 1, paths, PATHS.values())
        return {d: Site(cordoned=path in cordoned) for d, path in PATHS.items()}

    world.broker.placement.sites = sites


def test_co_3_a_broker_joins_with_all_directories_cordoned_and_is_told_otherwise_while_it_runs(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock)
        configured(world, "/d1", "/d2")
        async with world:
            await world.until(lambda: cordons(world) == (D1, D2))
            change = ConfigRecord(resource_type=BROKER, resource_name="1", name="cordoned.log.dirs", value="/d2")
            world.commit(change)
            await world.until(lambda: cordons(world) == (D2,))
            world.commit(ConfigRecord(resource_type=BROKER, resource_name="1", name="cordoned.log.dirs", value=""))
            await world.until(lambda: cordons(world) == ())

    virtual(story)


def test_what_is_created_keeps_out_of_what_is_cordoned(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock)
        configured(world, "/d1")
        async with world:
            world.topic()
            await world.until(lambda: len(world.disks[D2].directories) == 4)
            assert not world.disks[D1].directories

    virtual(story)


# ------------------------------------------------------------------------------------------- brokers that are no agents


def registered(broker_id: int, incarnation_id: Uuid) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        is_migrating_zk_broker=False,
        incarnation_id=incarnation_id,
        broker_epoch=broker_id,
        end_points=(),
        features=(),
        rack=None,
        fenced=True,
        in_controlled_shutdown=False,
        log_dirs=(Uuid.of(9, broker_id),),
        cordoned_log_dirs=None,
    )


RNG = random.Random(7)
AGENT, BROKER_OF_KAFKA = random_agent_incarnation(RNG), random_uuid(RNG)


def test_an_agent_is_known_by_its_incarnation_and_no_broker_is_taken_for_one() -> None:
    assert all(is_agent_incarnation(random_agent_incarnation(RNG)) for _ in range(1000))
    assert not any(is_agent_incarnation(random_uuid(RNG)) for _ in range(1000))
    assert not is_agent_incarnation(Uuid(b"kjbod\1" + random_uuid(RNG)[6:])), "of version 4"
    assert len({random_agent_incarnation(RNG) for _ in range(1000)}) == 1000


def test_beside_brokers_that_are_no_agents_all_directories_are_cordoned_as_long_as_they_are_registered(
    virtual: Run,
) -> None:
    async def story(clock: Any) -> None:
        async with World(clock) as world:
            world.commit(registered(2, AGENT))
            await world.until(lambda: cordons(world) == ())
            world.commit(registered(5, BROKER_OF_KAFKA), registered(4, BROKER_OF_KAFKA))
            await world.until(lambda: cordons(world) == (D1, D2))
            (line,) = world.log.of("placement.closed")[-1:]
            assert "brokers 4, 5 are no kjbod agents" in line["reason"]
            world.commit(UnregisterBrokerRecord(broker_id=5, broker_epoch=5))
            world.commit(UnregisterBrokerRecord(broker_id=4, broker_epoch=4))
            await world.until(lambda: cordons(world) == ())
            assert world.broker.cordoning.admission.text is None
            assert len(world.log.of("placement.open")) == 1

    virtual(story)


def test_who_wants_otherwise_is_given_partitions_beside_brokers(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock)
        world.broker.cordoning.admission = Admission(accept=ALWAYS)
        async with world:
            world.commit(registered(5, BROKER_OF_KAFKA))
            await world.until(lambda: bool(world.log.of("placement.open")))
            await world.until(lambda: cordons(world) == ())
            assert "kjbod.placement.accept=always" in (world.broker.cordoning.admission.text or "")

    virtual(story)


def test_a_cluster_that_cannot_cordon_is_told_of_loudly_once(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock) as world:
            world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=29))
            world.commit(registered(5, BROKER_OF_KAFKA))
            await world.until(lambda: bool(world.log.of("placement.exposed")))
            await world.until(lambda: cordons(world) is None)
            world.commit(ConfigRecord(resource_type=BROKER, resource_name="1", name="x", value="1"))
            await asyncio.sleep(5)
            assert len(world.log.of("placement.exposed")) == 1
            world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=30))
            await world.until(lambda: cordons(world) == (D1, D2))

    virtual(story)


# ----------------------------------------------------------------------------------------------- by the agent itself


def test_a_directory_that_fills_up_is_cordoned_and_is_so_until_there_is_room_again(virtual: Run) -> None:
    used = {D1: 50, D2: 50}

    async def story(clock: Any) -> None:
        world = World(clock)
        world.broker.placement.sites = lambda: {d: Site(capacity=Capacity(100, 100 - n)) for d, n in used.items()}
        async with world:
            await world.until(lambda: cordons(world) == ())
            used[D2] = 91
            await world.until(lambda: cordons(world) == (D2,))
            used[D2], used[D1] = 86, 90
            await world.until(lambda: cordons(world) == (D1, D2))
            used[D2] = 84
            await world.until(lambda: cordons(world) == (D1,))
            assert [line["reason"] for line in world.log.of("directory.cordoned")] == ["nearly full"] * 2
            assert world.log.of("directory.uncordoned") == [{"path": "/d2"}]

    virtual(story)


@pytest.mark.parametrize("state", [Health.SLOW, Health.HELD, Health.FULL])
def test_a_directory_that_is_slow_held_or_full_is_cordoned_until_it_is_well(virtual: Run, state: Health) -> None:
    def verdict(state: Health, previous: Health) -> Verdict:
        return Verdict(
            path="/d2",
            directory_id=str(D2),
            state=state,
            previous=previous,
            cause=Cause.NONE,
            evidence=Evidence(path="/d2", directory_id=str(D2), device=""),
            at_ns=0,
        )

    async def story(clock: Any) -> None:
        async with World(clock) as world:
            await world.until(lambda: cordons(world) == ())
            world.broker.on_verdict(verdict(state, Health.ONLINE))
            await world.until(lambda: cordons(world) == (D2,))
            world.broker.on_verdict(verdict(Health.ONLINE, state))
            await world.until(lambda: cordons(world) == ())
            assert world.log.of("directory.cordoned") == [{"path": "/d2", "reason": str(state)}]

    virtual(story)
