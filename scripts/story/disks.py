"""The disks of the story: real ext4 on block devices that fail on demand, or, without root, plain directories."""

import concurrent.futures
import contextlib
import shutil
import time
from pathlib import Path
from typing import Protocol

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
    """A 64 MiB ext4 whose device answers EIO when killed."""

    how = "the kernel answers EIO to every request from now on"

    def __init__(self, mount_point: Path, control: Path) -> None:
        self._disk = RealDisk(mount_point, directory=control)
        self.log_dir = mount_point
        self.control = control

    def kill(self) -> float:
        at = time.time()
        self._disk.set(FaultMode.EIO)
        return at

    def close(self) -> None:
        # A dead disk cannot be unmounted cleanly; one that works again can.
        with contextlib.suppress(FaultsError):
            self._disk.set(FaultMode.OK)
        self._disk.close()


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

    def make(key: tuple[int, int]) -> Disk:
        name = f"broker{key[0]}-disk{key[1]}"
        if not real:
            return PlainDirectory(work / "disks" / name)
        return KillableDisk(work / "disks" / name, work / "control" / name)

    keys = [(broker, disk) for broker in brokers for disk in range(1, per_broker + 1)]
    (work / "disks").mkdir(parents=True)
    made: dict[tuple[int, int], Disk] = {}
    with concurrent.futures.ThreadPoolExecutor(len(keys)) as pool:
        futures = {key: pool.submit(make, key) for key in keys}
        try:
            for key, future in futures.items():
                made[key] = future.result()
        except BaseException:
            for future in futures.values():
                if not future.cancel() and future.exception() is None:
                    future.result().close()
            raise
    return made
