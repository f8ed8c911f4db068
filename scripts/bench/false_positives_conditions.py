"""Conditions that healthy disks, agents, guards and hosts go through. A condition is a generator of waits, in seconds,
for one agent, or for one guard and its broker."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from kjbod_host.health.state import HealthSettings
from scripts.bench.false_positives_rig import Member, Rig, every, page_out, swapped_kib
from scripts.rig.rig_error import RigError

DISKS = 3
MANY_DISKS = 12
_LIBFAKETIME = "faketime/libfaketime.so.1"
_LOAD_BURNERS = 2
_FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
_HELD_TIMEOUT_S = HealthSettings().held_timeout_ms / 1000
_SLOW_FROM_US = HealthSettings().slow_ms * 1000
"""A delay of each request from which on any probe is slow."""
_SHOWN_WITHIN_S = 30.0
"""A probe is many requests."""

Disturbance = Generator[float, None, None]
"""Yields waits in seconds; undoes what it did when it is closed."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A row of the table.

    Attributes:
        name: for ``--conditions``.
        does: one line for people.
        disturb: what happens, once the agent is registered; yields waits in seconds and undoes itself when closed.
        prepare: starts the agent; raises :class:`RigError` where this machine cannot do it.
        disks: how many the agent has.
        alone: disturbs all others, so nothing else runs meanwhile.
    """

    name: str
    does: str
    disturb: Callable[[Rig, Member], Disturbance]
    prepare: "Callable[[Rig, Condition, float], Member]" = field(default_factory=lambda: _prepare_plain)
    disks: int = DISKS
    alone: bool = False


def _prepare_plain(rig: Rig, condition: Condition, duration_s: float) -> Member:
    return rig.start(condition.name, condition.disks, duration_s)


def _end(member: Member) -> float:
    return time.monotonic() + member.duration_s


def _until_shown(member: Member, state: str, at_most_s: float) -> Disturbance:
    """So that a run of a few seconds on a busy machine shows what a long one does."""
    end_s = time.monotonic() + at_most_s
    while time.monotonic() < end_s and all(line["state"] != state for line in member.verdicts()):
        yield 0.2


def _nothing(_rig: Rig, member: Member) -> Disturbance:
    yield from every(1.0, _end(member))


# disks ----------------------------------------------------------------------------------------------------------------


def _heavy_load(rig: Rig, member: Member) -> Disturbance:
    directories = [str(disk.log_dir) for disk in member.disks]
    python = [sys.executable, "-m", "scripts.bench.false_positives_load"]
    load = rig.load(*python, "--burners", str(_LOAD_BURNERS), *directories, name="load")
    before, began_s = _requests(member), time.monotonic()
    try:
        yield from every(1.0, _end(member))
        if not load.running:
            raise RigError(f"the load ended with {load.exit_code}: {load.tail()}")
        rate = (_requests(member) - before) / (time.monotonic() - began_s)
        member.notes.append(f"{rate:.0f} device requests/s, load average {os.getloadavg()[0]:.1f}")
    finally:
        load.close()


def _requests(member: Member) -> int:
    counters = [disk.counters() for disk in member.disks]
    return sum(found.reads + found.writes + found.flushes for found in counters)


def _slow(delay_us: int) -> Callable[[Rig, Member], Disturbance]:
    def disturb(_rig: Rig, member: Member) -> Disturbance:
        try:
            for disk in member.disks:
                disk.delay_us(delay_us)
            yield from every(1.0, _end(member))
            if delay_us >= _SLOW_FROM_US:
                yield from _until_shown(member, "slow", _SHOWN_WITHIN_S)
        finally:
            for disk in member.disks:
                disk.delay_us(0)

    return disturb


def _prepare_mixed(rig: Rig, condition: Condition, duration_s: float) -> Member:
    return rig.start(condition.name, condition.disks, duration_s, file_systems=_FILE_SYSTEMS)


def _slow_and_loaded(rig: Rig, member: Member) -> Disturbance:
    yield from _both(_slow(1_500_000)(rig, member), _heavy_load(rig, member))


def _both(first: Disturbance, second: Disturbance) -> Disturbance:
    """Two disturbances at once, until the first one ends."""
    try:
        for wait_s, _ in zip(first, second, strict=False):
            yield wait_s
    finally:
        second.close()
        first.close()


def _prepare_throttled(rig: Rig, condition: Condition, duration_s: float) -> Member:
    group = rig.control_group("io", condition.name)
    return rig.start(condition.name, condition.disks, duration_s, prefix=group.enter(), group=group)


def _throttled(_rig: Rig, member: Member) -> Disturbance:
    """Five requests a second, then one, by turns; then none of a limit for a moment."""
    end_s = _end(member)
    try:
        while time.monotonic() < end_s:
            for per_second in (5, 1, 0):
                _throttle(member, per_second)
                turn_s = min(20.0, member.duration_s / 3) if per_second else 2.0
                yield from every(0.5, min(end_s, time.monotonic() + turn_s))
    finally:
        _throttle(member, 0)


def _throttle(member: Member, per_second: int) -> None:
    """Limit reads and writes of the agent's processes on each of its devices; 0: no limit."""
    assert member.group is not None
    for disk in member.disks:
        device = os.stat(disk.device).st_rdev
        number = f"{os.major(device)}:{os.minor(device)}"
        if member.group.version == 2:
            limit = str(per_second) if per_second else "max"
            member.group.write("io.max", f"{number} riops={limit} wiops={limit}")
            continue
        for direction in ("read", "write"):
            member.group.write(f"blkio.throttle.{direction}_iops_device", f"{number} {per_second}")


