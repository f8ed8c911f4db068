"""Rules for disks that may be broken: scratch disks in every way, others only when named twice, some never."""

import contextlib
import os
import sys
from pathlib import Path

from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Fault, Target
from kjbod.faults.mount_table import Mount, mount_above
from kjbod.faults.program import PROGRAM, typed
from kjbod.faults.scratch import find_disk
from kjbod.runtime.procfs import unescape

_NEVER = (
    "/",
    "/boot",
    "/boot/efi",
    "/usr",
    "/usr/local",
    "/opt",
    "/etc",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/tmp",
    "/home",
    "/root",
    "/tmp",
    "/dev",
    "/proc",
    "/sys",
    "/run",
)
_SWAPS = Path("/proc/swaps")


def find_target(fault: Fault, path: str, *, confirmed: str | None, state_dir: Path) -> Target:
    """Return the target at ``path``: a scratch disk, or another disk that ``confirmed`` names again.

    Raises:
        FaultsError: the disk must not be broken, or not in this way.
    """
    absolute = Path(os.path.abspath(path))
    disk = find_disk(absolute, state_dir)
    if disk is not None:
        if not disk.is_alive():
            raise FaultsError(f"{disk.path}: this scratch disk is gone: {typed()} disk remove {disk.path}")
        return disk.target()
    if not absolute.is_dir():
        raise FaultsError(f"{path}: no such directory")
    real = absolute.resolve()
    disk = find_disk(real, state_dir)
    if disk is not None:
        return find_target(fault, str(real), confirmed=confirmed, state_dir=state_dir)
    mount = mount_above(real)
    _refuse_the_system(path, mount, state_dir)
    if confirmed != path:
        again = f"--yes-this-disk {confirmed} is another path; " if confirmed is not None else ""
        raise FaultsError(
            f"{path}: not a scratch disk: {again}to break {mount.source} on {mount.mount_point}, which may hold "
            f"somebody's data, repeat its path: --yes-this-disk {path}"
        )
    if fault.scratch_only:
        raise FaultsError(
            f"{path}: {fault.name} is for scratch disks only, --yes-this-disk or not: it could not be undone for "
            f"certain ({PROGRAM} disk create PATH makes one)"
        )
    return Target(real, mount.mount_point, mount.fstype, None, Path(mount.source))


def _refuse_the_system(path: str, mount: Mount, state_dir: Path) -> None:
    """Refuse disks that the machine or this program needs."""
    for place in (*map(Path, _NEVER), Path(__file__).parent, Path(sys.prefix), state_dir, Path.cwd()):
        with contextlib.suppress(OSError):
            other = mount_above(place.resolve())
            if _is_same(mount, other):
                raise FaultsError(f"{path}: lies on the same file system as {place}, which is never touched")
    for line in _SWAPS.read_bytes().split(b"\n")[1:-1]:
        swap = Path(unescape(line.split()[0]))
        with contextlib.suppress(OSError):
            if str(swap) == mount.source or (swap.is_file() and _is_same(mount, mount_above(swap.resolve()))):
                raise FaultsError(f"{path}: swap {swap} lies there, which is never touched")


def _is_same(mount: Mount, other: Mount) -> bool:
    # The volumes of one btrfs have different device numbers.
    return mount.device == other.device or (mount.source.startswith("/dev/") and mount.source == other.source)
