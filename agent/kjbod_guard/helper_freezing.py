"""Freezing: the helper opens a log directory and notes its facts, at its start and again later.

The helper looks itself, in a child, because any access to a log directory may hang for ever. The list of paths is fixed
at its start. The helper never looks at another path, or at a path that leads elsewhere by then.
"""

# pathlib knows no dir_fd, and what runs here should be little.
# ruff: noqa: PTH115, PTH116, PTH118, PTH208, TID251

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import socket
import struct
import sys
import time

from kjbod_guard.helper_broker import BY_INODE, Broker, is_below, lock_holders
from kjbod_guard.helper_directory import MASK_SOURCE, Directory
from kjbod_guard.helper_kernel import (
    SYSTEM_DIRECTORIES,
    device_of,
    keep_only,
    libc,
    mount_id,
    mounts,
)
from kjbod_guard.helper_netlink import Refused

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

FREEZE_MS = 3_000
"""How long a log directory may take to be opened when the helper starts."""
CUTTABLE = frozenset({"ext4", "xfs"})
BESIDE = frozenset({"lost+found"})
BESIDE_MAX = 64
"""Maximum number of names beside a log directory. Other log directories among them are allowed."""
BESIDE_CHARACTERS = 512
LATER = "it was not well when the guard was started"
LET_GO = "the guard has let go of it"

_FS_IOC_GETFSUUID = 0x80111500
_STATX_MNT_ID_UNIQUE, _STATX_MNT_ID_OFFSET, _AT_EMPTY_PATH = 0x4000, 144, 0x1000


def look(path: str) -> tuple[dict[str, Any], int]:
    """Return the facts of a log directory and the names beside it, and an open descriptor of it. May hang."""
    real = os.path.realpath(path)
    fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(fd)
    told: dict[str, Any] = {"real": real, "device": device_of(status), "inode": status.st_ino, "mount": mount_id(fd)}
    mount = next((one for one in mounts() if one.id == told["mount"]), None)
    if mount is None:
        raise OSError(errno.ENODEV, "the mount table does not show its file system")
    told |= {"fstype": mount.fstype, "point": mount.point, "source": mount.source, "lock": 0, "beside": []}
    told["identity"] = [told["device"], file_system_id(fd), unique_mount_id(fd) or told["mount"]]
    with contextlib.suppress(OSError):
        told["lock"] = os.stat(".lock", dir_fd=fd).st_ino
    here, names = mount.point, real[len(mount.point.rstrip("/")) :].strip("/")
    for name in names.split("/") if names else ():
        try:
            found = [one for one in os.listdir(here) if one not in BESIDE and one != name]
            told["beside"] += [os.path.join(here, one)[:BESIDE_CHARACTERS] for one in sorted(found)]
        except OSError as error:
            told["beside"].append(f"{here} ({error.strerror})")
        here = os.path.join(here, name)
    if len(told["beside"]) > BESIDE_MAX:
        told["beside"] = [f"more than {BESIDE_MAX} names beside the log directory: one of them"]
    return told, fd


def file_system_id(fd: int) -> str:
    """Return the UUID of a file system; empty if it has none."""
    with contextlib.suppress(OSError):
        answer = fcntl.ioctl(fd, _FS_IOC_GETFSUUID, bytes(17))
        return answer[1 : 1 + answer[0]].hex()
    return ""


def unique_mount_id(fd: int) -> int:
    """Return the unique id of a mount, which is never used again; 0 before Linux 6.8."""
    buffer = ctypes.create_string_buffer(256)
    statx = getattr(libc, "statx", None)
    if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_MNT_ID_UNIQUE, buffer):
        return 0
    if not struct.unpack_from("=I", buffer)[0] & _STATX_MNT_ID_UNIQUE:
        return 0
    return int(struct.unpack_from("=Q", buffer, _STATX_MNT_ID_OFFSET)[0])


# ------------------------------------------------------------------------------------------- when the helper is started


