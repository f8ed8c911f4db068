"""The strays on the disks of a guard's broker: each disk is listed by its own worker, and none that is in doubt."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from kjbod.clock import SystemClock
from kjbod.ids import Uuid
from kjbod_guard import stray_listing
from kjbod_guard.answers import Answers
from kjbod_guard.observing import Observed, Placed
from kjbod_guard.stray_listing import StrayListing
from kjbod_guard.watching import Monitor, Watching
from kjbod_host.health.state import DirectoryHealth, Health
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from tests.agent.core.recording import Log

TOPIC = Uuid.of(3, 1)
STRAY = f"orders-7.{'b' * 32}-stray"


class Host:
    """Three log directories that a guard watches, and the metadata that it follows.

    Attributes:
        healths: states of directories that are not online, by path.
        observed: the metadata; None: they are not followed.
    """

    def __init__(self) -> None:
        self.disks: dict[str, MemoryDisk] = {}
        self.healths: dict[str, Health] = {}
        self.observed: Observed | None = Observed(1, topics={TOPIC: "orders"})
        for number in (1, 2, 3):
            directory_id = Uuid.of(5, number)
            meta = f"version=1\ncluster.id=c\nnode.id=1\ndirectory.id={directory_id}\n".encode()
            disk = self.disks[f"/d{number}"] = MemoryDisk(number=number, meta_properties=meta)
            disk.directories[f"orders-{number}"] = f"version: 0\ntopic_id: {TOPIC}".encode()
            self.observed.partitions[TOPIC, number] = Placed(0, directory_id, True)
        self.storage = MemoryStorageAgent(StorageOptions(clock=SystemClock()), self.disks)
        self.watching = Watching(
            1, tuple(self.disks), self.storage, SystemClock(), cast("Any", Log()), lambda work: work.close()
        )

    async def watched(self) -> "Host":
        await self.watching.begin()
        self.watching.tend(cast("Monitor", self))
        for disk in self.disks.values():
            disk.requests = 0
        return self

    def health(self, path: str) -> DirectoryHealth:
        return DirectoryHealth(health=self.healths.get(path, Health.ONLINE))

    async def listed(self) -> tuple[dict[str, str], Mapping[str, str]]:
        """Reasons by path and name of the strays, and reasons by path of the directories that were not listed."""
        listing = StrayListing(tuple(self.disks), self.watching, lambda: self.observed)
        answers = Answers(cast("Any", None), cast("Any", None), list_strays=listing.list_all)
        parts = [part async for part in answers.strays({})]
        *pieces, last = parts
        assert isinstance(last, dict) and last["role"] == "guard"
        rows = [row for piece in pieces for row in cast("list[dict[str, Any]]", piece)]
        return {f"{row['directory']}/{row['name']}": row["reason"] for row in rows}, last["unread"]


async def test_strays_of_all_disks_are_listed_and_nothing_is_changed() -> None:
    host = await Host().watched()
    host.disks["/d1"].directories[STRAY] = None
    host.disks["/d2"].directories["gone-0"] = None
    host.disks["/d3"].directories["orders-1"] = None
    before = {path: dict(disk.directories) for path, disk in host.disks.items()}
    found, unread = await host.listed()
    assert sorted(found) == [f"/d1/{STRAY}", "/d2/gone-0", "/d3/orders-1"]
    assert found["/d3/orders-1"] == "the metadata assign this replica to /d1"
    assert unread == {}
    assert {path: dict(disk.directories) for path, disk in host.disks.items()} == before


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.FAILED, Health.HELD])
async def test_a_disk_in_doubt_is_not_touched_and_is_named(health: Health) -> None:
    host = await Host().watched()
    host.disks["/d1"].directories[STRAY] = None
    host.disks["/d2"].directories[STRAY] = None
    host.healths["/d2"] = health
    found, unread = await host.listed()
    assert list(found) == [f"/d1/{STRAY}"]
    assert unread == {"/d2": f"not listed: /d2 is {health}"}
    assert host.disks["/d2"].requests == 0


async def test_a_disk_that_was_never_read_is_not_touched_and_is_named() -> None:
    host = Host()
    host.disks["/d3"].meta_properties = None
    await host.watched()
    _, unread = await host.listed()
    assert unread == {"/d3": "not listed: /d3 has no meta.properties: is its disk mounted, and formatted?"}
    assert host.disks["/d3"].requests == 0


async def test_a_disk_that_hangs_costs_its_time_and_the_others_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stray_listing, "LIST_TIMEOUT_MS", 20)
    host = await Host().watched()
    host.disks["/d1"].directories[STRAY] = None
    host.disks["/d2"].hang()
    found, unread = await host.listed()
    assert list(found) == [f"/d1/{STRAY}"]
    assert list(unread) == ["/d2"] and unread["/d2"].startswith("not listed: /d2: no answer for")


async def test_another_disk_in_the_place_of_one_is_not_listed_and_stays_another_one_for_the_probes() -> None:
    host = await Host().watched()
    host.disks["/d2"].number = 9
    _, unread = await host.listed()
    assert unread == {"/d2": "not listed: /d2: ESTALE at identity of /d2"}
    _, again = await host.listed()
    assert again == unread


async def test_without_the_metadata_only_names_tell_and_each_directory_says_so() -> None:
    host = await Host().watched()
    host.observed = None
    host.disks["/d1"].directories[STRAY] = None
    host.disks["/d2"].directories["gone-0"] = None
    found, unread = await host.listed()
    assert list(found) == [f"/d1/{STRAY}"]
    assert list(unread) == ["/d1", "/d2", "/d3"]
    assert all("was not compared with the metadata" in reason for reason in unread.values())
