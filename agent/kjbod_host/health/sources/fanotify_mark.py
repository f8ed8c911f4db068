"""Marks ext4 file systems for FAN_FS_ERROR: a process of its own, exec'd with ``python -I -S``, for some 30 ms.

To mark a file system one must name a path on it, and whoever looks up a path may wait for a disk for ever. So this is
not done in the daemon, which would take such a thread along into its grave, but here: one child for each file system,
to be abandoned when stuck. The mark belongs to the fanotify group, whose descriptor the daemon keeps and reads.

    python -I -S fanotify_mark.py PARENT_PID MAJOR:MINOR MOUNT_POINT [MAJOR:MINOR MOUNT_POINT ...]

Descriptor 3 is the fanotify group, 4 a pipe for the answers, one line each: the position of the file system among the
arguments, the errno (0: marked), and the file system's id (``f_fsid``), which events carry.
"""

# Importing pathlib costs memory and time.

import contextlib
import ctypes
import errno
import os
import signal
import sys

GROUP_FD = 3
ANSWER_FD = 4

_PR_SET_PDEATHSIG = 1
_FAN_MARK_ADD = 0x1
_FAN_MARK_FILESYSTEM = 0x100
_FAN_FS_ERROR = 0x8000


def mark(libc: ctypes.CDLL, device: str, mount_point: str) -> int:
    """Mark the file system on ``device``, mounted on ``mount_point``; return its id. May wait for the disk.

    Raises:
        OSError: EPERM without CAP_SYS_ADMIN; ESTALE when another file system is mounted there.
    """
    fd = os.open(mount_point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    found = os.fstat(fd).st_dev
    if f"{os.major(found)}:{os.minor(found)}" != device:
        raise OSError(errno.ESTALE, "another file system is mounted there", mount_point)
    flags = _FAN_MARK_ADD | _FAN_MARK_FILESYSTEM
    if libc.fanotify_mark(GROUP_FD, ctypes.c_uint(flags), ctypes.c_uint64(_FAN_FS_ERROR), fd, b"."):
        raise OSError(ctypes.get_errno(), "fanotify_mark", mount_point)
    return os.statvfs(fd).f_fsid


def main(parent: int, file_systems: list[str]) -> None:
    """Fork one child for each file system, and wait for those that are not stuck."""
    libc = ctypes.CDLL(None, use_errno=True)
    die_with(libc, parent)
    os.chdir("/")
    with contextlib.suppress(PermissionError):
        os.setsid()
    us = os.getpid()
    for position in range(len(file_systems) // 2):
        if os.fork():
            continue
        try:
            die_with(libc, us)
            code = fsid = 0
            try:
                fsid = mark(libc, file_systems[2 * position], file_systems[2 * position + 1])
            except OSError as error:
                code = error.errno or errno.EIO
            os.write(ANSWER_FD, b"%d %d %d\n" % (position, code, fsid))  # short enough to be atomic
        finally:
            os._exit(0)  # nothing may escape: an escaped child would fork again
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def die_with(libc: ctypes.CDLL, parent: int) -> None:
    """Have this process killed when the parent ends; a stuck process ends when the kernel releases it."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
