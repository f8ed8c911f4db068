import errno
import itertools
from collections.abc import Callable
from importlib.metadata import entry_points

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import ConfigError
from kjbod_host.storage import registry
from kjbod_host.storage.api import DirectoryError, StorageAgent, StorageOptions
from kjbod_host.storage.conformance import TIMEOUT_MS, StorageConformance, errno_of
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent


class TestMemory(StorageConformance):
    def setup_method(self) -> None:
        self.disks: dict[str, MemoryDisk] = {}
        self.numbers = itertools.count(1)

    async def storage(self) -> StorageAgent:
        return MemoryStorageAgent(StorageOptions(clock=SystemClock()), self.disks)

    def new_directory(self) -> str:
        number = next(self.numbers)
        self.disks[f"/disk{number}"] = MemoryDisk(number=number)
        return f"/disk{number}"

    def write_file(self, path: str, replica: str, file: str, content: bytes) -> None:
        disk = self.disks[path]
        if not replica:
            disk.checkpoints[file] = content
        elif file == "partition.metadata":
            disk.directories[replica] = content
        else:
            disk.files.setdefault(replica, {})[file] = content

    def read_file(self, path: str, replica: str, file: str) -> bytes | None:
        return self.disks[path].content(replica, file) if replica else self.disks[path].checkpoints.get(file)

    def hang(self, path: str) -> Callable[[], None] | None:
        self.disks[path].hang()
        return self.disks[path].heal

    async def test_faults_are_answered_until_healed(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        disk = self.disks[agent.path]
        disk.fail(errno.EIO, ["probe"])
        assert await errno_of(agent.probe(full=False, timeout_ms=TIMEOUT_MS)) == errno.EIO
        await agent.load(timeout_ms=TIMEOUT_MS)
        disk.heal()
        await agent.probe(full=False, timeout_ms=TIMEOUT_MS)

    async def test_another_disk_in_the_same_place_is_not_taken_for_the_first(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        self.disks[agent.path].number = 99
        assert await errno_of(agent.probe(full=False, timeout_ms=TIMEOUT_MS)) == errno.ESTALE

    async def test_another_directory_id_is_not_taken_for_the_first(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        self.disks[agent.path].meta_properties = self.meta()
        assert await errno_of(agent.probe(full=False, timeout_ms=TIMEOUT_MS)) == errno.ESTALE

    async def test_a_full_disk_is_well_and_says_so(self) -> None:
        storage = await self.started()
        agent = await self.formatted(storage)
        self.disks[agent.path].fill()
        assert (await agent.probe(full=False, timeout_ms=TIMEOUT_MS)).no_space is None
        assert (await agent.probe(full=True, timeout_ms=TIMEOUT_MS)).no_space == "ENOSPC"


def test_storage_agents_are_found_by_name() -> None:
    assert set(registry.names()) >= {"memory", "posix"}
    made = registry.create("memory", StorageOptions(clock=SystemClock()))
    assert isinstance(made, MemoryStorageAgent)


def test_an_unknown_storage_agent_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"there is no storage agent 'posixx'; there are: .*memory, .*posix"):
        registry.create("posixx", StorageOptions(clock=SystemClock()))


def test_an_error_says_what_where_and_at_which_step() -> None:
    error = DirectoryError(errno.EIO, "fsync of .kjbod_probe", "/mnt/d2", after_us=400)
    assert str(error) == "/mnt/d2: EIO at fsync of .kjbod_probe"


def test_our_own_are_those_that_are_installed_as_entry_points() -> None:
    installed = {point.name: point.value for point in entry_points(group=registry.GROUP)}
    assert {name: ":".join(ours) for name, ours in registry.OURS.items()}.items() <= installed.items()
