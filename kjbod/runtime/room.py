"""Check that this host can start the threads, processes and open files that a daemon needs, and report a lack of them.

The kernel counts threads and processes together (``RLIMIT_NPROC`` per user, ``pids.max`` per control group). A later
failure is not always reported: libuv, below uvloop, aborts the process if it cannot start a thread. So a daemon first
reserves as much as its start needs.
"""

import errno
import os
import threading
from collections.abc import Mapping
from typing import Final

from kjbod.errors import KjbodError

_TASKS: Final = "raise TasksMax= of the unit, pids.max of the container, or ulimit -u"
_FILES: Final = "raise LimitNOFILE= of the unit, or ulimit -n"
_SCARCE: Final[Mapping[int, str]] = {
    errno.EMFILE: f"this process has as many open files as it may have: {_FILES}",
    errno.ENFILE: "the host has as many open files as it can have: raise fs.file-max",
    errno.ENOMEM: "the host has no memory left for this process",
}


class NoRoomError(KjbodError):
    """The host or a limit of this process allows no more threads, processes or files; one line with the limit
    to raise."""


def no_room(error: BaseException) -> NoRoomError | None:
    """Return the error that describes a lack of threads, processes, files or memory; None if ``error`` has another
    cause."""
    if isinstance(error, NoRoomError):
        return error
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return NoRoomError(f"there is no room for another thread: {_TASKS}")
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:  # raised by fork and posix_spawn
        return NoRoomError(f"there is no room for another process: {_TASKS}")
    if isinstance(error, OSError) and error.errno is not None and error.errno in _SCARCE:
        return NoRoomError(_SCARCE[error.errno])
    return None


def require_room(*, tasks: int, files: int) -> None:
    """Check that this many threads or processes and open files are possible, by creating them.

    Raises:
        NoRoomError: fewer are possible.
    """
    _require_files(files)
    done = threading.Event()
    threads: list[threading.Thread] = []
    try:
        for number in range(tasks):
            thread = threading.Thread(target=done.wait, name="kjbod-room", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise NoRoomError(
                    f"there is room for {number} threads and processes, and the start takes {tasks}: {_TASKS}"
                ) from None
            threads.append(thread)
    finally:
        done.set()
        for thread in threads:
            thread.join()


def _require_files(files: int) -> None:
    opened: list[int] = []
    try:
        for number in range(files):
            try:
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                scarce = no_room(error)
                if scarce is None:
                    raise
                raise NoRoomError(
                    f"there is room for {number} open files, and the start takes {files}: {scarce}"
                ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)
