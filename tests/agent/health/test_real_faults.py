"""Real disks that break in the ways Linux offers, and what the monitor says of them. Root."""

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from kjbod.clock import SystemClock
from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk, require_real_disks
from kjbod.faults.fusedisk import FuseDisk
from kjbod.ids import random_directory_id
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.mountinfo import read_mounts
from kjbod_host.health.sources.api import KernelSource
from kjbod_host.health.sources.ext4 import Ext4Errors
from kjbod_host.health.verdict import Cause, Health, HealthSettings
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.posix import PosixStorageAgent
from scripts.rig.processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("as_root")

Make = Callable[..., RealDisk]
TIMEOUT_S = 60
TIMEOUT_MS = 60_000
QUICK = HealthSettings(
    probe_interval_ms=150,
    probe_timeout_ms=800,
    held_timeout_ms=2000,
    slow_ms=400,
    full_probe_every=3,
    strike_window_ms=3000,
    sample_gap_ms=200,
)
PATIENT = HealthSettings(probe_interval_ms=600_000)
"""An interval too long for a second probe: what is seen is seen by something else."""
MS_RDONLY, MS_REMOUNT = 1, 32
FS_IOC_SETFLAGS = 0x40086602
FS_IMMUTABLE_FL = 0x10


def meta_properties(rng: random.Random) -> bytes:
    return f"#\nversion=1\nnode.id=1\ncluster.id=c\ndirectory.id={random_directory_id(rng)}\n".encode()


@dataclass
class Watch:
    """Disks under the eyes of a monitor, and what it said."""

    disks: list[RealDisk]
    log_dirs: list[Path]
    monitor: HealthMonitor = field(init=False)
    on_verdict: Callable[[Verdict], None] = lambda verdict: None
    verdicts: list[Verdict] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def told(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self.on_verdict(verdict)
        self.changed.set()

    async def until(self, disk: RealDisk | Path, state: Health) -> Verdict:
        path = disk if isinstance(disk, Path) else disk.log_dir
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                found = [v for v in self.verdicts if v.path == str(path) and v.state is state]
                if found:
                    return found[-1]
                self.changed.clear()
                await self.changed.wait()

    def accused(self) -> set[str]:
        """Directories that were ever doubted; a slow one is not: the machine may have other work."""
        return {v.path for v in self.verdicts if v.state in (Health.SUSPECT, Health.FAILED)}

    async def probed(self, disk: RealDisk | Path, times: int) -> None:
        """Until that many more probes were answered."""
        position = self.log_dirs.index(disk if isinstance(disk, Path) else disk.log_dir)
        goal = self.monitor.status()[position].probes + times
        for _ in range(TIMEOUT_S * 100):
            if self.monitor.status()[position].probes >= goal:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"{self.log_dirs[position]}: not {times} more probes within {TIMEOUT_S} s")


@contextlib.asynccontextmanager
async def watching(
    *disks: RealDisk,
    lock: bool = True,
    settings: HealthSettings = QUICK,
    probes: int = 2,
    also: Sequence[Path] = (),
    kernel_sources: Sequence[KernelSource] = (),
) -> AsyncIterator[Watch]:
    """Formatted disks under watch, each of them probed so often; ``also`` further directories on them."""
    rng = random.Random(858)
    clock = SystemClock()
    storage = PosixStorageAgent(StorageOptions(clock=clock))
    await storage.start()
    directories = []
    log_dirs = [*(disk.log_dir for disk in disks), *also]
    for log_dir in log_dirs:
        agent = storage.directory(str(log_dir))
        await agent.load(timeout_ms=TIMEOUT_MS)
        if lock:
            await agent.lock(timeout_ms=TIMEOUT_MS)
        await agent.write_meta_properties(meta_properties(rng), timeout_ms=TIMEOUT_MS)
        loaded = await agent.load(timeout_ms=TIMEOUT_MS)
        directories.append((agent, loaded, str(loaded.directory_id)))
    watch = Watch(list(disks), log_dirs)
    watch.monitor = HealthMonitor(
        directories, settings=settings, clock=clock, on_verdict=watch.told, kernel_sources=kernel_sources
    )
    task = asyncio.ensure_future(watch.monitor.run())
    try:
        for log_dir in log_dirs:
            await watch.probed(log_dir, probes)
        yield watch
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await storage.close()


