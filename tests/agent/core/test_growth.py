"""What came and went leaves nothing: an agent that has lived long holds what there is, and not what there was."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.records import ConfigRecord, RemoveTopicRecord, TopicRecord
from kjbod_agent.replicas import deletions, inventory
from kjbod_agent.replicas.inventory import Inventory
from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.devices import DeviceWatch
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import Replica, StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk
from tests.agent.core.test_deletions import D1, D2, D3, PATHS, World, partition
from tests.agent.core.test_view import TOPIC, Host, hosted
from tests.growth import entries

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
ROUNDS = 12
OF_A_REPLACED_DISK = ("Placement.deletions.works", "Placement._work", "Placement.agents")
"""The agent of a disk and its empty queue stay when a person replaces it: a call that hangs may still come back."""
RIG = ("Placement.deletions.log", "Placement.log", "Placement.owner")


def test_topics_and_disks_that_are_gone_leave_nothing_in_memory(virtual: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "REMEMBERED_MAX", 4)

    async def story(clock: Any) -> None:
        held: list[Counter[str]] = []
        async with World(clock, {}).running() as world:
            third = D3
            for number in range(ROUNDS):
                topic, name = Uuid.of(40, number), f"topic-{number}"
                world.commit(
                    TopicRecord(name=name, topic_id=topic),
                    ConfigRecord(resource_type=2, resource_name=name, name="file.delete.delay.ms", value="1000"),
                    *(partition(topic, each, (1,), where) for each, where in enumerate((D1, D2, third))),
                )
                await world.quiet()
                world.commit(RemoveTopicRecord(topic_id=topic))
                await world.quiet()
                # Another disk under the same path, on which a stray lies.
                world.placement.fail(third)
                world.placement.forget_directory(third)
                third, disk = Uuid.of(50, number), MemoryDisk()
                disk.directories[f"lost-{number}"] = None
                agent = MemoryDirectoryAgent(PATHS[D3], disk, StorageOptions(clock=clock))
                found = [Replica(f"lost-{number}", "lost", number, None)]
                world.placement.add_directory(third, agent, PATHS[D3], found)
                await world.quiet()
                await asyncio.sleep(100)
                held.append(entries(world.placement))
        grown = {path: (held[5][path], size) for path, size in held[-1].items() if size > held[5][path]}
        assert not {path: sizes for path, sizes in grown.items() if not path.startswith(OF_A_REPLACED_DISK + RIG)}
        assert held[-1]["Placement.deletions.works"] == 3 + ROUNDS

    virtual(story)


def test_wishes_for_topics_that_never_come_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "PREFERRED_MAX", 10)
    known = Inventory(list(PATHS.items()))
    for number in range(100):
        known.prefer(f"topic-{number}", 0, D1)
    assert entries(known)["Inventory._preferred"] == 10


def test_sizes_of_replicas_that_are_gone_are_forgotten_also_when_clients_ask_for_some_topics_only(
    virtual: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kjbod_agent.admin.view.SLICE", 2)

    async def story(host: Host) -> None:
        moved, elsewhere = TopicIdPartition(TOPIC, 0), list(host.disks)[1]
        for number in range(100):  # each move has a name of its own
            future = f"t-0.{number:032x}-future"
            host.inventory.begin_move(moved, elsewhere, future)
            host.disks[elsewhere].sizes = host.disks[elsewhere].ends = {future: 7}
            seen = await host.see(lambda topic, number: number == 0)
            assert [(each.name, each.size) for each in seen["/d2"].replicas] == [(future, 7)]
            host.inventory.end_move(moved)
        held = entries(host.view)
        assert held["DirectoryViews._sizes"] < 20
        assert held["DirectoryViews._ends"] < 20

    hosted(virtual, story)


def test_devices_that_were_pulled_out_are_forgotten() -> None:
    watch = DeviceWatch(gap_ms=1_000)
    for number in range(50):
        device = BlockDevice((f"sd{number}",), "8:16")
        watch.sample(device, [BlockCounters(0, 5, 0)], number)
        watch.is_busy(device)
        watch.sample(device, [None], number)
    held = entries(watch)
    assert (held["DeviceWatch._silences"], held["DeviceWatch._completed"]) == (0, 0)
