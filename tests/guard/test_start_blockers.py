"""Names in log directories with which Kafka does not start: ``kjbod guard check`` lists all of them at once."""

import pytest
from msgspec.structs import replace

from kjbod.clock import SystemClock
from kjbod_guard.checking import start_blockers
from kjbod_host.storage.api import LoadedDirectory, Replica, StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from kjbod_host.storage.worker import LINK

NAMES = [
    "lost+found",
    "orders-0.bak",
    "orders-0.old",
    "backup",
    ".snapshot",
    "orders-",
    "-0",
    "orders-2147483648",
    "orders-0-delete",
    "orders-0.0123-copy",
]


async def loaded(path: str, *names: str) -> LoadedDirectory:
    disk = MemoryDisk()
    disk.directories = dict.fromkeys(names, b"")
    storage = MemoryStorageAgent(StorageOptions(clock=SystemClock()), {path: disk})
    return await storage.directory(path).load_head(timeout_ms=10_000)


async def test_all_of_them_are_named_at_once() -> None:
    (line,) = start_blockers(
        {"/d1": await loaded("/d1", *NAMES, "orders-0", "a.b-1"), "/d2": await loaded("/d2", "t-1")}
    )
    assert line.startswith("/d1: ")
    assert sorted(line.rpartition(": ")[2].split(", ")) == sorted(NAMES)


@pytest.mark.parametrize("names", [("t-0", "t-1"), ("__cluster_metadata-0",), (f"t-0.{'a' * 32}-delete", "t-0")])
async def test_replicas_are_none(names: tuple[str, ...]) -> None:
    assert start_blockers({"/d1": await loaded("/d1", *names)}) == []


@pytest.mark.parametrize("names", [("t-00",), ("t-+0",), ("t-000",), ("t-0", "t-00")])
async def test_a_replica_that_is_there_twice_is_named_however_it_is_spelled(names: tuple[str, ...]) -> None:
    (line,) = start_blockers({"/d1": await loaded("/d1", "t-0"), "/d2": await loaded("/d2", *names)})
    assert "t-0 is there twice: /d1/t-0, /d2/" in line


async def test_a_link_of_the_name_of_a_replica_counts() -> None:
    link = Replica("t-0", "t", 0, None, trouble=LINK, is_directory=False)
    linked = replace(await loaded("/d2"), replicas=(link,))
    assert len(start_blockers({"/d1": await loaded("/d1", "t-0"), "/d2": linked})) == 1
