"""Folders of a process of its own, which nobody has to clear away: not even after it was killed.

Who makes one holds a lock on it for as long as it lives; the next one that makes a folder of the same kind beside it
removes those that nobody holds. What an old process has made and not locked yet is spared by its age.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kjbod.clock import SystemClock

MARK = ".kjbod-folder"
"""A file in each of them: without it a folder is somebody else's, whatever it is called."""
LEFT_AFTER_MS = 600_000
"""So old is a folder, by the clock of this machine, before it is taken for one that was left."""


@contextlib.contextmanager
def own_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in ``parent``, which is removed afterwards, with all that is in it.

    Raises:
        OSError: it cannot be made.
    """
    _remove_left(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # a file system that knows no locks
            stack.callback(os.close, _locked(folder))
        (folder / MARK).touch()
        yield folder


def _locked(folder: Path) -> int:
    """A descriptor that holds a folder.

    Raises:
        OSError: another one holds it, or nobody can.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_left(parent: Path, prefix: str) -> None:
    """Remove what processes of this user have left that are no more."""
    now_ms = SystemClock().wall_ms()
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                told = folder.lstat()
                is_old = now_ms - told.st_mtime_ns // 1_000_000 >= LEFT_AFTER_MS
                if told.st_uid != os.geteuid() or not is_old or not (folder / MARK).is_file():
                    continue
                descriptor = _locked(folder)
                try:
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)
