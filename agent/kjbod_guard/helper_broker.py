"""Process of a broker, for the helper: its hold on ``.lock``, its namespaces, its stuck threads."""

# ruff: noqa: PTH115, PTH116, PTH208

from __future__ import annotations

import contextlib
import os
import platform
import select

from kjbod_guard.helper_netlink import Refused

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from kjbod_guard.helper_directory import Directory

BY_INODE = frozenset({"btrfs", "overlay"})
"""File systems whose device numbers in ``/proc/locks`` differ from the device numbers of their files."""
_CALLS_X86 = (
    "0 read,1 write,2 @open,4 @stat,5 fstat,6 @lstat,8 lseek,17 pread,18 pwrite,19 readv,20 writev,21 @access,"
    "26 @msync,40 sendfile,74 fsync,75 fdatasync,76 @truncate,77 ftruncate,82 @rename,83 @mkdir,84 @rmdir,87 @unlink,"
    "217 getdents,257 @openat,262 @fstatat,263 @unlinkat,264 @renameat,285 fallocate,295 preadv,296 pwritev,"
    "316 @renameat2,332 @statx"
)
_CALLS_ARM = (
    "34 @mkdirat,35 @unlinkat,38 @renameat,46 ftruncate,47 fallocate,56 @openat,61 getdents,62 lseek,63 read,64 write,"
    "65 readv,66 writev,67 pread,68 pwrite,69 preadv,70 pwritev,71 sendfile,79 @fstatat,80 fstat,82 fsync,83 fdatasync,"
    "227 @msync,276 @renameat2,291 @statx"
)
CALLS = {
    int(number): name
    for number, name in (
        one.split(" ") for one in (_CALLS_ARM if platform.machine() == "aarch64" else _CALLS_X86).split(",")
    )
}
"""Names of system calls by number. A call with ``@`` takes no descriptor of its file as first argument."""


def is_below(path: str, top: str) -> bool:
    """Whether ``path`` is ``top`` or lies below it."""
    return path == top or path.startswith(top.rstrip("/") + "/")


class Broker:
    """The process that holds ``.lock``: its pidfd, and its namespaces."""

    def __init__(self, pid: int, started: int) -> None:
        self.pid, self.started = pid, started
        self.pidfd = os.pidfd_open(pid)
        if started_at(pid) != started:  # after pidfd_open, so that both are about the same process
            os.close(self.pidfd)
            raise Refused(f"process {pid} is another one than that of start time {started}")
        self.namespaces: dict[str, int] = {}
        for name in ("mnt", "net"):
            with contextlib.suppress(OSError):
                self.namespaces[name] = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the descriptors of the process and its namespaces, which keep the mounts there alive."""
        for fd in (self.pidfd, *self.namespaces.values()):
            os.close(fd)
        self.pidfd, self.namespaces = -1, {}

    @property
    def ended(self) -> bool:
        """Whether the broker's process has ended."""
        return bool(select.select([self.pidfd], [], [], 0)[0])


def started_at(pid: int) -> int | None:
    """Return the start time of a process in clock ticks; None: there is no such process."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
    return None


def is_running(pid: int, started: int) -> bool:
    """Whether a process has not ended. A zombie has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return fields[0] not in (b"Z", b"X") and int(fields[19]) == started
    return False


def lock_holders() -> dict[tuple[str, int], int]:
    """Return the pids that hold a write lock, by device and inode of the file."""
    found = {}
    with open("/proc/locks", encoding="ascii") as file:
        for line in file:
            fields = line.split()
            if fields[1] == "POSIX" and fields[3] == "WRITE" and fields[4].isdecimal():
                major, minor, inode = fields[5].split(":")
                found[f"{int(major, 16)}:{int(minor, 16)}", int(inode)] = int(fields[4])
    return found


