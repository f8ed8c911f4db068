"""The file process: does what blocks, one call after the other, for one folder of the agent.

Exec'd with ``python -I -S`` and nothing but a socket and the end of a pipe, so that it keeps no port and no lock of the
agent when it is stuck in the kernel, for ever if need be. It ends with the agent: when the socket is closed, or, stuck,
as soon as the kernel lets go of it (``PR_SET_PDEATHSIG``).

Protocol: messages of :func:`kjbod_host.storage.worker.frame` over a stream socket.

    ``{"n": 7, "op": "append", "args": [...]}``
    ``{"n": 7, "ok": ...}``                                       done
    ``{"n": 7, "error": [28, "No space left on device", path]}``  the kernel said no

The lock on a folder has a process of its own, which does nothing but wait for the other end of the pipe, the agent's,
to close: it is free at that moment, whatever this one is stuck in.
"""

# Importing pathlib here would be no loss, kjbod.files does; os.path is for what runs before.

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

FILE_BYTES_MAX = 64 * 1024 * 1024
"""Maximum size of a file that is read as a whole; an agent's memory has some MiB at most."""

Handle = tuple[int, int]
"""An open file: the pid of the process, and its descriptor there."""

CONTROL_FD = 3
LIFE_FD = 4
MAX_FD = 1 << 16
RECEIVE_BYTES = 64 << 10
LINKS_MAX = 40
"""Symbolic links on the way to a directory, as for the kernel."""
LOCK_NAME = ".lock"
LOCK_AGAIN_MS = 20


def serve(control: socket.socket) -> None:
    """Answer requests until the agent ends."""
    from kjbod.errors import KjbodError
    from kjbod_host.storage.worker import Unframer, frame

    unframer = Unframer()
    while data := control.recv(RECEIVE_BYTES):
        for request in unframer.feed(data):
            answer: dict[str, Any] = {"n": request["n"]}
            try:
                answer["ok"] = OPERATIONS[request["op"]](*request["args"])
            except OSError as error:
                answer["error"] = _told(error)
            except KjbodError as error:
                answer["error"] = (errno.EINVAL, str(error), None)
            control.sendall(frame(answer))


def _told(error: OSError) -> tuple[int, str, str | None]:
    """Return the parts of an OSError: number, text, path."""
    path = None if error.filename is None else os.fsdecode(error.filename)
    number, text = error.errno or errno.EIO, error.strerror or str(error)
    if path is not None and number in (errno.EACCES, errno.EPERM):
        from kjbod.permissions import advice

        text = advice(path, Path(path).parent)
    return number, text, path


# ------------------------------------------------------------------------------------------------ files as a whole


def read(path: str) -> bytes:
    """Return the content of a file; make its folder if it is missing."""
    from kjbod.files import make_directories, read_file

    make_directories(Path(path).parent)
    return read_file(Path(path), bytes_max=FILE_BYTES_MAX)


def write(path: str, data: bytes) -> None:
    """Replace the file, durably."""
    from kjbod.files import make_directories, write_atomically

    make_directories(Path(path).parent)
    write_atomically(Path(path), data)


def remove(path: str, inode: int) -> None:
    """Remove a file, if it still has this inode."""
    with contextlib.suppress(FileNotFoundError):
        if Path(path).lstat().st_ino == inode:
            Path(path).unlink()


def inode_of(path: str) -> int | None:
    """Inode of what has this name, a link itself; None where there is nothing. Its folder is made where it is missing,
    as for a file that is written."""
    from kjbod.files import make_directories

    make_directories(Path(path).parent)
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None


def append_line(path: str, data: bytes, bytes_max: int) -> None:
    """Append to the file, durably; one that would get larger than ``bytes_max`` is first set aside as ``<path>.1``,
    in the place of the one before."""
    from kjbod.files import fsync_directory, make_directories, write_all

    file = Path(path)
    make_directories(file.parent)
    with contextlib.suppress(FileNotFoundError):
        if file.stat().st_size + len(data) > bytes_max:
            file.replace(f"{path}.1")
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    try:
        is_new = os.fstat(descriptor).st_size == 0
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        fsync_directory(file.parent)


