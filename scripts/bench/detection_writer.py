"""A process that keeps a disk busy: appends a block and calls fdatasync, again and again. Not to be imported.

``python -I -S detection_writer.py FILE PAUSE_MS``. The file starts again at 1 MiB, so that it never fills a disk.
An error is what the disk says, not the end of the work: a producer would try again too. It says ``ready`` after its
first block.
"""

import os
import sys
import time

BLOCK = b"\xa5" * 4096
FILE_BYTES_MAX = 1 << 20


def main() -> None:
    path, pause_s = sys.argv[1], float(sys.argv[2]) / 1000
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    offset, told = 0, False
    while True:
        try:
            os.pwrite(fd, BLOCK, offset)
            os.fdatasync(fd)
        except OSError:
            pass
        if not told:
            told = True
            os.write(1, b"ready\n")
        offset = (offset + len(BLOCK)) % FILE_BYTES_MAX
        time.sleep(pause_s)


main()
