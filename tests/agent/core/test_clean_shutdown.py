"""A directory is marked as cleanly shut down only when no log in it waits for a broker's recovery."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from kjbod.ids import Uuid
from kjbod_agent.directories.clean_shutdown import CleanShutdown
from kjbod_host.directories.start_up_rules import Directory
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
D1, D2, D3 = Uuid.of(2, 1), Uuid.of(2, 2), Uuid.of(2, 3)
METADATA = f"version: 0\ntopic_id: {Uuid.of(3, 1)}".encode()
CLEAN = b'{"version":0,"brokerEpoch":7}'
LOG = {"00000000000000000000.log": b"\0" * 100}


class World:
    """Directories in memory and what the agent knows of them."""

    def __init__(self, clock: Any, **disks: MemoryDisk) -> None:
        options = StorageOptions(clock=clock)
        self.disks = disks
        self.ids = dict(zip(disks, (D1, D2, D3), strict=False))
        self.agents = {self.ids[name]: MemoryDirectoryAgent(f"/{name}", disk, options) for name, disk in disks.items()}
        self.directories: list[Directory] = []
        self.unread = False
        self.clean_shutdown = CleanShutdown(lambda: self.directories, self.agents.get, lambda: self.unread)

    async def __aenter__(self) -> "World":
        for name in self.disks:
            await self.take(name)
        self._task = asyncio.get_running_loop().create_task(self.clean_shutdown.run())
        return self

    async def take(self, name: str) -> None:
        agent = self.agents[self.ids[name]]
        loaded = await agent.load(timeout_ms=1000)
        self.directories.append(Directory(f"/{name}", self.ids[name], loaded))
        await agent.clear_clean_shutdown(timeout_ms=1000)

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    def clean(self) -> set[str]:
        return {name for name, directory_id in self.ids.items() if directory_id in self.clean_shutdown.clean()}


def disk(*replicas: str, clean: bool = False, data: bool = False) -> MemoryDisk:
    return MemoryDisk(
        directories=dict.fromkeys(replicas, METADATA),
        files={name: dict(LOG) for name in replicas} if data else {},
        clean_shutdown=CLEAN if clean else None,
    )


def test_a_mark_is_passed_on_and_none_is_made_where_a_crashed_broker_left_data(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        marked, crashed = disk("t-0", clean=True, data=True), disk("t-1", data=True)
        async with World(clock, marked=marked, crashed=crashed) as world:
            assert world.clean() == {"marked"}
            await asyncio.sleep(10)
            assert world.clean() == {"marked"}

    virtual(main)


def test_what_the_agent_made_by_itself_is_clean_once_that_was_looked_at_and_an_empty_directory_at_once(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock, ours=disk("t-0", "t-1"), empty=disk()) as world:
            assert world.clean() == {"empty"}
            await asyncio.sleep(1)
            assert world.clean() == {"ours", "empty"}

    virtual(main)


def test_a_directory_that_does_not_answer_or_comes_later_is_looked_at_later(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        troubled = disk("t-0")
        async with World(clock, troubled=troubled) as world:
            troubled.fail(5)
            await asyncio.sleep(10)
            assert world.clean() == set()
            troubled.heal()
            await asyncio.sleep(3)
            assert world.clean() == {"troubled"}

    virtual(main)


def test_a_move_takes_a_torn_end_along(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        crashed, marked, other = disk("t-0", data=True), disk("t-1", clean=True, data=True), disk(clean=True)
        async with World(clock, crashed=crashed, marked=marked, other=other) as world:
            world.clean_shutdown.moving(D2, D3)
            assert world.clean() == {"marked", "other"}
            world.clean_shutdown.moving(D1, D3)
            assert world.clean() == {"marked"}
            world.clean_shutdown.moving(None, D2)
            assert world.clean() == {"marked"}, "a new replica is empty"

    virtual(main)


def test_a_move_that_goes_on_after_a_restart_may_have_begun_in_a_directory_that_is_not_clean(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        future = f"t-0.{'a' * 32}-future"
        for data, clean in ((True, {"whole"}), (False, {"source", "whole", "target"})):
            source, target, whole = disk("t-0", data=data), disk(future, clean=True), disk(clean=True)
            async with World(clock, source=source, target=target, whole=whole) as world:
                await asyncio.sleep(1)
                assert world.clean() == clean
                world.unread = True
                assert "target" not in world.clean(), "or in one that nobody could read"

    virtual(main)