def leads_to(path: str, mount_points: list[str]) -> str:
    """Return the target of a path. Follows symbolic links only up to the first of these mount points, and touches
    nothing on them."""
    left, here, links = list(Path(path).absolute().parts[1:]), Path("/"), 0
    while left and str(here) not in mount_points:
        name = left.pop(0)
        below = here.parent if name == ".." else here / name
        target = None
        if name != ".." and str(below) not in mount_points:
            with contextlib.suppress(OSError):  # no link, or nothing there
                target = below.readlink()
        if target is None:
            here = below
            continue
        links += 1
        if links > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        here = Path("/") if target.is_absolute() else here
        left = [*(part for part in target.parts if part != "/"), *left]
    return os.path.normpath(here.joinpath(*left))


# ----------------------------------------------------------------------------------------------------- other processes


def holders(places: list[list[int]], by_inode: bool) -> list[tuple[int, int, list[str], dict[str, str]] | None]:
    """Processes that hold a write lock on files, each given as device numbers and inode: pid, start time, command line,
    and real paths of those of its arguments that are files. None: nobody does. ``by_inode``: the device numbers are not
    those of the table of locks (btrfs).

    A command line is in the memory of its process, whose lock a thread that is stuck on a disk may hold: so this is no
    work for an event loop.
    """
    found: dict[tuple[int, int, int], int] = {}
    with open("/proc/locks", encoding="ascii") as table:
        for line in table:
            fields = line.split()  # "1: POSIX  ADVISORY  WRITE 4711 08:01:131 0 EOF"; "1: -> POSIX ..." waits for one
            if fields[1] == "POSIX" and fields[3] == "WRITE" and fields[4].isdecimal():
                place = fields[5].split(":")
                found[int(place[0], 16), int(place[1], 16), int(place[2])] = int(fields[4])
    told = []
    for major, minor, inode in places:
        matches = (pid for (_, _, other), pid in found.items() if by_inode and other == inode)
        matches = (pid for pid in matches if has_open(pid, os.makedev(major, minor), inode))
        pid = found.get((major, minor, inode)) or next(matches, 0)
        told.append(_process(pid) if pid > 0 else None)
    return told


def has_open(pid: int, device: int, inode: int) -> bool:
    """Whether a process has a file open. An inode's number alone is that of a file in each subvolume of btrfs. True
    also where its files cannot be looked at."""
    try:
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                found = one.stat()
                if (found.st_dev, found.st_ino) == (device, inode):
                    return True
    except PermissionError:
        return True
    except OSError:  # the process has ended
        pass
    return False


def _process(pid: int) -> tuple[int, int, list[str], dict[str, str]]:
    started, arguments = 0, []
    with contextlib.suppress(OSError):
        started = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
        arguments = [os.fsdecode(one) for one in content.split(b"\0") if one]
    named = [one for one in arguments if one.endswith(".properties")]
    here = None
    with contextlib.suppress(OSError):  # a process that has more rights than this one does not tell
        here = Path(f"/proc/{pid}/cwd").readlink()
    files = {one: os.path.realpath((here or Path("/")) / one) for one in named if here or one.startswith("/")}
    return pid, started, arguments, files


# ------------------------------------------------------------------------------------------------ the lock on a folder


def take(folder: str, owner: str, patience_ms: int) -> tuple[str | None, int]:
    """Lock ``folder`` for this agent, and say which process has the lock.

    The first is None, or what its owner wrote where another one has it for longer than ``patience_ms``. A folder whose
    file system has no locks, or no room, is as good as locked: no process has it, 0.
    """
    from kjbod.files import make_directories

    make_directories(Path(folder))
    try:
        descriptor = os.open(Path(folder) / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        return None, 0  # where nothing can be written, nobody's memory is overwritten
    try:
        left_ms = patience_ms
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if left_ms <= 0:
                    return os.pread(descriptor, 4096, 0).decode("utf-8", "replace"), 0
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                    raise
                return None, 0
            time.sleep(LOCK_AGAIN_MS / 1000)
            left_ms -= LOCK_AGAIN_MS
        with contextlib.suppress(OSError):  # a full disk; the lock counts without a name
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, owner.encode(), 0)
        return None, _hold(descriptor)
    finally:
        os.close(descriptor)


def _hold(descriptor: int) -> int:
    """Fork the process that holds the lock: it only waits until the agent's end of the pipe is closed."""
    if pid := os.fork():
        return pid
    try:
        os.close(CONTROL_FD)
        os.closerange(LIFE_FD + 1, descriptor)
        os.closerange(descriptor + 1, MAX_FD)
        agent = select.poll()
        agent.register(LIFE_FD, 0)  # POLLHUP is always told
        agent.poll()
    finally:
        os._exit(0)  # nothing may escape: an escaped child would be a second file process


