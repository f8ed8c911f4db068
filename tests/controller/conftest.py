"""A formatted controller directory and a server on it.

The server runs in the test's process and on its loop, to be looked into and interrupted between two steps; its
directory has an id that the test knows. A controller that is a process of its own is :mod:`scripts.rig.cluster`'s.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.config import load_config
from kjbod.config.keys import Config
from kjbod.ids import Uuid
from kjbod.meta_properties import META_PROPERTIES_NAME, MetaProperties, render_meta_properties
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.snapshot import SnapshotId
from kjbod_controller_stub.server import ControllerServer
from tests.controller.world import CLUSTER_ID, NODE_ID
from tests.depth import at

DIRECTORY_ID = Uuid.of(3000, 1)


@dataclass(slots=True)
class Site:
    """A configuration file and the directory that it names."""

    config_path: Path
    log_dir: Path

    @property
    def config(self) -> Config:
        return load_config(self.config_path)

    def format(
        self, *, node_id: int = NODE_ID, cluster_id: str | None = CLUSTER_ID, directory_id: Uuid = DIRECTORY_ID
    ) -> None:
        log = self.log_dir / "__cluster_metadata-0"
        log.mkdir(parents=True, exist_ok=True)
        now_ms = SystemClock().wall_ms()  # metadata.max.retention.ms counts from here
        write_checkpoint(log / SnapshotId(0, 0).file_name, header_timestamp_ms=now_ms, kraft=None, records=())
        meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
        (self.log_dir / META_PROPERTIES_NAME).write_bytes(render_meta_properties(meta, datetime.now(UTC)))

    def configure(self, **changes: str) -> None:
        """Write the configuration; names with _ for dots, kjbod's own keys too."""
        values = {
            "process.roles": "controller",
            "node.id": str(NODE_ID),
            "listeners": "CONTROLLER://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
            "log.dirs": str(self.log_dir),
        } | {name.replace("_", "."): value for name, value in changes.items()}
        self.config_path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))

    @property
    def log_file(self) -> Path:
        return self.log_dir / "__cluster_metadata-0" / f"{0:020d}.log"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path / "controller.properties", tmp_path / "metadata")
    made.format()
    made.configure()
    return made


Serving = Callable[[Site], AbstractAsyncContextManager[ControllerServer]]


@pytest.fixture
def serving() -> Serving:
    """Runs a controller in this process for the length of a block."""

    @contextlib.asynccontextmanager
    async def run(site: Site) -> AsyncIterator[ControllerServer]:
        async with asyncio.timeout(at(quick=60, ci=60, deep=1_200)), asyncio.TaskGroup() as tasks:
            server = await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random(5))
            try:
                tasks.create_task(server.run())
                yield server
            finally:
                await server.close()

    return run


async def until(predicate: Callable[[], object]) -> None:
    """Give other tasks their turn until ``predicate`` holds."""
    while not predicate():  # noqa: ASYNC110  what is waited for is state of the program under test
        await asyncio.sleep(0.002)
