"""Directories that a person cordoned (KIP-1066), told to the controller. Ids are those of kafka-jbod 9.9."""

from collections.abc import Callable, Coroutine
from typing import Any

from kjbod.ids import Uuid
from kjbod.metadata.image import BROKER
from kjbod.metadata.records import ConfigRecord
from kjbod.wire.messages import BrokerHeartbeatRequest
from kjbod_agent.replicas.choice import Site
from kjbod_agent.replicas.hosting import cordoned_log_dirs
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