# ------------------------------------------------------------------------------------------------ the health report


def recover(root: str, prefix: str, streams: list[str]) -> tuple[int, list[tuple[int, str, str | None]]]:
    """Recover left-over report files (:func:`.report_files.recover_leftovers`); errors as number, text and path."""
    from kjbod_host.files.report_files import recover_leftovers

    count, errors = recover_leftovers(Path(root), prefix, streams)
    return count, [_told(error) for error in errors]


def make_partition(root: str, relative: str) -> str:
    """Make the folder of a partition (:func:`.report_files.make_partition`)."""
    from kjbod_host.files import report_files

    return str(report_files.make_partition(Path(root), Path(relative)))


def open_report(folder: str, name: str) -> Handle | None:
    """Open a report file (:func:`.report_files.open_file`)."""
    from kjbod_host.files.report_files import open_file

    descriptor = open_file(Path(folder), name)
    return None if descriptor is None else (os.getpid(), descriptor)


def _descriptor(handle: Handle) -> int:
    """Return the descriptor of a handle; refuse a handle of an earlier process."""
    process, descriptor = handle
    if process != os.getpid():
        raise OSError(errno.EBADF, "it was open in a process that has died")
    return descriptor


def append(handle: Handle, data: bytes, durably: bool) -> None:
    """Append all of ``data``, with fsync if ``durably``. After an error a part may be written."""
    from kjbod.files import write_all

    write_all(_descriptor(handle), data)
    if durably:
        os.fsync(_descriptor(handle))


def truncate(handle: Handle, size: int) -> None:
    """Cut an open file."""
    os.ftruncate(_descriptor(handle), size)


def close(handle: Handle) -> None:
    """Close an open file."""
    os.close(_descriptor(handle))


def finish_open(handle: Handle, path: str) -> bool:
    """Finish an open file; whether it held a line. The lock goes with the descriptor, which stays open if it fails."""
    os.fsync(_descriptor(handle))
    finished = finish_report(path)
    close(handle)
    return finished


def finish_report(path: str) -> bool:
    """Finish a report file (:func:`.report_files.finish_file`); whether it held a line."""
    from kjbod_host.files.report_files import finish_file

    return finish_file(Path(path), recovered=False) is not None


# ---------------------------------------------------------------------------------------------- the kept metadata


def read_piece(path: str, position: int, size: int) -> bytes:
    """Return a piece of a file that is too large for a message; empty at its end."""
    from kjbod.files import open_to_read

    descriptor = open_to_read(Path(path))
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)


def of_metadata(operation: str, *arguments: Any) -> Any:
    """Run an operation of :mod:`.metadata_files`."""
    from kjbod_host.files import metadata_files

    return metadata_files.OPERATIONS[operation](*arguments)


def compact_metadata(*arguments: Any) -> Any:
    """Make the kept image anew (:func:`.metadata_image.compact`)."""
    from kjbod_host.files import metadata_image

    return metadata_image.compact(*arguments)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "compact_metadata": compact_metadata,
    "of_metadata": of_metadata,
    "read_piece": read_piece,
    "leads_to": leads_to,
    "read": read,
    "realpath": os.path.realpath,
    "write": write,
    "remove": remove,
    "inode_of": inode_of,
    "append_line": append_line,
    "holders": holders,
    "take": take,
    "recover": recover,
    "make_partition": make_partition,
    "open_report": open_report,
    "append": append,
    "truncate": truncate,
    "close": close,
    "finish_open": finish_open,
    "finish_report": finish_report,
}


def main(parent: int, name: str) -> None:
    """Serve the socket until the agent ends.

    Args:
        parent: the agent's pid.
        name: of this process, for ps(1).
    """
    os.chdir("/")
    with contextlib.suppress(PermissionError):
        os.setsid()
    os.closerange(LIFE_FD + 1, MAX_FD)
    from kjbod_host.storage import worker

    worker.die_with_parent(parent)
    worker.entitle(name, name, worker.find_title())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent ends us, not the terminal and not systemd's cgroup sweep
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who holds the lock is not waited for
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # EFBIG is an answer
    with contextlib.suppress(ConnectionError):  # the agent has gone
        serve(socket.socket(fileno=CONTROL_FD))


if __name__ == "__main__":
    # Isolated mode leaves out this file's folder; the source roots go last, so that nothing in them can stand in for a
    # module of Python's own library.
    sys.path += json.loads(sys.argv[3])
    main(int(sys.argv[1]), sys.argv[2])
