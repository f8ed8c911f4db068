"""Mount table, and the processes with open files on a mount, read from /proc, which never waits for a disk."""

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
"""Prefix of the source of a fault's mounts."""
FAULT_MEMORY = f"memfd:{FAULT_SOURCE}"
"""Prefix of the name of the memory under a disk that a fault mounts in place of another."""


class Mount(NamedTuple):
    """A line of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)).

    Attributes:
        mount_id: id as ``mnt_id`` in ``/proc/PID/fdinfo``.
        device: ``"major:minor"``.
        root: directory of the file system that is mounted here.
        options: options of this mount.
        super_options: options of the file system, common to all its mounts.
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
        """Return the MS_ flags of this mount, for a remount that changes nothing else."""
        flags = sum(flag for option, flag in _FLAGS.items() if option in self.options)
        return flags if any(option in self.options for option in _ATIME) else flags | syscalls.MS_STRICTATIME

    def is_writable(self) -> bool:
        """Return whether both the mount and the file system are writable."""
        return not {"ro", "emergency_ro", "shutdown"} & {*self.options, *self.super_options}


def mounts(process: str = "self") -> list[Mount]:
    """Return all mounts of this namespace, or of another process's, oldest first."""
    found = []
    # A name may contain any control character except this one.
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
    """Return the mounts at exactly this place, the visible one last."""
    return [mount for mount in mounts() if mount.mount_point == mount_point]


def mount_on(mount_point: Path) -> Mount | None:
    """Return the visible mount at exactly this place, not one hidden because a parent was mounted over."""
    try:
        mount = _mount_of(mount_point)
    except OSError:
        return None
    return mount if mount is not None and mount.mount_point == mount_point else None


def mount_above(path: Path) -> Mount:
    """Return the mount of a path without symbolic links, which need not exist. Raises OSError."""
    for parent in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if mount := _mount_of(parent):
                return mount
    raise FileNotFoundError(errno.ENOENT, "in no mount of this namespace", str(path))


def _mount_of(path: Path) -> Mount | None:
    """Return the mount as the kernel resolves it, because some names in the table may be hidden. Raises OSError."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        mount_id = _mount_id(Path(f"/proc/self/fdinfo/{fd}"))
        return next((mount for mount in mounts() if mount.mount_id == mount_id), None)
    finally:
        os.close(fd)


def _backing_name(mount: Mount) -> str:
    """Return the name of the file under the mount's loop device; empty if there is none. Loop numbers are reused."""
    number = mount.source.removeprefix("/dev/loop")
    if not number.isdigit():
        return ""
    try:
        backing = Path(f"/sys/block/loop{number}/loop/backing_file").read_bytes().rstrip(b"\n")
    except OSError:  # cleared
        return ""
    return os.fsdecode(os.path.basename(backing.removesuffix(b" (deleted)")))


def is_on_image(mount: Mount, image: str) -> bool:
    """Return whether the mount is on a loop device over a file of that name, which only one disk's image has."""
    return _backing_name(mount) == image


def is_own(mount: Mount, image: str) -> bool:
    """Return whether the mount was made for the disk ``image``, or over it to hide it."""
    name = _backing_name(mount)
    return name == image or name.startswith(FAULT_MEMORY) or mount.source.startswith((OVER_MOUNT, FAULT_SOURCE))


def detach_own(mount_point: Path, image: str) -> Mount | None:
    """Detach the mounts at exactly this place, from the top, as long as they were made for the disk ``image``.

    Returns the first foreign mount, or None if nothing is left. Raises OSError.
    """
    while (mount := mount_on(mount_point)) is not None:
        if not is_own(mount, image):
            return mount
        syscalls.umount(mount_point, syscalls.MNT_DETACH)
    return None


def mounts_below(mount_point: Path) -> list[Mount]:
    """Return the mounts that would be detached with this place."""
    return [mount for mount in mounts() if mount_point in mount.mount_point.parents]


def holders(mount_ids: set[int]) -> list[str]:
    """Return the processes with open files on these mounts: ``"1234 (java)"``. Only processes that we may inspect."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_mount_id(info) in mount_ids for info in (entry / "fdinfo").iterdir()):
                found.append(f"{entry.name} ({(entry / 'comm').read_text().strip()})")
    return found


def users(devices: set[str], detached_ids: set[int]) -> list[str]:
    """Return the processes with open files on the file systems of these devices, like :func:`holders`. Includes
    processes in another mount namespace, such as services.

    :param detached_ids: ids of mounts of these file systems that may be detached: no table lists those.
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
    return holders(ids | (detached_ids - device_of.keys()))  # ids are reused after the last user ends


def _mount_id(fdinfo: Path) -> int | None:
    with contextlib.suppress(OSError):
        for line in fdinfo.read_text().splitlines():
            if line.startswith("mnt_id:"):
                return int(line.partition(":")[2])
    return None
