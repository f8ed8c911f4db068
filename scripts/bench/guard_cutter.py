"""A process that holds a directory open and shuts its file system down when it is told to. Not to be imported.

``python -I -S guard_cutter.py DIRECTORY``. It says ``ready``, waits for a line, cuts (FS_IOC_SHUTDOWN without a flush
of the log), and says ``cut``; on a hung ext4 the call does not return.
"""

import fcntl
import os
import struct
import sys

FS_IOC_SHUTDOWN = 0x8004587D
NOLOGFLUSH = 2


def main() -> None:
    fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.write(1, b"ready\n")
    if os.read(0, 100):
        fcntl.ioctl(fd, FS_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        os.write(1, b"cut\n")


main()
