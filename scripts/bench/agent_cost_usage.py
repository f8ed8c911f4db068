"""Use of processes and disks up to now, from ``/proc`` and ``/sys``."""

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_CPUCLOCK_SCHED = 2


@dataclass(frozen=True, slots=True)
class Usage:
    """A process, at one moment.

    Attributes:
        name: what it is for.
        pss_kib: its memory, with a fair share of what it shares (``Pss`` in smaps_rollup).
        cpu_s: processor time since its start, user and system, with that of children that have ended.
        switches: context switches since its start.
        open_files: descriptors.
    """

    name: str
    pss_kib: int
    cpu_s: float
    switches: int
    open_files: int


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests that a block device has completed since it exists (Documentation/block/stat.rst)."""

    reads: int
    writes: int
    flushes: int


def descendants(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += sorted(children.get(one, []))
    return found


def usage_of(pid: int, name: str) -> Usage:
    """Raises OSError when it is gone or not ours to look at."""
    process = Path(f"/proc/{pid}")
    rollup = _numbers((process / "smaps_rollup").read_text().splitlines()[1:])
    status = _numbers((process / "status").read_text().splitlines())
    return Usage(
        name=name,
        pss_kib=rollup["Pss"],
        cpu_s=cpu_s(pid),
        switches=status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"],
        open_files=len(os.listdir(process / "fd")),
    )


def cpu_s(pid: int) -> float:
    """Of all its threads, also those that have ended, in nanoseconds' resolution (``/proc/PID/stat`` counts ticks), and
    of the children that it has waited for."""
    ended = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[13:15]  # cutime and cstime, in ticks
    own_s = time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)  # clock_getcpuclockid(3)
    return own_s + sum(map(int, ended)) / os.sysconf("SC_CLK_TCK")


def _numbers(lines: Iterable[str]) -> dict[str, int]:
    found = {}
    for line in lines:
        key, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdecimal():
            found[key] = int(words[0])
    return found


def requests_of(device: Path) -> Requests:
    """Of ``/dev/loop7``. Raises OSError when there is no such device."""
    fields = [int(field) for field in Path(f"/sys/block/{device.name}/stat").read_text().split()]
    return Requests(fields[0], fields[4], fields[15] if len(fields) > 15 else 0)
