"""Actions of the helper on log directories and mounts, and its looks at them.

An access to a log directory may hang for ever, so it runs in a child of the helper.
"""

# pathlib knows no dir_fd, and what runs here should be little.
# ruff: noqa: PTH116

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import stat
import struct
import time

from kjbod_guard.helper_broker import Broker, is_below
from kjbod_guard.helper_directory import MASK_SOURCE, Directory
from kjbod_guard.helper_netlink import Refused

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    pass

MAX_FD = 1 << 16
LOOK_AGAIN_MS = 5
SYSTEM_DIRECTORIES = frozenset(
    {"/", "/boot", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/var", "/var/lib", "/var/log"}
)
"""Directories that a host needs: they are never masked, and their file systems are never cut."""

FS_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32), EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN alike
SHUTDOWN_NOLOGFLUSH = 2
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = (
    429,
    430,
    431,
    432,
    442,
)  # the same on all that Kafka runs on
_SET_STRING, _CREATE = 1, 6  # FSCONFIG_*
_EMPTY_PATHS = 0x04 | 0x40  # MOVE_MOUNT_F_EMPTY_PATH, _T_EMPTY_PATH
_AT_EMPTY_PATH = 0x1000
_MOUNT_ATTR_SAFE = 0x0F  # RDONLY, NOSUID, NODEV, NOEXEC

libc = ctypes.CDLL(None, use_errno=True)


class Mount:
    """A line of mountinfo."""

    def __init__(self, line: str) -> None:
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        self.id, self.parent, self.device = int(fields[0]), int(fields[1]), fields[2]
        self.root, self.point = unescape(fields[3]), unescape(fields[4])
        self.fstype, self.source, self.options = kind[0], unescape(kind[1]), kind[2].split(",")


# ------------------------------------------------------------------------------------------------- what the kernel says


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _call(name: str, number: int, *arguments: int | bytes | None) -> int:
    plain = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _check(libc.syscall(ctypes.c_long(number), *plain), name)


def unescape(text: str) -> str:
    """Undo the octal escapes of mountinfo."""
    first, *rest = text.split("\\")
    return first + "".join(chr(int(one[:3], 8)) + one[3:] for one in rest)


def mounts(pid: int | str = "self") -> list[Mount]:
    """Return the mount table of a process. Never waits for a disk."""
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return [Mount(line.rstrip("\n")) for line in file]


def resolve(table: list[Mount], path: str) -> Mount | None:
    """Return the mount to which a path without links leads. Walks from the root into the first mount on the way, like
    the kernel."""
    ids = {mount.id for mount in table}
    tops = (one for one in table if one.point == "/" and (one.parent not in ids or one.parent == one.id))
    here = next(tops, None)
    while here is not None:
        now = here
        met = [one for one in table if one.parent == now.id and one is not now and is_below(path, one.point)]
        met = [one for one in met if is_below(one.point, now.point)]
        if not met:
            return now
        here = min(met, key=lambda one: len(one.point))
    return None


def mount_id(fd: int) -> int:
    """Return the mount id of an open file."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


def device_of(status: os.stat_result) -> str:
    """Return the device of a file as ``major:minor``, as in mountinfo."""
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def swaps() -> list[str]:
    """Return the devices and files that the host swaps to."""
    with contextlib.suppress(OSError), open("/proc/swaps", encoding="utf-8", errors="surrogateescape") as file:
        return [unescape(line.split()[0]) for line in file.readlines()[1:]]
    return []


# --------------------------------------------------------------------------------------------- actions, each in a child


def keep_only(*kept: int) -> None:
    """Close every other descriptor, so that a stuck child holds no other disk or socket."""
    last = 2
    for fd in sorted({one for one in kept if one > last}):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, MAX_FD)


def enter(broker: Broker | None, name: str, flag: int) -> bool:
    """Enter the broker's namespace; return whether it is another one."""
    require_known(broker, name)
    if broker is None or not is_elsewhere(broker, name):
        return False
    _check(libc.setns(broker.namespaces[name], flag), f"setns into the broker's {name} namespace")
    return True


def require_known(broker: Broker | None, name: str) -> None:
    """Refuse if the broker's namespace is not known."""
    if broker is not None and name not in broker.namespaces:
        needed = f"CAP_SYS_PTRACE and CAP_{'NET' if name == 'net' else 'SYS'}_ADMIN"
        raise Refused(f"the {name} namespace of the broker cannot be told, and in another's nothing is done: {needed}")


def is_elsewhere(broker: Broker | None, name: str) -> bool:
    """Whether the broker is in another namespace than this process."""
    if broker is None or name not in broker.namespaces:
        return False
    there, here = os.fstat(broker.namespaces[name]), os.stat(f"/proc/self/ns/{name}")
    return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)


def require_there(directory: Directory, table: list[Mount]) -> None:
    """Refuse unless the path still leads to the frozen file system, perhaps below a kjbod mask."""
    here = resolve(table, directory.real)
    while here is not None and here.source == MASK_SOURCE and here.fstype == "tmpfs":
        parent = here.parent
        here = next((one for one in table if one.id == parent), None)
    if here is None or here.id != directory.mount_id or here.device != directory.device:
        what = "nothing" if here is None else f"{here.source} ({here.fstype}, mounted on {here.point})"
        raise Refused(f"{directory.path} leads to {what}, not to the file system that the helper holds")


