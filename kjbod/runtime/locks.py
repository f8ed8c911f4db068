"""The holder of a lock on a file, from the kernel's table (``/proc/locks``, proc_locks(5)), which never blocks."""

import os
from pathlib import Path

_TABLE = Path("/proc/locks")


def holder_of(path: Path) -> int | None:
    """Return the process id of the holder of a POSIX or ``flock(2)`` write lock on ``path``. None: no holder, or an
    unknown one: in another container, or on btrfs, whose device numbers differ in the table."""
    try:
        status = path.stat()
        table = _TABLE.read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return holder_in(table, file)


def holder_in(table: str, file: str) -> int | None:
    """Return the process id of the holder of a write lock on ``file`` (device and inode as in the table). Waiting
    processes do not count."""
    for line in table.splitlines():
        words = line.split()
        if len(words) == 8 and words[3] == "WRITE" and words[5] == file and words[4].isdecimal():
            return int(words[4]) or None
    return None