def freeze(path: str, *, later: bool = False) -> Directory:
    """Look at a log directory in a child, which may be left behind; ``later``: only resolve its path."""
    directory = Directory(path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        try:
            keep_only(theirs.fileno())
            theirs.send(json.dumps({"real": os.path.realpath(path)}).encode())
            if not later:
                _tell(theirs, path)
        finally:
            os._exit(0)
    theirs.close()
    until = time.monotonic() + FREEZE_MS / 1000
    try:
        said, _ = _received(ours, until)
        directory.real = said.get("real", path)
        told, fds = ({"reason": LATER}, []) if later else _received(ours, until)
    except TimeoutError:
        told, fds = {"reason": f"it did not answer within {FREEZE_MS} ms"}, []
    finally:
        ours.close()
    directory.reason = told.get("reason")
    if fds and directory.reason is None:
        directory.take(told, fds[0])
    return directory


def _tell(channel: socket.socket, path: str) -> None:
    try:
        told, fd = look(path)
        socket.send_fds(channel, [json.dumps(told).encode()], [fd])
    except OSError as error:
        channel.send(json.dumps({"reason": error.strerror}).encode())


def _received(channel: socket.socket, until: float) -> tuple[dict[str, Any], list[int]]:
    channel.settimeout(max(0.001, until - time.monotonic()))
    data, fds, _, _ = socket.recv_fds(channel, 256 << 10, 1)
    for fd in fds:
        os.set_inheritable(fd, False)
    return json.loads(data or b'{"reason": "the process that looked at it died"}'), fds


def restrict(directories: list[Directory], own: list[str]) -> None:
    """Note which directories must never be cut or masked, and why."""
    needed = needed_by_device(own)
    for directory in directories:
        directory.no_cut, directory.no_mask = limits(directory, needed, own)


def needed_by_device(own: list[str]) -> dict[str, str]:
    """Return the paths that the host and kjbod need, by the device of their file systems."""
    found: dict[str, str] = {}
    for one in (*SYSTEM_DIRECTORIES, *_needed(own)):
        with contextlib.suppress(OSError):
            found[device_of(os.stat(one))] = one
    return found


def _needed(own: list[str]) -> list[str]:
    return [os.path.realpath(one) for one in (*own, __file__, sys.executable, os.__file__)]


def limits(directory: Directory, needed: dict[str, str], own: list[str]) -> tuple[str | None, str | None]:
    """Return the reasons why a directory is never cut, and never masked, regardless of the names beside it."""
    no_cut = None
    if directory.masked:
        no_cut = "it was masked when the helper was started"
    elif directory.fstype not in CUTTABLE:
        no_cut = f"{directory.fstype} cannot be shut down, only {' and '.join(sorted(CUTTABLE))}"
    elif directory.device in needed:
        no_cut = f"{needed[directory.device]} lies on its file system"
    elif directory.point in SYSTEM_DIRECTORIES:
        no_cut = f"its file system is the host's own, of {directory.point}"
    covered = next((one for one in (*SYSTEM_DIRECTORIES, *_needed(own)) if is_below(one, directory.real)), None)
    return no_cut, None if covered is None else f"{covered} would be masked with it"


def why_not_cut(directory: Directory, directories: Iterable[Directory]) -> str | None:
    """Return why a directory is not cut now; None: it may be. A name beside it is allowed if it leads to another held
    directory."""
    if directory.no_cut is not None:
        return directory.no_cut
    reals = [one.real for one in directories if one.reason is None and one.device == directory.device]
    beside = [one for one in directory.beside if not any(is_below(real, one) for real in reals)]
    return f"{beside[0]} lies on its file system as well" if beside else None


# ----------------------------------------------------------------------------------------------------------- and again


def freeze_again(directory: Directory, own: list[str], broker: Broker | None, channel: socket.socket) -> None:
    """Look at the directory that is at the path now, and send its facts. Runs in a child; refuses forbidden targets."""
    told, fd = look(directory.path)
    if not told["real"] == directory.real == os.readlink(f"/proc/self/fd/{fd}"):
        where = f"and led to {directory.real} when the helper was started"
        raise Refused(f"{directory.path} leads to {told['real']}, {where}")
    if told["source"] == MASK_SOURCE:
        raise Refused(f"{directory.path} is masked")
    again = Directory(directory.path)
    again.take(told, fd)
    if broker is not None and not broker.ended:
        require_no_other_holder(again, broker)
    told["limits"] = limits(again, needed_by_device(own), own)
    socket.send_fds(channel, [json.dumps(told).encode()], [fd])


def require_no_other_holder(directory: Directory, broker: Broker) -> None:
    """Refuse a directory whose ``.lock`` another process than the broker holds."""
    for (device, inode), pid in lock_holders().items():
        there = inode == directory.lock_inode and (device == directory.device or directory.fstype in BY_INODE)
        if there and pid != broker.pid:
            raise Refused(f"{directory.path}: process {pid} holds its .lock, which is not the broker")


def taken(directory: Directory, channel: socket.socket) -> None:
    """Store the descriptor and the facts that the child has sent.

    Raises:
        OSError: the child has sent nothing.
    """
    channel.setblocking(False)
    data, fds, _, _ = socket.recv_fds(channel, 256 << 10, 1)
    if not fds:
        raise OSError(errno.ENODATA, "nothing was sent")
    os.set_inheritable(fds[0], False)
    told = json.loads(data)
    directory.take(told, fds[0])
    directory.no_cut, directory.no_mask = told["limits"]