def make_immutable(path: Path, *, immutable: bool = True) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("=l", FS_IMMUTABLE_FL if immutable else 0))
    finally:
        os.close(fd)


def fill(disk: RealDisk) -> None:
    """Write until nothing goes, also after what was promised has been allocated."""
    fd = os.open(disk.mount_point / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        for size in (1 << 20, 4096, 4096, 4096):
            with contextlib.suppress(OSError):
                while os.write(fd, bytes(size)):
                    pass
            with contextlib.suppress(OSError):
                os.fsync(fd)
    finally:
        os.close(fd)


Fault = Callable[[RealDisk], object]
FATAL: dict[str, tuple[Fault, str, str]] = {
    "every request fails": (lambda d: d.set(FaultMode.EIO), "EIO", ""),
    "reads fail": (lambda d: d.set(FaultMode.EIO_READS), "EIO", "read of meta.properties"),
    "writes fail": (lambda d: d.set(FaultMode.EIO_WRITES), "EIO", "fsync of .kjbod_probe"),
    "the disk is pulled": (lambda d: d.kill(), "EIO", ""),
    "writes are lost": (lambda d: d.set(FaultMode.LOSE_WRITES), "EILSEQ", "comparison of .kjbod_probe"),
    "reads lie": (lambda d: d.set(FaultMode.FLIP_READS), "EILSEQ", "comparison of .kjbod_"),
    "the file system is shut down": (lambda d: d.shutdown(), "EIO", ""),
    "ext4 stops writing after an error of its own": (lambda d: d.trigger_fs_error(), "EROFS", "open of .kjbod_probe"),
    "the disk is unmounted": (lambda d: d.unmount(), "ESTALE", "identity"),
    "something is mounted over it": (lambda d: d.over_mount(), "ESTALE", "identity"),
    "meta.properties is removed": (
        lambda d: (d.log_dir / "meta.properties").unlink(),
        "ENOENT",
        "read of meta.properties",
    ),
    "meta.properties is another disk's": (
        lambda d: (d.log_dir / "meta.properties").write_bytes(meta_properties(random.Random(1))),
        "ESTALE",
        "directory.id in meta.properties",
    ),
    "meta.properties is garbage": (
        lambda d: (d.log_dir / "meta.properties").write_bytes(bytes(100)),
        "EILSEQ",
        "comparison of meta.properties",
    ),
}


@pytest.mark.parametrize("name", FATAL)
async def test_a_disk_that_is_dead_is_failed_with_its_evidence_and_the_other_one_is_left_alone(
    real_disk: Make, name: str
) -> None:
    fault, errno_name, call = FATAL[name]
    broken, healthy = real_disk(), real_disk()
    async with watching(broken, healthy) as watch:
        fault(broken)
        verdict = await watch.until(broken, Health.FAILED)
        assert (verdict.evidence.errno, verdict.previous) == (errno_name, Health.SUSPECT)
        assert call in (verdict.evidence.call or "")
        assert errno_name in verdict.evidence.text
        assert broken.device.name in verdict.evidence.device
        await watch.probed(healthy, 3)
        assert watch.accused() == {str(broken.log_dir)}


async def test_a_replica_that_nobody_may_rename_fails_no_disk_and_a_directory_that_takes_nothing_new_does(
    real_disk: Make,
) -> None:
    """Our own work gets the same error of both; a full probe tells them apart."""
    disk = real_disk()
    (disk.log_dir / "t-0").mkdir()
    async with watching(disk, settings=replace(PATIENT, full_probe_every=1_000_000), probes=1) as watch:
        for _ in range(2):
            watch.monitor.report_error(str(disk.log_dir), errno.EPERM, "rename of t-0 to t-0.1-delete")
            await watch.probed(disk, 1)
            assert watch.monitor.health(str(disk.log_dir)).health is Health.ONLINE
        make_immutable(disk.log_dir)
        watch.monitor.report_error(str(disk.log_dir), errno.EPERM, "create of t-1")
        assert (await watch.until(disk, Health.FAILED)).evidence.errno == "EPERM"
    make_immutable(disk.log_dir, immutable=False)


async def test_an_immutable_directory_is_a_failure_of_permission(real_disk: Make) -> None:
    disk = real_disk()
    async with watching(disk) as watch:
        make_immutable(disk.log_dir / ".kjbod_probe")
        assert (await watch.until(disk, Health.FAILED)).evidence.errno == "EPERM"
    make_immutable(disk.log_dir / ".kjbod_probe", immutable=False)


async def test_a_read_only_remount_is_seen_by_its_event(real_disk: Make) -> None:
    disk = real_disk()
    # Not locked: a file that is open for writing makes the kernel refuse the remount.
    async with watching(disk, lock=False, settings=PATIENT, probes=1) as watch:
        syscalls.mount("none", disk.mount_point, "", MS_REMOUNT | syscalls.MS_BIND | MS_RDONLY)
        assert (await watch.until(disk, Health.FAILED)).evidence.errno == "EROFS"


async def test_a_log_directory_that_is_removed_is_failed_and_never_made_again(real_disk: Make) -> None:
    disk = real_disk(log_dir="kafka")
    async with watching(disk) as watch:
        disk.log_dir.rename(disk.mount_point / "elsewhere")
        assert (await watch.until(disk, Health.FAILED)).evidence.errno == "ENOENT"
        assert not disk.log_dir.exists()


@pytest.mark.parametrize("mode", [FaultMode.HANG, FaultMode.HANG_WRITES])
async def test_a_disk_that_answers_nothing_is_hung_by_the_counters_of_its_device(
    real_disk: Make, mode: FaultMode
) -> None:
    disk, healthy = real_disk(), real_disk()
    async with watching(disk, healthy) as watch:
        disk.set(mode)
        verdict = await watch.until(disk, Health.FAILED)
        assert verdict.cause is Cause.HUNG
        assert verdict.evidence.counters_after is not None
        assert verdict.evidence.counters_after.in_flight > 0
        assert verdict.evidence.wchan
        await watch.probed(healthy, 3)
        assert watch.accused() == {str(disk.log_dir)}
    disk.set(FaultMode.OK)


async def test_a_frozen_file_system_is_held_well_again_after_the_thaw_and_failed_when_it_lasts(real_disk: Make) -> None:
    disk = real_disk()
    async with watching(disk) as watch:
        disk.freeze()
        verdict = await watch.until(disk, Health.HELD)
        assert verdict.evidence.wchan == "percpu_rwsem_wait"
        assert verdict.evidence.counters_after is not None
        assert verdict.evidence.counters_after.in_flight == 0
        disk.thaw()
        await watch.until(disk, Health.ONLINE)
        disk.freeze()
        assert (await watch.until(disk, Health.FAILED)).cause is Cause.HELD
        disk.thaw()


def _by_signal(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def _by_cgroup(pid: int, mount_point: Path, file: str, freeze: str, thaw: str) -> Callable[[], None]:
    """Put a process alone into a cgroup and freeze that; gives back how to thaw it and remove the cgroup."""
    group = mount_point / f"kjbod-test-{pid}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    (group / file).write_text(freeze)

    def undo() -> None:
        (group / file).write_text(thaw)
        (mount_point / "cgroup.procs").write_text(str(pid))
        group.rmdir()

    return undo


def _freezer(fstype: str, option: str) -> Path:
    """Where a hierarchy that can freeze is mounted; skips the test where there is none."""
    for mount in read_mounts():
        if mount.fstype == fstype and (not option or option in mount.options):
            return Path(mount.mount_point)
    pytest.skip(f"no {fstype} {option} is mounted here")


def _by_freezer_v2(pid: int) -> Callable[[], None]:
    return _by_cgroup(pid, _freezer("cgroup2", ""), "cgroup.freeze", "1", "0")


def _by_freezer_v1(pid: int) -> Callable[[], None]:
    return _by_cgroup(pid, _freezer("cgroup", "freezer"), "freezer.state", "FROZEN", "THAWED")


@pytest.mark.parametrize("suspend", [_by_signal, _by_freezer_v2, _by_freezer_v1])
async def test_a_worker_that_is_suspended_in_the_middle_of_a_probe_accuses_no_disk(
    real_disk: Make, suspend: Callable[[int], Callable[[], None]]
) -> None:
    disk, other = real_disk(), real_disk()
    impatient = replace(QUICK, held_timeout_ms=1200, blind_timeout_ms=2500)
    async with watching(disk, other, settings=impatient) as watch:
        agent = watch.monitor._agents[str(disk.log_dir)]
        disk.delay_us(20_000)  # so that a probe is met in its middle
        undo = None
        while undo is None:
            blocked = agent.blocked()
            if blocked is not None and blocked.call:
                undo = suspend(blocked.pid)
            await asyncio.sleep(0.001)
        disk.delay_us(0)
        try:
            verdict = await watch.until(disk, Health.SUSPECT)
            assert verdict.cause is Cause.UNWATCHED
            assert "its worker does not run" in verdict.evidence.text
        finally:
            undo()
        await watch.until(disk, Health.ONLINE)
        assert {v.state for v in watch.verdicts} <= {Health.SUSPECT, Health.ONLINE}


async def test_a_slow_disk_is_slow_and_never_failed(real_disk: Make) -> None:
    disk = real_disk()
    async with watching(disk) as watch:
        disk.delay_us(300_000)
        await watch.until(disk, Health.SLOW)
        await watch.probed(disk, 2)
        disk.delay_us(0)
        await watch.until(disk, Health.ONLINE)
        assert Health.FAILED not in {v.state for v in watch.verdicts}


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_a_full_disk_is_full_and_well_again_when_there_is_room(real_disk: Make, fstype: str) -> None:
    disk = real_disk(fstype=fstype)
    async with watching(disk) as watch:
        fill(disk)
        verdict = await watch.until(disk, Health.FULL)
        assert verdict.evidence.errno == "ENOSPC"
        (disk.mount_point / "filler").unlink()
        await watch.until(disk, Health.ONLINE)
        assert Health.FAILED not in {v.state for v in watch.verdicts}


@pytest.mark.parametrize("fstype", ["xfs", "btrfs"])
@pytest.mark.parametrize("mode", [FaultMode.EIO, FaultMode.HANG])
async def test_other_file_systems_die_and_hang_as_visibly(real_disk: Make, fstype: str, mode: FaultMode) -> None:
    disk = real_disk(fstype=fstype)
    async with watching(disk) as watch:
        disk.set(mode)
        verdict = await watch.until(disk, Health.FAILED)
        assert verdict.cause is (Cause.HUNG if mode is FaultMode.HANG else Cause.ERROR)
    disk.set(FaultMode.OK)


async def test_an_error_of_our_own_work_on_a_dead_disk_brings_the_verdict_without_waiting_for_a_probe(
    real_disk: Make,
) -> None:
    disk = real_disk()
    async with watching(disk, settings=PATIENT, probes=1) as watch:
        disk.set(FaultMode.EIO)
        watch.monitor.report_error(str(disk.log_dir), errno.EIO, "create of t-0")
        verdict = await watch.until(disk, Health.FAILED)
        assert verdict.evidence.errno == "EIO"


async def test_reads_that_fail_for_a_moment_are_a_suspicion_that_ends(real_disk: Make) -> None:
    disk, other = real_disk(), real_disk()
    async with watching(disk, other) as watch:
        watch.on_verdict = lambda verdict: disk.set(FaultMode.OK)  # before the probe that would confirm it
        disk.set(FaultMode.EIO_READS)
        assert (await watch.until(disk, Health.SUSPECT)).evidence.errno == "EIO"
        verdict = await watch.until(disk, Health.ONLINE)
        assert verdict.evidence.text.startswith(f"{disk.log_dir} is well again")
        await watch.probed(disk, 3)
        assert [v.state for v in watch.verdicts] == [Health.SUSPECT, Health.ONLINE]


async def test_both_directories_of_a_hung_disk_are_failed_by_one_silence(real_disk: Make) -> None:
    disk, healthy = real_disk(log_dir="kafka-1"), real_disk()
    second = disk.mount_point / "kafka-2"
    second.mkdir()
    async with watching(disk, healthy, also=[second]) as watch:
        disk.set(FaultMode.HANG)
        verdicts = [await watch.until(disk, Health.FAILED), await watch.until(second, Health.FAILED)]
        assert {verdict.cause for verdict in verdicts} == {Cause.HUNG}
        apart_ms = abs(verdicts[0].at_ns - verdicts[1].at_ns) / 1e6
        assert apart_ms < QUICK.probe_timeout_ms
        await watch.probed(healthy, 3)
        assert watch.accused() == {str(disk.log_dir), str(second)}
    disk.set(FaultMode.OK)


WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
while True:
    os.pwrite(fd, bytes(4096), 0)
    os.fsync(fd)
"""


async def test_a_busy_disk_that_hangs_is_judged_by_the_silence_since_the_writers_request(
    real_disk: Make, processes: Processes
) -> None:
    disk = real_disk()
    async with watching(disk, settings=PATIENT, probes=1) as watch:
        processes.start([sys.executable, "-c", WRITER, str(disk.mount_point / "segment")], name="writer")
        await asyncio.to_thread(wait_until, lambda: disk.counters().writes > 500, TIMEOUT_S, "500 writes")
        disk.set(FaultMode.HANG)
        verdict = await watch.until(disk, Health.FAILED)
        assert verdict.cause is Cause.HUNG
        age_ms, silent_ms = verdict.evidence.age_ms, verdict.evidence.silent_ms
        assert age_ms is not None and silent_ms is not None
        assert age_ms < silent_ms, "it is the writer's request that counts"
    disk.set(FaultMode.OK)


@contextlib.contextmanager
def btrfs_over(mount_point: Path, *disks: FuseDisk) -> Iterator[None]:
    """A btrfs that mirrors over all disks; the disks take it down at their end."""
    mount_point.mkdir()
    loops = [syscalls.attach_loop(disk.image) for disk in disks]
    try:
        names = [str(device) for device, _ in loops]
        command = ["mkfs.btrfs", "-q", "-f", "-K", "-d", "raid1", "-m", "raid1", *names]
        subprocess.run(command, check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, timeout=60)
        options = ",".join(f"device={name}" for name in names)
        syscalls.mount(names[0], mount_point, "btrfs", data=options)
    finally:
        for _, fd in loops:
            os.close(fd)
    try:
        yield
    finally:
        syscalls.umount(mount_point, syscalls.MNT_DETACH)


async def test_one_hung_device_of_a_btrfs_over_two_is_enough(
    tmp_path: Path, machine_can: Callable[[Callable[[], None]], None]
) -> None:
    machine_can(lambda: require_real_disks("btrfs"))
    log_dir = tmp_path / "kafka"
    with FuseDisk(160 << 20) as first, FuseDisk(160 << 20) as second, btrfs_over(log_dir, first, second):
        async with watching(also=[log_dir]) as watch:
            assert len(watch.monitor.status()[0].device.names) == 2
            second.set(FaultMode.HANG_WRITES)
            verdict = await watch.until(log_dir, Health.FAILED)
            assert verdict.cause is Cause.HUNG
        second.set(FaultMode.OK)


async def test_damage_that_ext4_reports_is_suspect_while_probes_pass_and_ends(real_disk: Make) -> None:
    disk = real_disk()
    syscalls.mount("none", disk.mount_point, "", MS_REMOUNT, data="errors=continue")
    async with watching(disk, kernel_sources=[Ext4Errors()]) as watch:
        disk.trigger_fs_error()
        verdict = await watch.until(disk, Health.SUSPECT)
        assert verdict.cause is Cause.DAMAGE
        assert "errors_count" in " ".join(verdict.evidence.kernel)
        assert "; kernel: " in verdict.evidence.text
        await watch.until(disk, Health.ONLINE)
        assert Health.FAILED not in {v.state for v in watch.verdicts}