def _frozen(_rig: Rig, member: Member) -> Disturbance:
    """All file systems at once, as by a snapshot of the host, for most of the time that a directory may be held."""
    end_s, freezes, longest_s = _end(member), 0, 0.0
    try:
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            for disk in member.disks:
                disk.freeze()
            freezes += 1
            freeze_s = _HELD_TIMEOUT_S * member.chance.uniform(0.83, 0.96)
            yield min(member.duration_s, freeze_s)
            yield from _until_shown(member, "held", began_s + freeze_s - time.monotonic())
            for disk in member.disks:
                disk.thaw()
            longest_s = max(longest_s, time.monotonic() - began_s)
            yield _HELD_TIMEOUT_S * 0.04
    finally:
        for disk in member.disks:
            disk.thaw()
        member.notes.append(f"frozen {freezes} times, at most {longest_s:.1f} s (held timeout {_HELD_TIMEOUT_S:g} s)")


# the agent ------------------------------------------------------------------------------------------------------------


def _agent_stopped(_rig: Rig, member: Member) -> Disturbance:
    end_s, stops, stopped_s = _end(member), 0, 0.0
    try:
        while time.monotonic() < end_s:
            pause_s = min(member.duration_s / 2, 10 ** member.chance.uniform(-1, 1))
            member.agent.signal(signal.SIGSTOP)
            yield pause_s
            member.agent.signal(signal.SIGCONT)
            stops, stopped_s = stops + 1, stopped_s + pause_s
            yield member.chance.uniform(0.2, 5)
    finally:
        member.agent.signal(signal.SIGCONT)
        member.notes.append(f"stopped {stops} times, {stopped_s:.0f} s in all")


def _workers_stopped(_rig: Rig, member: Member) -> Disturbance:
    end_s, stops = _end(member), 0
    chosen: list[int] = []
    try:
        while time.monotonic() < end_s:
            workers = member.disk_workers()
            chosen = member.chance.sample(workers, member.chance.randint(1, len(workers))) if workers else []
            _signal(chosen, signal.SIGSTOP)
            stops += len(chosen)
            yield min(member.duration_s / 2, 10 ** member.chance.uniform(-1, 1.5))
            _signal(chosen, signal.SIGCONT)
            yield member.chance.uniform(0.2, 5)
    finally:
        _signal(chosen, signal.SIGCONT)
        member.notes.append(f"{stops} stops of a worker")


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _prepare_suspended(rig: Rig, condition: Condition, duration_s: float) -> Member:
    return rig.start(condition.name, condition.disks, duration_s, own_controller=True)


def _suspended(_rig: Rig, member: Member) -> Disturbance:
    """Nothing of kjbod moves, and then the clock is that much further: as a laptop's lid, or a VM that is migrated."""
    end_s, pauses, pids = _end(member), 0, member.host
    try:
        while time.monotonic() < end_s:
            pids = member.host
            _signal(pids, signal.SIGSTOP)
            yield min(member.duration_s / 3, member.chance.uniform(5, 60))
            member.chance.shuffle(pids)
            _signal(pids, signal.SIGCONT)
            pauses += 1
            yield member.chance.uniform(1, 8)
    finally:
        _signal(pids, signal.SIGCONT)
        member.notes.append(f"{pauses} pauses")


def find_libfaketime() -> Path:
    """The library that gives one process a wall clock of its own. Raises :class:`RigError` where it is missing."""
    for pattern in (f"*/{_LIBFAKETIME}", _LIBFAKETIME):
        for root in ("/usr/lib", "/usr/local/lib"):
            for path in Path(root).glob(pattern):
                return path
    raise RigError("libfaketime is not here: apt-get install libfaketime")


