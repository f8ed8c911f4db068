"""Reading what lies in the directories while the agent runs."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod_agent.directories.loading import ATTEMPTS, Loading
from kjbod_host.directories.start_up import LOAD_TIMEOUT_MS, PATIENCE_MS
from kjbod_host.directories.start_up_rules import Directory
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, Replica
from tests.agent.core.opened import Disks

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
TOPIC = Uuid.of(3, 1)
PATHS = tuple(f"/d{n}" for n in range(1, 13))


class Owner:
    """Notes what it is told, and when."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.loaded: dict[str, tuple[int, Sequence[Replica]]] = {}
        self.errors: list[DirectoryError] = []
        self.offline: dict[Uuid, str] = {}
        self.missing: list[str] = []
        self.adopted: list[str] = []
        self.refused: list[str] = []

    def is_offline(self, directory_id: Uuid) -> bool:
        return directory_id in self.offline

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        self.errors.append(error)

    def directory_failed(self, directory_id: Uuid, cause: str, text: str, since_ms: int) -> None:
        self.offline[directory_id] = text

    def directory_loaded(self, directory: Directory, agent: DirectoryAgent, replicas: Sequence[Replica]) -> None:
        self.loaded[directory.path] = (self.clock.monotonic_ms(), replicas)

    def directory_missing(self, path: str, directory_id: Uuid | None) -> None:
        self.missing.append(path)

    def refuse(self, reason: str) -> None:
        self.refused.append(reason)

    async def adopt(self, path: str) -> str:
        self.adopted.append(path)
        return ""


async def loading(disks: Disks) -> tuple[Owner, asyncio.Task[None]]:
    opened = await disks.open()
    owner = Owner(disks.clock)
    work = Loading(
        opened,
        owner,
        adopt=owner.adopt,
        agent_at=disks.storage.directory,
        clock=disks.clock,
        log=disks.log,
    )
    return owner, asyncio.ensure_future(work.run())


def test_ten_thousand_replicas_are_read_while_one_directory_hangs_and_delays_nobody(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        for number in range(10_000):
            disks.put(PATHS[number % 12], (f"t-{number}", TOPIC))
        for path in PATHS:
            disks[path].delay_ms = 5
        owner, task = await loading(disks)
        disks["/d7"].hang()
        await asyncio.sleep(1)
        assert set(owner.loaded) == set(PATHS) - {"/d7"}
        assert sum(len(replicas) for _, replicas in owner.loaded.values()) >= 9_100
        assert all(r.topic_id == TOPIC for _, replicas in owner.loaded.values() for r in replicas)
        assert not task.done()
        owner.offline[disks.ids["/d7"]] = "hung"  # so says the monitor
        await asyncio.wait_for(task, 60)
        assert "/d7" not in owner.loaded

    virtual(main)


def test_a_disk_that_is_only_slow_is_loaded_in_its_time_and_probes_go_between(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS[:2])
        disks.put("/d2", *((f"t-{number}", TOPIC) for number in range(1_000)))
        owner, task = await loading(disks)
        disks["/d2"].delay_ms = 2_000
        await asyncio.sleep(3)
        begun_ms = clock.monotonic_ms()
        await disks.storage.directory("/d2").probe(full=False, timeout_ms=10_000)
        assert clock.monotonic_ms() - begun_ms <= 4_000
        await task
        assert not owner.offline and len(owner.loaded["/d2"][1]) == 1_000

    virtual(main)


def test_a_file_that_cannot_be_read_takes_its_directory_offline_although_probes_pass(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS[:3])
        disks.put("/d2", ("t-0", TOPIC))
        disks["/d2"].fail(errno.EIO, ["topic_ids"])
        owner, task = await loading(disks)
        await task
        assert [error.errno for error in owner.errors] == [errno.EIO] * (ATTEMPTS - 1)
        assert list(owner.offline) == [disks.ids["/d2"]] and "EIO" in owner.offline[disks.ids["/d2"]]
        assert set(owner.loaded) == {"/d1", "/d3"}

    virtual(main)


def test_an_error_that_does_not_come_back_takes_nothing_offline(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS[:2])
        disks.put("/d2", ("t-0", TOPIC))
        disks["/d2"].fail(errno.EIO, ["topic_ids"])
        owner, task = await loading(disks)
        clock.call_later(1.5, disks["/d2"].heal)
        await task
        assert not owner.offline and set(owner.loaded) == {"/d1", "/d2"}

    virtual(main)


def test_a_directory_that_comes_late_is_adopted_and_one_that_does_not_is_missing(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS[:4])
        disks["/d2"].hang()
        disks["/d3"].hang()
        owner, task = await loading(disks)
        clock.call_later(4, disks["/d2"].heal)
        await task
        assert (owner.adopted, owner.missing) == (["/d2"], ["/d3"])
        assert clock.monotonic_ms() == PATIENCE_MS + LOAD_TIMEOUT_MS
        (line,) = disks.log.of("directory.unreadable")
        assert (line["path"], line["directory_id"]) == ("/d3", str(disks.ids["/d3"]))

    virtual(main)


@pytest.mark.parametrize("held", [False, True])
def test_a_directory_that_could_not_be_locked_at_once_is_locked_before_it_is_loaded(virtual: Run, held: bool) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS[:2])
        disks["/d2"].delay_ms = 3_000
        clock.call_later(3.2, disks["/d2"].hang)
        owner, task = await loading(disks)
        assert "/d2" not in owner.loaded
        if held:
            disks["/d2"].locked_by = object()
        disks["/d2"].heal()
        await task
        assert bool(owner.refused) == held and ("/d2" in owner.loaded) != held
        if not held:
            assert disks["/d2"].locked_by is disks.storage.directory("/d2")

    virtual(main)
