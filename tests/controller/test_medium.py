"""A disk that refuses one write of the metadata log: what was acknowledged stays, what was not is never served."""

import asyncio
import contextlib
import errno
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import RealDisk
from kjbod.wire.client import Disconnected
from scripts.rig.processes import Processes, wait_until
from tests.controller.test_log_dir import Rig, last_line, rig_on, topics
from tests.controller.test_server import create, join

pytestmark = pytest.mark.usefixtures("as_root")


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def rig(tmp_path: Path, processes: Processes, request: pytest.FixtureRequest) -> Iterator[Rig]:
    with RealDisk(fstype=request.param, log_dir="metadata") as disk:
        yield rig_on(disk, tmp_path, processes)


def unmount(rig: Rig) -> None:
    """Take the file system down to its last page: not lazily, the image would have two for a while."""

    def is_unmounted() -> bool:
        with contextlib.suppress(OSError):  # EBUSY: the probe of a controller that was killed
            syscalls.umount(rig.disk.mount_point)
            return True
        return False

    wait_until(is_unmounted, 20, "nobody uses the disk")


async def create_all(rig: Rig, names: list[str], partitions: int = 1) -> set[str]:
    """Create topics one after the other; those that were acknowledged."""
    acknowledged = set()
    async with rig.connected() as connection:
        await join(connection, 1)
        with contextlib.suppress(Disconnected):
            for name in names:
                answer = await connection.request(create(name, partitions), timeout_ms=30_000)
                assert answer.topics[0].error_code == 0
                acknowledged.add(name)
    return acknowledged


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["eio", "thin-pool-full"])
async def test_topics_outlive_a_failed_write_a_restart_and_the_page_cache(rig: Rig, number: int) -> None:
    controller = await asyncio.to_thread(rig.start)
    before = await create_all(rig, ["a-0", "a-1"])
    assert before == {"a-0", "a-1"}
    rig.disk.refuse_one_write(b"refused-topic", number)
    assert await create_all(rig, ["refused-topic"], 500) == set()  # a batch of many pages
    assert await asyncio.to_thread(controller.wait) == 1
    assert "cannot write to the metadata log" in last_line(controller)
    assert rig.disk.has_refused()

    controller = await asyncio.to_thread(rig.start)
    assert await topics(rig) == before
    after = await create_all(rig, ["b-0", "b-1"])
    assert after == {"b-0", "b-1"}
    controller.signal(signal.SIGKILL)
    await asyncio.to_thread(controller.wait)

    unmount(rig)  # whatever was in the page cache alone is gone
    rig.disk.mount()
    controller = await asyncio.to_thread(rig.start)
    assert await topics(rig) == before | after
    assert await asyncio.to_thread(controller.stop) == 0
