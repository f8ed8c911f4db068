"""Writing a file so that after a crash it is the old one or the new one, whole; and reading one that may be anything.
All calls here block."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, temporary_suffix: str = ".tmp", mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: written beside it, fsynced, renamed over it, the directory fsynced.

    ``mode`` is subject to the umask (``PropertiesUtils.writePropertiesFile``, ``Utils.atomicMoveWithFallback``).

    Raises:
        OSError: with the file's name. ``path`` is as it was and the temporary file is gone, unless only the last fsync
            failed: then the new file is in place and may not survive a crash.
    """
    temporary = path.with_name(path.name + temporary_suffix)
    temporary.unlink(missing_ok=True)  # of a crash before; it may be read-only
    try:
        _write_synced(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def open_to_read(path: Path, *, bytes_max: int | None = None) -> int:
    """A descriptor of the regular file ``path``; waits for nobody where it is something else, a FIFO for example.

    Raises:
        OSError: with the file's name: it cannot be opened, is no regular file, or has more than ``bytes_max``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if bytes_max is not None and status.st_size > bytes_max:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes are too many", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(path: Path, *, bytes_max: int | None = None) -> bytes:
    """Contents of the regular file ``path``.

    Raises:
        OSError: as :func:`open_to_read`, or it cannot be read.
    """
    with open(open_to_read(path, bytes_max=bytes_max), "rb") as file, _named(path):
        return file.read()


def reason_of(error: OSError) -> str:
    """Text of what is wrong, and with which file where that is known."""
    return f"{error.strerror}" if error.filename is None else f"{error.filename}: {error.strerror}"


def make_directories(path: Path) -> None:
    """Make ``path`` and the parents that it lacks, each of them durable; fine if it exists.

    Raises:
        OSError: with the name that could not be made.
    """
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make what was created, renamed or removed in the directory ``path`` durable.

    Raises:
        OSError: with the directory's name.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _named(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """``write`` until all of ``data`` is written.

    Raises:
        OSError: as ``write``; a part may have been written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with _named(path):
            write_all(descriptor, data)
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Calls on a descriptor fail without a name; a person needs one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
