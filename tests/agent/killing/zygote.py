"""The zygote of the plug-in. Run with ``python -I -S``, as kjbod's own."""

import fcntl
import mmap
import os
import re
import signal
import struct
import sys
from typing import Any

PLAN = struct.Struct("=iii")
OF_A_MOVE = ("moved-", "-checkpoint")
AT_PATTERN = -1
"""In place of a number: before the first call that the pattern in a file matches."""
COUNTED = ("rename", "fsync", "mkdir", "unlink", "rmdir", "pwrite", "write", "ftruncate", "utime")
HERE = os.path.dirname(os.path.abspath(__file__))


class Counter:
    """Calls in all workers together; the plan is shared memory."""

    def __init__(self, daemon: int) -> None:
        self.daemon = daemon
        fd = os.open(f"{HERE}/plan", os.O_RDWR)
        self.plan = mmap.mmap(fd, PLAN.size)
        os.close(fd)
        self.renamed = False
        self.write = os.write

    def wrap(self, name: str) -> None:
        real = getattr(os, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            what = self.describe(name, arguments, options)
            if what is not None:
                self.count(what)
            return real(*arguments, **options)

        setattr(os, name, counted)

    def describe(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> str | None:
        """The call in words, None when it is none of a move: the directory fsync after a rename is one."""
        places = [options.get("dir_fd"), *(a for a in arguments[:1] if isinstance(a, int))]
        names = [a for a in arguments if isinstance(a, str)]
        names += [os.readlink(f"/proc/self/fd/{fd}") for fd in places if fd is not None]
        if not any(part in each for part in OF_A_MOVE for each in names):
            if name != "fsync" or not self.renamed:
                return None
            self.renamed = False
        elif name == "rename":
            self.renamed = True
        return f"{name} {' '.join(each.rpartition('/')[2] for each in names)}"

    def is_the_one(self, what: str) -> bool:
        with open(f"{HERE}/pattern", encoding="utf-8") as file:
            return re.fullmatch(file.read(), what) is not None

    def count(self, what: str) -> None:
        fd = os.open(f"{HERE}/calls", os.O_WRONLY | os.O_APPEND)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # two workers may count at once
            self.write(fd, f"{what}\n".encode())
            whom, number, hits = PLAN.unpack(self.plan[:])
            hits += 1
            dies = hits == number or (number == AT_PATTERN and self.is_the_one(what))
            self.plan[:] = PLAN.pack(whom, 0 if dies else number, hits)
            if dies:
                if whom == 1:
                    os.kill(self.daemon, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os.close(fd)


if __name__ == "__main__":
    with open(f"{HERE}/source", encoding="utf-8") as file:
        sys.path.append(file.read())
    counter = Counter(int(sys.argv[1]))
    for function in COUNTED:
        counter.wrap(function)
    from kjbod_host.storage import zygote

    zygote.main(int(sys.argv[1]))