def cut(directory: Directory, broker: Broker | None, until_ms: int) -> None:
    """Shut the file system down by the descriptor, not after ``until_ms`` of CLOCK_MONOTONIC. Looks up no path on
    it."""
    table = mounts()
    require_there(directory, table)
    tables = [table]
    if broker is not None and not broker.ended:
        with contextlib.suppress(OSError):  # the process is ending
            tables.append(mounts(broker.pid))
    for other in (one for each in tables for one in each if one.device == directory.device):
        if other.point != directory.point or other.root != "/":
            raise Refused(f"{directory.path}: its file system is mounted on {other.point} as well ({other.root} of it)")
    for swap in swaps():
        mount = resolve(table, swap)
        found = "" if mount is None else mount.device
        with contextlib.suppress(OSError):  # the file was removed
            status = os.stat(swap)
            if stat.S_ISBLK(status.st_mode):
                found = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        if found == directory.device:
            raise Refused(f"{directory.path}: the host swaps to {swap}, on its file system")
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        keep_only(directory.fd, write_end)
        number = 0
        try:
            if time.monotonic_ns() > until_ms * 1_000_000:  # the host stood still since the request
                raise OSError(errno.ETIME, os.strerror(errno.ETIME))
            fcntl.ioctl(directory.fd, FS_IOC_SHUTDOWN, struct.pack("=I", SHUTDOWN_NOLOGFLUSH))
        except OSError as error:
            number = error.errno or errno.EIO
        finally:
            with contextlib.suppress(OSError):
                os.write(write_end, bytes([number]))
            os._exit(0)
    os.close(write_end)
    while not select.select([read_end], [], [], LOOK_AGAIN_MS / 1000)[0]:
        # On a hung ext4 the call never returns; the mount table shows whether it has worked.
        if any(one.id == directory.mount_id and "shutdown" in one.options for one in mounts()):
            return
    if number := (os.read(read_end, 1) or b"\x05")[0]:
        raise OSError(number, f"FS_IOC_SHUTDOWN: {os.strerror(number)}")


def make_mask() -> int:
    """Make a detached read-only tmpfs whose ``meta.properties`` is a directory. Kafka cannot read that file, and treats
    the log directory as failed. If the file were missing, the broker would halt at its next start."""
    context = _call("fsopen", _FSOPEN, b"tmpfs", 1)
    try:
        for key, value in (("source", MASK_SOURCE), ("size", "64k"), ("nr_inodes", "8"), ("mode", "0755")):
            _call("fsconfig", _FSCONFIG, context, _SET_STRING, key.encode(), value.encode(), 0)
        _call("fsconfig", _FSCONFIG, context, _CREATE, None, None, 0)
        made = _call("fsmount", _FSMOUNT, context, 1, 0)
    finally:
        os.close(context)
    try:
        os.mkdir("meta.properties", 0o555, dir_fd=made)
        attributes = struct.pack("=QQQQ", _MOUNT_ATTR_SAFE, 0, 0, 0)
        _call("mount_setattr", _MOUNT_SETATTR, made, b"", _AT_EMPTY_PATH, attributes, len(attributes))
    except OSError:
        os.close(made)
        raise
    return made


def masks_on_top(table: list[Mount], directory: Directory) -> int:
    """Return the number of kjbod masks on top of the path."""
    here, count = resolve(table, directory.real), 0
    while here is not None and here.source == MASK_SOURCE and here.point == directory.real:
        parent, count = here.parent, count + 1
        here = next((one for one in table if one.id == parent), None)
    return count


def mask(directory: Directory, broker: Broker | None) -> None:
    """Mount the prepared mask over the directory, in the broker's mount namespace."""
    require_known(broker, "mnt")
    elsewhere = broker is not None and is_elsewhere(broker, "mnt")
    table = mounts(broker.pid if elsewhere and broker is not None else "self")
    if masks_on_top(table, directory):
        return
    fd = directory.fd
    if elsewhere:
        enter(broker, "mnt", CLONE_NEWNS)
        fd = os.open(directory.real, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(fd)
        if (device_of(status), status.st_ino) != (directory.device, directory.inode):
            raise Refused(f"{directory.path} is another directory for the broker than the one that the helper holds")
    else:
        require_there(directory, table)
    _call("move_mount", _MOVE_MOUNT, directory.mask_fd, b"", fd, b"", _EMPTY_PATHS)


def unmask(directory: Directory, broker: Broker | None) -> None:
    """Unmount the kjbod masks over the directory, and nothing else."""
    require_known(broker, "mnt")
    elsewhere = broker is not None and is_elsewhere(broker, "mnt")
    table = mounts(broker.pid if elsewhere and broker is not None else "self")
    count = masks_on_top(table, directory)
    if not count and any(one.source == MASK_SOURCE and one.point == directory.real for one in table):
        raise Refused(f"{directory.path}: something else is mounted over the mask: unmount that first")
    enter(broker, "mnt", CLONE_NEWNS)
    for _ in range(count):
        _check(libc.umount2(os.fsencode(directory.real), MNT_DETACH | UMOUNT_NOFOLLOW), "umount")
