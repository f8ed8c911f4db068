"""Threads of a process that are stuck in the kernel."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DESCRIPTOR_CALLS: Final = frozenset({0, 1, 5, 8, 16, 17, 18, 20, 40, 74, 75, 77, 285, 296})
"""x86-64: read, write, fstat, lseek, ioctl, pread64, pwrite64, writev, sendfile, fsync, fdatasync, ftruncate,
fallocate, pwritev: the descriptor is their first argument."""
_SENDFILE: Final = 40


@dataclass(frozen=True, slots=True)
class Stuck:
    """A thread in uninterruptible sleep.

    Attributes:
        thread: its name, which Linux cuts to 15 characters.
        waits_in: the kernel's function.
        call: number of the system call; None where it waits for a page.
        file: what the call's descriptor is, with the directory that it lies in; empty where it has none.
    """

    thread: str
    waits_in: str
    call: str | None
    file: str


def stuck_threads(pid: int) -> list[Stuck]:
    """The threads of a process in state D. Empty when it has ended."""
    found = set(_stuck(Path(f"/proc/{pid}")))
    return sorted(found, key=lambda one: (one.thread, one.waits_in, one.call or "", one.file))


def _stuck(process: Path) -> Iterator[Stuck]:
    try:
        tasks = list((process / "task").iterdir())
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            if rest.split()[0] == "D":
                yield _describe(process, task, name)


def _describe(process: Path, task: Path, name: str) -> Stuck:
    call = (task / "syscall").read_text().split()
    number = int(call[0]) if call[0].lstrip("-").isdigit() else -1
    file = ""
    if number in _DESCRIPTOR_CALLS:
        # sendfile's second one is what it reads.
        with contextlib.suppress(OSError):
            target = os.readlink(process / "fd" / str(int(call[2 if number == _SENDFILE else 1], 16)))
            file = "/".join(Path(target).parts[-2:])
    return Stuck(name, (task / "wchan").read_text(), str(number) if number >= 0 else None, file)
