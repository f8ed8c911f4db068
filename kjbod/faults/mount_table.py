"""The mount table, and who has files open on a mount: read from /proc, which never waits for a disk."""

import contextlib
import errno
import os
from pathlib import Path
from typing import NamedTuple

from kjbod.faults import syscalls
from kjbod.runtime.procfs import unescape

_FLAGS = {
    "ro": syscalls.MS_RDONLY,
    "nosuid": syscalls.MS_NOSUID,
    "nodev": syscalls.MS_NODEV,
    "noexec": syscalls.MS_NOEXEC,
    "noatime": syscalls.MS_NOATIME,
    "nodiratime": syscalls.MS_NODIRATIME,
    "relatime": syscalls.MS_RELATIME,
}
_ATIME = ("noatime", "relatime")
OVER_MOUNT = "kjbod-over-mount"
"""Source of a tmpfs that hides a disk for a test."""
FAULT_SOURCE = "kjbod-fault-"
"""Start of the source of what a fault mounts."""
FAULT_MEMORY = f"memfd:{FAULT_SOURCE}"
"""Start of the name of the memory under a disk that a fault puts in another one's place."""


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)).

    Attributes:
        mount_id: as ``mnt_id`` in ``/proc/PID/fdinfo``.
        device: ``"major:minor"``.
        root: the directory of the file system that is mounted here.
        options: of this mount.
        super_options: of the file system, whoever mounted it.
    """

    mount_id: int
    device: str
    root: str
    mount_point: Path
    options: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]

    def flags(self) -> int:
        """The MS_ flags of this mount, for a remount that is to change nothing else."""
        flags = sum(flag for option, flag in _FLAGS.items() if option in self.options)
        return flags if any(option in self.options for option in _ATIME) else flags | syscalls.MS_STRICTATIME

    def is_writable(self) -> bool:
        """Whether neither the mount nor the file system says that it takes no writes."""
        return not {"ro", "emergency_ro", "shutdown"} & {*self.options, *self.super_options}


def mounts(process: str = "self") -> list[Mount]:
    """All mounts of this namespace, or of another process's, in the order in which they were made."""
    found = []
    # A name may contain any control character but this one.
    for line in Path(f"/proc/{process}/mountinfo").read_bytes().split(b"\n")[:-1]:
        left, _, right = line.partition(b" - ")
        fields, behind = left.split(b" "), right.split(b" ")
        found.append(
            Mount(
                int(fields[0]),
                fields[2].decode(),
                unescape(fields[3]),
                Path(unescape(fields[4])),
                tuple(unescape(fields[5]).split(",")),
                unescape(behind[0]),
                unescape(behind[1]),
                tuple(unescape(behind[2]).split(",")),
            )
        )
    return found


def mounts_on(mount_point: Path) -> list[Mount]:
    """Mounts at exactly this place, the visible one last."""
    return [mount for mount in mounts() if mount.mount_point == mount_point]


def mount_on(mount_point: Path) -> Mount | None:
    """The mount that is visible at exactly this place: not one that is hidden because a parent was mounted over."""
    try:
        mount = _mount_of(mount_point)
    except OSError:
        return None
    return mount if mount is not None and mount.mount_point == mount_point else None


def mount_above(path: Path) -> Mount:
    """The mount that a path without symbolic links lies on, or will when it is made. Raises OSError."""
    for parent in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if mount := _mount_of(parent):
                return mount
    raise FileNotFoundError(errno.ENOENT, "in no mount of this namespace", str(path))


def _mount_of(path: Path) -> Mount | None:
    """As the kernel resolves it, and not by the names in the table, of which some may be hidden. Raises OSError."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mount_id = _mount_id(Path(f"/proc/self/fdinfo/{fd}"))
        return next((mount for mount in mounts() if mount.mount_id == mount_id), None)
    finally:
        os.close(fd)


def _backing_name(mount: Mount) -> str:
    """Name of the file under its loop device; empty if it is on no such device. Loop numbers are re-used."""
    number = mount.source.removeprefix("/dev/loop")
    if not number.isdigit():
        return ""
    try:
        backing = Path(f"/sys/block/loop{number}/loop/backing_file").read_bytes().rstrip(b"\n")
    except OSError:  # cleared
        return ""
    return os.fsdecode(os.path.basename(backing.removesuffix(b" (deleted)")))


def is_on_image(mount: Mount, image: str) -> bool:
    """Whether it is on a loop device over a file of that name, which no other disk's image has."""
    return _backing_name(mount) == image


def is_own(mount: Mount, image: str) -> bool:
    """Whether it was made for the disk ``image``, or over it to hide it."""
    name = _backing_name(mount)
    return name == image or name.startswith(FAULT_MEMORY) or mount.source.startswith((OVER_MOUNT, FAULT_SOURCE))


def detach_own(mount_point: Path, image: str) -> Mount | None:
    """Detach what is mounted at exactly this place, from the top, as long as it was made for the disk ``image``.

    Returns the mount of somebody else that ends it, or None when nothing is left. Raises OSError.
    """
    while (mount := mount_on(mount_point)) is not None:
        if not is_own(mount, image):
            return mount
        syscalls.umount(mount_point, syscalls.MNT_DETACH)
    return None


def mounts_below(mount_point: Path) -> list[Mount]:
    """Mounts that would go along if this place were unmounted."""
    return [mount for mount in mounts() if mount_point in mount.mount_point.parents]


def holders(mount_ids: set[int]) -> list[str]:
    """Processes that have something open on these mounts: ``"1234 (java)"``. Only those that we may look into."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_mount_id(info) in mount_ids for info in (entry / "fdinfo").iterdir()):
                found.append(f"{entry.name} ({(entry / 'comm').read_text().strip()})")
    return found


def users(devices: set[str], detached_ids: set[int]) -> list[str]:
    """Processes that have something open on the file systems of these devices, as :func:`holders`, also those that see
    them in a mount namespace of their own, as a service does.

    :param detached_ids: of mounts of these file systems that may have been detached since: no table has those.
    """
    device_of: dict[int, str] = {}
    seen = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            namespace = os.readlink(entry / "ns" / "mnt")
            if namespace not in seen:
                device_of |= {mount.mount_id: mount.device for mount in mounts(entry.name)}
                seen.add(namespace)
    ids = {mount_id for mount_id, device in device_of.items() if device in devices}
    return holders(ids | (detached_ids - device_of.keys()))  # an id is given to another mount when the last user ends


def _mount_id(fdinfo: Path) -> int | None:
    with contextlib.suppress(OSError):
        for line in fdinfo.read_text().splitlines():
            if line.startswith("mnt_id:"):
                return int(line.partition(":")[2])
    return None