def _prepare_clock(rig: Rig, condition: Condition, duration_s: float) -> Member:
    library = find_libfaketime()
    _faketime_file(rig.work).write_text("+0\n")
    environment = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": _faketime_file(rig.work),
        "FAKETIME_NO_CACHE": 1,
        "FAKETIME_DONT_FAKE_MONOTONIC": 1,  # a real clock that is set leaves the monotonic one alone
        "DONT_FAKE_MONOTONIC": 1,  # the name before libfaketime 0.9.9
    }
    prefix = ["env", *(f"{name}={value}" for name, value in environment.items())]
    return rig.start(condition.name, condition.disks, duration_s, prefix=prefix)


def _faketime_file(work: Path) -> Path:
    return work / "faketime"


def _clock_jumps(rig: Rig, member: Member) -> Disturbance:
    end_s, jumps = _end(member), 0
    file = _faketime_file(rig.work)
    try:
        while time.monotonic() < end_s:
            sign, size_s = member.chance.choice("+-"), 10 ** member.chance.uniform(0, 8)
            _replace(file, f"{sign}{size_s:.0f}\n")
            jumps += 1
            yield member.chance.uniform(0.5, 5)
    finally:
        _replace(file, "+0\n")
    days = {path.name for path in member.reports.rglob("date=*")}
    member.notes.append(f"{jumps} jumps of up to three years; its reports are of {len(days)} days")


def _replace(path: Path, text: str) -> None:
    """The reader sees the old content or the new one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.rename(path)


# the host -------------------------------------------------------------------------------------------------------------


def _prepare_swapped(rig: Rig, condition: Condition, duration_s: float) -> Member:
    """In a control group with a small limit, with a swap file; where there is no swap, mapped files alone are lost."""
    notes, group, prefix = [], None, []
    try:
        group = rig.control_group("memory", condition.name)
        prefix = group.enter()
    except RigError as error:
        notes.append(f"no limit: {error}")
    try:
        rig.swap()
    except RigError as error:
        notes.append(f"no swap, only mapped files are dropped: {error}")
    member = rig.start(condition.name, condition.disks, duration_s, prefix=prefix, group=group)
    member.notes += notes
    return member


def _swapped(_rig: Rig, member: Member) -> Disturbance:
    """The limit goes down to a third of what the agent uses and up again, and all of it is paged out by turns."""
    end_s, most_kib, group = _end(member), 0, member.group
    used = _memory_used(member)
    try:
        while time.monotonic() < end_s:
            for share in (0.7, 0.5, 0.35, 0.8):
                _limit_memory(member, round(used * share))
                yield min(5.0, member.duration_s / 8)
                pids = [member.agent.pid, *member.workers()]
                for pid in pids:
                    page_out(pid)
                most_kib = max(most_kib, swapped_kib(pids))
                yield min(2.0, member.duration_s / 8)
    finally:
        _limit_memory(member, None)
    limit = f"limit down to {used * 0.35 / (1 << 20):.0f} MiB, " if group is not None else ""
    member.notes.append(f"{limit}up to {most_kib / 1024:.0f} MiB in swap")


def _memory_used(member: Member) -> int:
    if member.group is None:
        return 0
    name = "memory.current" if member.group.version == 2 else "memory.usage_in_bytes"
    return int(member.group.read(name))


def _limit_memory(member: Member, limit: int | None) -> None:
    if member.group is None:
        return
    name, none = ("memory.max", "max") if member.group.version == 2 else ("memory.limit_in_bytes", "-1")
    try:
        member.group.write(name, none if limit is None else str(limit))
    except OSError:  # EBUSY, v1: it could not get below; the pressure was there all the same
        return


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("twelve", f"{MANY_DISKS} idle directories", _nothing, disks=MANY_DISKS),
        Condition("slow-200ms", "each request of the device takes 200 ms", _slow(200_000)),
        Condition("slow-1s", "each request of the device takes 1 s", _slow(1_000_000)),
        Condition(
            "slow-1500ms",
            "each request takes 1.5 s on ext4, XFS and btrfs; every device and every processor saturated",
            _slow_and_loaded,
            _prepare_mixed,
            alone=True,
        ),
        Condition(
            "throttled", "a control group lets 5 requests a second through, or 1", _throttled, _prepare_throttled
        ),
        Condition("frozen", "fsfreeze for 83 to 96 % of the held timeout, again and again", _frozen),
        Condition("agent-stopped", "SIGSTOP of the agent for 0.1 to 10 s", _agent_stopped),
        Condition("workers-stopped", "SIGSTOP of workers for 0.1 to 30 s", _workers_stopped),
        Condition("clock-jumps", "the agent's wall clock jumps by up to three years", _clock_jumps, _prepare_clock),
        Condition("suspended", "agent, workers and controller stopped for 5 to 60 s", _suspended, _prepare_suspended),
        Condition("swap", "agent and workers pushed into swap", _swapped, _prepare_swapped),
        Condition(
            "heavy-load",
            f"{MANY_DISKS} directories, every device and every processor saturated",
            _heavy_load,
            disks=MANY_DISKS,
            alone=True,
        ),
    )
}
