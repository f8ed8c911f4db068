"""A process that does to a disk what a guard's probe does: write, fsync, read back, each second. Not to be imported.

``python -I -S guard_prober.py FILE``. It says ``ready`` after its first round.
"""

import os
import sys
import time

BLOCK = b"\xa5" * 4096
INTERVAL_S = 1.0


def main() -> None:
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    told = False
    while True:
        try:
            os.pwrite(fd, BLOCK, 0)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.pread(fd, len(BLOCK), 0)
        except OSError:
            pass
        if not told:
            told = True
            os.write(1, b"ready\n")
        time.sleep(INTERVAL_S)


main()
