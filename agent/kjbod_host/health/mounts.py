"""Parser of the kernel's mount table, and the effect of its changes on a log directory. Pure.

``/proc/self/mountinfo`` (proc_pid_mountinfo(5)) never blocks, also while a disk hangs or is frozen. It shows what
``statvfs`` does not: ext4's ``emergency_ro`` and ``shutdown`` (since Linux 6.12 an ext4 error no longer sets the
superblock's read-only flag).

The file is read and watched by :mod:`.mountinfo`.
"""

from enum import StrEnum

from msgspec import Struct

from kjbod.runtime.procfs import unescape


class Mount(Struct, frozen=True):
    """A line of mountinfo.

    Attributes:
        mount_id: used again by the kernel after an unmount.
        parent_id: the mount it is mounted on.
        device: ``"major:minor"``; major 0 for file systems without one block device (btrfs, overlay, FUSE, NFS).
        root: which directory of the file system is mounted (a bind mount or a subvolume has another than ``/``).
        mount_point: where.
        fstype: ``ext4``.
        source: what was mounted, ``/dev/sdb1``.
        options: of the mount and of the file system together.
    """

    mount_id: int
    parent_id: int
    device: str
    root: str
    mount_point: str
    fstype: str
    source: str
    options: frozenset[str]


class MountChange(StrEnum):
    """State of a log directory's mount, compared with the time when it was loaded."""

    OK = "ok"
    MISSING = "missing"
    """The mount is gone; the path now leads to the file system underneath."""
    OTHER = "other"
    """The path now leads to another mount, put over it or in its place."""
    READ_ONLY = "read-only"
    EMERGENCY_RO = "emergency_ro"
    """ext4 stopped writing after an error of its own."""
    SHUTDOWN = "shutdown"


def parse_mountinfo(content: bytes) -> tuple[Mount, ...]:
    """All mounts in the order of the file; lines that do not have its form are left out."""
    # Not splitlines(): the kernel writes a carriage return in a name as it is.
    mounts = (_parse_line(line) for line in content.split(b"\n"))
    return tuple(mount for mount in mounts if mount is not None)


def _parse_line(line: bytes) -> Mount | None:
    fields = line.split(b" ")
    try:
        separator = fields.index(b"-", 6)  # any number of optional fields before it
        fstype, source, super_options = fields[separator + 1 : separator + 4]
        return Mount(
            mount_id=int(fields[0]),
            parent_id=int(fields[1]),
            device=fields[2].decode("ascii"),
            root=unescape(fields[3]),
            mount_point=unescape(fields[4]),
            fstype=unescape(fstype),
            source=unescape(source),
            options=frozenset(unescape(fields[5]).split(",")) | frozenset(unescape(super_options).split(",")),
        )
    except ValueError:
        return None


def mount_of(real_path: str, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that a path without symbolic links leads to, found as the kernel walks: from the root, always into the
    mount that lies on the way. (The longest mount point would be wrong for one that a later mount higher up hides.)
    """
    ids = {mount.mount_id for mount in mounts}
    now = next(
        (m for m in mounts if m.mount_point == "/" and (m.parent_id not in ids or m.parent_id == m.mount_id)), None
    )
    for _ in mounts:  # each step goes one mount deeper, so this many are enough
        on_the_way = [m for m in mounts if now and m.parent_id == now.mount_id != m.mount_id and _leads(m, real_path)]
        if not on_the_way:
            break
        now = min(on_the_way, key=lambda mount: len(mount.mount_point))
    return now


def mount_under(real_path: str, mount_id: int | None, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount with this id; if the table does not have it, the mount that the path leads to."""
    return next((mount for mount in mounts if mount.mount_id == mount_id), None) or mount_of(real_path, mounts)


def _leads(mount: Mount, real_path: str) -> bool:
    point = mount.mount_point.rstrip("/")
    return real_path == point or real_path.startswith(point + "/")


def compare(real_path: str, loaded: Mount, mounts: tuple[Mount, ...]) -> MountChange:
    """Return the change of a path's mount since the directory was loaded."""
    now = mount_of(real_path, mounts)
    if now is None or (now.mount_id, now.device, now.root) != (loaded.mount_id, loaded.device, loaded.root):
        still_there = any(mount.mount_id == loaded.mount_id and mount.device == loaded.device for mount in mounts)
        replaced = now is not None and now.mount_point == loaded.mount_point
        return MountChange.OTHER if still_there or replaced else MountChange.MISSING
    for option, change in (
        ("shutdown", MountChange.SHUTDOWN),
        ("emergency_ro", MountChange.EMERGENCY_RO),
        ("ro", MountChange.READ_ONLY),
    ):
        if option in now.options and option not in loaded.options:
            return change
    return MountChange.OK


def not_mounted(before: str, mount_id: int, mounts: tuple[Mount, ...]) -> str | None:
    """Reason why what lies on the mount ``mount_id`` cannot be the disk that was mounted on ``before``, in words that
    follow its path: the mount is one further up, below which the disk would be mounted. None: nothing speaks against
    it."""
    now = next((mount for mount in mounts if mount.mount_id == mount_id), None)
    if now is None or now.mount_point == before or not before.startswith(now.mount_point.rstrip("/") + "/"):
        return None
    return f"lies on the file system of {now.mount_point} now: mount its disk on {before} first"
