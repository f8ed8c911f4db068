"""The disks of the story: real ext4 on block devices that fail on demand, or, without root, plain directories."""

import concurrent.futures
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from kjbod.faults.disks import FaultMode, RealDisk, require_real_disks
from kjbod.faults.faults_error import FaultsError


class Disk(Protocol):
    """A disk with one log directory, and how it dies."""

    log_dir: Path
    how: str
    """What :meth:`kill` does, for the reader."""

    def kill(self) -> float:
        """Break it; the wall clock in seconds at the moment of the fault."""

    def close(self) -> None:
        """Take it away."""


class KillableDisk:
    """A 64 MiB ext4 whose device answers EIO when killed, or nothing while it hangs."""

    how = "the kernel answers EIO to every request from now on"

    def __init__(self, mount_point: Path, control: Path) -> None:
        self._disk = RealDisk(mount_point, directory=control)
        self.log_dir = mount_point
        self.control = control

    def kill(self) -> float:
        at = time.time()
        self._disk.set(FaultMode.EIO)
        return at

    def hang(self) -> float:
        """Answer nothing from now on; the wall clock in seconds then."""
        self._disk.set(FaultMode.HANG)
        return time.time()

    def mend(self) -> None:
        """Answer again, also what waited; a dead disk cannot be unmounted cleanly, nor a hung one."""
        with contextlib.suppress(FaultsError):
            self._disk.set(FaultMode.OK)

    def pull(self) -> None:
        """Unplug it: what waited for it fails, and everything after."""
        self._disk.kill()

    def replace(self) -> None:
        """Unmount it, and mount another one, new and empty, in its place."""
        self._disk.close()
        self.control = self.control.with_name(f"{self.control.name}-new")
        self._disk = RealDisk(self.log_dir, directory=self.control)

    def close(self) -> None:
        self.mend()
        self._disk.close()


D = TypeVar("D", bound=Disk)


class PlainDirectory:
    """A directory that is moved away when killed, as if its disk had been unmounted."""

    how = "its directory is gone"

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.log_dir = path

    def kill(self) -> float:
        at = time.time()
        self.log_dir.rename(self.log_dir.with_name(self.log_dir.name + ".gone"))
        return at

    def close(self) -> None:
        for path in (self.log_dir, self.log_dir.with_name(self.log_dir.name + ".gone")):
            shutil.rmtree(path, ignore_errors=True)


def why_no_real_disks() -> str | None:
    """A line when this machine lets us have no real disks, None when it does."""
    try:
        require_real_disks()
    except FaultsError as error:
        return str(error)
    return None


def make_disks(work: Path, brokers: tuple[int, ...], per_broker: int, *, real: bool) -> dict[tuple[int, int], Disk]:
    """All disks, by broker and number (1, 2, ...); made side by side. None is left if one cannot be made."""
    if real:
        return {**make_real_disks(work, brokers, per_broker)}
    return _side_by_side(work, brokers, per_broker, lambda name: PlainDirectory(work / "disks" / name))


def make_real_disks(work: Path, brokers: tuple[int, ...], per_broker: int) -> dict[tuple[int, int], KillableDisk]:
    """All disks of :func:`make_disks`, real ones."""

    def make(name: str) -> KillableDisk:
        return KillableDisk(work / "disks" / name, work / "control" / name)

    return _side_by_side(work, brokers, per_broker, make)


def _side_by_side(
    work: Path, brokers: tuple[int, ...], per_broker: int, make: Callable[[str], D]
) -> dict[tuple[int, int], D]:
    keys = [(broker, disk) for broker in brokers for disk in range(1, per_broker + 1)]
    (work / "disks").mkdir(parents=True)
    made: dict[tuple[int, int], D] = {}
    with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
        futures = {key: pool.submit(make, f"broker{key[0]}-disk{key[1]}") for key in keys}
        try:
            for key, future in futures.items():
                made[key] = future.result()
        except BaseException:
            for future in futures.values():
                if not future.cancel() and future.exception() is None:
                    future.result().close()
            raise
    return made
