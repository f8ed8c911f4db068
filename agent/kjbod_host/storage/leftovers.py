"""Workers that an earlier agent left behind because they are stuck in the kernel.

A worker that sleeps in a write to a frozen file system or to a hung device cannot be ended by any signal. Were each
start of the agent to put another one beside it, a service manager that restarts an agent would fill the host with such
processes. So every worker carries a name that says which place it works on, and no worker is started for a place while
one of that name, of an earlier agent, is in state D: **one stuck process per log directory at most, however often the
agent is started**.

The place is role, device, directory of the file system that is mounted, and path. A replacement disk mounted at the
same path has another device number, since the kernel keeps that of a file system in which somebody is stuck, so it is
not held up. (Where a log directory is reached through a symbolic link to another file system this cannot be told
without touching disks, and the replacement waits for the stuck process too.)

A name is not a proof, so only processes count that run as our own user or as root, by their real user id: nobody else
can make one, not even by a set-user-id program. What is in another pid namespace is not seen: an agent that gets a new
container with each start leaves one process for each.

Nothing here touches a disk, and nothing waits: of ``/proc/PID`` only ``stat`` and ``status`` are read, not ``cmdline``.
"""

import contextlib
import os
import zlib
from pathlib import Path

from msgspec import Struct

from kjbod_host.health import mountinfo, mounts

FROZEN = "percpu_rwsem_wait"
"""Kernel function in which a writer sleeps on a frozen file system."""
_PREFIX = "kjbod:"


class Leftover(Struct, frozen=True):
    """A worker of an earlier agent that waits in the kernel.

    Attributes:
        pid: its process.
        wchan: kernel function in which it sleeps; empty when unknown.
    """

    pid: int
    wchan: str


def worker_name(role: str, path: str) -> str:
    """The name (``comm``) of the worker of a log directory, 14 of the kernel's 15 bytes."""
    place = ""
    with contextlib.suppress(OSError):
        mount = mounts.mount_of(os.path.normpath(path), mountinfo.read_mounts())
        place = "" if mount is None else f"{mount.device} {mount.root}"
    return f"{_PREFIX}{zlib.crc32(f'{role} {place} {path}'.encode('utf-8', 'surrogateescape')):08x}"


def named_processes() -> dict[str, list[int]]:
    """Return the pids of all workers of this user and of root, of any agent, by name."""
    users = (0, os.getuid())
    found: dict[str, list[int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        name, _ = _name_and_state(pid)
        if name.startswith(_PREFIX) and _real_user(pid) in users:
            found.setdefault(name, []).append(pid)
    return found


def stuck(name: str, pids: list[int]) -> Leftover | None:
    """Return the first of these processes that still has this name and waits in the kernel; None: none does."""
    for pid in pids:
        if _name_and_state(pid) == (name, "D"):
            wchan = ""
            with contextlib.suppress(OSError):
                wchan = Path(f"/proc/{pid}/wchan").read_text()
            return Leftover(pid, wchan)
    return None


def _real_user(pid: int) -> int | None:
    """Return the real user id of a process; None: it is gone. (The owner of ``/proc/PID`` is root for any process that
    changed its privileges.)"""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return None


def _name_and_state(pid: int) -> tuple[str, str]:
    """Return name and state of a process from ``/proc/PID/stat``; empty if it is gone."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_bytes().partition(b" (")[2].rpartition(b") ")
    except OSError:
        return "", ""
    return name.decode("utf-8", "replace"), rest[:1].decode("ascii", "replace")
