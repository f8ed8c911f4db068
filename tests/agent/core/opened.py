"""Log directories in memory, opened as an agent opens them, in virtual time."""

import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kjbod.config import Config
from kjbod.config.load import parse_config
from kjbod.ids import Uuid
from kjbod_host.directories.start_up import Opened, Remembering, open_directories
from kjbod_host.directories.start_up_rules import Memory
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from tests.agent.core.recording import Log

T = TypeVar("T")


async def _nothing() -> None:
    return


def config_of(
    paths: Sequence[str], *, node_id: int = 1, metadata: str | None = None, state_dir: Path = Path("/state")
) -> Config:
    """A broker with these ``log.dirs``."""
    lines = {
        "process.roles": "broker",
        "node.id": str(node_id),
        "listeners": "PLAINTEXT://localhost:9092",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "localhost:9093",
        "log.dirs": ",".join(paths),
        "metadata.log.dir": metadata or paths[0],
        "kjbod.state.dir": str(state_dir),
    }
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    return parse_config(text.encode(), source="server.properties", working_directory="/", host="h")


class Unsaved(Remembering):
    """A memory that is in no file: a thread would not know of virtual time."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    async def load(self) -> Memory:
        return self.memory

    async def change(self, memory: Memory) -> None:
        self.memory = memory

    async def real_path(self, path: str) -> str:
        return path

    def close(self) -> None:
        pass


class Disks:
    """Formatted disks, and an agent's way to them.

    Args:
        clock: the virtual loop.
        paths: ``log.dirs``.
        remembered: paths that the agent remembers; default: all.
        metadata: ``metadata.log.dir``, the first path by default.
    """

    def __init__(
        self, clock: Any, paths: Sequence[str], remembered: Sequence[str] | None = None, metadata: str | None = None
    ) -> None:
        self.clock = clock
        self.config = config_of(paths, metadata=metadata)
        self.rng = random.Random(858)
        self.log = Log()
        self.ids: dict[str, Uuid] = {}
        self.disks: dict[str, MemoryDisk] = {}
        for number, path in enumerate(dict.fromkeys((*paths, self.config.metadata_log_dir)), start=1):
            self.disks[path] = MemoryDisk(number=number)
            self.format(path, Uuid.of(5, number))
        self.remembering = Unsaved(Memory())
        for path in self.ids if remembered is None else remembered:
            self.remembering.memory = self.remembering.memory.seen(path, self.ids[path], 0)
        self.restart()

    def restart(self) -> None:
        """Another process."""
        for disk in self.disks.values():
            disk.locked_by = None
        self.storage = MemoryStorageAgent(StorageOptions(clock=self.clock), self.disks)

    def __getitem__(self, path: str) -> MemoryDisk:
        return self.disks[path]

    def format(self, path: str, directory_id: Uuid | None, *, node: int = 1, cluster: str = "c") -> None:
        """Write ``meta.properties``."""
        line = "" if directory_id is None else f"directory.id={directory_id}\n"
        self.disks[path].meta_properties = f"version=1\nnode.id={node}\ncluster.id={cluster}\n{line}".encode()
        if directory_id is not None:
            self.ids[path] = directory_id

    def replace(self, path: str, *, formatted: bool = True) -> Uuid:
        """Another disk under the path; its id."""
        number = 100 + len(self.disks) + self.rng.randrange(1 << 20)
        self.disks[path] = MemoryDisk(number=number)
        if formatted:
            self.format(path, Uuid.of(6, number))
        return self.ids[path]

    def put(self, path: str, *replicas: tuple[str, Uuid]) -> None:
        """Replica directories, each with its topic id."""
        for name, topic_id in replicas:
            self.disks[path].directories[name] = f"version: 0\ntopic_id: {topic_id}".encode()

    async def open(self, open_companion: Callable[[], Awaitable[None]] = _nothing) -> Opened:
        """As at the start, of a combined node with the other half."""
        return await open_directories(
            self.config,
            self.storage,
            self.clock,
            self.rng,
            self.log,
            self.remembering,
            open_companion=open_companion,
        )
