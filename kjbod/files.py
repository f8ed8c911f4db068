"""Write files so that a crash leaves the old or the new one, whole; and read files of unknown kind. All calls block."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, temporary_suffix: str = ".tmp", mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: write beside it, fsync, rename over it, fsync the directory.

    ``mode`` is subject to the umask (``PropertiesUtils.writePropertiesFile``, ``Utils.atomicMoveWithFallback``).

    Raises:
        OSError: with the file's name. ``path`` is unchanged and the temporary file is gone, unless only the last fsync
            failed: then the new file is in place and may not survive a crash.
    """
    temporary = path.with_name(path.name + temporary_suffix)
    temporary.unlink(missing_ok=True)  # left by a crash; it may be read-only
    try:
        _write_synced(temporary, data, mode)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def open_to_read(path: Path, *, bytes_max: int | None = None) -> int:
    """Open the regular file ``path`` and return a descriptor. Never waits on other kinds of files, for example a FIFO.

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
    """Return the contents of the regular file ``path``.

    Raises:
        OSError: as :func:`open_to_read`, or it cannot be read.
    """
    with open(open_to_read(path, bytes_max=bytes_max), "rb") as file, _named(path):
        return file.read()


def reason_of(error: OSError) -> str:
    """Return the reason of an error, with the file if known."""
    return f"{error.strerror}" if error.filename is None else f"{error.filename}: {error.strerror}"


def make_directories(path: Path) -> None:
    """Create ``path`` and its missing parents durably; an existing directory is no error.

    Raises:
        OSError: with the name that could not be created.
    """
    if path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make changes of names in the directory ``path`` durable.

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
    """Write all of ``data``, with as many calls as needed.

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
    """Add the path to errors of calls on a descriptor, which have no name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
