"""Files of this machine that survive a loss of power."""

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def sync_file_system(path: Path) -> None:
    """Write all of the file system that ``path`` is on, and wait for it (syncfs(2)); of no other: sync(2) waits for
    each disk of the machine, and one that hangs would hold a commit to a lake that is not on it for ever.

    Raises:
        OSError: it could not be written; sync(2) does not tell. Or there is no ``path``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)
