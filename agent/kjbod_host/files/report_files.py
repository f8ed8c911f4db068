"""Files of a health report: open, append, finish, recover. All calls here block.

The life of a file is told in :mod:`kjbod_host.report_writer`. Runs in the file process: nothing here may import what
that need not load.
"""

import contextlib
import errno
import fcntl
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from kjbod.files import fsync_directory

TRAILER_KIND = "eof"
"""Value of ``k`` in the last line of a file (:data:`kjbod.fleet.schema.TRAILER_KIND`)."""
_GZIP = 16 + zlib.MAX_WBITS
"""``wbits`` of a gzip header without a time."""


def finished_content(plain: bytes, *, recovered: bool) -> bytes:
    """Return the whole lines of an open file, without a torn last line, and the trailer. Empty without a whole line."""
    whole = plain[: plain.rfind(b"\n") + 1]
    lines = whole.split(b"\n")[:-1]
    if not lines:
        return b""
    trailer = {
        "k": TRAILER_KIND,
        "rows": len(lines),
        "crc32": sum(map(zlib.crc32, lines)) % 2**32,
        "first": _ts(lines[0]),
        "last": _ts(lines[-1]),
        "partial": recovered or len(whole) != len(plain),
    }
    return whole + json.dumps(trailer, separators=(",", ":")).encode() + b"\n"


def _ts(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["ts"])
    except (ValueError, KeyError, TypeError):
        return None  # a power loss can leave a block of zeros; the reader sets such lines aside


def finish_file(plain: Path, *, recovered: bool) -> Path | None:
    """Turn an open file into a finished one; None when it held no line. May be repeated after a crash at any point.

    Raises:
        OSError: the plain file is still there, untouched.
    """
    content = finished_content(plain.read_bytes(), recovered=recovered)
    if not content:
        plain.unlink(missing_ok=True)
        return None
    temporary = plain.with_name(plain.name + ".gz")
    finished = plain.with_name(temporary.name.removeprefix("."))
    packer = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    try:
        with temporary.open("wb") as file:
            file.write(packer.compress(content) + packer.flush())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(finished)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(plain.parent)
    plain.unlink(missing_ok=True)
    return finished


def make_partition(root: Path, relative: Path) -> Path:
    """Create ``root/relative`` durably."""
    target = root
    for part in ("", *relative.parts):
        parent, target = target.parent if not part else target, target / part
        if not target.is_dir():
            target.mkdir(parents=not part, exist_ok=True)
            fsync_directory(parent)
    return target


def lock(fd: int) -> None:
    """Mark an open file as in use; the kernel lets go when the process ends, however it ends.

    Raises:
        BlockingIOError: another process has it, or had it and finished it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise  # a file system without locks: names are unique, so the worst case is a line that is repeated
    if os.fstat(fd).st_nlink == 0:
        raise BlockingIOError(errno.EWOULDBLOCK, "finished by another process")


def open_file(folder: Path, name: str) -> int | None:
    """Create and lock a new file with this name; return its descriptor; None: the name is taken."""
    if (folder / f"{name}.jsonl.gz").exists():
        return None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / f".{name}.jsonl", flags, 0o644)
    except FileExistsError:
        return None
    try:
        lock(descriptor)
    except BlockingIOError:  # an agent that is starting took it for a leftover in this very moment
        os.close(descriptor)
        return None
    return descriptor


def recover_leftovers(root: Path, prefix: str, streams: Sequence[str]) -> tuple[int, list[OSError]]:
    """Finish files ``.<prefix>.*`` that a crashed run on this host left open; return their number, and the errors."""
    count, errors = 0, []
    for stream in streams:
        for plain in sorted((root / stream).glob(f"**/.{prefix}.*.jsonl")):
            try:
                with plain.open("rb") as file:
                    lock(file.fileno())
                    count += finish_file(plain, recovered=True) is not None
            except (BlockingIOError, FileNotFoundError):
                continue  # a living agent's, or one that has just finished it
            except OSError as error:
                errors.append(error)
    return count, errors