def require_holder(broker: Broker, directories: Iterable[Directory]) -> None:
    """Refuse a process that does not hold ``.lock`` of a directory that was frozen.

    Kafka from 3.9 on removes the file at a clean stop and makes a new one at its start. If the file is not the frozen
    one, this function looks into the directory, which may hang. It looks only on disks where the process holds a lock.
    """
    held = [key for key, pid in lock_holders().items() if pid == broker.pid]
    frozen = [one for one in directories if one.reason is None and not one.masked]
    if any(_holds(broker, one, one.lock_inode, held) for one in frozen):
        return
    for one in frozen:
        if one.fstype in BY_INODE or any(device == one.device for device, _ in held):
            with contextlib.suppress(OSError):
                if _holds(broker, one, os.stat(".lock", dir_fd=one.fd).st_ino, held):
                    return
    raise Refused(f"process {broker.pid} does not hold .lock of a log directory")


def _holds(broker: Broker, directory: Directory, lock_inode: int, held: Iterable[tuple[str, int]]) -> bool:
    """Whether one of the locks in ``held`` is on the ``.lock`` with this inode in the directory."""
    return any(
        inode == lock_inode
        and (device == directory.device or (directory.fstype in BY_INODE and has_lock_open(broker, directory)))
        for device, inode in held
    )


def has_lock_open(broker: Broker, directory: Directory) -> bool:
    """Whether the process has ``.lock`` of a directory open. On btrfs each subvolume has a file with the same inode
    number, so the number alone proves nothing."""
    lock = os.stat(".lock", dir_fd=directory.fd)
    for one in os.listdir(f"/proc/{broker.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the file was closed between the two calls
            if os.path.samestat(os.stat(f"/proc/{broker.pid}/fd/{one}"), lock):
                return True
    return False


def threads(broker: Broker, reals: dict[str, str]) -> list[dict[str, Any]]:
    """Return the threads that wait uninterruptibly. Reads no file whose read needs a lock that such a thread may
    hold."""
    found = []
    task = f"/proc/{broker.pid}/task"
    for tid in os.listdir(task):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            with open(f"{task}/{tid}/stat", "rb") as file:
                head, _, tail = file.read().rpartition(b")")
            if not tail.startswith(b" D"):
                continue
            one: dict[str, Any] = {"tid": int(tid), "name": head.partition(b"(")[2].decode("utf-8", "replace")}
            with open(f"{task}/{tid}/syscall", encoding="ascii") as file:
                line = file.read().strip()
            with open(f"{task}/{tid}/wchan", encoding="ascii") as file:
                one["wchan"] = file.read()
            one["mark"] = line
            with contextlib.suppress(OSError), open(f"{task}/{tid}/schedstat", encoding="ascii") as file:
                one["ran"] = int(file.read().split()[2])
            found.append(one | waits_for(line, f"/proc/{broker.pid}/fd", reals))
    return found


def waits_for(line: str, descriptors: str, reals: dict[str, str]) -> dict[str, str | None]:
    """Return call, file and log directory from the line in ``/proc/PID/task/TID/syscall``: number and six arguments."""
    words = line.split()
    told: dict[str, str | None] = {"call": None, "file": None, "directory": None}
    if not words or not words[0].lstrip("-").isdecimal():
        return told  # "running"
    number = int(words[0])
    if number < 0:
        return told | {"call": "page fault"}  # the thread waits outside of a system call
    name = CALLS.get(number)
    if name is None:
        return told | {"call": f"call {number}"}
    told["call"] = name.lstrip("@")
    if name.startswith("@"):
        return told  # the path is in the broker's memory; reading it needs a lock that may be held
    argument = words[2] if name == "sendfile" else words[1]
    with contextlib.suppress(OSError):
        file = os.readlink(f"{descriptors}/{int(argument, 16)}")
        told["file"] = file
        inside = [path for path, real in reals.items() if is_below(file, real)]
        told["directory"] = max(inside, key=lambda one: len(reals[one]), default=None)
    return told


def is_there(pid: int) -> bool:
    """Whether a child has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
